// SPDX-License-Identifier: Apache-2.0
#include "arguments.h"

#include <fmt/core.h>

#include <algorithm>

namespace kvcove::python {

nb::object ErrorOf(const Error& error) {
  return OrWaitForProcessEnd([&] {
    const nb::module_ errors = nb::module_::import_("kvcove._errors");
    return nb::object(
        errors.attr("from_code")(static_cast<int>(error.code), nb::str(error.ToString().c_str())));
  });
}

void Raise(const Error& error) {
  const nb::object made = ErrorOf(error);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
  throw nb::python_error();
}

void RaiseInvalid(std::string detail) { Raise({Code::kInvalid, std::move(detail)}); }

std::chrono::milliseconds Milliseconds(double seconds) {
  if (!(seconds >= 0)) RaiseInvalid(fmt::format("{} s is no duration", seconds));
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::min(seconds, 1e6) * 1000));
}

std::chrono::milliseconds PinDuration(std::optional<double> seconds, bool hard) {
  const auto duration = Milliseconds(seconds.value_or(0));
  // In C++ a duration of 0 is a hard pin without an end.
  if (hard && seconds && duration.count() == 0) {
    RaiseInvalid(
        fmt::format("a hard pin of {} s; give at least 0.001, or None: without an end", *seconds));
  }
  return duration;
}

namespace {

std::string TypeName(nb::handle object) {
  return nb::type_name(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())))).c_str();
}

// Whether a format of the struct module has addresses: of objects (O), of text and others of ctypes
// (z, P, &, X). Names stand between colons.
bool HasAddresses(std::string_view format) {
  bool in_name = false;
  for (const char c : format) {
    if (c == ':') in_name = !in_name;
    if (!in_name && std::string_view("OzP&X").find(c) != std::string_view::npos) return true;
  }
  return false;
}

// Asks for the format, too, which some arrays cannot give (numpy's times); such an array says in
// another way whether it has objects.
bool GetBuffer(nb::handle piece, Py_buffer* view, bool writable, bool* has_addresses) {
  const int flags = writable ? PyBUF_WRITABLE : PyBUF_SIMPLE;
  if (PyObject_GetBuffer(piece.ptr(), view, flags | PyBUF_ND | PyBUF_FORMAT) == 0) {
    *has_addresses = view->format != nullptr && HasAddresses(view->format);
    return true;
  }
  PyErr_Clear();
  if (PyObject_GetBuffer(piece.ptr(), view, flags) != 0) {
    PyErr_Clear();
    return false;
  }
  const nb::object has =
      nb::getattr(nb::getattr(piece, "dtype", nb::none()), "hasobject", nb::none());
  *has_addresses = has.is(nb::bool_(true));
  return true;
}

// Of a tensor: whether reading it gives other numbers than those that lie in its memory.
bool IsLazily(nb::handle piece, const char* what) {
  const nb::object ask = nb::getattr(piece, what, nb::none());
  return PyCallable_Check(ask.ptr()) != 0 && ask().is(nb::bool_(true));
}

// Its items stay while the result lives, whatever others do to a list meanwhile.
nb::object TupleOf(nb::handle items, const char* name) {
  if (PyUnicode_Check(items.ptr()) || PyBytes_Check(items.ptr())) {
    RaiseInvalid(fmt::format("{}: a list is wanted, not one {}", name, TypeName(items)));
  }
  PyObject* tuple = PySequence_Tuple(items.ptr());
  if (tuple == nullptr) {
    PyErr_Clear();
    RaiseInvalid(fmt::format("{}: a list is wanted, not {}", name, TypeName(items)));
  }
  return nb::steal(tuple);
}

}  // namespace

std::string_view Utf8Of(nb::handle text, std::string_view name, std::optional<Py_ssize_t> index) {
  Py_ssize_t size = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (utf8 != nullptr) return {utf8, static_cast<std::size_t>(size)};
  if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError) == 0) throw nb::python_error();
  PyErr_Clear();
  RaiseInvalid(fmt::format(
      "{}{}: {} has a lone surrogate, which UTF-8 cannot say; give bytes instead, such as "
      "text.encode('utf-8', 'surrogatepass')",
      name, index ? fmt::format("[{}]", *index) : "",
      nb::cast<std::string>(nb::steal(PyObject_ASCII(text.ptr())))));
}

Keys::Keys(nb::handle keys, const char* name) : kept_(TupleOf(keys, name)) {
  const Py_ssize_t count = PyTuple_Size(kept_.ptr());
  views_.reserve(static_cast<std::size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* key = PyTuple_GetItem(kept_.ptr(), i);
    if (PyUnicode_Check(key)) {
      views_.push_back(Utf8Of(nb::handle(key), name, i));
    } else if (PyBytes_Check(key)) {
      char* text = nullptr;
      Py_ssize_t size = 0;
      if (PyBytes_AsStringAndSize(key, &text, &size) != 0) throw nb::python_error();
      views_.emplace_back(text, static_cast<std::size_t>(size));
    } else if (PyByteArray_Check(key)) {
      views_.emplace_back(copied_.emplace_back(PyByteArray_AsString(key),
                                               static_cast<std::size_t>(PyByteArray_Size(key))));
    } else {
      RaiseInvalid(
          fmt::format("{}[{}]: a key is str or bytes, not {}", name, i, TypeName(nb::handle(key))));
    }
  }
}

Buffers::Buffers(nb::handle items, const char* name, bool writable)
    : name_(name), kept_(TupleOf(items, name)) {
  try {
    const Py_ssize_t count = PyTuple_Size(kept_.ptr());
    ends_.reserve(static_cast<std::size_t>(count));
    pieces_.reserve(static_cast<std::size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      AddItem(nb::handle(PyTuple_GetItem(kept_.ptr(), i)), writable);
      ends_.push_back(pieces_.size());
    }
  } catch (...) {
    for (Py_buffer& view : views_) PyBuffer_Release(&view);
    throw;
  }
}

Buffers::~Buffers() {
  for (Py_buffer& view : views_) PyBuffer_Release(&view);
}

void Buffers::AddItem(nb::handle item, bool writable) {
  if (!PyList_Check(item.ptr()) && !PyTuple_Check(item.ptr())) return Add(item, writable);
  const nb::object pieces = TupleOf(item, name_);
  const Py_ssize_t count = PyTuple_Size(pieces.ptr());
  for (Py_ssize_t i = 0; i < count; ++i) {
    Add(nb::handle(PyTuple_GetItem(pieces.ptr(), i)), writable);
  }
}

void Buffers::Add(nb::handle piece, bool writable) {
  const std::size_t item = ends_.size();
  if (PyObject_CheckBuffer(piece.ptr())) {
    Py_buffer view;
    bool has_addresses = false;
    if (!GetBuffer(piece, &view, writable, &has_addresses)) {
      RaiseInvalid(fmt::format("{}[{}]: the {} must be {}C-contiguous", name_, item,
                               TypeName(piece), writable ? "writable and " : ""));
    }
    views_.push_back(view);
    if (has_addresses) {
      RaiseInvalid(
          fmt::format("{}[{}]: the {} holds Python objects or pointers: its bytes are addresses in "
                      "this process; numbers are wanted, or bytes (pickle.dumps)",
                      name_, item, TypeName(piece)));
    }
    pieces_.push_back({.data = view.buf, .size = static_cast<std::size_t>(view.len)});
    return;
  }
  if (Memory memory; nb::try_cast<Memory>(piece, memory, /*convert=*/false)) {
    pieces_.push_back(
        {.data = reinterpret_cast<void*>(memory.address), .size = memory.size});  // NOLINT
    return;
  }
  nb::ndarray<> array;
  if (!nb::try_cast(piece, array)) {
    PyErr_Clear();
    RaiseInvalid(fmt::format(
        "{}[{}]: {} has neither the buffer protocol nor DLPack, and is no kvcove.Memory", name_,
        item, TypeName(piece)));
  }
  for (const char* what : {"is_conj", "is_neg"}) {
    if (!IsLazily(piece, what)) continue;
    RaiseInvalid(
        fmt::format("{}[{}]: {}() is true of this {}: its memory has other numbers; {}() it "
                    "first",
                    name_, item, what, TypeName(piece),
                    what == std::string_view("is_conj") ? "resolve_conj" : "resolve_neg"));
  }
  if (array.device_type() != nb::device::cpu::value) {
    RaiseInvalid(fmt::format("{}[{}]: this array is not in host memory (DLPack device {})", name_,
                             item, array.device_type()));
  }
  std::int64_t expected = 1;
  for (std::size_t d = array.ndim(); d-- > 0;) {
    if (array.shape(d) != 1 && array.stride(d) != expected) {
      RaiseInvalid(fmt::format("{}[{}]: the array must be C-contiguous", name_, item));
    }
    expected *= static_cast<std::int64_t>(array.shape(d));
  }
  pieces_.push_back({.data = array.data(), .size = array.nbytes()});
  arrays_.push_back(std::move(array));
}

std::span<const MutableBuffer> Buffers::Item(std::size_t i) const {
  const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
  return std::span(pieces_).subspan(begin, ends_[i] - begin);
}

std::span<const ConstBuffer> Buffers::ConstItem(std::size_t i) const {
  // The two differ in the const of what is pointed to only.
  static_assert(sizeof(ConstBuffer) == sizeof(MutableBuffer));
  const auto item = Item(i);
  return {reinterpret_cast<const ConstBuffer*>(item.data()), item.size()};
}

NamespacePriority ParsePriority(std::string_view name) {
  const auto at = std::ranges::find(kPriorityNames, name);
  if (at == kPriorityNames.end()) {
    RaiseInvalid(fmt::format("priority must be low, normal or high, not '{}'", name));
  }
  return static_cast<NamespacePriority>(at - kPriorityNames.begin());
}

}  // namespace kvcove::python
