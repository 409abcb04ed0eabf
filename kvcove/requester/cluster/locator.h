// SPDX-License-Identifier: Apache-2.0
// Where keys are, as one session knows it: which generation it is bound to, what the master says,
// and hints from earlier answers. No sockets: the simulation drives this class as it is.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/requester/calls.h"
#include "kvcove/requester/local/recent_versions.h"
#include "kvcove/wire/cluster.h"

namespace kvcove::requester {

// The master, as look-ups need it. Thread-safe.
class LookupService {
 public:
  virtual ~LookupService() = default;
  virtual Result<wire::Registration> Register(const wire::RegisterRequest& request,
                                              std::int64_t deadline_ns) = 0;
  // Errors: kStale when the token's generation is not the current one.
  virtual Result<std::vector<wire::Place>> Lookup(const Token& token, std::span<const Id128> hashes,
                                                  std::int64_t deadline_ns) = 0;
};

// Thread-safe.
class Locator {
 public:
  struct Binding {
    Token token;
    bool open = false;
    std::int64_t ask_again_ns = 0;  // when closed: another process of this engine may have reset
  };
  // Where the keys at `which` are.
  struct Found {
    Token token;
    std::vector<std::size_t> which;
    std::vector<wire::Place> places;
  };

  // `hints`: keys whose places are remembered.
  Locator(LookupService& service, const SessionOptions& options, const Clock& clock,
          std::size_t hints = 1 << 16)
      : service_(service),
        options_(options),
        clock_(clock),
        buckets_(std::bit_ceil(std::max<std::size_t>(hints / Bucket().size(), 1))) {}

  // `fresh`: asks the master, whatever is known.
  Result<Binding> Bind(std::string_view version, bool fresh, std::int64_t deadline_ns);
  // The engine has registered for it, and may use it again without a call.
  bool KnowsVersion(std::string_view version);
  // Looks up the keys at `which`; what is nowhere becomes a miss in `results`.
  Found Locate(std::span<const std::string_view> keys, std::vector<std::size_t> which,
               std::span<ItemResult> results, std::string_view version, std::int64_t deadline_ns);
  // What earlier answers said, of the keys at `which`; takes those out of `which`. Only hints: the
  // owner checks generation, lease and key.
  Found Recall(std::span<const std::string_view> keys, std::vector<std::size_t>& which,
               std::span<ItemResult> results, std::string_view version);
  // `call` under the generation that this session knows, and once more when that is not the current
  // one.
  template <typename T, typename Call>
  Result<T> WithToken(std::string_view version, std::int64_t deadline_ns, Call&& call);
  // A reset is proven: whatever was known of generations is old, and the next call registers again.
  void CloseAll(const wire::ResetOutcome& outcome);
  std::optional<SlotId> SlotOf(std::string_view version) const;

 private:
  struct Hint {
    Id128 hash;
    wire::Place place;
  };
  // A key's hash names two buckets of two cache lines each. Its hint goes into the emptier one.
  // With one bucket only, a hundredth of the keys found none in a table that was a third full, and
  // most batches of 128 had such a key, for which the session asked the master and the owner again.
  struct alignas(64) Bucket : std::array<Hint, 4> {};
  static_assert(sizeof(Bucket) == 128);
  void Remember(std::span<const Id128> hashes, std::span<const wire::Place> places);
  Bucket& FirstOf(const Id128& hash) KVCOVE_REQUIRES(hints_mutex_);
  Bucket& SecondOf(const Id128& hash) KVCOVE_REQUIRES(hints_mutex_);
  // What a loop over `hashes` will need, when it is at `at`.
  void FetchAhead(std::span<const Id128> hashes, std::size_t at) KVCOVE_REQUIRES(hints_mutex_);
  Hint* Find(const Id128& hash) KVCOVE_REQUIRES(hints_mutex_);  // null: not there
  // Where a new key's hint goes: where nothing is free, it replaces one.
  Hint& RoomFor(const Id128& hash) KVCOVE_REQUIRES(hints_mutex_);

  LookupService& service_;
  const SessionOptions options_;
  const Clock& clock_;
  mutable Mutex bindings_mutex_;
  RecentVersions<Binding> bindings_ KVCOVE_GUARDED_BY(bindings_mutex_){kSessionVersions};
  wire::ResetOutcome reset_to_ KVCOVE_GUARDED_BY(bindings_mutex_);  // the last one that was proven
  const std::size_t buckets_;                                       // a power of two
  Mutex hints_mutex_;
  std::vector<Bucket> hints_ KVCOVE_GUARDED_BY(hints_mutex_);  // empty until the first look-up
};

template <typename T, typename Call>
Result<T> Locator::WithToken(std::string_view version, std::int64_t deadline_ns, Call&& call) {
  Result<T> answer = Fail(Code::kStale, "the generation has changed");
  for (const bool fresh : {false, true}) {
    KVCOVE_ASSIGN(const Binding binding, Bind(version, fresh, deadline_ns));
    answer = call(binding.token);
    if (answer || answer.error().code != Code::kStale) break;
  }
  return answer;
}

}  // namespace kvcove::requester
