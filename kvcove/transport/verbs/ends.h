// SPDX-License-Identifier: Apache-2.0
// Both ends of a lane as an exchange uses them: the owner moves payload, the requester waits. The
// messages between them travel over the connection that the lane belongs to (wire/lanes.h).
//
//   put   the owner reads out of the requester's pieces. Its reply says that it has.
//   get   the owner writes into the requester's pieces, and behind that an immediate, the number of
//         the exchange. The completion of the immediate at the requester says that all bytes are
//         visible there; no message that takes another way can say that.
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

#include "kvcove/transport/endpoint.h"
#include "kvcove/transport/verbs/fabric.h"
#include "kvcove/wire/lanes.h"

namespace kvcove::transport::verbs {

// Payload below this many bytes is sent sooner than its pieces are agreed on.
inline constexpr std::uint64_t kLeastBytes = 64 << 10;

class RequesterEnd {
 public:
  // Errors: Fabric::OpenLane's.
  static Result<std::unique_ptr<RequesterEnd>> Open(Fabric& fabric);
  RequesterEnd(const RequesterEnd&) = delete;
  RequesterEnd& operator=(const RequesterEnd&) = delete;

  // Returns this end, for the owner.
  wire::LaneEnd hello() const;
  // Connects, and sends a message of no bytes: its acknowledgement proves that packets pass both
  // ways. Waits for the network, until `until_ns` for the acknowledgement. Errors: kInvalid for an
  // address that is none, kTimeout, the device's.
  Status Connect(const wire::LaneEnd& owner, std::int64_t until_ns, const Clock& clock);
  // Returns, after Connect, the time of that message and its acknowledgement.
  std::int64_t round_trip_ns() const { return round_trip_ns_; }

  // Returns the keys to the pieces. Nothing: some of them is not registered, or there are too many.
  template <typename AnyPiece>
  std::optional<std::vector<wire::LanePiece>> KeysTo(std::span<const AnyPiece> pieces) const;
  // Expects the immediate of this exchange. Errors: the lane's.
  Status Expect(std::uint64_t exchange);
  // Takes completions without waiting. True: the immediate has arrived. Errors: the lane's;
  // kCorrupt for another message of the owner.
  Result<bool> Advance();

  // Arms the lane, and takes what has completed meanwhile. False: nothing has, so the descriptor
  // becomes readable with the next completion. Errors: the lane's.
  Result<bool> ArmAndLook();
  int descriptor() const { return lane_->descriptor(); }
  void TakeEvents() { lane_->TakeEvents(); }

  static void End(std::unique_ptr<RequesterEnd> end, std::function<void()> on_quiet);

 private:
  RequesterEnd(Fabric& fabric, std::unique_ptr<Lane> lane)
      : fabric_(fabric), lane_(std::move(lane)) {}
  Status Take();

  Fabric& fabric_;
  std::unique_ptr<Lane> lane_;
  std::int64_t round_trip_ns_ = 0;
  std::vector<Received> received_;
  std::optional<std::uint32_t> expected_;  // immediate
  bool arrived_ = false;
};

class OwnerEnd {
 public:
  // Connects a lane to the requester's end. Waits for the network. Errors: as
  // RequesterEnd::Connect.
  static Result<std::unique_ptr<OwnerEnd>> Accept(Fabric& fabric, const wire::LaneEnd& requester);
  OwnerEnd(const OwnerEnd&) = delete;
  OwnerEnd& operator=(const OwnerEnd&) = delete;

  wire::LaneEnd hello() const;

  // Sets the requester's pieces for one exchange. Its payload moves in one or more steps.
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
  bool idle() const { return lane_->idle(); }
  // Returns whether the device touches no memory of any step, also behind an error: else only
  // End() says when.
  bool settled() const { return lane_->settled(); }

  // As RequesterEnd's.
  Result<bool> ArmAndLook();
  int descriptor() const { return lane_->descriptor(); }
  void TakeEvents() { lane_->TakeEvents(); }

  static void End(std::unique_ptr<OwnerEnd> end, std::function<void()> on_quiet);

 private:
  // Bytes of a step, in order, and how many bytes the lane has moved when they are there.
  struct Mark {
    std::uint64_t payload_end = 0;
    std::uint64_t lane_end = 0;
  };
  OwnerEnd(Fabric& fabric, std::unique_ptr<Lane> lane) : fabric_(fabric), lane_(std::move(lane)) {}
  Result<bool> Plan(Operation operation, std::span<const Piece> local, std::vector<Move>& moves);
  void Cut(Operation operation, const Keyed& part, std::vector<Move>& moves);
  void Pass(std::uint64_t bytes);
  std::uint64_t left_bytes() const;
  Status PostAll(const std::vector<Move>& moves);

  Fabric& fabric_;
  std::unique_ptr<Lane> lane_;
  wire::LanePieces pieces_;
  std::size_t at_ = 0;        // the requester's piece that is next
  std::uint64_t within_ = 0;  // bytes of it that are planned
  std::vector<Mark> marks_;
  std::uint64_t step_begin_ = 0;  // Lane::moved_bytes() at the beginning of the step
  std::vector<Received> ignored_;
};

}  // namespace kvcove::transport::verbs
