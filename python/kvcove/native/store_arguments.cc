// SPDX-License-Identifier: Apache-2.0
#include "store_arguments.h"

#include <fmt/core.h>
#include <openssl/evp.h>

namespace kvcove::python {
namespace {

constexpr std::string_view kHashed = "kvcove-long-key-sha256:";

// That API raises TypeError for what is no key.
Keys KeysOf(nb::handle keys) {
  try {
    return Keys(keys);
  } catch (const nb::python_error& error) {
    if (error.matches(PyExc_MemoryError)) throw;
    throw nb::type_error(nb::str(error.value()).c_str());
  }
}

}  // namespace

std::string StoredName(std::string_view key) {
  if (key.size() <= kMaxKeyBytes && !key.starts_with(kHashed)) return std::string(key);
  unsigned char digest[32];
  unsigned size = sizeof(digest);
  if (EVP_Digest(key.data(), key.size(), digest, &size, EVP_sha256(), nullptr) != 1) return {};
  std::string name(kHashed);
  for (const unsigned char byte : digest) name += fmt::format("{:02x}", byte);
  return name;
}

StoredKeys::StoredKeys(nb::handle keys) : given_(KeysOf(keys)) {
  views_.assign(given_.views().begin(), given_.views().end());
  for (std::string_view& view : views_) {
    if (view.size() <= kMaxKeyBytes && !view.starts_with(kHashed)) continue;
    view = hashed_.emplace_back(StoredName(view));
  }
}

nb::list ToList(std::span<const std::int64_t> codes) {
  nb::list list = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(codes.size())));
  for (std::size_t i = 0; i < codes.size(); ++i) {
    PyObject* code = PyLong_FromLongLong(codes[i]);
    if (code == nullptr || PyList_SetItem(list.ptr(), static_cast<Py_ssize_t>(i), code) != 0) {
      throw nb::python_error();
    }
  }
  return list;
}

nb::list ToList(std::size_t count, std::int64_t code) {
  return ToList(std::vector<std::int64_t>(count, code));
}

nb::object SequenceOf(nb::handle items) {
  nb::object sequence = nb::steal(PySequence_Fast(items.ptr(), "a list is wanted"));
  if (!sequence.is_valid()) throw nb::python_error();
  return sequence;
}

std::size_t SizeOf(nb::handle sequence) {
  return static_cast<std::size_t>(PySequence_Size(sequence.ptr()));
}

nb::handle ItemOf(nb::handle sequence, std::size_t i) {
  const auto at = static_cast<Py_ssize_t>(i);
  PyObject* item = PyList_Check(sequence.ptr()) ? PyList_GetItem(sequence.ptr(), at)
                                                : PyTuple_GetItem(sequence.ptr(), at);
  if (item == nullptr) throw nb::python_error();
  return item;
}

std::uint64_t ToUnsigned(nb::handle number, std::uint64_t wrong) {
  if (PyLong_Check(number.ptr())) {
    const std::uint64_t value = PyLong_AsUnsignedLongLong(number.ptr());
    if (value != ~0ULL || PyErr_Occurred() == nullptr) return value;
    PyErr_Clear();
    return wrong;
  }
  const nb::object index = nb::steal(PyNumber_Index(number.ptr()));
  if (!index.is_valid()) throw nb::python_error();
  return ToUnsigned(index, wrong);
}

std::vector<std::uint64_t> ToNumbers(nb::handle list) {
  const nb::object items = SequenceOf(list);
  std::vector<std::uint64_t> numbers(SizeOf(items));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const nb::handle item = ItemOf(items, i);
    // The two say different things of a number only if it is none of 64 bits.
    numbers[i] = ToUnsigned(item, 0);
    if (numbers[i] == 0 && ToUnsigned(item, 1) != 0) {
      throw nb::type_error("a number from 0 to 2**64 - 1 is wanted");
    }
  }
  return numbers;
}

std::optional<Pieces> Pieces::Of(nb::handle addresses, nb::handle sizes, std::size_t items,
                                 bool several) {
  const nb::object all_addresses = SequenceOf(addresses);
  const nb::object all_sizes = SequenceOf(sizes);
  if (SizeOf(all_addresses) != items || SizeOf(all_sizes) != items) return std::nullopt;
  Pieces pieces;
  pieces.ends_.reserve(items);
  for (std::size_t i = 0; i < items; ++i) {
    const nb::handle address = ItemOf(all_addresses, i);
    const nb::handle size = ItemOf(all_sizes, i);
    if (several) {
      pieces.AddSeveral(address, size);
    } else {
      pieces.pieces_.push_back({.address = ToUnsigned(address), .size = ToUnsigned(size)});
    }
    pieces.ends_.push_back(pieces.pieces_.size());
  }
  return pieces;
}

void Pieces::AddSeveral(nb::handle addresses, nb::handle sizes) {
  const nb::object all_addresses = SequenceOf(addresses);
  const nb::object all_sizes = SequenceOf(sizes);
  const std::size_t count = SizeOf(all_addresses);
  if (count == 0 || count != SizeOf(all_sizes)) {
    pieces_.push_back({});
    return;
  }
  for (std::size_t k = 0; k < count; ++k) {
    pieces_.push_back({.address = ToUnsigned(ItemOf(all_addresses, k)),
                       .size = ToUnsigned(ItemOf(all_sizes, k))});
  }
}

}  // namespace kvcove::python
