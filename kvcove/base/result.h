// SPDX-License-Identifier: Apache-2.0
// The one error type. A failing function returns `Result<T>`; no exception crosses a module.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "kvcove/base/export.h"

namespace kvcove {

// Fixed values: they travel on the wire and are mapped to other APIs' integers.
// clang-format off
// | code            | meaning                                              | retry        | lost       |
// | --------------- | ---------------------------------------------------- | ------------ | ---------- |
// | kMiss           | the key has no readable value; MissReason says why   | recompute    | nothing    |
// | kTimeout        | the deadline passed; the call's buffers are free     | yes          | request    |
// | kBufferBusy     | it passed, and a transfer may still land; a later    | after the    | request    |
// |                 | completion says when the buffer is free              | completion   |            |
// | kStale          | the token's generation is not the current one        | recompute    | value      |
// | kClosed         | the session may neither find nor store until a reset | after reset  | value      |
// | kNoSpace        | nothing may be evicted to make room, or over a quota | later        | value      |
// | kExists         | the key has a value already; it stays                | no           | nothing    |
// | kInProgress     | another writer holds the key                         | later        | nothing    |
// | kDenied         | the credential does not allow it; a dead version     | no           | request    |
// | kIncompatible   | protocol, layout or data of another version          | no           | connection |
// | kCorrupt        | bytes failed a check                                 | recompute    | value      |
// | kInvalid        | the caller's mistake; the detail says which          | no           | request    |
// | kUnavailable    | the pool is gone for now; reconnecting               | later        | connection |
// | kLimit          | a bound of the configuration was reached             | later        | request    |
// | kBufferTooSmall | the value is larger than the buffers given           | bigger one   | nothing    |
// | kNotProven      | a reset (closes the session) or a prune, not proven  | reset: auto  | nothing    |
// | kInternal       | a defect in kvcove, or the system refused a call     | no           | node       |
// | kNotListed      | stored, and found once the master lists it: a success | no           | nothing    |
// clang-format on
enum class Code : std::uint16_t {
  kOk = 0,
  kMiss = 1,
  kTimeout = 2,
  kBufferBusy = 3,
  kStale = 4,
  kClosed = 5,
  kNoSpace = 6,
  kExists = 7,
  kInProgress = 8,
  kDenied = 9,
  kIncompatible = 10,
  kCorrupt = 11,
  kInvalid = 12,
  kUnavailable = 13,
  kLimit = 14,
  kBufferTooSmall = 15,
  kNotProven = 16,
  kInternal = 17,
  kNotListed = 18,
};
inline constexpr std::uint16_t kMaxCode = 18;

// "stale generation", "out of space", ...; never empty.
KVCOVE_API std::string_view CodeName(Code code);

struct Error {
  Code code = Code::kInternal;
  std::string detail;  // what was wrong, where, and what would be right
  // The other side of a connection has said so: whatever the code means, it lives and answers.
  bool answered = false;

  // "out of space: the segment of 4GiB is full".
  KVCOVE_API std::string ToString() const;
};

// A value, or why there is none. std::expected in every use; a class of its own so that a result
// that nobody looks at is a warning (CI makes it an error). What may be dropped is dropped with
// `(void)` and a reason.
template <typename T>
class [[nodiscard]] Result : public std::expected<T, Error> {
  using Base = std::expected<T, Error>;

 public:
  Result() = default;
  // From a value, an error (Fail) or a result whose value converts. std::expected's constructors
  // are not inherited: they do not know this class, and would take a Result<bool> for a bool.
  template <typename U = T>
    requires(!std::is_base_of_v<Base, std::remove_cvref_t<U>> && std::is_constructible_v<Base, U>)
  explicit(!std::is_convertible_v<U, Base>) Result(U&& value)  // NOLINT(*-explicit-*)
      : Base(std::forward<U>(value)) {}
};
using Status = Result<void>;

inline std::unexpected<Error> Fail(Code code, std::string detail) {
  return std::unexpected<Error>(Error{code, std::move(detail)});
}
// With `: <strerror(errno)>` appended.
KVCOVE_API std::unexpected<Error> FailErrno(Code code, std::string detail);

}  // namespace kvcove

#define KVCOVE_CONCAT_(a, b) a##b
#define KVCOVE_CONCAT(a, b) KVCOVE_CONCAT_(a, b)
// Returns the error of `expr`, a Result<T> or Status, from the enclosing function.
#define KVCOVE_TRY(expr)                                                         \
  do {                                                                           \
    if (auto kvcove_status = (expr); !kvcove_status)                             \
      return std::unexpected<::kvcove::Error>(std::move(kvcove_status).error()); \
  } while (false)
// `KVCOVE_ASSIGN(auto x, F());`: x = value, or returns the error.
#define KVCOVE_ASSIGN(declaration, expr)                             \
  auto KVCOVE_CONCAT(kvcove_result_, __LINE__) = (expr);             \
  if (!KVCOVE_CONCAT(kvcove_result_, __LINE__))                      \
    return std::unexpected<::kvcove::Error>(                         \
        std::move(KVCOVE_CONCAT(kvcove_result_, __LINE__)).error()); \
  declaration = std::move(*KVCOVE_CONCAT(kvcove_result_, __LINE__))
