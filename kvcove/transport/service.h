// SPDX-License-Identifier: Apache-2.0
// How payload moves, seen from the side that answers. A service decides, without I/O, what an
// exchange needs next; a transport does it, and asks again.
//
//   Visit::Begin --> Next() --> kReceive  payload comes into `into`; Received() says how much is
//                       ^  |              there, and Next() when all is
//                       |  +--> kAgain    there is more to compute: Next() again, after others had
//                       |  |              their turn
//                       |  +--> kWait     for `wake` or until `until_ns`, then Next() again
//                       +--+
//                          +--> kReply    the head and `out` go to the peer; then it is over
//                          +--> kEnd      the peer sent garbage: its connection ends
//
// A `Served` that is destroyed before it has replied has failed: the peer is gone, was too slow, or
// sent garbage. It then gives back all that it holds. Until then its pieces stay valid, so a
// transport destroys it only when nothing can land in them, and nothing is read from them, any
// more.
//
// Threads. All calls about one visit come one after the other. `wake` may be called from any
// thread, also after the exchange is over.
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
  virtual Step Next() = 0;
  // During kReceive, in order: `bytes` are there, from the first one on. At most one slice of
  // computation: a transport calls it for each piece that it has taken, not once for gigabytes.
  virtual void Received(std::uint64_t bytes) = 0;
};

// An exchange that may not take place now: what was sent with it is thrown away as it comes.
class Refused final : public Served {
 public:
  // `bytes`: of the payload behind the request.
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
  // Whether payload of so many bytes may move now, and how it is refused; it counts from then on,
  // until the exchange is over. Empty: always.
  using Permit = std::function<Status(std::uint64_t bytes)>;

  virtual ~Visit() = default;
  // `head` is valid during the call. `deadline_ns`: the caller waits no longer; 0: it does not say.
  // Null: garbage, or a call that is not for this service; the connection ends.
  virtual std::unique_ptr<Served> Begin(const rpc::Caller& caller, wire::Method method,
                                        std::span<const std::byte> head, std::int64_t deadline_ns,
                                        Wake wake) = 0;
  // How much payload follows such a request. Nothing: garbage.
  virtual std::optional<std::uint64_t> PayloadOf(wire::Method /*method*/,
                                                 std::span<const std::byte> /*head*/) const {
    return 0;
  }
  // Before the first Begin.
  virtual void SetPermit(Permit /*permit*/) {}  // NOLINT(performance-unnecessary-value-param): kept
};

// Thread-safe.
class Service {
 public:
  virtual ~Service() = default;
  virtual std::unique_ptr<Visit> Open() = 0;
  // What a call draws from where the server has limits.
  virtual rpc::Traffic TrafficOf(wire::Method /*method*/) const { return rpc::Traffic::kOther; }
};

}  // namespace kvcove::transport
