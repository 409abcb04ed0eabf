// SPDX-License-Identifier: Apache-2.0
// How payload moves, seen from the side that answers. A service decides, without I/O, what an
// exchange needs next; a transport does it, and asks again.
//
//   Visit::Begin --> Next() --> kReceive  receives payload into `into`; calls Received() for each
//                       ^  |              part, and Next() once all of it is there
//                       |  +--> kAgain    more to compute: Next() again, after other connections
//                       |  |              had their turn
//                       |  +--> kWait     waits for `wake` or `until_ns`, then Next() again
//                       +--+
//                          +--> kReply    sends the head and `out`; then the exchange is over
//                          +--> kEnd      the peer sent garbage: ends its connection
//
// A `Served` that is destroyed before it has replied has failed: the peer hung up, was too slow, or
// sent garbage. Its destructor gives back all loans and reservations. Its pieces are valid until
// then, so a transport destroys it only when nothing can land in them, or be read from them, any
// more.
//
// Threads. A transport makes the calls about one visit one after the other. `wake` may be called
// from any thread, also after the exchange is over; so Next() must expect to be called early.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/base/result.h"
#include "kvcove/rpc/gate.h"
#include "kvcove/transport/endpoint.h"

namespace kvcove::transport {

struct Step {
  enum class Kind : std::uint8_t { kReceive, kAgain, kWait, kReply, kEnd };
  Kind kind = Kind::kEnd;
  std::vector<Piece> into;    // kReceive
  std::int64_t until_ns = 0;  // kWait
  Code code = Code::kOk;      // kReply; not kOk: `head` is the error's detail
  std::string head;
  std::vector<ConstPiece> out;
};

inline Step ReplyStep(Code code, std::string head) {
  return {.kind = Step::Kind::kReply, .code = code, .head = std::move(head)};
}

// One exchange.
class Served {
 public:
  virtual ~Served() = default;
  // Returns the next step, without I/O and without waiting.
  virtual Step Next() = 0;
  // Takes note, during kReceive, that the first `bytes` of `into` are there. The transport calls it
  // after each read of its socket or device, so that one call computes at most a slice.
  virtual void Received(std::uint64_t bytes) = 0;
};

// An exchange that is refused: receives its payload, discards it, and answers with the error. The
// connection remains usable.
class Refused final : public Served {
 public:
  // `bytes`: size of the payload behind the request.
  Refused(std::uint64_t bytes, Error error) : bytes_(bytes), error_(std::move(error)) {}
  Step Next() override {
    if (const std::uint64_t bytes = std::exchange(bytes_, 0); bytes > 0) {
      return {.kind = Step::Kind::kReceive, .into = {{.data = nullptr, .size = bytes}}};
    }
    return ReplyStep(error_.code, error_.detail);
  }
  void Received(std::uint64_t /*bytes*/) override {}

 private:
  std::uint64_t bytes_;
  const Error error_;
};

// One connection of a peer.
class Visit {
 public:
  using Wake = std::function<void()>;
  // Asks whether payload of `bytes` may move now. Ok: the bytes count against the caller's limits
  // until the exchange is over. An error: the answer for the peer. Empty: everything is permitted.
  using Permit = std::function<Status(std::uint64_t bytes)>;

  virtual ~Visit() = default;
  // Begins an exchange. `head` is valid during the call. The caller waits until `deadline_ns`; 0:
  // unknown. Null: garbage, or a call that is not for this service; the connection ends.
  virtual std::unique_ptr<Served> Begin(const rpc::Caller& caller, wire::Method method,
                                        std::span<const std::byte> head, std::int64_t deadline_ns,
                                        Wake wake) = 0;
  // Returns the bytes of payload that follow such a request. Nothing: garbage.
  virtual std::optional<std::uint64_t> PayloadOf(wire::Method /*method*/,
                                                 std::span<const std::byte> /*head*/) const {
    return 0;
  }
  // Sets the check of payload's limits. Call it before the first Begin.
  virtual void SetPermit(Permit /*permit*/) {}  // NOLINT(performance-unnecessary-value-param): kept
};

// Thread-safe.
class Service {
 public:
  virtual ~Service() = default;
  // Returns the visit of a new connection.
  virtual std::unique_ptr<Visit> Open() = 0;
  // Returns the limit from which a call draws, where the server has limits.
  virtual rpc::Traffic TrafficOf(wire::Method /*method*/) const { return rpc::Traffic::kOther; }
};

}  // namespace kvcove::transport
