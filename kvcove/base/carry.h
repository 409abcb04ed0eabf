// SPDX-License-Identifier: Apache-2.0
// State that one process writes and its successor reads (docs/upgrade.md). A class lists its
// members once, in `template <typename Ar> void Carry(Ar& ar) { CarryAll(ar, a_, b_); }`, for both
// directions, so that what is written and what is read cannot differ.
//
// The bytes live for one hand-over, between two processes of one host and one format version. Each
// sequence says how large its elements are: a build whose structures differ is found out, not
// misread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvcove/base/posix.h"

namespace kvcove {

// Writes into a memory file. Belongs to one thread.
class StateWriter {
 public:
  static constexpr bool kReads = false;

  // `expected_bytes`: so much is allocated now, where the host has it.
  static Result<StateWriter> Open(std::uint64_t expected_bytes = 0);
  void Bytes(void* data, std::size_t size);
  bool Fits(std::uint64_t /*count*/) const { return true; }
  void Fail() { failed_ = true; }
  // The file, once all is written. Errors: kNoSpace when the host gave no memory for it.
  Result<UniqueFd> Finish();
  std::uint64_t size() const { return written_ + buffer_.size(); }

 private:
  explicit StateWriter(UniqueFd fd) : fd_(std::move(fd)) {}
  void Flush(const void* data, std::size_t size);

  UniqueFd fd_;
  std::vector<std::byte> buffer_;
  std::uint64_t written_ = 0;
  bool failed_ = false;
};

// Reads what a StateWriter wrote. After a read beyond the end, or a size that differs, everything
// reads as zeros and `ok` is false: its reader checks once, at the end. Belongs to one thread.
class StateReader {
 public:
  static constexpr bool kReads = true;

  static Result<StateReader> Open(const UniqueFd& fd);
  void Bytes(void* data, std::size_t size);
  // So many elements may still follow.
  bool Fits(std::uint64_t count) {
    if (count > size_ - at_) failed_ = true;
    return !failed_;
  }
  void Fail() { failed_ = true; }
  bool ok() const { return !failed_; }

 private:
  explicit StateReader(Mapping file) : file_(std::move(file)), size_(file_.size()) {}

  Mapping file_;
  std::uint64_t size_ = 0;
  std::uint64_t at_ = 0;
  bool failed_ = false;
};

template <typename Ar, typename T>
void CarryOne(Ar& ar, T& value);

template <typename Ar, typename... T>
void CarryAll(Ar& ar, T&... values) {
  (CarryOne(ar, values), ...);
}

// Plain bytes, with their size.
template <typename Ar, typename T>
void CarryPlain(Ar& ar, T* values, std::size_t count) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::uint32_t each = sizeof(T);
  ar.Bytes(&each, sizeof(each));
  if (each != sizeof(T)) return ar.Fail();
  ar.Bytes(static_cast<void*>(values), count * sizeof(T));
}

// One that nobody changes meanwhile.
template <typename Ar, typename T>
void CarryAtomic(Ar& ar, std::atomic<T>& value) {
  T plain = value.load();
  CarryPlain(ar, &plain, 1);
  if constexpr (Ar::kReads) value.store(plain);
}

namespace carry_detail {

template <typename T>
inline constexpr bool kPair = false;
template <typename A, typename B>
inline constexpr bool kPair<std::pair<A, B>> = true;
template <typename T>
inline constexpr bool kOptional = false;
template <typename T>
inline constexpr bool kOptional<std::optional<T>> = true;
template <typename T>
concept Associative = requires { typename T::key_type; };
template <typename T>
concept Sequence = requires(T t) { t.resize(0); };

template <typename Ar, typename T>
void CarrySequence(Ar& ar, T& values) {
  std::uint64_t count = values.size();
  ar.Bytes(&count, sizeof(count));
  if (!ar.Fits(count)) return;
  if constexpr (Ar::kReads) values.resize(count);
  if constexpr (requires { values.data(); } &&
                std::is_trivially_copyable_v<typename T::value_type>) {
    CarryPlain(ar, values.data(), values.size());
  } else if constexpr (std::is_trivially_copyable_v<typename T::value_type>) {  // a deque
    for (auto& value : values) ar.Bytes(&value, sizeof(value));
  } else {
    for (auto& value : values) CarryOne(ar, value);
  }
}

template <typename Ar, typename T>
void CarryAssociative(Ar& ar, T& values) {
  std::uint64_t count = values.size();
  ar.Bytes(&count, sizeof(count));
  if (!ar.Fits(count)) return;
  constexpr bool kMap = requires { typename T::mapped_type; };
  if constexpr (!Ar::kReads) {
    for (auto& value : values) {
      if constexpr (kMap) {
        typename T::key_type key = value.first;
        CarryAll(ar, key, value.second);
      } else {
        typename T::key_type key = value;
        CarryOne(ar, key);
      }
    }
  } else {
    values.clear();
    if constexpr (requires { values.reserve(count); }) values.reserve(count);
    for (; count > 0 && ar.ok(); --count) {
      typename T::key_type key{};
      CarryOne(ar, key);
      if constexpr (kMap) {
        CarryOne(ar, values.try_emplace(values.end(), std::move(key))->second);
      } else {
        values.emplace_hint(values.end(), std::move(key));
      }
    }
  }
}

template <typename Ar, typename T>
void CarryOptional(Ar& ar, std::optional<T>& value) {
  bool there = value.has_value();
  CarryPlain(ar, &there, 1);
  if constexpr (Ar::kReads) value.reset();
  if (!there) return;
  if constexpr (Ar::kReads) value.emplace();
  CarryOne(ar, *value);
}

}  // namespace carry_detail

template <typename Ar, typename T>
void CarryOne(Ar& ar, T& value) {
  if constexpr (requires { value.Carry(ar); }) {
    value.Carry(ar);
  } else if constexpr (requires { CarryFields(ar, value); }) {  // where the type is told so little
    CarryFields(ar, value);
  } else if constexpr (carry_detail::kOptional<T>) {
    carry_detail::CarryOptional(ar, value);
  } else if constexpr (carry_detail::Associative<T>) {
    carry_detail::CarryAssociative(ar, value);
  } else if constexpr (carry_detail::kPair<T>) {
    CarryAll(ar, value.first, value.second);
  } else if constexpr (carry_detail::Sequence<T>) {
    carry_detail::CarrySequence(ar, value);
  } else if constexpr (std::is_trivially_copyable_v<T>) {
    CarryPlain(ar, &value, 1);
  } else {  // an array
    for (auto& one : value) CarryOne(ar, one);
  }
}

}  // namespace kvcove
