// SPDX-License-Identifier: Apache-2.0
// The first format of the file that keeps generations. A master that finds it reads it once.
// docs/generations.md describes it, byte by byte.
#pragma once

#include <string>
#include <vector>

#include "kvcove/model/ids.h"

namespace kvcove::master {

// A record of that file.
struct OldRecord {
  enum class Kind : std::uint8_t {
    kSlot = 1,         // slot was given to (namespace, version) with this generation
    kRaise = 2,        // slot has this generation now, by request `reset_id`
    kEngineReset = 3,  // an engine has reset the namespace
    kDropSlot = 4,     // slot is free again
    kStart = 5,        // a master started
    kMissed = 6,       // a removal from slot was proven although an owner had not applied it
  };
  Kind kind = Kind::kSlot;
  SlotId slot = 0;
  Generation generation = 0;
  Id128 reset_id;
  std::string name;
  std::string version;
  bool operator==(const OldRecord&) const = default;
};

// The contents of that file.
struct Restored {
  Id128 incarnation;
  std::vector<OldRecord> records;
  // The longest lease that an earlier process may still have out; 0 after a clean end or on a first
  // start.
  std::int64_t running_lease_ns = 0;
};

// The Encode functions return the file's bytes, for tests and the fuzzer. Errors of ParseLog:
// kIncompatible, kCorrupt.
std::string EncodeHeader(Id128 incarnation, std::int64_t lease_ns);
std::string EncodeRecord(const OldRecord& record);
std::string EncodeCleanEnd();
Result<Restored> ParseLog(std::string_view bytes);

}  // namespace kvcove::master
