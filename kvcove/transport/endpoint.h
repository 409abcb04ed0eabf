// SPDX-License-Identifier: Apache-2.0
// How payload moves, seen from the side that asks. One exchange with a peer is a request (a head,
// and pieces of memory behind it) and its reply (a head, and the payload behind it, into pieces
// that the reply's head decides). The head is a message of wire/; a transport never looks into it.
//
// What a transport implements
//   Transport::Connect   returns a peer (transport/peer.h), which is the endpoint of one server.
//   Transport::Serve     opens a server (transport/peer.h), which drives the steps of `Served`
//                        exchanges (transport/service.h).
//   Transport::Register  makes memory known to the device, where a device moves it.
//   Transport::Wait      sleeps until one of the given transfers may move.
//   Endpoint::Start      begins an exchange with one peer: finds a connection or makes one.
//   Transfer::Advance    moves what can move now, and never waits.
//   Transfer::Abort      stops it, and says when nothing can land any more (below).
//
// States of a transfer
//   kRequest  the request's head and pieces go out; the caller's `out` memory is read
//   kHead     the reply's head comes; no memory of the caller is touched
//   kPayload  the payload comes; the caller's `into` memory is written
//   ended     done(): Exchange::status says how; no memory of the caller is touched any more
//   aborted   Abort() was called before it ended
//
// When nothing can land any more (P5 of DESIGN.md). Memory belongs to a transfer from Start on. It
// is the caller's again from the moment that `done()` is true, or that Abort() returns true, or
// that `on_quiet` is called after Abort() has returned false. A transport that moves bytes with the
// processor (TCP) stops at once and returns true. One whose device writes by itself
// returns false, keeps all that the device may touch, and calls `on_quiet` when the device has said
// that it is finished, or that its queue pair is gone. The exchange, its transfer and its endpoint
// may be gone by then, so the transport takes `on_quiet` out of the exchange within Abort().
//
// Threads. An endpoint and a transport are thread-safe. A transfer belongs to one thread at a time.
// Failure. A peer that answers with an error, closes, or answers garbage ends its own exchange
// with that error and touches no other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/result.h"
#include "kvcove/wire/frame.h"

namespace kvcove::rpc {
class Gate;
struct Address;
}  // namespace kvcove::rpc

namespace kvcove::transport {

// Memory that is written. `data` null: bytes that nobody wants; they are taken and thrown away.
struct Piece {
  std::byte* data = nullptr;
  std::uint64_t size = 0;
};
// Memory that is read.
struct ConstPiece {
  const std::byte* data = nullptr;
  std::uint64_t size = 0;
};

class Endpoint;

// One exchange, and how it ended. All of it outlives the transfer, and what it points to stays
// valid until nothing can land any more.
struct Exchange {
  // Takes the reply's head; answers where the payload behind it goes. An error ends the exchange.
  using OnReply = std::function<Result<std::vector<Piece>>(std::span<const std::byte> head)>;

  Endpoint* to = nullptr;
  wire::Method method = wire::Method::kDataGet;
  std::string head;
  std::vector<ConstPiece> out;
  OnReply on_reply;
  // As payload arrives: how many bytes are there, from the first one on, without a gap.
  std::function<void(std::uint64_t bytes)> on_bytes;
  // Only after a status of kBufferBusy, once, from any thread: nothing can land any more.
  std::function<void()> on_quiet;
  // kTimeout: it was late, and nothing lands any more. kBufferBusy: late, and see `on_quiet`. Else
  // the peer's error, or kUnavailable or kCorrupt with what was wrong with it.
  Status status = Fail(Code::kTimeout, "the owner did not answer in time");
};

// One exchange on its way. Destroying it after done() or Abort() is free; before, it aborts, and
// the transport must be one that stops at once.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // Moves what can move without waiting. True if anything did, or it ended.
  virtual bool Advance() = 0;
  virtual bool done() const = 0;
  // Ends it without an answer: sets no status, and calls neither `on_reply` nor `on_bytes` any
  // more. True: nothing lands from now on. False: Exchange::on_quiet is called later, without a
  // lock; the exchange may be gone by then.
  [[nodiscard]] virtual bool Abort() = 0;
};

// Memory that a transport knows; unknown again with its end. The memory must stay mapped, and no
// exchange may use it, until then.
class Registered {
 public:
  virtual ~Registered() = default;
};

class Peer;
struct PeerOptions;
class Server;
struct ServerOptions;
class Service;

// One way to move bytes; one object for all of its peers and servers, which outlives them.
class Transport {
 public:
  virtual ~Transport() = default;
  // For logs and tests.
  virtual std::string_view name() const = 0;
  // Returns the peer at this address. Waits for nothing: the first exchange or probe connects.
  virtual std::shared_ptr<Peer> Connect(const rpc::Address& address, const PeerOptions& options,
                                        const Clock& clock) = 0;
  // Returns a server that listens already. `gate` says who is let in; it and the service outlive
  // the server. Errors: kUnavailable, kInvalid.
  virtual Result<std::unique_ptr<Server>> Serve(const ServerOptions& options, rpc::Gate& gate,
                                                Service& service, const Clock& clock) = 0;
  // Pieces of exchanges may lie anywhere; those in registered memory cost no registration of their
  // own. Null where the transport needs none. Errors: kInvalid for memory that the device cannot
  // reach, kLimit when it can hold no more.
  virtual Result<std::unique_ptr<Registered>> Register(std::span<std::byte> memory) = 0;
  // Returns when one of `transfers` (all of this transport, none of them done) may move, or after
  // `most_ns`.
  virtual void Wait(std::span<Transfer* const> transfers, std::int64_t most_ns) = 0;
};

// The way to one peer.
class Endpoint {
 public:
  virtual ~Endpoint() = default;
  virtual Transport& transport() = 0;
  // `doubt_until_ns` bounds the wait for a peer that has not answered lately, so that several of
  // them in one batch cost no more than one. Errors: kUnavailable, kTimeout, kDenied.
  virtual Result<std::unique_ptr<Transfer>> Start(Exchange& exchange, std::int64_t deadline_ns,
                                                  std::int64_t doubt_until_ns) = 0;
};

// Runs all at once in this thread, over any mix of transports. Each ends by the deadline, and what
// was late says whether it may still land.
void Run(std::span<Exchange> exchanges, std::int64_t deadline_ns, const Clock& clock);

}  // namespace kvcove::transport
