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
//   Transfer::Abort      stops the transfer, and says when nothing can land any more (below).
//
// States of a transfer
//   kRequest  sends the request's head and pieces; reads the caller's `out` memory
//   kHead     receives the reply's head; touches no memory of the caller
//   kPayload  receives the payload; writes the memory that `on_reply` has named
//   ended     done(): Exchange::status says how; no memory of the caller is touched any more
//   aborted   Abort() was called before it ended
//
// When nothing can land any more (P5 of DESIGN.md). Memory belongs to a transfer from Start on. It
// is the caller's again from the moment that `done()` is true, or that Abort() returns true, or
// that `on_quiet` is called after Abort() has returned false. A transport that moves bytes with the
// processor (TCP) stops at once and returns true. A transport whose device writes by itself returns
// false, keeps all memory that the device may touch, and calls `on_quiet` when the device has
// reported that it is finished, or that its queue pair is destroyed. The exchange, its transfer and
// its endpoint may have ended by then, so the transport takes `on_quiet` out of the exchange within
// Abort().
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

// Memory that is written. `data` null: the bytes are received and discarded.
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

// One exchange, and how it ended. The exchange outlives its transfer, and the memory to which it
// points stays valid until nothing can land any more.
struct Exchange {
  // Reads the reply's head and returns the memory for the payload behind it. An error ends the
  // exchange.
  using OnReply = std::function<Result<std::vector<Piece>>(std::span<const std::byte> head)>;

  Endpoint* to = nullptr;
  wire::Method method = wire::Method::kDataGet;
  std::string head;
  std::vector<ConstPiece> out;
  OnReply on_reply;
  // Called as payload arrives: the first `bytes` of it are there, without a gap.
  std::function<void(std::uint64_t bytes)> on_bytes;
  // Called once, by any thread, after a status of kBufferBusy: nothing can land any more.
  std::function<void()> on_quiet;
  // Whether a device has moved the payload; false until the exchange has ended well.
  bool by_device = false;
  // kTimeout: late, and nothing lands any more. kBufferBusy: late, and bytes may land until
  // `on_quiet` is called. Else the peer's error, or kUnavailable or kCorrupt with the reason.
  Status status = Fail(Code::kTimeout, "the owner did not answer in time");
};

// One exchange under way. Its destruction after done() or Abort() is free. An earlier destruction
// aborts it, and is allowed only for a transport whose Abort() always returns true.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // Moves what can move without waiting. Returns true if bytes moved or the exchange ended.
  virtual bool Advance() = 0;
  // Returns true once Exchange::status says how the exchange ended.
  virtual bool done() const = 0;
  // Ends the exchange without an answer: sets no status, and calls neither `on_reply` nor
  // `on_bytes` any more. True: nothing lands from now on. False: Exchange::on_quiet is called
  // later, without a lock; the exchange may have ended by then.
  [[nodiscard]] virtual bool Abort() = 0;
};

// Keeps memory known to a transport until it is destroyed. The memory must stay mapped until then,
// and no exchange may use it at that moment.
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
  // Returns the name for logs and tests.
  virtual std::string_view name() const = 0;
  // Returns the peer at this address. Waits for nothing: the first exchange or probe connects.
  virtual std::shared_ptr<Peer> Connect(const rpc::Address& address, const PeerOptions& options,
                                        const Clock& clock) = 0;
  // Returns a server that listens already. `gate` checks the credentials of its connections; the
  // gate and the service outlive the server. Errors: kUnavailable, kInvalid.
  virtual Result<std::unique_ptr<Server>> Serve(const ServerOptions& options, rpc::Gate& gate,
                                                Service& service, const Clock& clock) = 0;
  // Registers memory, so that exchanges whose pieces are in it need no registration of their own.
  // Pieces may also be in any other memory. Null: the transport needs no registration. Errors:
  // kInvalid for memory that the device cannot reach, kLimit when the device can hold no more.
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
  // Begins an exchange. `doubt_until_ns` bounds the wait for a peer that has not answered lately,
  // so that several such peers in one batch cost no more than one. Errors: kUnavailable, kTimeout,
  // kDenied; kLimit while the peer is busy.
  virtual Result<std::unique_ptr<Transfer>> Start(Exchange& exchange, std::int64_t deadline_ns,
                                                  std::int64_t doubt_until_ns) = 0;
};

// Runs all exchanges at once in this thread, over any mix of transports, without a lock. Each ends
// by the deadline: with kTimeout, or with kBufferBusy if its bytes may still land.
void Run(std::span<Exchange> exchanges, std::int64_t deadline_ns, const Clock& clock);

}  // namespace kvcove::transport
