// SPDX-License-Identifier: Apache-2.0
// Both ends of the lanes of one connection as an exchange uses them: the owner moves payload, the
// requester waits. The messages between them travel over the connection (wire/lanes.h). Most
// connections have one lane; with several ports each further lane joins the first one's end.
//
//   put   the owner reads out of the requester's pieces. Its reply says that it has.
//   get   the owner writes into the requester's pieces, and behind that an immediate, the number of
//         the exchange. The completion of the immediate at the requester says that all bytes are
//         visible there; no message that takes another way can say that. Each lane has its own
//         immediate, behind the bytes that it has moved.
//
// Each end belongs to one thread at a time. From Connect or Accept on it must not be destroyed:
// give it to End(), which calls `on_quiet` when nothing can land in, or be read from, any memory by
// it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvcove/base/posix.h"
#include "kvcove/transport/endpoint.h"
#include "kvcove/transport/verbs/fabric.h"
#include "kvcove/wire/lanes.h"

namespace kvcove::transport::verbs {

// Of one connection.
inline constexpr std::size_t kMostLanes = Fabric::kMostPorts;

// Payload below this many bytes is sent sooner than its pieces are agreed on.
inline constexpr std::uint64_t kLeastBytes = 64 << 10;

class RequesterEnd {
 public:
  // Errors: Fabric::OpenLane's.
  static Result<std::unique_ptr<RequesterEnd>> Open(Fabric& fabric, std::size_t port = 0);
  RequesterEnd(const RequesterEnd&) = delete;
  RequesterEnd& operator=(const RequesterEnd&) = delete;

  // Returns this end, for the owner; its first lane, if there are several.
  wire::LaneEnd hello() const;
  // Connects, and sends a message of no bytes: its acknowledgement proves that packets pass both
  // ways. Waits for the network, until `until_ns` for the acknowledgement. Errors: kInvalid for an
  // address that is none, kTimeout, the device's.
  Status Connect(const wire::LaneEnd& owner, std::int64_t until_ns, const Clock& clock);
  // Returns, after Connect, the time of that message and its acknowledgement.
  std::int64_t round_trip_ns() const { return round_trip_ns_; }
  // Takes over the lane of another end that is connected, before the first exchange. Errors:
  // kLimit; that lane ends then.
  Status Join(std::unique_ptr<RequesterEnd> other);
  std::size_t lanes() const { return lanes_.size(); }
  // Returns the port of the last lane.
  std::size_t port() const { return lanes_.back().port; }

  // Returns the keys to the pieces, for as many lanes as one message can name them. Nothing: some
  // of them is not registered, or there are too many.
  template <typename AnyPiece>
  std::optional<std::vector<wire::LanePiece>> KeysTo(std::span<const AnyPiece> pieces);
  // Returns the number of an exchange as the message with these keys has it.
  std::uint64_t Numbered(std::uint64_t exchange) const {
    return exchange | static_cast<std::uint64_t>(used_ - 1) << wire::LanePieces::kLanesShift;
  }
  // Expects the immediate of this exchange on each lane. Errors: the lane's.
  Status Expect(std::uint64_t exchange);
  // Takes completions without waiting. True: the immediates of all lanes that the last KeysTo() has
  // named have arrived. Errors: the lane's;
  // kCorrupt for another message of the owner.
  Result<bool> Advance();

  // Arms the lane, and takes what has completed meanwhile. False: nothing has, so the descriptor
  // becomes readable with the next completion. Errors: the lane's.
  Result<bool> ArmAndLook();
  int descriptor() const;
  void TakeEvents();

  // `on_quiet` is called once all lanes are gone: a key is valid on each of them.
  static void End(std::unique_ptr<RequesterEnd> end, std::function<void()> on_quiet);

 private:
  struct One {
    std::unique_ptr<Lane> lane;
    std::size_t port = 0;
    std::optional<std::uint32_t> expected = {};  // immediate
    bool arrived = false;
  };
  RequesterEnd(Fabric& fabric, std::unique_ptr<Lane> lane, std::size_t port) : fabric_(fabric) {
    lanes_.push_back({.lane = std::move(lane), .port = port});
  }
  Status Take();
  Status TakeFrom(One& one);
  bool arrived() const;
  bool idle() const;

  Fabric& fabric_;
  std::vector<One> lanes_;
  std::size_t used_ = 1;  // the first so many, for the exchange under way
  UniqueFd all_;          // of several lanes: readable while a descriptor of theirs is
  std::int64_t round_trip_ns_ = 0;
  std::vector<Received> received_;
};

class OwnerEnd {
 public:
  // Connects a lane to the requester's end, by this port or, where that makes none, by the next
  // one. Waits for the network. Errors: as RequesterEnd::Connect.
  static Result<std::unique_ptr<OwnerEnd>> Accept(Fabric& fabric, const wire::LaneEnd& requester,
                                                  std::size_t port = 0);
  OwnerEnd(const OwnerEnd&) = delete;
  OwnerEnd& operator=(const OwnerEnd&) = delete;

  wire::LaneEnd hello() const;
  // As RequesterEnd's.
  Status Join(std::unique_ptr<OwnerEnd> other);
  std::size_t lanes() const { return lanes_.size(); }

  // Sets the requester's pieces for one exchange. Its payload moves in one or more steps. Pieces
  // for more lanes than these count as none.
  void Begin(wire::LanePieces pieces);
  // Returns whether the lane is the better way for these pieces: they are registered, and not
  // small.
  bool Takes(std::span<const ConstPiece> out) const;
  // Begins to read the next bytes of the requester's pieces into `into`; null pieces are passed
  // over. False: this memory is not registered. Errors: kCorrupt where `into` has more bytes than
  // the requester's pieces; the lane's.
  Result<bool> Read(std::span<const Piece> into);
  // Begins to write, with the immediate behind the last byte. Errors and false: as Read; kCorrupt
  // unless both have the same number of bytes.
  Result<bool> Write(std::span<const ConstPiece> out);
  // Moves what it can without waiting, for a bounded time. True: some work has completed, and more
  // may have. Errors: the lane's.
  Result<bool> Advance();
  // Returns the bytes of this step that have moved, without a gap, the passed-over ones included.
  std::uint64_t moved() const;
  // Returns whether the step has ended, if Advance() has returned no error: the device touches its
  // memory no more.
  bool idle() const;
  // Returns whether the device touches no memory of any step, also behind an error: else only
  // End() says when.
  bool settled() const;

  // As RequesterEnd's.
  Result<bool> ArmAndLook();
  int descriptor() const;
  void TakeEvents();

  static void End(std::unique_ptr<OwnerEnd> end, std::function<void()> on_quiet);

 private:
  struct One {
    std::unique_ptr<Lane> lane;
    std::size_t port = 0;
    std::uint64_t step_begin = 0;  // Lane::moved_bytes() at the beginning of the step
    std::uint64_t dealt = 0;       // bytes of the step that are this lane's
    std::vector<Move> moves = {};  // of the step, until they are posted
  };
  // Bytes of a step, in order: passed over, or the last ones of what a lane has then.
  struct Mark {
    std::uint64_t bytes = 0;
    std::optional<std::size_t> lane = {};
    std::uint64_t lane_end = 0;
  };
  using PartsOfPieces = std::vector<std::vector<Keyed>>;  // by piece

  OwnerEnd(Fabric& fabric, std::unique_ptr<Lane> lane, std::size_t port) : fabric_(fabric) {
    lanes_.push_back({.lane = std::move(lane), .port = port});
  }
  Result<bool> Plan(Operation operation, std::span<const Piece> local);
  bool CoverAll(std::span<const Piece> local, std::vector<PartsOfPieces>& parts) const;
  void Cut(Operation operation, const std::vector<const Keyed*>& part);
  One& LeastDealt();
  void Pass(std::uint64_t bytes);
  std::uint64_t left_bytes() const;
  Status PostAll();

  Fabric& fabric_;
  std::vector<One> lanes_;
  UniqueFd all_;  // as RequesterEnd's
  wire::LanePieces pieces_;
  std::size_t used_ = 1;      // the first so many lanes, for the exchange under way
  std::size_t count_ = 0;     // of the pieces, for each lane
  std::size_t at_ = 0;        // the requester's piece that is next
  std::uint64_t within_ = 0;  // bytes of it that are planned
  std::vector<Mark> marks_;
  std::vector<Received> ignored_;
};

}  // namespace kvcove::transport::verbs
