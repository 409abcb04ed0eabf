// SPDX-License-Identifier: Apache-2.0
// A reliable queue pair between this process and a peer, from its making to the proof that the
// device touches no memory for it any more.
//
//   Open --> fresh --Connect--> ready --Retire, or a failure--> dying --Retire--> gone
//
//   fresh  takes receives; `own()` is for the peer
//   ready  moves bytes
//   dying  posts nothing; the device may still move what it has begun
//   gone   drained (each work request has its completion) and destroyed (the device has confirmed
//          that): nothing lands in, or is read from, any memory by this lane
//
// A lane knows no exchange and no head. Its user posts moves, and receives in numbered slots.
// Thread-compatible: one thread at a time, until it gives the lane to a Reaper (reaper.h).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "kvcove/transport/verbs/verbs_api.h"

namespace kvcove::transport::verbs {

struct LaneOptions {
  Route route = {};
  PairSizes sizes = {};
  Access peer_may = Access::kLocal;  // kRemote: at the requester, whose memory the owner moves
};

// Bytes to move. `local` may be in one registration only (memory.h cuts others).
struct Move {
  Operation operation = Operation::kWrite;
  std::byte* local = nullptr;
  std::uint64_t bytes = 0;
  std::uint32_t local_key = 0;
  std::uint64_t remote = 0;
  std::uint32_t remote_key = 0;
  std::uint32_t immediate = 0;
};

// A message of the peer, in the receive of this slot: a send has put `bytes` there, a write with
// immediate has put them where it was told to.
struct Received {
  std::uint32_t slot = 0;
  std::uint32_t bytes = 0;
  std::optional<std::uint32_t> immediate = {};
};

class Lane {
 public:
  // One work request moves at most this, so that a large value does not hold up the others.
  static constexpr std::uint64_t kPieceBytes = 1 << 20;

  enum class State : std::uint8_t { kFresh, kReady, kDying, kGone };

  // Makes a fresh lane. `first_packet`: random. Errors: the context's; kUnavailable for a port that
  // is down.
  static Result<std::unique_ptr<Lane>> Open(std::shared_ptr<Context> context,
                                            const LaneOptions& options, std::uint32_t first_packet);
  // From the call of Connect on, whatever its result, a lane must not be destroyed before it is
  // gone: the Reaper takes it.
  ~Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  State state() const { return state_; }
  const PairAddress& own() const { return own_; }
  // Makes a fresh lane ready. Errors: kInvalid for an address that cannot be a peer's, and the
  // device's; the lane is dying then.
  Status Connect(const PairAddress& peer);

  // Posts a move, now or as earlier ones complete; its pieces move in order. Only kRead and kWrite
  // are cut into pieces. Errors: kInvalid for another move beyond kPieceBytes; kUnavailable unless
  // ready; those of the device, and the lane is dying then.
  Status Post(const Move& move);
  // Gives the buffer of a slot (below sizes.receives) to the next message of the peer. `bytes` may
  // be 0, for writes with immediate. Errors: kInvalid for a slot that is posted; as Post.
  Status PostReceive(std::uint32_t slot, const LocalSegment& into);

  // Takes completions without waiting, posts what has room by then, and appends messages of the
  // peer to `received`. Returns true if it took any; call it until it returns false, before the
  // lane sleeps. Errors: the first failure of a work request or of the device; the lane is dying
  // then, and answers so with each later call.
  Result<bool> Advance(std::vector<Received>& received);
  // Returns the bytes of all moves since Open that have moved, without a gap, in the order of their
  // posts. For writes that means: they are in the peer's memory or nowhere (its device has
  // acknowledged them), and their sources are free.
  std::uint64_t moved_bytes() const { return moved_bytes_; }
  // Returns true if every move has completed.
  bool idle() const { return waiting_.empty() && sends_.empty(); }
  // Returns true if every move has completed with success: the device touches no memory for them
  // any more. One that has failed or was flushed is only over for sure once the lane is gone.
  bool settled() const { return idle() && !cut_off_; }

  // Makes descriptor() readable with the next completion; then Advance must find nothing before the
  // caller sleeps.
  Status Arm() { return queue_->Arm(); }
  int descriptor() const { return queue_->descriptor(); }
  void TakeEvents() { queue_->TakeEvents(); }

  // Moves the lane towards its end, from any state, without waiting for completions. Returns true
  // once it is gone. False, or an error of the device: call it again later.
  Result<bool> Retire();

 private:
  // A work request that is with the device.
  struct Send {
    std::uint64_t bytes = 0;
    bool complete = false;
  };
  // Ids of work requests are their numbers; those of receives are their slots, with this bit: the
  // completion of a failure does not say which of the two it belongs to.
  static constexpr std::uint64_t kReceiveBit = 1ULL << 63;
  static constexpr std::size_t kBatch = 16;

  Lane(std::shared_ptr<Context> context, const LaneOptions& options)
      : context_(std::move(context)), options_(options), posted_(options.sizes.receives) {}
  Status Prepare(std::uint32_t first_packet);
  Status ExpectReady() const;
  Status PostWaiting();
  std::size_t CutWaiting(std::span<Work> works);
  void CountPosted(std::span<const Work> works);
  Result<bool> Take(std::vector<Received>& received);
  Status TakeOne(const Completion& completion, std::vector<Received>& received);
  Status TakeSend(const Completion& completion);
  Status TakeReceive(const Completion& completion, std::vector<Received>& received);
  Status Die(Status why);
  bool drained() const { return sends_.empty() && receives_ == 0; }

  const std::shared_ptr<Context> context_;  // ends behind the queues
  const LaneOptions options_;
  std::unique_ptr<CompletionQueue> queue_;
  std::unique_ptr<QueuePair> pair_;  // ends before its queue
  PairAddress own_;
  State state_ = State::kFresh;
  Status failure_;                // why it is dying; ok if only Retire has been called
  bool stopped_ = false;          // the device has confirmed ERR
  bool cut_off_ = false;          // a move has completed without success
  std::deque<Move> waiting_;      // not posted yet; the first one's beginning may be
  std::deque<Send> sends_;        // with the device, or complete behind one that is
  std::uint64_t first_send_ = 0;  // the number of sends_.front()
  std::uint64_t moved_bytes_ = 0;
  std::vector<bool> posted_;  // by slot
  std::uint32_t receives_ = 0;
};

}  // namespace kvcove::transport::verbs
