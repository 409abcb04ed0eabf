// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/local/host_session.h"

#include <algorithm>
#include <map>
#include <optional>

#include "kvcove/base/host/numa.h"
#include "kvcove/base/interrupt.h"

namespace kvcove::requester {
namespace {

constexpr std::size_t kPrefixChunk = 64;

// True if another owner may have the item: this one misses it, or did not answer.
bool MayBeElsewhere(const ItemResult& result) {
  return result.code == Code::kMiss || result.code == Code::kUnavailable;
}

// Takes the next owner's answer, but keeps an earlier reason that says more than "never put".
void Merge(ItemResult& result, const ItemResult& next) {
  const MissReason before = result.code == Code::kMiss ? result.reason : MissReason::kNone;
  const bool under_way = result.under_way;
  result = next;
  result.under_way = next.code == Code::kMiss && (next.under_way || under_way);
  if (next.code == Code::kMiss && next.reason == MissReason::kNeverPut &&
      before != MissReason::kNone) {
    result.reason = before;
  }
}

}  // namespace

HostSession::HostSession(std::shared_ptr<void> keep, LocalOwners& owners, SessionOptions options,
                         const Clock& clock)
    : keep_(std::move(keep)),
      owners_(owners),
      options_(std::move(options)),
      clock_(clock),
      resets_(
          options_.name,
          [this](const wire::ResetRequest& request, std::int64_t deadline_ns) {
            return TryReset(request, deadline_ns);
          },
          clock, [this](const wire::ResetOutcome& outcome) { ForgetBindings(outcome); }) {
  (void)Owners();
}

// Stops the repetition of resets first: it calls TryReset, which uses the clients.
HostSession::~HostSession() { resets_.Stop(); }

std::size_t HostSession::Owners() {
  const std::size_t wanted = owners_.count();
  const std::size_t count = count_.load(std::memory_order_acquire);
  if (count == wanted) return count;
  // Made before the lock, because the constructors take locks of the owners' ties.
  std::vector<std::unique_ptr<OwnerClient>> made;
  for (std::size_t i = count; i < wanted; ++i) {
    made.push_back(std::make_unique<OwnerClient>(owners_.at(i).host, options_, clock_));
  }
  const MutexLock lock(open_mutex_);
  // Another thread may have added some of them. `made` is declared before the lock, so clients that
  // are too many end after the lock is released: a client's destructor may make a call.
  for (std::size_t i = opened_.size(); i < wanted; ++i) {
    opened_.push_back(std::move(made[i - count]));
    // A new client also reports the last proven reset when it registers: a master that has
    // restarted may know of that reset only from sessions.
    if (reset_to_.generation != 0) opened_.back()->ForgetBindings(reset_to_);
    // Pairs with At(); the store of count_ below pairs with the load above.
    sessions_[i].store(opened_.back().get(), std::memory_order_release);
  }
  if (opened_.size() > 1) {
    for (const auto& session : opened_) session->SetOneOfSeveral();
  }
  count_.store(opened_.size(), std::memory_order_release);
  return opened_.size();
}

HostSession::Sessions HostSession::NearFirst(std::size_t count) {
  Sessions sessions;
  const int here = NodeOfThisThread();
  for (std::size_t i = 0; i < count; ++i) {
    const auto attachment = owners_.at(i).host->Current();
    const bool near = attachment != nullptr && here != kNoNode && attachment->node() == here;
    sessions.insert(near ? sessions.begin() : sessions.end(), &At(i));
  }
  return sessions;
}

CallOptions HostSession::Left(const CallOptions& options, std::int64_t deadline_ns) const {
  CallOptions left = options;
  // Rounded up: an owner that is asked with no time at all is not asked.
  const std::int64_t left_ns = std::max<std::int64_t>(0, LeftNs(deadline_ns, clock_));
  left.timeout = std::chrono::milliseconds((left_ns + kMillisecond - 1) / kMillisecond);
  return left;
}

template <typename Item, typename Call>
Status HostSession::AskInTurn(const Sessions& sessions, std::span<const Item> items,
                              std::span<ItemResult> results, const CallOptions& options,
                              Call call) {
  // One deadline for all owners: each gets the time that the ones before it have left.
  results = results.first(items.size());
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  Status failed = call(*sessions[0], items, results, options);
  std::vector<std::size_t> which;
  std::vector<Item> part;
  std::vector<ItemResult> answers;
  for (std::size_t s = 1; s < sessions.size(); ++s) {
    // Every owner would refuse a call with such an error.
    if (!failed && (failed.error().code == Code::kInvalid || failed.error().code == Code::kLimit)) {
      return failed;
    }
    which.clear();
    part.clear();
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (!MayBeElsewhere(results[i])) continue;
      which.push_back(i);
      part.push_back(items[i]);
    }
    if (which.empty()) break;
    answers.assign(which.size(), {});
    const Status next = call(*sessions[s], std::span<const Item>(part),
                             std::span<ItemResult>(answers), Left(options, deadline_ns));
    if (!next) failed = next;
    for (std::size_t k = 0; k < which.size(); ++k) Merge(results[which[k]], answers[k]);
  }
  return FailureShown(failed, results);
}

template <typename T>
Result<T> HostSession::AskOne(const CallOptions& options, const AskClient<T>& call) {
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  const std::size_t count = Owners();
  Result<T> answer = Fail(Code::kUnavailable, "no owner of this host is there");
  for (std::size_t i = 0; i < count; ++i) {
    answer = call(At(i), i == 0 ? options : Left(options, deadline_ns));
    if (answer || answer.error().code != Code::kUnavailable) break;
  }
  return answer;
}

template <typename Call>
Status HostSession::AskEach(const CallOptions& options, const Call& call) {
  const std::size_t count = Owners();
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  Sessions sessions;
  Sessions frozen;
  for (std::size_t i = 0; i < count; ++i) {
    (At(i).HoldsLease() ? sessions : frozen).push_back(&At(i));
  }
  const std::size_t leased = sessions.size();
  sessions.insert(sessions.end(), frozen.begin(), frozen.end());
  bool answered = false;
  Status away;
  for (std::size_t i = 0; i < count; ++i) {
    const Status asked = call(*sessions[i], i == 0 ? options : Left(options, deadline_ns));
    if (asked) {
      answered = true;
      continue;
    }
    const Code code = asked.error().code;
    // A slow owner is there: without its part the answer would be wrong.
    const bool gone = code == Code::kUnavailable || (code == Code::kTimeout && i >= leased);
    if (!gone) return asked;
    away = asked;
  }
  return answered ? Status{} : away;
}

Result<Token> HostSession::Capture(const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  if (closed()) return NotProven();
  return AskOne<Token>(
      options, [](OwnerClient& session, const CallOptions& left) { return session.Capture(left); });
}

// Tells the first owner alone, whichever of them gets the value: a look-up asks every owner that
// misses a key.
Status HostSession::Announce(const Token& token, std::span<const std::string_view> keys,
                             SaveNotice notice, const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), keys.size()));
  if (closed()) return NotProven();
  return AskOne<void>(options, [&](OwnerClient& session, const CallOptions& left) {
    return session.Announce(token, keys, notice, left);
  });
}

// ---- look-ups and gets

Status HostSession::Exists(std::span<const std::string_view> keys, std::span<ItemResult> results,
                           const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), results.size()));
  if (closed()) {
    std::fill_n(results.begin(), keys.size(), Miss(MissReason::kClosed));
    return {};
  }
  const std::size_t count = Owners();
  if (count == 1) return At(0).Exists(keys, results, options);
  const Sessions sessions = NearFirst(count);
  const Status status =
      AskInTurn(sessions, keys, results, options,
                [](OwnerClient& session, auto part, auto answers, const CallOptions& left) {
                  return session.Exists(part, answers, left);
                });
  sessions[0]->CountMissed(OwnerClient::Asked::kLookups, results.first(keys.size()));
  return status;
}

Result<std::size_t> HostSession::LongestPrefix(std::span<const std::string_view> keys,
                                               const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), keys.size()));
  if (closed()) return std::size_t{0};
  if (Owners() == 1) return At(0).LongestPrefix(keys, options);
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  ItemResult results[kPrefixChunk];
  std::size_t length = 0;
  std::size_t chunk = 4;  // most calls miss at one of the first keys
  while (length < keys.size()) {
    const auto part = keys.subspan(length, std::min(chunk, keys.size() - length));
    KVCOVE_TRY(Exists(part, results, Left(options, deadline_ns)));
    for (std::size_t i = 0; i < part.size(); ++i, ++length) {
      if (!results[i].ok()) return length;
    }
    chunk = std::min(chunk * 4, kPrefixChunk);
  }
  return length;
}

Status HostSession::Get(std::span<const GetItem> items, std::span<ItemResult> results,
                        const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(items.size(), results.size()));
  if (closed()) {
    std::fill_n(results.begin(), items.size(), Miss(MissReason::kClosed));
    return {};
  }
  const std::size_t count = Owners();
  if (count == 1) return At(0).Get(items, results, options);
  const Sessions sessions = NearFirst(count);
  const Status status =
      AskInTurn(sessions, items, results, options,
                [](OwnerClient& session, auto part, auto answers, const CallOptions& left) {
                  return session.Get(part, answers, left);
                });
  sessions[0]->CountMissed(OwnerClient::Asked::kGets, results.first(items.size()));
  return status;
}

// ---- in place

Result<Borrowed> HostSession::Borrow(std::span<const std::string_view> keys,
                                     const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), keys.size()));
  auto loan = std::make_unique<Loan>(keys.size(), clock_, keep_, resets_.closed_flag());
  return BorrowBy(
      std::move(loan), keys,
      [&](Loan& made, std::span<const BorrowKey> wanted, std::span<ItemResult> results) {
        return BorrowInto(made, wanted, results, options);
      });
}

Status HostSession::BorrowInto(Loan& loan, std::span<const BorrowKey> keys,
                               std::span<ItemResult> results, const CallOptions& options) {
  if (closed()) {
    std::ranges::fill(results, Miss(MissReason::kClosed));
    return {};
  }
  const std::size_t count = Owners();
  if (count == 1) return At(0).BorrowInto(loan, keys, results, options);
  const Sessions sessions = NearFirst(count);
  const Status status =
      AskInTurn(sessions, keys, results, options,
                [&](OwnerClient& session, auto part, auto answers, const CallOptions& left) {
                  return session.BorrowInto(loan, part, answers, left);
                });
  sessions[0]->CountMissed(OwnerClient::Asked::kGets, results);
  return status;
}

Result<std::vector<SegmentRange>> HostSession::Segments(const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  std::vector<SegmentRange> ranges;
  const std::size_t count = Owners();
  for (std::size_t i = 0; i < count; ++i) At(i).AddSegment(ranges, Left(options, deadline_ns));
  // The mapping ends first: its tie may call into this host's owners until then.
  struct Kept {
    std::shared_ptr<const void> mapping;
    std::shared_ptr<void> owners;
    ~Kept() { mapping.reset(); }
  };
  for (SegmentRange& range : ranges) {
    range.mapping = std::make_shared<Kept>(std::move(range.mapping), keep_);
  }
  return ranges;
}

// ---- the rest

Status HostSession::Pin(std::span<const std::string_view> keys, PinKind kind,
                        std::chrono::milliseconds duration, std::span<ItemResult> results,
                        const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), results.size()));
  KVCOVE_TRY(CheckPin(kind, duration, results.first(keys.size())));
  return AskInTurn(NearFirst(Owners()), keys, results, options,
                   [&](OwnerClient& session, auto part, auto answers, const CallOptions& left) {
                     return session.Pin(part, kind, duration, answers, left);
                   });
}

// Asks all owners: two processes may have put a value at the same time, each to another owner.
Status HostSession::Unpin(std::span<const std::string_view> keys, std::span<ItemResult> results,
                          const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), results.size()));
  results = results.first(keys.size());
  std::vector<ItemResult> answers(keys.size());
  bool first = true;
  return AskEach(options, [&](OwnerClient& session, const CallOptions& left) {
    const Status asked = session.Unpin(keys, answers, left);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (first) {
        results[i] = answers[i];
      } else if (MayBeElsewhere(results[i])) {
        Merge(results[i], answers[i]);
      }
    }
    first = false;
    return asked;
  });
}

// Asks one owner, whichever answers: the shared authority removes the keys at all owners.
Status HostSession::Remove(std::span<const std::string_view> keys, std::span<ItemResult> results,
                           const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), results.size()));
  return AskOne<void>(options, [&](OwnerClient& session, const CallOptions& left) {
    return session.Remove(keys, results, left);
  });
}

Result<std::uint64_t> HostSession::RemoveMatching(std::string_view pattern,
                                                  const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  return AskOne<std::uint64_t>(options, [&](OwnerClient& session, const CallOptions& left) {
    return session.RemoveMatching(pattern, left);
  });
}

Result<std::vector<std::optional<ObjectStat>>> HostSession::Stat(
    std::span<const std::string_view> keys, const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), keys.size()));
  std::vector<std::optional<ObjectStat>> stats(keys.size());
  KVCOVE_TRY(AskEach(options, [&](OwnerClient& session, const CallOptions& left) -> Status {
    KVCOVE_ASSIGN(const auto more, session.Stat(keys, left));
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!stats[i]) stats[i] = more[i];
    }
    return {};
  }));
  return stats;
}

Result<std::vector<StoredObject>> HostSession::List(std::string_view prefix,
                                                    const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  if (Owners() == 1) return At(0).List(prefix, options);
  std::map<std::string, StoredObject> objects;
  KVCOVE_TRY(AskEach(options, [&](OwnerClient& session, const CallOptions& left) -> Status {
    KVCOVE_ASSIGN(auto more, session.List(prefix, left));
    for (StoredObject& object : more) objects.emplace(object.key, std::move(object));
    return {};
  }));
  if (objects.size() > kMaxListed) return Fail(Code::kLimit, "too many keys; name a longer prefix");
  return ValuesOf(std::move(objects));
}

Result<ObjectCount> HostSession::Count(const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  std::optional<ObjectCount> sum;
  KVCOVE_TRY(AskEach(options, [&](OwnerClient& session, const CallOptions& left) -> Status {
    KVCOVE_ASSIGN(const ObjectCount more, session.Count(left));
    if (!sum) {
      sum = more;
    } else if (more.generation == sum->generation) {
      sum->objects += more.objects;
      sum->voided += more.voided;
    }
    return {};
  }));
  return *sum;
}

Result<std::vector<std::vector<ObjectPlace>>> HostSession::Places(
    std::span<const std::string_view> keys, const CallOptions& options) {
  std::vector<ItemResult> results(keys.size());
  KVCOVE_TRY(Exists(keys, results, options));
  std::vector<std::vector<ObjectPlace>> places(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!results[i].ok()) continue;
    places[i] = {{.owner = "local", .tier = results[i].tier, .bytes = results[i].bytes}};
  }
  return places;
}

Result<LocatedPrefix> HostSession::Locate(std::span<const std::string_view> keys,
                                          const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), keys.size()));
  KVCOVE_TRY(CheckKeys(keys));
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  ItemResult results[kPrefixChunk];
  PrefixCount count;
  for (std::size_t begin = 0; begin < keys.size() && !count.ended(); begin += kPrefixChunk) {
    const auto part = keys.subspan(begin, std::min(kPrefixChunk, keys.size() - begin));
    KVCOVE_TRY(Exists(part, results, Left(options, deadline_ns)));
    for (const ItemResult& result : std::span(results).first(part.size())) {
      if (!result.ok()) {
        count.End(result.reason);
        break;
      }
      const PrefixCount::Holder local{0, result.tier};
      count.Add({&local, 1});
    }
  }
  return LocatedOf(count.Shares(), {{0, "local"}});
}

// Asks each owner: an owner in a cluster repeats the names of its own sessions to a master that has
// restarted.
Status HostSession::NameVersions(std::span<const std::string> versions,
                                 const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  return AskEach(options, [&](OwnerClient& session, const CallOptions& left) {
    return session.NameVersions(versions, left);
  });
}

// ---- reset

Result<wire::ResetOutcome> HostSession::TryReset(const wire::ResetRequest& request,
                                                 std::int64_t deadline_ns) {
  // Whichever owner is asked: all share one authority, and another one may have registered it.
  const bool known = request.version && KnowsVersion(*request.version);
  return AskOne<wire::ResetOutcome>({}, [&](OwnerClient& session, const CallOptions&) {
    return session.AskReset(request, known, deadline_ns);
  });
}

bool HostSession::KnowsVersion(std::string_view version) {
  const std::size_t count = Owners();
  for (std::size_t i = 0; i < count; ++i) {
    if (At(i).KnowsVersion(version)) return true;
  }
  return false;
}

// Under the lock of Owners(), so that a client that is opened at the same time either is in
// `opened_`, or gets `reset_to_`.
void HostSession::ForgetBindings(const wire::ResetOutcome& outcome) {
  const MutexLock lock(open_mutex_);
  reset_to_ = outcome;
  for (const auto& session : opened_) session->ForgetBindings(outcome);
}

Status HostSession::Reset(const ResetOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  return resets_.Reset(ResetOf(options_, options), options.timeout);
}

// Asks one owner, whichever answers: all share one authority.
Result<std::uint64_t> HostSession::Prune(std::string_view before, const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  return PruneUntil(clock_, DeadlineOf(clock_, options.timeout), [&](std::int64_t deadline_ns) {
    return AskOne<wire::PruneOutcome>({}, [&](OwnerClient& session, const CallOptions&) {
      return session.AskPrune(before, deadline_ns);
    });
  });
}

}  // namespace kvcove::requester
