// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/verbs/lane.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

namespace kvcove::transport::verbs {
namespace {

constexpr std::uint32_t kMost24Bits = (1U << 24) - 1;
constexpr std::uint8_t kMostMtu = 5;  // 4096 bytes

// Looks here, so that the error names the mistake: a driver answers EINVAL to some of it, and takes
// the rest.
bool Plausible(const PairAddress& peer) {
  return peer.number != 0 && peer.number <= kMost24Bits && peer.first_packet <= kMost24Bits &&
         peer.mtu >= 1 && peer.mtu <= kMostMtu &&
         peer.reads >= 1;  // a device holds a read back for ever where it may begin none
}

bool Divisible(Operation operation) {
  return operation == Operation::kWrite || operation == Operation::kRead;
}

}  // namespace

Result<std::unique_ptr<Lane>> Lane::Open(std::shared_ptr<Context> context,
                                         const LaneOptions& options, std::uint32_t first_packet) {
  std::unique_ptr<Lane> lane(new Lane(std::move(context), options));
  KVCOVE_TRY(lane->Prepare(first_packet));
  return lane;
}

Status Lane::Prepare(std::uint32_t first_packet) {
  const Route& route = options_.route;
  const PairSizes& sizes = options_.sizes;
  KVCOVE_ASSIGN(const PortState port, context_->QueryPort(route.port));
  if (!port.active) {
    return Fail(Code::kUnavailable,
                fmt::format("port {} of {} is down", route.port, context_->device()));
  }
  KVCOVE_ASSIGN(const Limits limits, context_->QueryLimits());
  // The entry may have changed since the route was chosen. The queue pair uses what is there now,
  // so that is what the peer must be told.
  KVCOVE_ASSIGN(const GidEntry entry, context_->QueryGid(route.port, route.gid_index));
  own_.gid = entry.gid;
  own_.lid = port.lid;
  own_.mtu = port.mtu;
  own_.first_packet = first_packet & kMost24Bits;
  own_.reads = limits.reads_answered;
  // Room for all that can be posted: a completion queue never overflows.
  KVCOVE_ASSIGN(queue_, context_->CreateQueue(sizes.sends + sizes.receives));
  KVCOVE_ASSIGN(pair_, context_->CreatePair(*queue_, sizes));
  own_.number = pair_->number();
  return pair_->ToInit(route, options_.peer_may);
}

Status Lane::Connect(const PairAddress& peer) {
  if (state_ != State::kFresh) return Fail(Code::kInvalid, "this lane is not fresh");
  // Each failure from here on kills the lane: its pair may take packets of the peer already, and
  // only Retire() proves that it does not any more.
  if (!Plausible(peer)) {
    return Die(Fail(Code::kInvalid, "the peer's address is none of a queue pair"));
  }
  const auto limits = context_->QueryLimits();
  if (!limits) return Die(std::unexpected(limits.error()));
  PairAddress bounded = peer;
  bounded.reads = std::min(peer.reads, limits->reads_begun);
  if (bounded.reads == 0 && options_.peer_may == Access::kLocal) {
    // Only an owner reads; its device would hold the first read back for ever.
    return Die(Fail(Code::kUnavailable, context_->device() + " begins no reads"));
  }
  if (Status s = pair_->ToReceive(options_.route, own_, bounded); !s) return Die(std::move(s));
  if (Status s = pair_->ToSend(options_.route, own_, bounded); !s) return Die(std::move(s));
  state_ = State::kReady;
  return {};
}

Status Lane::ExpectReady() const {
  if (!failure_) return failure_;
  if (state_ == State::kReady) return {};
  return Fail(Code::kUnavailable, "this lane is not connected");
}

Status Lane::Die(Status why) {
  // The first failure is the cause; those behind it are mostly flushes.
  if (failure_) failure_ = std::move(why);
  if (state_ != State::kGone) state_ = State::kDying;
  waiting_.clear();  // the device has never heard of these, so the drain does not wait for them
  return failure_;
}

Status Lane::Post(const Move& move) {
  KVCOVE_TRY(ExpectReady());
  if (!Divisible(move.operation) && move.bytes > kPieceBytes) {
    return Fail(Code::kInvalid, fmt::format("a message of {} bytes", move.bytes));
  }
  if (Divisible(move.operation) && move.bytes == 0) return {};
  waiting_.push_back(move);
  return PostWaiting();
}

Status Lane::PostReceive(std::uint32_t slot, const LocalSegment& into) {
  if (state_ != State::kFresh) KVCOVE_TRY(ExpectReady());
  if (slot >= posted_.size() || posted_[slot]) {
    return Fail(Code::kInvalid, fmt::format("slot {} takes no receive", slot));
  }
  if (Status s = pair_->PostReceive(kReceiveBit | slot, into); !s) return Die(std::move(s));
  posted_[slot] = true;
  ++receives_;
  return {};
}

Status Lane::PostWaiting() {
  std::array<Work, kBatch> works;
  while (const std::size_t count = CutWaiting(works)) {
    const Posted posted = pair_->Post(std::span(works).first(count));
    // Whatever the status is: those before the refused one are with the device, and the lane is not
    // drained before they have completed.
    CountPosted(std::span<const Work>(works).first(posted.count));
    if (posted.status) continue;
    // A device that is full for now has room again with the next completion, so there must be one.
    if (posted.status.error().code == Code::kLimit && !sends_.empty()) return {};
    return Die(posted.status);
  }
  return {};
}

// Fills `works` with the next pieces; returns how many. Changes nothing: a device may take fewer.
// Ids are numbers without a gap, so a completion finds its request by subtraction, and one that
// belongs to none is seen. A request that has completed before an earlier one still takes room, as
// it does in the device's own queue.
std::size_t Lane::CutWaiting(std::span<Work> works) {
  const std::size_t room = options_.sizes.sends - sends_.size();
  works = works.first(std::min(works.size(), room));
  std::size_t count = 0;
  for (const Move& move : waiting_) {
    std::uint64_t offset = 0;
    do {
      if (count == works.size()) return count;
      const std::uint64_t bytes = std::min(move.bytes - offset, kPieceBytes);
      works[count] = {.id = first_send_ + sends_.size() + count,
                      .operation = move.operation,
                      .local = {.data = move.local + offset,
                                .bytes = static_cast<std::uint32_t>(bytes),
                                .key = move.local_key},
                      .remote = move.remote + offset,
                      .remote_key = move.remote_key,
                      .immediate = move.immediate};
      ++count;
      offset += bytes;
    } while (offset < move.bytes);
  }
  return count;
}

void Lane::CountPosted(std::span<const Work> works) {
  for (const Work& work : works) {
    sends_.push_back({.bytes = work.local.bytes});
    Move& move = waiting_.front();
    move.local += work.local.bytes;
    move.remote += work.local.bytes;
    move.bytes -= work.local.bytes;
    if (move.bytes == 0) waiting_.pop_front();
  }
}

Result<bool> Lane::Advance(std::vector<Received>& received) {
  KVCOVE_TRY(ExpectReady());
  KVCOVE_ASSIGN(const bool taken, Take(received));
  KVCOVE_TRY(ExpectReady());  // the batch may have had a failure, behind which nothing is posted
  KVCOVE_TRY(PostWaiting());
  return taken;
}

// Takes one batch of completions. All of them are counted, also behind a failure: the count is the
// proof that the lane is drained.
Result<bool> Lane::Take(std::vector<Received>& received) {
  std::array<Completion, kBatch> completions;
  auto count = queue_->Poll(completions);
  if (!count) {
    (void)Die(std::unexpected(count.error()));
    return std::unexpected(std::move(count).error());
  }
  for (const Completion& completion : std::span(completions).first(*count)) {
    if (Status s = TakeOne(completion, received); !s) (void)Die(std::move(s));
  }
  return *count > 0;
}

Status Lane::TakeOne(const Completion& completion, std::vector<Received>& received) {
  if ((completion.id & kReceiveBit) != 0) return TakeReceive(completion, received);
  return TakeSend(completion);
}

Status Lane::TakeSend(const Completion& completion) {
  const std::uint64_t at = completion.id - first_send_;  // huge for one that has ended already
  if (at >= sends_.size() || sends_[at].complete) {
    return Fail(Code::kInternal,
                fmt::format("a completion of {} belongs to no work request", context_->device()));
  }
  sends_[at].complete = true;
  const bool done = completion.status == CompletionStatus::kOk;
  Status status;
  if (!done) {
    status = Fail(Code::kUnavailable, std::string(StatusName(completion.status)));
    sends_[at].bytes = 0;
    cut_off_ = true;
  }
  // Behind a piece that has failed nothing counts as moved, and a later piece may have overtaken.
  const bool counts = done && failure_.has_value();
  while (!sends_.empty() && sends_.front().complete) {
    if (counts) moved_bytes_ += sends_.front().bytes;
    sends_.pop_front();
    ++first_send_;
  }
  return status;
}

Status Lane::TakeReceive(const Completion& completion, std::vector<Received>& received) {
  const std::uint64_t slot = completion.id & ~kReceiveBit;
  if (slot >= posted_.size() || !posted_[slot]) {
    return Fail(Code::kInternal,
                fmt::format("a completion of {} belongs to no receive", context_->device()));
  }
  posted_[slot] = false;
  --receives_;
  if (completion.status != CompletionStatus::kOk) {
    return Fail(Code::kUnavailable, std::string(StatusName(completion.status)));
  }
  received.push_back({.slot = static_cast<std::uint32_t>(slot),
                      .bytes = completion.bytes,
                      .immediate = completion.immediate});
  return {};
}

Result<bool> Lane::Retire() {
  if (state_ == State::kGone) return true;
  state_ = State::kDying;
  waiting_.clear();
  // The order is the proof (P5). ERR makes the device complete all that is posted, which a receive
  // that waits for the peer would never do. The drain shows that it has let go of each work
  // request. Destroy shows that no packet of the peer finds a receiver any more: until then a write
  // that had begun before ERR may land.
  if (!stopped_) {
    KVCOVE_TRY(pair_->ToError());
    stopped_ = true;
  }
  std::vector<Received> ignored;
  while (!drained()) {
    KVCOVE_ASSIGN(const bool taken, Take(ignored));
    if (!taken) return false;
  }
  // A call that has succeeded does nothing when a later one has failed and all are repeated.
  KVCOVE_TRY(pair_->Destroy());
  KVCOVE_TRY(queue_->Destroy());
  state_ = State::kGone;
  return true;
}

}  // namespace kvcove::transport::verbs
