// SPDX-License-Identifier: Apache-2.0
// Numbers in files: little-endian, whatever the machine is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace kvcove {

template <typename T>
void AppendNumber(std::string& out, T value) {
  static_assert(std::is_integral_v<T>);
  const auto bits = static_cast<std::make_unsigned_t<T>>(value);
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(bits >> (8 * i));
}

// Takes fields from the front of bytes that outlive it. A field that does not fit reads as zero or
// empty, and so does all behind it; `ok` is false from then on.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : bytes_(bytes) {}
  template <typename T>
  T Number() {
    static_assert(std::is_integral_v<T>);
    std::uint64_t value = 0;
    const std::string_view field = Bytes(sizeof(T));
    for (std::size_t i = 0; i < field.size(); ++i) {
      value |= std::uint64_t{static_cast<std::uint8_t>(field[i])} << (8 * i);
    }
    return static_cast<T>(value);
  }
  std::string_view Bytes(std::size_t count) {
    if (count > bytes_.size()) {
      ok_ = false;
      bytes_ = {};
      return {};
    }
    const std::string_view field = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return field;
  }
  bool ok() const { return ok_; }
  std::size_t left() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace kvcove
