// SPDX-License-Identifier: Apache-2.0
// Borrowed and reserved memory as Python sees it: memoryviews that end with their loan. A view that
// somebody still uses (a numpy array on it) refuses the end, so nothing ever points at memory that
// is the owner's again.
#include <fmt/core.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "docs.h"
#include "session.h"

namespace kvcove::python {
namespace {

using Text = std::string;

// Views of one loan or reservation. With the GIL.
class Views {
 public:
  explicit Views(std::size_t items) : items_(items) {}

  // Of one item: made once. `keep` is what its memory needs.
  template <typename T, typename Pieces>
  nb::tuple Of(std::size_t i, const Pieces& pieces, const std::shared_ptr<void>& keep) {
    if (!items_[i].is_valid()) {
      nb::list views;
      for (const auto& piece : pieces) {
        auto* used = new Used{.keep = keep, .users = users_};
        const nb::capsule owner(used, [](void* data) noexcept { delete static_cast<Used*>(data); });
        nb::ndarray<nb::memview, T, nb::ndim<1>> view(static_cast<T*>(piece.data), {piece.size},
                                                      owner);
        views.append(view.cast());
      }
      items_[i] = nb::tuple(views);
    }
    return nb::borrow<nb::tuple>(items_[i]);
  }
  // Every view raises ValueError from here on. Raises BufferError while something else uses the
  // memory: an array over a view does so without the view's knowledge, and keeps its owner.
  void End() {
    for (nb::object& item : items_) {
      if (!item.is_valid()) continue;
      for (const nb::handle view : nb::borrow<nb::tuple>(item)) view.attr("release")();
      item = nb::object();
    }
    if (users_.use_count() > 1) {
      throw nb::buffer_error(
          "an array still uses this memory; drop it first, and whatever else was made of a view");
    }
  }

 private:
  // What a piece's memory needs, for as long as anything refers to it.
  struct Used {
    std::shared_ptr<void> keep;
    std::shared_ptr<int> users;
  };

  std::vector<nb::object> items_;  // a tuple each, once it is asked for
  std::shared_ptr<int> users_ = std::make_shared<int>(0);
};

std::size_t IndexIn(std::size_t size, std::int64_t index) {
  const auto count = static_cast<std::int64_t>(size);
  if (index < 0) index += count;
  if (index < 0 || index >= count) throw nb::index_error("an item that the batch did not have");
  return static_cast<std::size_t>(index);
}

struct PyBorrowed {
  explicit PyBorrowed(Borrowed taken)
      : loan(std::make_shared<Borrowed>(std::move(taken))),
        found(loan->size()),
        views(loan->size()) {
    for (std::size_t i = 0; i < loan->size(); ++i) found.items[i] = loan->result(i);
  }
  std::shared_ptr<Borrowed> Get() const {
    guard.Check();
    if (loan == nullptr) RaiseInvalid("what was borrowed has been released");
    return loan;
  }

  ForkGuard guard;
  std::shared_ptr<Borrowed> loan;  // null once it is released
  Results found;
  Views views;
};

struct PyReserved {
  explicit PyReserved(Reserved taken)
      : space(std::make_shared<Reserved>(std::move(taken))),
        found(space->size()),
        views(space->size()) {
    for (std::size_t i = 0; i < space->size(); ++i) found.items[i] = space->result(i);
  }
  std::shared_ptr<Reserved> Get() const {
    guard.Check();
    if (aborted) RaiseInvalid("the reservation was given up");
    return space;
  }

  ForkGuard guard;
  std::shared_ptr<Reserved> space;
  Results found;
  Views views;
  bool aborted = false;
  bool committed = false;
  bool busy = false;  // one thread commits, without the GIL
};

// ---- borrowed

PyBorrowed Borrow(const PySession& self, nb::object keys_in, const Text& version, double hold,
                  double timeout) {
  const std::shared_ptr<Session> session = self.Get();
  const Keys keys(keys_in);
  const CallOptions options{
      .timeout = Milliseconds(timeout), .version = version, .hold = Milliseconds(hold)};
  Result<Borrowed> loan = WithoutGil([&] { return session->Borrow(keys.views(), options); });
  return PyBorrowed(Unwrap(std::move(loan)));
}

Results Revalidate(const PyBorrowed& self) {
  const std::shared_ptr<Borrowed> loan = self.Get();
  Results results(loan->size());
  Unwrap(loan->Revalidate(results.items));
  return results;
}

Results Release(PyBorrowed& self) {
  (void)self.Get();
  self.views.End();
  // Out of the object before the GIL is let go: no other thread ends it, too.
  std::shared_ptr<Borrowed> loan = std::move(self.loan);
  Results results(loan->size());
  Status status;
  {
    const ReleasedGil release;
    status = loan->Release(results.items);
    loan.reset();  // may be the last that keeps a closed pool
  }
  Unwrap(std::move(status));
  return results;
}

// ---- reserved

std::vector<ReserveItem> ItemsOf(const Keys& keys, const std::vector<std::uint64_t>& sizes,
                                 const Keys& afters, nb::handle hints) {
  if (keys.size() != sizes.size()) {
    RaiseInvalid(fmt::format("{} keys but {} sizes", keys.size(), sizes.size()));
  }
  if (afters.size() > 0 && afters.size() != keys.size()) {
    RaiseInvalid(fmt::format("after: {} keys for {} values", afters.size(), keys.size()));
  }
  const std::vector<Hints> each = HintsOf(hints, keys.size());
  std::vector<ReserveItem> items(keys.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i] = {.key = keys[i], .size_bytes = sizes[i], .hints = each[i]};
    if (afters.size() > 0) items[i].after = afters[i];
  }
  return items;
}

PyReserved Reserve(const PySession& self, nb::object keys_in,
                   const std::vector<std::uint64_t>& sizes, nb::object given, nb::object after_in,
                   nb::object hints, double timeout) {
  const std::shared_ptr<Session> session = self.Get();
  const std::optional<Token> token_in = TokenOf(given);
  const Keys keys(keys_in);
  const After after(after_in);
  const std::vector<ReserveItem> items = ItemsOf(keys, sizes, after.each, hints);
  const CallOptions options{.timeout = Milliseconds(timeout), .after = after.first};
  Result<Reserved> space = WithoutGil([&] {
    const Result<Token> token = token_in ? Result<Token>(*token_in) : session->Capture(options);
    return token ? session->Reserve(*token, items, options)
                 : Result<Reserved>(std::unexpected(token.error()));
  });
  return PyReserved(Unwrap(std::move(space)));
}

Results Commit(PyReserved& self, double timeout) {
  const std::shared_ptr<Reserved> space = self.Get();
  const auto wait = Milliseconds(timeout);
  if (self.busy) RaiseInvalid("another thread commits this reservation");
  self.views.End();
  self.committed = true;
  struct Busy {
    explicit Busy(bool& flag) : busy(flag) { busy = true; }
    ~Busy() { busy = false; }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;
    bool& busy;
  };
  const Busy busy(self.busy);
  Results results(space->size());
  WithoutGil([&] { (void)space->Commit(results.items, wait); });  // the items show the error
  return results;
}

void Abort(PyReserved& self, double timeout) {
  self.guard.Check();
  if (self.aborted || self.committed) return;
  const auto wait = Milliseconds(timeout);
  self.views.End();
  self.aborted = true;
  const std::shared_ptr<Reserved> space = self.space;
  WithoutGil([&] { space->Abort(wait); });
}

void BindBorrowed(nb::module_& module) {
  nb::class_<PyBorrowed>(module, "Borrowed", docs::kBorrowed)
      .def("__len__", [](const PyBorrowed& self) { return self.found.items.size(); })
      .def("__repr__",
           [](const PyBorrowed& self) {
             return fmt::format("<kvcove.Borrowed {} of {} values{}>", self.found.CountOk(),
                                self.found.items.size(), self.loan == nullptr ? ", released" : "");
           })
      .def(
          "__getitem__",
          [](PyBorrowed& self, std::int64_t index) {
            const std::shared_ptr<Borrowed> loan = self.Get();
            const std::size_t i = IndexIn(loan->size(), index);
            return self.views.Of<const std::uint8_t>(i, loan->pieces(i), loan);
          },
          nb::sig("def __getitem__(self, arg: int, /) -> tuple[memoryview, ...]"))
      .def_prop_ro("results", [](const PyBorrowed& self) { return self.found; })
      .def_prop_ro("nbytes",
                   [](const PyBorrowed& self) {
                     self.guard.Check();
                     return self.loan == nullptr ? 0 : self.loan->bytes();
                   })
      .def("revalidate", &Revalidate, docs::kRevalidate)
      .def("release", &Release, docs::kRelease)
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Borrowed"))
      .def(
          "__exit__",
          [](PyBorrowed& self, nb::args) {
            if (self.guard.Here() && self.loan != nullptr) (void)Release(self);
          },
          nb::sig("def __exit__(self, *args: object) -> None"));
}

void BindReserved(nb::module_& module) {
  nb::class_<PyReserved>(module, "Reserved", docs::kReserved)
      .def("__len__", [](const PyReserved& self) { return self.found.items.size(); })
      .def("__repr__",
           [](const PyReserved& self) {
             return fmt::format("<kvcove.Reserved {} of {} values{}>", self.found.CountOk(),
                                self.found.items.size(),
                                self.aborted     ? ", given up"
                                : self.committed ? ", committed"
                                                 : "");
           })
      .def(
          "__getitem__",
          [](PyReserved& self, std::int64_t index) {
            const std::shared_ptr<Reserved> space = self.Get();
            if (self.committed) RaiseInvalid("the reservation is committed");
            const std::size_t i = IndexIn(space->size(), index);
            return self.views.Of<std::uint8_t>(i, space->pieces(i), space);
          },
          nb::sig("def __getitem__(self, arg: int, /) -> tuple[memoryview, ...]"))
      .def_prop_ro("results", [](const PyReserved& self) { return self.found; })
      .def_prop_ro("nbytes",
                   [](const PyReserved& self) {
                     self.guard.Check();
                     return self.committed || self.aborted ? 0 : self.space->bytes();
                   })
      .def(
          "drop",
          [](PyReserved& self, std::int64_t index) {
            const std::shared_ptr<Reserved> space = self.Get();
            if (self.committed) RaiseInvalid("the reservation is committed");
            space->Drop(IndexIn(space->size(), index));
          },
          nb::arg("index"), docs::kDrop)
      .def("commit", &Commit, nb::kw_only(), nb::arg("timeout") = 1.0, docs::kCommit)
      .def("abort", &Abort, nb::kw_only(), nb::arg("timeout") = 1.0, docs::kAbort)
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Reserved"))
      .def(
          "__exit__",
          [](PyReserved& self, nb::args) {
            if (self.guard.Here()) Abort(self, 1.0);
          },
          nb::sig("def __exit__(self, *args: object) -> None"));
}

void BindSegment(nb::module_& module) {
  nb::class_<SegmentRange>(module, "SegmentRange", docs::kSegmentRange)
      .def_ro("number", &SegmentRange::number)
      .def_prop_ro(
          "address",
          [](const SegmentRange& range) { return reinterpret_cast<std::uintptr_t>(range.data); })
      .def_ro("nbytes", &SegmentRange::size_bytes)
      .def_ro("populated_bytes", &SegmentRange::populated_bytes)
      .def_ro("node", &SegmentRange::node)
      .def("__repr__", [](const SegmentRange& range) {
        return fmt::format("<kvcove.SegmentRange {}: {} bytes>", range.number, range.size_bytes);
      });
}

}  // namespace

void BindBorrow(nb::module_& module) {
  BindBorrowed(module);
  BindReserved(module);
  BindSegment(module);
  auto session = nb::borrow<nb::class_<PySession>>(module.attr("Session"));
  session
      .def("borrow", &Borrow, nb::arg("keys"), nb::kw_only(), nb::arg("version") = "",
           nb::arg("hold") = 0.0, nb::arg("timeout") = 1.0,
           nb::sig("def borrow(self, keys: collections.abc.Sequence[str | bytes], *, version: str "
                   "= '', hold: float = 0.0, timeout: float = 1.0) -> Borrowed"),
           docs::kBorrow)
      .def("reserve", &Reserve, nb::arg("keys"), nb::arg("sizes"), nb::kw_only(),
           nb::arg("token") = nb::none(), nb::arg("after") = nb::none(),
           nb::arg("hints") = nb::none(), nb::arg("timeout") = 1.0,
           nb::sig("def reserve(self, keys: collections.abc.Sequence[str | bytes], sizes: "
                   "collections.abc.Sequence[int], *, token: Token | None = None, after: str | "
                   "bytes | collections.abc.Sequence[str | bytes] | None = None, hints: Hints | "
                   "collections.abc.Sequence[Hints] | None = None, timeout: float = 1.0) -> "
                   "Reserved"),
           docs::kReserve)
      .def(
          "segments",
          [](const PySession& self, double timeout) {
            const std::shared_ptr<Session> session = self.Get();
            const CallOptions options{.timeout = Milliseconds(timeout)};
            Result<std::vector<SegmentRange>> ranges =
                WithoutGil([&] { return session->Segments(options); });
            return Unwrap(std::move(ranges));
          },
          nb::kw_only(), nb::arg("timeout") = 1.0,
          nb::sig("def segments(self, *, timeout: float = 1.0) -> list[SegmentRange]"),
          docs::kSegments);
}

}  // namespace kvcove::python
