// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/promotions.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace kvcove::owner {
namespace {

constexpr std::int64_t kLongestPrefetchNs = 10 * kSecond;  // no caller's deadline ends a prefetch

wire::LoadResult ResultOf(Code code, std::uint64_t bytes) {
  switch (code) {
    case Code::kOk:
      return {.code = Code::kOk, .bytes = bytes};
    case Code::kExists:
      return {.code = Code::kOk};
    case Code::kNoSpace:
    case Code::kLimit:
      return MissFor(MissReason::kNoRoom);
    default:  // also kStale: a removal or a reset was faster
      return MissFor(MissReason::kRaced);
  }
}

}  // namespace

void Promotions::Open() {
  const MutexLock lock(memory_.mutex);
  session_ = memory_.core().AddPromoter();
}

void Promotions::Adopt() {
  const MutexLock lock(memory_.mutex);
  session_ = memory_.core().promoter();
}

void Promotions::Read(SessionNumber session, const wire::LoadRequest& request,
                      const wire::HostService::Loaded& done) {
  if (disks_.set().size() == 0) return done(std::vector<wire::LoadResult>(request.keys.size()));
  const std::int64_t now = clock_.NowNs();
  const bool prefetch = request.wait_ns <= 0;
  const DataStore::Upcoming upcoming{
      .session = [session] { return session; },
      .deadline_ns =
          now + (prefetch ? std::min(request.hold_ns, kLongestPrefetchNs) : request.wait_ns),
      .done =
          [done, prefetch](std::vector<wire::LoadResult> results) {
            if (!prefetch) done(std::move(results));
          }};
  (void)Begin(request, upcoming, now + std::max(request.hold_ns, request.wait_ns));
  if (prefetch) done(std::vector<wire::LoadResult>(request.keys.size()));
}

std::shared_ptr<LoadCall> Promotions::Begin(const wire::LoadRequest& request,
                                            const DataStore::Upcoming& upcoming,
                                            std::int64_t hold_until_ns) {
  const auto call = std::make_shared<LoadCall>();
  call->answer->results.resize(request.keys.size());
  call->answer->done = upcoming.done;
  call->deadline_ns = upcoming.deadline_ns;
  call->session = upcoming.session();
  call->hold_until_ns = hold_until_ns;
  for (std::size_t begin = 0; begin < request.keys.size(); begin += Memory::kSlice) {
    const MutexLock lock(memory_.mutex);
    const MissReason refused = memory_.core().Unreadable(request.token);
    for (std::size_t i = begin; i < std::min(begin + Memory::kSlice, request.keys.size()); ++i) {
      Add(*call, i, request, refused);
    }
  }
  disks_.set().Begin(*call);
  disks_.Wake();
  return call;
}

// Asks the shared table first, which needs no lock: most misses of memory are not on a disk,
// either. Holds promoted values until the deadline, so that the first ones are not evicted for the
// last.
std::shared_ptr<LoadCall> Promotions::BringUp(const Token& token,
                                              std::span<const std::string_view> keys,
                                              const DataStore::Upcoming& upcoming) {
  const segment::HeaderView header = memory_.header();
  const bool any = disks_.set().size() > 0 && std::ranges::any_of(keys, [&](std::string_view key) {
                     return header.tier().Holds(token.slot, token.generation, key);
                   });
  if (!any) return nullptr;
  return Begin({.token = token, .keys = keys}, upcoming, upcoming.deadline_ns);
}

void Promotions::Add(LoadCall& call, std::size_t index, const wire::LoadRequest& request,
                     MissReason refused) {
  const std::string_view key = request.keys[index];
  const Token& token = request.token;
  if (refused != MissReason::kNone) {
    call.answer->results[index] = MissFor(refused);
  } else if (!CheckKey(key)) {
    call.answer->results[index] = {.code = Code::kInvalid};
  } else if (memory_.core().StatObject(token.slot, key)) {
    memory_.core().HoldKey(call.session, token.slot, key, call.hold_until_ns);
    call.answer->results[index] = {.code = Code::kOk};
  } else {
    (void)disks_.set().AddLoad(call, index,
                               {.slot = token.slot,
                                .generation = token.generation,
                                .key = std::string(key),
                                .after = std::string(index > 0 ? request.keys[index - 1] : ""),
                                .waiters = {}});
  }
}

// Checks the fences and reserves memory in one hold: a removal is either seen here, or fences the
// reservation and so the commit. A large value is copied between the two holds, because other calls
// must not wait for the copy.
wire::LoadResult Promotions::Promote(const Load& load, std::span<const std::byte> value) {
  const bool whole = value.size() <= kInlineBytes;
  const PutItem item{.key = load.key,
                     .size_bytes = static_cast<std::uint32_t>(value.size()),
                     .value = whole ? value : std::span<const std::byte>(),
                     .after = load.after};
  std::vector<PutResult> put;
  {
    const MutexLock lock(memory_.mutex);
    Core& core = memory_.core();
    if (!LoadsOf(load).Wanted(load)) return MissFor(MissReason::kRaced);
    const Token token{
        .incarnation = core.incarnation(), .generation = load.generation, .slot = load.slot};
    put = core.Put(session_, token, {&item, 1});
    if (put[0].code == Code::kOk && whole) core.NotePromoted(load.slot, load.key, load.put);
    // A small value is stored by Put itself. A value that another put has stored is held as well.
    if (put[0].code != Code::kOk || whole) {
      Hold(load);
      return ResultOf(put[0].code, value.size());
    }
  }
  memory_.EnsurePopulated(put);
  std::span<const std::byte> left = value;
  for (const Extent& extent : put[0].extents) {
    const std::span<std::byte> room = memory_.payload().At(extent);
    const std::size_t count = std::min(room.size(), left.size());
    std::memcpy(room.data(), left.data(), count);
    left = left.subspan(count);
  }
  const FinishItem commit{.reservation = put[0].reservation, .commit = true};
  const MutexLock lock(memory_.mutex);
  const Code code = memory_.core().Finish(session_, {&commit, 1}).front();
  if (code == Code::kOk) memory_.core().NotePromoted(load.slot, load.key, load.put);
  Hold(load);
  return ResultOf(code, value.size());
}

Promoter::Puts Promotions::PutsUnderWay() {
  const MutexLock lock(memory_.mutex);
  return {.next = memory_.core().next_put(), .oldest = memory_.core().oldest_put()};
}

TierLoads& Promotions::LoadsOf(const Load& load) {
  return disks_.set().Of(load.slot, load.generation, load.key).loads();
}

void Promotions::Hold(const Load& load) {
  for (const auto& [session, until_ns] : LoadsOf(load).HoldersOf(load)) {
    memory_.core().HoldKey(session, load.slot, load.key, until_ns);
  }
}

}  // namespace kvcove::owner
