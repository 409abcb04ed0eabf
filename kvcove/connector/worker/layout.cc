// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/worker/layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

namespace kvcove::connector {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"block", "layer", "kv",
                                                    "head",  "token", "element"};
constexpr std::size_t kMaxRuns = 1 << 16;

// Sorts by stride, the largest first; axes of one stride keep their order.
void SortByStride(std::vector<Axis>& axes) {
  for (std::size_t i = 1; i < axes.size(); ++i) {
    for (std::size_t k = i; k > 0 && axes[k - 1].stride_bytes < axes[k].stride_bytes; --k) {
      std::swap(axes[k - 1], axes[k]);
    }
  }
}

// Puts axes of tokens, the pieces of a block, before the fastest of them.
void JoinTokens(std::vector<Axis>& axes) {
  std::size_t place = axes.size();
  while (place > 0 && axes[place - 1].kind != AxisKind::kToken) --place;
  if (place == 0) return;
  --place;
  for (std::size_t i = place; i-- > 0;) {
    if (axes[i].kind != AxisKind::kToken) continue;
    const auto from = axes.begin() + static_cast<std::ptrdiff_t>(i);
    std::rotate(from, from + 1, axes.begin() + static_cast<std::ptrdiff_t>(place--));
  }
}

// Returns the axes within a block, in an object's order. Axes of one element are left out, but for
// the head axis, which RunsOf cuts.
std::vector<Axis> Inner(const LayerMemory& layer) {
  std::vector<Axis> axes;
  for (const Axis& axis : layer.axes) {
    if (axis.kind == AxisKind::kHead || (axis.kind != AxisKind::kBlock && axis.count > 1)) {
      axes.push_back(axis);
    }
  }
  SortByStride(axes);
  JoinTokens(axes);
  return axes;
}

Status CheckAxes(const LayerMemory& layer) {
  const auto fail = [&](const std::string& what) {
    return Fail(Code::kInvalid, fmt::format("KV layer '{}': {}", layer.name, what));
  };
  if (layer.base == 0 || layer.element_bytes == 0) return fail("it has no memory");
  std::array<int, kNames.size()> seen{};
  for (const Axis& axis : layer.axes) {
    ++seen[static_cast<std::size_t>(axis.kind)];
    if (axis.count == 0) return fail("an axis of no length");
    if (axis.count > 1 && axis.stride_bytes < layer.element_bytes) {
      return fail(fmt::format("the {} axis has a stride of {} bytes, less than an element",
                              AxisName(axis.kind), axis.stride_bytes));
    }
  }
  if (seen[static_cast<std::size_t>(AxisKind::kBlock)] != 1) return fail("name one block axis");
  if (seen[static_cast<std::size_t>(AxisKind::kHead)] > 1) return fail("name one head axis");
  // Sorted by stride, each axis must step over all of the next one.
  std::vector<Axis> all = layer.axes;
  std::erase_if(all, [](const Axis& axis) { return axis.count == 1; });
  SortByStride(all);
  std::reverse(all.begin(), all.end());
  std::uint64_t end = layer.element_bytes;
  for (const Axis& axis : all) {
    if (axis.stride_bytes < end) {
      return fail(fmt::format("the {} axis overlaps another one", AxisName(axis.kind)));
    }
    end = axis.stride_bytes * (axis.count - 1) + end;
  }
  return {};
}

}  // namespace

Result<AxisKind> ParseAxis(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<AxisKind>(i);
  }
  return Fail(Code::kInvalid,
              fmt::format("'{}' is no axis: block, layer, kv, head, token, element", name));
}

std::string_view AxisName(AxisKind kind) { return kNames[static_cast<std::size_t>(kind)]; }

Result<BlockRuns> RunsOf(const LayerMemory& layer, std::uint32_t first_head, std::uint32_t heads) {
  KVCOVE_TRY(CheckAxes(layer));
  BlockRuns result{.base = layer.base};
  bool has_heads = false;
  for (const Axis& axis : layer.axes) {
    if (axis.kind == AxisKind::kBlock) {
      result.blocks = axis.count;
      result.block_stride = axis.stride_bytes;
    }
    if (axis.kind != AxisKind::kHead) continue;
    has_heads = true;
    if (first_head + heads > axis.count) {
      return Fail(Code::kInvalid,
                  fmt::format("KV layer '{}': it has {} heads here, but {} to {} are wanted",
                              layer.name, axis.count, first_head, first_head + heads - 1));
    }
  }
  if (!has_heads && first_head != 0) {
    return Fail(Code::kInvalid,
                fmt::format("KV layer '{}': it has no head axis, so it cannot be cut by heads",
                            layer.name));
  }
  std::vector<Run> runs = {{.offset = 0, .bytes = layer.element_bytes}};
  std::vector<Axis> axes = Inner(layer);
  // From the fastest axis outwards: repeats the runs along each axis, and joins those that touch.
  std::reverse(axes.begin(), axes.end());
  for (const Axis& axis : axes) {
    const bool head = axis.kind == AxisKind::kHead;
    const std::uint64_t from = head ? first_head : 0;
    const std::uint64_t count = head ? heads : axis.count;
    std::vector<Run> next;
    for (std::uint64_t i = from; i < from + count; ++i) {
      for (const Run& run : runs) {
        const Run at{.offset = run.offset + i * axis.stride_bytes, .bytes = run.bytes};
        if (!next.empty() && next.back().offset + next.back().bytes == at.offset) {
          next.back().bytes += at.bytes;
        } else {
          next.push_back(at);
        }
      }
    }
    runs = std::move(next);
    if (runs.size() > kMaxRuns) {
      return Fail(Code::kInvalid, fmt::format("KV layer '{}': a block has more than {} pieces",
                                              layer.name, kMaxRuns));
    }
  }
  for (const Run& run : runs) result.bytes += run.bytes;
  result.runs = std::move(runs);
  return result;
}

}  // namespace kvcove::connector
