// SPDX-License-Identifier: Apache-2.0
#include "store_ranges.h"

#include <algorithm>
#include <cstring>

#include "codes.h"
#include "store_disk.h"

namespace kvcove::python {
namespace {

using Kind = Regions::Kind;

bool CopyOne(Kind kind, std::byte* value, const Piece& piece, bool out) {
  if (kind == Kind::kDevice) {
    return bool(out ? Device::Get()->FromHost(piece.address, value, piece.size)
                    : Device::Get()->ToHost(value, piece.address, piece.size));
  }
  void* memory = reinterpret_cast<void*>(piece.address);  // NOLINT
  if (kind == Kind::kHost) std::memcpy(out ? memory : value, out ? value : memory, piece.size);
  return true;
}

// The ranges of one value.
struct Ranges {
  std::vector<std::uint64_t> offsets;
  std::vector<std::uint64_t> addresses;
  std::vector<std::uint64_t> sizes;

  bool Fit() const { return offsets.size() == sizes.size() && addresses.size() == sizes.size(); }
};

std::int64_t CopyValue(Regions::Lookup& regions, const MutableBuffer& value, const Ranges& ranges,
                       bool out) {
  if (!ranges.Fit()) return kInvalidParams;
  std::vector<Kind> kinds(ranges.sizes.size(), Kind::kNone);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (!IsWithin(ranges.offsets[i], ranges.sizes[i], value.size)) return kInvalidParams;
    if (ranges.sizes[i] == 0) continue;
    kinds[i] = regions.Of(ranges.addresses[i], ranges.sizes[i]);
    if (kinds[i] == Kind::kNone) return kInvalidParams;
  }
  std::int64_t copied = 0;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    std::byte* at = static_cast<std::byte*>(value.data) + ranges.offsets[i];
    if (!CopyOne(kinds[i], at, {ranges.addresses[i], ranges.sizes[i]}, out)) return kTransferFail;
    copied += static_cast<std::int64_t>(ranges.sizes[i]);
  }
  return copied;
}

}  // namespace

bool CopyPiece(const Regions& regions, const Piece& from, std::byte* to) {
  Regions::Lookup lookup(regions, /*writable=*/false);
  const Kind kind = lookup.Of(from.address, from.size);
  return kind != Kind::kNone && CopyOne(kind, to, from, /*out=*/false);
}

nb::list CopyRanges(const Regions& regions, const RangeArguments& arguments, bool out) {
  const nb::object values = SequenceOf(arguments.values);
  const nb::object offsets = SequenceOf(arguments.offsets);
  const nb::object addresses = SequenceOf(arguments.addresses);
  const nb::object sizes = SequenceOf(arguments.sizes);
  const std::size_t count = SizeOf(values);
  if (SizeOf(offsets) != count || SizeOf(addresses) != count || SizeOf(sizes) != count) {
    return ToList(count, kInvalidParams);
  }
  nb::list present;
  std::vector<std::size_t> which;
  std::vector<Ranges> ranges;
  for (std::size_t i = 0; i < count; ++i) {
    if (ItemOf(values, i).is_none()) continue;
    present.append(ItemOf(values, i));
    which.push_back(i);
    ranges.push_back({.offsets = ToNumbers(ItemOf(offsets, i)),
                      .addresses = ToNumbers(ItemOf(addresses, i)),
                      .sizes = ToNumbers(ItemOf(sizes, i))});
  }
  const Buffers buffers(present, "values", /*writable=*/!out);
  std::vector<std::int64_t> codes(count, kInvalidParams);
  WithoutGil([&] {
    Regions::Lookup lookup(regions, /*writable=*/out);
    for (std::size_t k = 0; k < which.size(); ++k) {
      codes[which[k]] = CopyValue(lookup, buffers.Item(k).front(), ranges[k], out);
    }
  });
  return ToList(codes);
}

RangeRead::RangeRead(const Regions& regions, std::uintptr_t buffer, const StoredKeys& keys,
                     const Lists& lists)
    : buffer_(buffer), keys_(keys), room_(regions.Room(buffer)), items_(keys.size()) {
  if (room_ > 0) kind_ = Regions::Lookup(regions, /*writable=*/true).Of(buffer, 1);
  if (kind_ == Kind::kNone) room_ = 0;
  const nb::object all_to = SequenceOf(lists.to);
  const nb::object all_from = SequenceOf(lists.from);
  const nb::object all_sizes = SequenceOf(lists.sizes);
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const auto to = ToNumbers(ItemOf(all_to, i));
    const auto from = ToNumbers(ItemOf(all_from, i));
    const auto sizes = ToNumbers(ItemOf(all_sizes, i));
    Item& item = items_[i];
    item.codes.assign(to.size(), kInvalidParams);
    if (from.size() != to.size() || sizes.size() != to.size()) continue;
    for (std::size_t k = 0; k < to.size(); ++k) {
      item.fragments.push_back({.to = to[k], .from = from[k], .size = sizes[k]});
      if (IsWithin(to[k], sizes[k], room_)) asked_bytes_ += sizes[k];
    }
  }
}

// Whether two fragments have a byte of the buffer in common: then the later one stays.
bool RangeRead::Overlap(const Item& item) {
  std::vector<std::size_t> order = item.direct;
  std::ranges::sort(order, {}, [&](std::size_t k) { return item.fragments[k].to; });
  std::uint64_t end = 0;
  for (const std::size_t k : order) {
    const Fragment& fragment = item.fragments[k];
    if (fragment.size > 0 && fragment.to < end) return true;
    end = std::max(end, fragment.to + fragment.size);
  }
  return false;
}

void RangeRead::Plan(Item& item, std::uint64_t size) {
  std::vector<std::size_t>& order = item.direct;
  for (std::size_t k = 0; k < item.fragments.size(); ++k) {
    const Fragment& fragment = item.fragments[k];
    if (IsWithin(fragment.to, fragment.size, room_) &&
        IsWithin(fragment.from, fragment.size, size)) {
      order.push_back(k);
    }
  }
  std::ranges::sort(order, {}, [&](std::size_t k) { return item.fragments[k].from; });
  std::uint64_t at = 0;
  std::uint64_t gaps = 0;
  item.copies = kind_ != Kind::kHost || Overlap(item);
  for (const std::size_t k : order) {
    const Fragment& fragment = item.fragments[k];
    if (fragment.from < at) item.copies = true;
    gaps += fragment.from - std::min(at, fragment.from);
    at = std::max(at, fragment.from + fragment.size);
  }
  gaps += size - at;
  item.scratch.resize(item.copies ? size : gaps);
  if (item.copies) {
    std::ranges::sort(order);  // as the caller has them
    item.into.push_back({.data = item.scratch.data(), .size = size});
    return;
  }
  at = 0;
  std::byte* thrown = item.scratch.data();
  const auto skip = [&](std::uint64_t count) {
    if (count > 0) item.into.push_back({.data = thrown, .size = count});
    thrown += count;
    at += count;
  };
  for (const std::size_t k : order) {
    const Fragment& fragment = item.fragments[k];
    skip(fragment.from - at);
    if (fragment.size == 0) continue;
    item.into.push_back({.data = reinterpret_cast<void*>(buffer_ + fragment.to),  // NOLINT
                         .size = fragment.size});
    at += fragment.size;
  }
  skip(size - at);
}

void RangeRead::Finish(Item& item, const ItemResult& result) {
  if (!result.ok()) {
    std::ranges::fill(item.codes, FromCode(result.code, result.reason));
    return;
  }
  for (const std::size_t k : item.direct) {
    const Fragment& fragment = item.fragments[k];
    item.codes[k] = static_cast<std::int64_t>(fragment.size);
    if (!item.copies || fragment.size == 0) continue;
    const Piece piece{.address = buffer_ + fragment.to, .size = fragment.size};
    if (!CopyOne(kind_, item.scratch.data() + fragment.from, piece, /*out=*/true)) {
      item.codes[k] = kTransferFail;
    }
  }
}

void RangeRead::Run(Session& session, const CallOptions& options, std::int64_t patience_ns) {
  if (room_ == 0) return;
  std::vector<ItemResult> found(items_.size());
  CallOptions look = options;
  look.hold = {};
  (void)session.Exists(keys_.views(), found, look);
  BringUp(session, keys_.views(), found, options, patience_ns);
  std::vector<GetItem> items;
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].fragments.empty()) continue;
    if (!found[i].ok()) {
      Finish(items_[i], found[i]);
      continue;
    }
    Plan(items_[i], found[i].bytes);
    items.push_back({.key = keys_[i], .into = items_[i].into});
    which.push_back(i);
  }
  std::vector<ItemResult> results(items.size());
  const Status status = GetPatiently(session, items, results, options, patience_ns);
  for (std::size_t k = 0; k < which.size(); ++k) {
    ItemResult result = results[k];
    // Another value has come in between, with another size: the offsets were checked for this one.
    if (result.ok() && result.bytes != found[which[k]].bytes) result = {.code = Code::kMiss};
    if (!status && result.code == Code::kInternal) result.code = status.error().code;
    const bool disk = found[which[k]].tier == Tier::kDisk || result.tier == Tier::kDisk;
    if (result.ok() && disk) ++from_disk_;
    Finish(items_[which[k]], result);
  }
}

nb::list RangeRead::Answers() const {
  nb::list list;
  for (const Item& item : items_) list.append(ToList(item.codes));
  return list;
}

}  // namespace kvcove::python
