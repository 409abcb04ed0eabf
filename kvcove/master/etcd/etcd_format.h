// SPDX-License-Identifier: Apache-2.0
// The contents of a pool's keys in etcd. docs/control-store.md has the table. Plain values, no I/O.
//
//   PREFIX/head           the last transaction
//   PREFIX/leader         the leader, under a lease
//   PREFIX/fact/KEY       a fact
//   PREFIX/part/REV/N     changes of a transaction that is too large for one of etcd's
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/random.h"
#include "kvcove/master/store/control_store.h"

namespace kvcove::master {

// The store's latest transaction. Each one replaces it, so it orders them.
struct EtcdHead {
  std::uint64_t revision = 0;
  Id128 commit;             // drawn by the leader for this transaction
  std::uint32_t parts = 0;  // number of parts whose changes are not facts yet
  std::uint64_t facts = 0;  // number of all facts, so that a reader notices a missing one
  bool operator==(const EtcdHead&) const = default;
};

struct EtcdLeader {
  Id128 candidate;      // one attempt of one process
  std::string address;  // of the master
  std::string admin;    // of its admin endpoint; empty: off
  bool operator==(const EtcdLeader&) const = default;
};

inline constexpr std::uint32_t kEtcdFormat = 1;
inline constexpr std::size_t kPartBytes = 512U << 10;

std::string Encode(const EtcdHead& head);
// Decodes a head. Errors: kCorrupt, kIncompatible for another format.
Result<EtcdHead> DecodeHead(std::string_view text);
std::string Encode(const EtcdLeader& leader);
Result<EtcdLeader> DecodeLeader(std::string_view text);
// Encode and decode a fact. The checksum includes `key`, so a value at another key is damage.
// Errors: kCorrupt.
std::string EncodeFact(std::string_view key, const Fact& fact);
Result<Fact> DecodeFact(std::string_view key, std::string_view bytes);

std::vector<std::string> EncodeParts(std::span<const FactChange> changes, std::uint64_t revision);
Result<std::vector<FactChange>> DecodePart(std::string_view bytes, std::uint64_t revision,
                                           std::uint32_t index);
std::string PartKey(std::uint64_t revision, std::uint32_t index);

// The keys below the prefix and their values, as etcd has them at one moment.
using EtcdKeys = std::map<std::string, std::string, std::less<>>;
struct EtcdImage {
  bool found = false;  // the prefix has a pool
  EtcdHead head;
  Facts facts;
  std::vector<FactChange> unapplied;  // the changes of head.parts; `facts` includes them
  bool stray_parts = false;           // there are parts of a transaction that was never made
};
// Decodes all keys of a prefix. `prefix`: for messages. Errors: kCorrupt with the key,
// kIncompatible for keys that are not this program's.
Result<EtcdImage> ReadImage(const EtcdKeys& keys, const std::string& prefix);

}  // namespace kvcove::master
