// SPDX-License-Identifier: Apache-2.0
// Finds the owners of keys for one session: keeps the generation to which the session is bound for
// each weight version, asks the master, and remembers its answers as hints. No sockets: the
// simulation drives this class as it is. Two locks, one for the bindings and one for the hints, are
// each taken alone, and no call is made under them.
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

// The calls of the master that look-ups need. Thread-safe.
class LookupService {
 public:
  virtual ~LookupService() = default;
  // Registers an engine. Errors: those of GenerationService::Register.
  virtual Result<wire::Registration> Register(const wire::RegisterRequest& request,
                                              std::int64_t deadline_ns) = 0;
  // Returns a place for each hash, in their order. Errors: kStale when the token's generation is
  // not the current one.
  virtual Result<std::vector<wire::Place>> Lookup(const Token& token, std::span<const Id128> hashes,
                                                  std::int64_t deadline_ns) = 0;
  // Says that this process is about to save values, or does not save them after all. Errors: as
  // Lookup.
  virtual Status Announce(const Token& /*token*/, std::span<const Id128> /*hashes*/,
                          SaveNotice /*notice*/, std::int64_t /*deadline_ns*/) {
    return {};
  }
};

// Thread-safe.
class Locator {
 public:
  // The session's registration of one weight version.
  struct Binding {
    Token token;
    bool open = false;  // false: the engine must reset before it finds or stores
    // If not open: when to ask again, because another process of this engine may have reset.
    std::int64_t ask_again_ns = 0;
  };
  // Keys that were found, and the generation for which that holds.
  struct Found {
    Token token;
    std::vector<std::size_t> which;   // indices of keys
    std::vector<wire::Place> places;  // in the order of `which`
  };

  // `service` outlives this object. `hints`: number of keys whose places are remembered, 32 bytes
  // each; the table is made with the first look-up.
  Locator(LookupService& service, const SessionOptions& options, const Clock& clock,
          std::size_t hints = 1 << 16)
      : service_(service),
        options_(options),
        clock_(clock),
        buckets_(std::bit_ceil(std::max<std::size_t>(hints / Bucket().size(), 1))) {}

  // Returns the binding of a version. Makes no call if an open binding is known, or a closed one
  // that is not to be asked again yet. `fresh`: asks the master in any case. Errors: those of
  // Register.
  Result<Binding> Bind(std::string_view version, bool fresh, std::int64_t deadline_ns);
  // True if the engine has registered for the version, and may use it again without a call.
  bool KnowsVersion(std::string_view version);
  // Looks up the keys at `which` at the master, in one call; a stale generation costs one more try
  // under a fresh one. Fills `results` at `which`: size and tier of a key that is found, the reason
  // of a miss. If the master does not answer, the reason that an owner gave before for the same key
  // remains, so each of `results` is the answer of an owner, or ItemResult{}.
  Found Locate(std::span<const std::string_view> keys, std::vector<std::size_t> which,
               std::span<ItemResult> results, std::string_view version, std::int64_t deadline_ns);
  // Finds the keys at `which` in earlier answers, without a call; takes those that it finds out of
  // `which`. The answers may be old: the owner checks generation, lease and key.
  Found Recall(std::span<const std::string_view> keys, std::vector<std::size_t>& which,
               std::span<ItemResult> results, std::string_view version);
  // As Session::Announce.
  Status Announce(const Token& token, std::span<const std::string_view> keys, SaveNotice notice,
                  std::int64_t deadline_ns);
  // Makes `call` under the generation that this session knows, and once more under a fresh one if
  // the first answer is kStale. Errors: those of Bind and of `call`.
  template <typename T, typename Call>
  Result<T> WithToken(std::string_view version, std::int64_t deadline_ns, Call&& call);
  // Closes all bindings after a proven reset, so that the next call registers again.
  void CloseAll(const wire::ResetOutcome& outcome);
  // Returns the slot of a version; none if the session has not registered for it.
  std::optional<SlotId> SlotOf(std::string_view version) const;

 private:
  struct Hint {
    Id128 hash;
    wire::Place place;
  };
  // A key's hash names two buckets of two cache lines each. Its hint is stored in the emptier one.
  // With one bucket only, a hundredth of the keys found none in a table that was a third full, and
  // most batches of 128 had such a key, for which the session asked the master and the owner again.
  struct alignas(64) Bucket : std::array<Hint, 4> {};
  static_assert(sizeof(Bucket) == 128);
  void Remember(std::span<const Id128> hashes, std::span<const wire::Place> places);
  Bucket& FirstOf(const Id128& hash) KVCOVE_REQUIRES(hints_mutex_);
  Bucket& SecondOf(const Id128& hash) KVCOVE_REQUIRES(hints_mutex_);
  // Prefetches the buckets that a loop over `hashes`, which is at `at`, needs some turns later.
  void FetchAhead(std::span<const Id128> hashes, std::size_t at) KVCOVE_REQUIRES(hints_mutex_);
  Hint* Find(const Id128& hash) KVCOVE_REQUIRES(hints_mutex_);  // null: not there
  // Returns the place for a new key's hint; if none is free, the hint that it replaces.
  Hint& RoomFor(const Id128& hash) KVCOVE_REQUIRES(hints_mutex_);

  LookupService& service_;
  const SessionOptions options_;
  const Clock& clock_;
  mutable Mutex bindings_mutex_;
  RecentVersions<Binding> bindings_ KVCOVE_GUARDED_BY(bindings_mutex_){kSessionVersions};
  wire::ResetOutcome reset_to_ KVCOVE_GUARDED_BY(bindings_mutex_);  // of the last proven reset
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
