// SPDX-License-Identifier: Apache-2.0
// XXH3 with 128 bits over bytes that are added in pieces. Protects every structure on a disk.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "kvcove/base/random.h"

namespace kvcove::disklog {

// Not thread-safe.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;

  // Adds the next bytes.
  void Add(std::span<const std::byte> bytes);
  void Add(std::string_view bytes) { Add(std::as_bytes(std::span(bytes))); }
  // Returns the checksum of all bytes so far; more may be added afterwards.
  Id128 Value() const;

  // Returns the checksum of bytes that are all here.
  static Id128 Of(std::span<const std::byte> bytes);
  static Id128 Of(std::string_view bytes) { return Of(std::as_bytes(std::span(bytes))); }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvcove::disklog
