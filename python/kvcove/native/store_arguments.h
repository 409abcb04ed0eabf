// SPDX-License-Identifier: Apache-2.0
// Arguments of mooncake.store's calls as plain values: keys by the names under which they are
// stored, addresses, sizes and offsets in lists or lists of lists. Needs the GIL to be made.
#pragma once

#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "session.h"

namespace kvcove::python {

// Keys longer than the pool's are stored under their hash, and so are those that look like one.
std::string StoredName(std::string_view key);

// The caller's keys as they are stored.
class StoredKeys {
 public:
  explicit StoredKeys(nb::handle keys);
  std::span<const std::string_view> views() const { return views_; }
  std::size_t size() const { return views_.size(); }
  std::string_view operator[](std::size_t i) const { return views_[i]; }

 private:
  Keys given_;
  std::vector<std::string_view> views_;
  std::deque<std::string> hashed_;
};

// [0, 0, ...] as that API answers.
nb::list ToList(std::span<const std::int64_t> codes);
nb::list ToList(std::size_t count, std::int64_t code);

// Items of a list or tuple, which must stay.
nb::object SequenceOf(nb::handle items);
std::size_t SizeOf(nb::handle sequence);
nb::handle ItemOf(nb::handle sequence, std::size_t i);

// `wrong` for what is negative or larger than 64 bits: no address, no size and no offset.
std::uint64_t ToUnsigned(nb::handle number, std::uint64_t wrong = 0);
// A list of numbers. Raises TypeError for one that is negative or larger than 64 bits.
std::vector<std::uint64_t> ToNumbers(nb::handle list);

inline bool IsWithin(std::uint64_t offset, std::uint64_t size, std::uint64_t total) {
  return offset <= total && size <= total - offset;
}

struct Piece {
  std::uintptr_t address = 0;
  std::size_t size = 0;
};

// Each item's pieces, as the lists of addresses and sizes say. An item whose lists do not fit
// together has one piece of nothing.
class Pieces {
 public:
  // `several`: lists of lists. Nothing if there are not as many lists as items.
  static std::optional<Pieces> Of(nb::handle addresses, nb::handle sizes, std::size_t items,
                                  bool several);
  std::span<const Piece> Item(std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::span(pieces_).subspan(begin, ends_[i] - begin);
  }
  std::size_t total() const { return pieces_.size(); }

 private:
  void AddSeveral(nb::handle addresses, nb::handle sizes);

  std::vector<Piece> pieces_;
  std::vector<std::size_t> ends_;
};

}  // namespace kvcove::python
