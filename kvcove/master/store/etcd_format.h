// SPDX-License-Identifier: Apache-2.0
// What a pool's keys in etcd hold. docs/ha.md has the table. Plain values, no I/O.
//
//   PREFIX/head           what the last transaction was
//   PREFIX/leader         who leads, under a lease
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
  Id128 commit;             // drawn by who wrote it
  std::uint32_t parts = 0;  // changes that lie in parts and not in facts yet
  std::uint64_t facts = 0;  // in all, so that one that is missing is seen
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
// Errors: kCorrupt, kIncompatible for another format.
Result<EtcdHead> DecodeHead(std::string_view text);
std::string Encode(const EtcdLeader& leader);
Result<EtcdLeader> DecodeLeader(std::string_view text);
// `key` is under the checksum, too: a value at another key is damage. Errors: kCorrupt.
std::string EncodeFact(std::string_view key, const Fact& fact);
Result<Fact> DecodeFact(std::string_view key, std::string_view bytes);

std::vector<std::string> EncodeParts(std::span<const FactChange> changes, std::uint64_t revision);
Result<std::vector<FactChange>> DecodePart(std::string_view bytes, std::uint64_t revision,
                                           std::uint32_t index);
std::string PartKey(std::uint64_t revision, std::uint32_t index);

// The keys below the prefix and their values, as etcd has them at one moment.
using EtcdKeys = std::map<std::string, std::string, std::less<>>;
struct EtcdImage {
  bool found = false;  // a pool is there
  EtcdHead head;
  Facts facts;
  std::vector<FactChange> unapplied;  // of head.parts; `facts` has them already
  bool stray_parts = false;           // of a transaction that was never made
};
// Errors: kCorrupt with the key, kIncompatible for keys that are not this program's. `prefix` is
// for messages.
Result<EtcdImage> ReadImage(const EtcdKeys& keys, const std::string& prefix);

}  // namespace kvcove::master
