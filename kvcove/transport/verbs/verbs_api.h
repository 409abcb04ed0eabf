// SPDX-License-Identifier: Apache-2.0
// What kvcove uses of an RDMA device: reliable connected queue pairs, their completions, and
// registered memory. library.h is the implementation on libibverbs, fake_verbs.h the one of tests.
//
// Names are those of InfiniBand's specification. A context holds one protection domain; all
// objects of a context are in it.
//
// Ends. Each object has a call that ends it and says whether the device has confirmed that: only a
// success proves that the device has let go. After a failure the object lives, and the call may be
// repeated; after a success it does nothing. Destructors make the call and ignore its result. An
// object outlives those that were made from it: queue pair, then completion queue, then context.
//
// Threads. Verbs, contexts and memory regions are thread-safe. A queue pair and its completion
// queue belong to one thread at a time.
// Errors. kLimit: the device or the host has no room for more, with advice. kUnavailable: the
// device, or its library, is missing or has failed. kInvalid: the caller's mistake.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/result.h"

namespace kvcove::transport::verbs {

using Gid = std::array<std::uint8_t, 16>;

// The port of this host that a queue pair uses, and how its packets travel.
struct Route {
  std::uint8_t port = 1;
  std::uint8_t gid_index = 0;
  std::uint8_t service_level = 0;  // InfiniBand: the virtual lane; Ethernet: the priority
  std::uint8_t traffic_class = 0;
  std::uint8_t timeout = 14;  // 4.096 us * 2^14 = 67 ms without an acknowledgement: once more
  std::uint8_t retries = 6;   // 7 means for ever to some devices
};

struct PortState {
  bool active = false;
  bool ethernet = false;  // RoCE: packets always need GIDs
  std::uint16_t lid = 0;
  std::uint8_t mtu = 0;    // InfiniBand's number of it: 1 is 256 bytes, 5 is 4096
  std::uint32_t gids = 0;  // entries of its table, used or not
};

// An entry of a port's table of GIDs. All zero: the entry is not used.
struct GidEntry {
  Gid gid{};
  bool v2 = false;  // RoCE v2, which routers pass on; false on InfiniBand
};

// A report that a device makes by itself.
enum class DeviceEvent : std::uint8_t {
  kPort,   // the state, the LID or the GIDs of a port have changed
  kGone,   // the device was removed or has failed: no call to its context succeeds any more
  kOther,  // about one of its objects, whose completions say the same
};

// A queue pair as its peer must know it.
struct PairAddress {
  Gid gid{};
  std::uint16_t lid = 0;
  std::uint32_t number = 0;        // 24 bits
  std::uint32_t first_packet = 0;  // 24 bits, random: late packets of an earlier pair do not fit
  std::uint8_t mtu = 0;            // as PortState::mtu
  std::uint8_t reads = 1;          // reads of the peer that this side answers at once
};

struct Limits {
  std::uint32_t work_requests = 0;  // of one queue
  std::uint8_t reads_answered = 0;  // at once, of one queue pair
  std::uint8_t reads_begun = 0;
};

// Memory of this process that a device reads or writes; within one registration.
struct LocalSegment {
  std::byte* data = nullptr;
  std::uint32_t bytes = 0;
  std::uint32_t key = 0;  // MemoryRegion::local_key
};

enum class Operation : std::uint8_t {
  kSend,                // into a buffer that the peer has posted
  kWrite,               // into the peer's memory, unnoticed by the peer
  kWriteWithImmediate,  // the same, and takes a posted receive of the peer, with `immediate`
  kRead,                // out of the peer's memory
};

// A work request. Each has a completion, successful or not: a queue pair is drained when the last
// one is there.
struct Work {
  std::uint64_t id = 0;
  Operation operation = Operation::kSend;
  LocalSegment local;
  std::uint64_t remote = 0;  // kWrite*, kRead: the peer's address and the key to it
  std::uint32_t remote_key = 0;
  std::uint32_t immediate = 0;
};

enum class CompletionStatus : std::uint8_t {
  kOk,
  kFlushed,      // the queue pair is in ERR: not done, or not known to be done
  kRefused,      // the peer's device: its key or its range does not permit it
  kUnreachable,  // no acknowledgement after all retries, or the peer has no receive posted
  kFailed,       // any other error
};
std::string_view StatusName(CompletionStatus status);

struct Completion {
  std::uint64_t id = 0;
  CompletionStatus status = CompletionStatus::kOk;
  // Of a receive that was successful.
  std::uint32_t bytes = 0;
  std::optional<std::uint32_t> immediate = {};
};

// What a registration permits. A device always reads registered memory of its own process.
enum class Access : std::uint8_t {
  kLocal,   // this process's queue pairs read and write it: an owner's memory
  kRemote,  // peers that know the key read and write it, too: a requester's buffers
};

class MemoryRegion {
 public:
  virtual ~MemoryRegion() = default;
  virtual std::uint32_t local_key() const = 0;
  virtual std::uint32_t remote_key() const = 0;
  // Ends the registration. No work request that uses the keys may be under way.
  virtual Status Deregister() = 0;
};

class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;
  // Returns how many completions it has put into `into`.
  virtual Result<std::size_t> Poll(std::span<Completion> into) = 0;
  // Makes the descriptor readable with the next completion. One that is there already may not do
  // that: poll once more after Arm, and sleep only if that found nothing.
  virtual Status Arm() = 0;
  virtual int descriptor() const = 0;
  // Makes the descriptor unreadable again. Never waits.
  virtual void TakeEvents() = 0;
  virtual Status Destroy() = 0;
};

struct Posted {
  std::size_t count = 0;  // so many, from the first on, are with the device
  Status status;          // kLimit: its queue is full; else an error of the next one
};

class QueuePair {
 public:
  virtual ~QueuePair() = default;
  virtual std::uint32_t number() const = 0;
  // Each moves the pair to the next state: from INIT on it takes receives, from RTR on packets,
  // from RTS on work requests. `peer_may`: kLocal permits the peer no access by any key.
  virtual Status ToInit(const Route& route, Access peer_may) = 0;
  virtual Status ToReceive(const Route& route, const PairAddress& own, const PairAddress& peer) = 0;
  // `peer.reads`: the reads that this pair begins at once.
  virtual Status ToSend(const Route& route, const PairAddress& own, const PairAddress& peer) = 0;
  // Stops the pair, in any state: what is posted is flushed, packets of the peer are discarded.
  // The device may still finish what it has begun, until Destroy has succeeded.
  virtual Status ToError() = 0;
  virtual Posted Post(std::span<const Work> works) = 0;
  virtual Status PostReceive(std::uint64_t id, const LocalSegment& into) = 0;
  virtual Status Destroy() = 0;
};

struct PairSizes {
  std::uint32_t sends = 128;    // work requests under way
  std::uint32_t receives = 16;  // posted at once
};

// An open device.
class Context {
 public:
  virtual ~Context() = default;
  virtual const std::string& device() const = 0;
  virtual Result<Limits> QueryLimits() = 0;
  virtual Result<PortState> QueryPort(std::uint8_t port) = 0;
  virtual Result<GidEntry> QueryGid(std::uint8_t port, std::uint8_t index) = 0;
  // Returns the next report of the device; nothing if there is none. Never waits. The descriptor is
  // readable while there is one.
  virtual std::optional<DeviceEvent> TakeEvent() = 0;
  virtual int descriptor() const = 0;
  // Pins the memory. Errors: kLimit for memory that this process may not lock.
  virtual Result<std::unique_ptr<MemoryRegion>> Register(std::span<std::byte> memory,
                                                         Access access) = 0;
  virtual Result<std::unique_ptr<CompletionQueue>> CreateQueue(std::uint32_t completions) = 0;
  // `queue` gets the completions of both directions.
  virtual Result<std::unique_ptr<QueuePair>> CreatePair(CompletionQueue& queue,
                                                        const PairSizes& sizes) = 0;
};

class Verbs {
 public:
  virtual ~Verbs() = default;
  // Returns the names of this host's devices ("mlx5_0") that make lanes: InfiniBand and RoCE.
  virtual Result<std::vector<std::string>> Devices() = 0;
  virtual Result<std::shared_ptr<Context>> Open(const std::string& device) = 0;
};

}  // namespace kvcove::transport::verbs
