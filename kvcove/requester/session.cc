// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/session.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/posix.h"
#include "kvcove/requester/completion.h"

namespace kvcove {

Session::Session() : forks_(ForkCount()) {}

void SessionDeleter::operator()(Session* session) const {
  if (session->forks_ == ForkCount()) delete session;
}

Status Session::CheckBatch(std::size_t items, std::size_t results) const {
  if (forks_ != ForkCount()) {
    return Fail(Code::kUnavailable,
                "this process was forked after the pool was opened; open the "
                "pool again in the child");
  }
  if (results < items) {
    return Fail(Code::kInvalid, fmt::format("{} items but room for {} results", items, results));
  }
  if (items > kMaxBatch) {
    return Fail(Code::kInvalid,
                fmt::format("a batch of {} items; at most {} are allowed", items, kMaxBatch));
  }
  return {};
}

Status Session::Put(std::span<const PutItem> items, std::span<ItemResult> results,
                    const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(items.size(), results.size()));
  const Result<Token> token = Capture(options);
  if (token) return Put(*token, items, results, options);
  std::fill_n(results.begin(), items.size(), ItemResult{.code = token.error().code});
  return std::unexpected(token.error());
}

Status Session::Hold(std::span<const std::string_view> keys, std::chrono::milliseconds duration,
                     std::span<ItemResult> results, const CallOptions& options) {
  CallOptions holding = options;
  holding.hold = duration;
  return Exists(keys, results, holding);
}

Result<std::vector<std::vector<std::string>>> Session::Where(std::span<const std::string_view> keys,
                                                             const CallOptions& options) {
  KVCOVE_ASSIGN(const std::vector<std::vector<ObjectPlace>> places, Places(keys, options));
  std::vector<std::vector<std::string>> owners(places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    for (const ObjectPlace& place : places[i]) owners[i].push_back(place.owner);
  }
  return owners;
}

// ---- asynchronous calls

namespace {

// Copies the options of a call that runs later, with the texts to which they point.
struct KeptOptions {
  explicit KeptOptions(const CallOptions& options)
      : version(options.version), after(options.after), hold(options.hold) {}
  CallOptions With(std::chrono::milliseconds left) const {
    return {.timeout = left, .version = version, .after = after, .hold = hold};
  }
  std::string version;
  std::string after;
  std::chrono::milliseconds hold;
};

}  // namespace

Status Session::PutAsync(CompletionQueue& queue, std::uint64_t tag, const Token& token,
                         std::span<const PutItem> items, std::span<ItemResult> results,
                         const CallOptions& options) {
  return queue.Start(
      tag, options.timeout,
      [=, this, kept = KeptOptions(options)](std::chrono::milliseconds left, std::uint64_t&) {
        return Put(token, items, results, kept.With(left));
      });
}
Status Session::GetAsync(CompletionQueue& queue, std::uint64_t tag, std::span<const GetItem> items,
                         std::span<ItemResult> results, const CallOptions& options) {
  return queue.Start(
      tag, options.timeout,
      [=, this, kept = KeptOptions(options)](std::chrono::milliseconds left, std::uint64_t&) {
        return Get(items, results, kept.With(left));
      });
}
Status Session::ExistsAsync(CompletionQueue& queue, std::uint64_t tag,
                            std::span<const std::string_view> keys, std::span<ItemResult> results,
                            const CallOptions& options) {
  return queue.Start(
      tag, options.timeout,
      [=, this, kept = KeptOptions(options)](std::chrono::milliseconds left, std::uint64_t&) {
        return Exists(keys, results, kept.With(left));
      });
}
Status Session::LongestPrefixAsync(CompletionQueue& queue, std::uint64_t tag,
                                   std::span<const std::string_view> keys,
                                   const CallOptions& options) {
  return queue.Start(tag, options.timeout,
                     [=, this, kept = KeptOptions(options)](std::chrono::milliseconds left,
                                                            std::uint64_t& count) -> Status {
                       KVCOVE_ASSIGN(count, LongestPrefix(keys, kept.With(left)));
                       return {};
                     });
}
Status Session::HoldAsync(CompletionQueue& queue, std::uint64_t tag,
                          std::span<const std::string_view> keys,
                          std::chrono::milliseconds duration, std::span<ItemResult> results,
                          const CallOptions& options) {
  return queue.Start(
      tag, options.timeout,
      [=, this, kept = KeptOptions(options)](std::chrono::milliseconds left, std::uint64_t&) {
        return Hold(keys, duration, results, kept.With(left));
      });
}
Status Session::PinAsync(CompletionQueue& queue, std::uint64_t tag,
                         std::span<const std::string_view> keys, PinKind kind,
                         std::chrono::milliseconds duration, std::span<ItemResult> results,
                         const CallOptions& options) {
  return queue.Start(
      tag, options.timeout,
      [=, this, kept = KeptOptions(options)](std::chrono::milliseconds left, std::uint64_t&) {
        return Pin(keys, kind, duration, results, kept.With(left));
      });
}
Status Session::UnpinAsync(CompletionQueue& queue, std::uint64_t tag,
                           std::span<const std::string_view> keys, std::span<ItemResult> results,
                           const CallOptions& options) {
  return queue.Start(
      tag, options.timeout,
      [=, this, kept = KeptOptions(options)](std::chrono::milliseconds left, std::uint64_t&) {
        return Unpin(keys, results, kept.With(left));
      });
}
Status Session::RemoveAsync(CompletionQueue& queue, std::uint64_t tag,
                            std::span<const std::string_view> keys, std::span<ItemResult> results,
                            const CallOptions& options) {
  return queue.Start(
      tag, options.timeout,
      [=, this, kept = KeptOptions(options)](std::chrono::milliseconds left, std::uint64_t&) {
        return Remove(keys, results, kept.With(left));
      });
}
Status Session::RemoveMatchingAsync(CompletionQueue& queue, std::uint64_t tag,
                                    std::string_view pattern, const CallOptions& options) {
  return queue.Start(tag, options.timeout,
                     [this, text = std::string(pattern), kept = KeptOptions(options)](
                         std::chrono::milliseconds left, std::uint64_t& count) -> Status {
                       KVCOVE_ASSIGN(count, RemoveMatching(text, kept.With(left)));
                       return {};
                     });
}
Status Session::ResetAsync(CompletionQueue& queue, std::uint64_t tag, const ResetOptions& options) {
  return queue.Start(tag, options.timeout,
                     [this, kept = options](std::chrono::milliseconds left, std::uint64_t&) {
                       ResetOptions now = kept;
                       now.timeout = left;
                       return Reset(now);
                     });
}

Status Session::PruneAsync(CompletionQueue& queue, std::uint64_t tag, std::string_view before,
                           const CallOptions& options) {
  return queue.Start(tag, options.timeout,
                     [this, version = std::string(before), kept = KeptOptions(options)](
                         std::chrono::milliseconds left, std::uint64_t& count) -> Status {
                       KVCOVE_ASSIGN(count, Prune(version, kept.With(left)));
                       return {};
                     });
}

}  // namespace kvcove
