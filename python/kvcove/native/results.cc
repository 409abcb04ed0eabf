// SPDX-License-Identifier: Apache-2.0
#include "results.h"

#include <fmt/core.h>
#include <nanobind/stl/string.h>

#include <algorithm>

#include "docs.h"

namespace kvcove::python {

bool Results::AllOk() const { return std::ranges::all_of(items, &ItemResult::ok); }
std::size_t Results::CountOk() const {
  return static_cast<std::size_t>(std::ranges::count_if(items, &ItemResult::ok));
}

namespace {

// A view of one field of all items: no object an item, and nothing is copied.
template <typename T, typename Field>
nb::object Column(const Results& results, nb::handle owner, Field ItemResult::* field) {
  static_assert(sizeof(T) == sizeof(Field) && sizeof(ItemResult) % sizeof(T) == 0);
  const ItemResult nothing;
  const ItemResult* first = results.items.empty() ? &nothing : results.items.data();
  const auto* data = reinterpret_cast<const T*>(&(first->*field));
  constexpr auto kStride = static_cast<std::int64_t>(sizeof(ItemResult) / sizeof(T));
  nb::ndarray<nb::memview, const T, nb::ndim<1>> view(data, {results.items.size()}, owner,
                                                      {kStride});
  return view.cast();
}

std::size_t IndexIn(const Results& results, std::int64_t index) {
  const auto size = static_cast<std::int64_t>(results.items.size());
  if (index < 0) index += size;
  if (index < 0 || index >= size) throw nb::index_error("an item that the batch did not have");
  return static_cast<std::size_t>(index);
}

std::string Describe(const ItemResult& result) {
  std::string text = fmt::format("<kvcove.Result {}", CodeName(result.code));
  if (result.code == Code::kMiss) text += fmt::format(" ({})", MissReasonName(result.reason));
  if (result.ok()) text += fmt::format(", {} bytes", result.bytes);
  if (result.code == Code::kInvalid) {
    text += fmt::format(" (a key has 1 to {} bytes, a value has 1 to {})", kMaxKeyBytes,
                        kMaxObjectBytes);
  }
  return text + ">";
}

}  // namespace

void BindResults(nb::module_& module) {
  nb::enum_<Code>(module, "Code", nb::is_arithmetic())
      .value("OK", Code::kOk)
      .value("MISS", Code::kMiss)
      .value("TIMEOUT", Code::kTimeout)
      .value("BUFFER_BUSY", Code::kBufferBusy)
      .value("STALE", Code::kStale)
      .value("CLOSED", Code::kClosed)
      .value("NO_SPACE", Code::kNoSpace)
      .value("EXISTS", Code::kExists)
      .value("IN_PROGRESS", Code::kInProgress)
      .value("DENIED", Code::kDenied)
      .value("INCOMPATIBLE", Code::kIncompatible)
      .value("CORRUPT", Code::kCorrupt)
      .value("INVALID", Code::kInvalid)
      .value("UNAVAILABLE", Code::kUnavailable)
      .value("LIMIT", Code::kLimit)
      .value("BUFFER_TOO_SMALL", Code::kBufferTooSmall)
      .value("NOT_PROVEN", Code::kNotProven)
      .value("INTERNAL", Code::kInternal)
      .value("NOT_LISTED", Code::kNotListed);
  nb::enum_<MissReason>(module, "MissReason", nb::is_arithmetic())
      .value("NONE", MissReason::kNone)
      .value("NEVER_PUT", MissReason::kNeverPut)
      .value("EVICTED", MissReason::kEvicted)
      .value("REMOVED", MissReason::kRemoved)
      .value("RESET", MissReason::kReset)
      .value("LEASE", MissReason::kLease)
      .value("CLOSED", MissReason::kClosed)
      .value("UNAVAILABLE", MissReason::kUnavailable)
      .value("RACED", MissReason::kRaced)
      .value("LIMITED", MissReason::kLimited)
      .value("OWNER_GONE", MissReason::kOwnerGone)
      .value("WARMING_UP", MissReason::kWarmingUp)
      .value("TIMEOUT", MissReason::kTimeout)
      .value("DENIED", MissReason::kDenied)
      .value("DISK_DAMAGED", MissReason::kDiskDamaged)
      .value("DISK_FAILED", MissReason::kDiskFailed)
      .value("DISK_TIMEOUT", MissReason::kDiskTimeout)
      .value("NO_ROOM", MissReason::kNoRoom)
      .value("SHARD_AWAY", MissReason::kShardAway);
  nb::class_<ItemResult>(module, "Result")
      .def_ro("code", &ItemResult::code)
      .def_ro("reason", &ItemResult::reason)
      .def_ro("nbytes", &ItemResult::bytes)
      .def_ro("replicas", &ItemResult::replicas)
      .def_ro("listed", &ItemResult::listed)
      .def_ro("elsewhere", &ItemResult::elsewhere)
      .def_prop_ro("ok", &ItemResult::ok)
      .def("__repr__", &Describe);
  nb::class_<Results>(module, "Results", docs::kResults)
      .def("__len__", [](const Results& results) { return results.items.size(); })
      .def("__getitem__", [](const Results& results,
                             std::int64_t index) { return results.items[IndexIn(results, index)]; })
      .def_prop_ro(
          "codes",
          [](nb::handle_t<Results> self) {
            return Column<std::uint16_t>(nb::cast<const Results&>(self), self, &ItemResult::code);
          },
          nb::sig("def codes(self) -> memoryview[int]"))
      .def_prop_ro(
          "reasons",
          [](nb::handle_t<Results> self) {
            return Column<std::uint8_t>(nb::cast<const Results&>(self), self, &ItemResult::reason);
          },
          nb::sig("def reasons(self) -> memoryview[int]"))
      .def_prop_ro(
          "nbytes",
          [](nb::handle_t<Results> self) {
            return Column<std::uint64_t>(nb::cast<const Results&>(self), self, &ItemResult::bytes);
          },
          nb::sig("def nbytes(self) -> memoryview[int]"))
      .def_prop_ro("all_ok", &Results::AllOk)
      .def_prop_ro("ok_count", &Results::CountOk)
      .def("__repr__", [](const Results& results) {
        return fmt::format("<kvcove.Results {} of {} ok>", results.CountOk(), results.items.size());
      });
}

}  // namespace kvcove::python
