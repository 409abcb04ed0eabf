// SPDX-License-Identifier: Apache-2.0
// The frame around every message: 24 bytes, little-endian, then the body.
//
//   0 u32 magic "kvcf"   4 u16 protocol version   6 u16 method, or kReplyBit | method
//   8 u32 body bytes    12 u16 code of a reply    14 u16 budget of a request
//   16 u64 call number
//
// The budget is what is left of the caller's time, in milliseconds: the server ends the call by
// then. 0: the caller does not say.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "kvcove/base/result.h"

namespace kvcove::wire {

inline constexpr std::uint32_t kFrameMagic = 0x6663766b;
inline constexpr std::uint16_t kProtocolVersion = 2;
inline constexpr std::size_t kFrameHeaderBytes = 24;
inline constexpr std::uint16_t kReplyBit = 0x8000;
inline constexpr std::uint32_t kMaxFrameBytes = 4U << 20;
// Before a connection has said hello or joined.
inline constexpr std::uint32_t kMaxFirstFrameBytes = 64U << 10;

// A body, as those who decode it take it.
inline std::span<const std::byte> AsBytes(std::string_view body) {
  return {reinterpret_cast<const std::byte*>(body.data()), body.size()};
}

enum class Method : std::uint16_t {
  kHello = 1,
  kJoin = 2,
  kGoodbye = 3,  // no thread of this session touches the segment any more
  kRegister = 4,
  kReset = 5,
  kNameVersions = 6,
  kEndEngine = 7,
  kPut = 8,
  kFinish = 9,
  kRemove = 10,
  kRemoveMatching = 11,
  kPin = 12,
  kStatObjects = 13,
  kStat = 14,
  kProve = 15,  // behind kHello, with a credential
  // From the owner's disk into its memory; answered when that is done. To a data server, too, which
  // answers at once.
  kLoad = 18,
  kPrune = 19,      // older weight versions are dead
  kNoteSaves = 20,  // saves that are about to begin, or are not after all
  kAttend = 16,     // in place of a hello: this owner is used for as long as the connection is open
  kTakeOver = 17,   // in place of a hello, from a successor's process (server/upgrade.h)
  // To the master, from owners.
  kOwnerHello = 32,
  kRenew = 33,
  kWatch = 34,  // answered when generations change
  kList = 35,
  kOwnerGoodbye = 36,  // the owner's lease has expired
  kRemovals = 37,      // answered when there are removals
  // To the master that leads, from those that serve shards of its directory; the last one between
  // any two of them.
  kShardSync = 38,  // answered when there is something to learn
  kShardBar = 39,
  kShardPull = 40,
  // To the master, from requesters and owners.
  kLookup = 41,
  kOwners = 42,
  kRemoveEverywhere = 43,
  // From the master that leads, to those that serve shards.
  kShardFind = 44,
  kLocate = 45,  // to the master, from requesters
  // To an owner's data server.
  kDataGet = 51,    // values follow the reply's body
  kDataPut = 52,    // values follow the request's body
  kInventory = 53,  // pages of what an owner holds; to a host's socket, too
  // From the master.
  kCopy = 54,
  // To an owner's data server, from a requester with an RDMA device (wire/lanes.h).
  kLane = 55,
  kLanePieces = 56,
  // To an owner's data server: a measurement of the way to it (wire/probe.h). Payload may follow
  // request and reply.
  kProbe = 57,
  // To an engine (connector/scheduler/engine_server.h).
  kEngineLookup = 61,
  kEngineReset = 62,
  kEngineWeights = 63,
  kEngineCounters = 64,
};
inline constexpr std::uint16_t kMaxMethod = 64;

struct FrameHeader {
  std::uint16_t version = kProtocolVersion;
  std::uint16_t method = 0;
  std::uint32_t body_bytes = 0;
  Code code = Code::kOk;
  std::uint16_t budget_ms = 0;
  std::uint64_t call = 0;
};

// The longest budget that a frame tells; a longer one is told as this.
inline constexpr std::int64_t kMaxFrameBudgetNs = 65'535'000'000;
// `left_ns`: until the caller's deadline. At least 1 ms: a caller with no time left does not ask.
std::uint16_t BudgetMs(std::int64_t left_ns);
// When the server must have answered a request that came at `now_ns`; 0 where the frame has no
// budget.
std::int64_t DeadlineOf(const FrameHeader& request, std::int64_t now_ns);

std::array<std::byte, kFrameHeaderBytes> EncodeFrameHeader(const FrameHeader& header);
// Errors: kCorrupt for what is no frame or longer than `max_bytes`, kIncompatible with both version
// numbers.
Result<FrameHeader> DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                      std::uint32_t max_bytes);

}  // namespace kvcove::wire
