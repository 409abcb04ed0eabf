// SPDX-License-Identifier: Apache-2.0
// Python arguments as the pool's plain values. While one of these lives, what it points to stays.
// Needs the GIL to be made and to end, not to be read.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gil.h"
#include "kvcove/pool/pool.h"

namespace kvcove::python {

// An exception of the class of kvcove._errors that belongs to the code.
nb::object ErrorOf(const Error& error);
[[noreturn]] void Raise(const Error& error);
[[noreturn]] void RaiseInvalid(std::string detail);
template <typename T>
T Unwrap(Result<T> result) {
  if (!result) Raise(result.error());
  return std::move(*result);
}
inline void Unwrap(Status status) {
  if (!status) Raise(status.error());
}

// Seconds, as Python's own functions take them.
std::chrono::milliseconds Milliseconds(double seconds);
// The duration of a pin; nothing: it has no end. InvalidError for a hard one that ends at once.
std::chrono::milliseconds PinDuration(std::optional<double> seconds, bool hard);

// The UTF-8 of a str, which keeps it; InvalidError, with the text, if it has none. `name`, `index`:
// of the argument.
std::string_view Utf8Of(nb::handle text, std::string_view name,
                        std::optional<Py_ssize_t> index = {});

// A list or tuple of str or bytes. A str counts as its UTF-8.
class Keys {
 public:
  Keys() = default;
  explicit Keys(nb::handle keys, const char* name = "keys");
  std::span<const std::string_view> views() const { return views_; }
  std::size_t size() const { return views_.size(); }
  std::string_view operator[](std::size_t i) const { return views_[i]; }

 private:
  nb::object kept_;                 // a tuple: nobody takes its items away
  std::deque<std::string> copied_;  // of those that may change meanwhile: bytearrays
  std::vector<std::string_view> views_;
};

// Where values come from or go to: an item each, of one piece or of several (a list or tuple of
// pieces). A piece is anything with the buffer protocol, or DLPack in host memory, or a
// kvcove.Memory; C-contiguous.
class Buffers {
 public:
  // `writable`: they will be written.
  Buffers(nb::handle items, const char* name, bool writable);
  ~Buffers();
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  std::size_t size() const { return ends_.size(); }
  std::span<const MutableBuffer> Item(std::size_t i) const;
  std::span<const ConstBuffer> ConstItem(std::size_t i) const;

 private:
  void Add(nb::handle piece, bool writable);
  void AddItem(nb::handle item, bool writable);

  const char* name_;
  nb::object kept_;
  std::deque<Py_buffer> views_;
  std::vector<nb::ndarray<>> arrays_;
  std::vector<MutableBuffer> pieces_;
  std::vector<std::size_t> ends_;  // of each item's pieces
};

// "", "low", "normal" or "high", else kvcove.InvalidError.
NamespacePriority ParsePriority(std::string_view name);

// Memory by its address: kvcove.Memory(address, size).
struct Memory {
  std::uintptr_t address = 0;
  std::size_t size = 0;
};

}  // namespace kvcove::python
