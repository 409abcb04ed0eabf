// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/local/warmer.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "kvcove/base/log.h"
#include "kvcove/base/pages.h"

namespace kvcove::requester {

Result<WarmOptions> ParseWarm(std::string_view what, std::string_view text) {
  WarmOptions options;
  if (text == "off" || text == "0") {
    options.budget_bytes = 0;
  } else if (text == "all") {
    options.budget_bytes = ~0ULL;
  } else if (auto size = ParseSize(text)) {
    options.budget_bytes = *size;
  } else {
    return Fail(Code::kInvalid,
                fmt::format("{}='{}': give off, all, or how much memory to map beforehand, such as "
                            "8GiB",
                            what, text));
  }
  return options;
}

WarmWalk::WarmWalk(const std::vector<File>& files, const WarmOptions& options) : options_(options) {
  for (const File& file : files) {
    Area area{.file = file};
    const std::uint64_t page = PageBytesOf(file.fd);
    area.huge = page > SystemPageBytes();
    area.slice_bytes = std::max(kSlice, page);
    area.warm.resize((file.memory.size() + area.slice_bytes - 1) / area.slice_bytes);
    areas_.push_back(std::move(area));
  }
}

bool WarmWalk::Seek(Area& area) {
  while (true) {
    while (area.next < area.warm.size() && area.warm[area.next]) ++area.next;
    if (area.next >= area.warm.size()) return false;
    if (area.huge) return true;
    // Passes over holes without a look at each page. Moves the offset of the open file, which no
    // other code uses.
    const off_t data =
        lseek(area.file.fd, static_cast<off_t>(area.next * area.slice_bytes), SEEK_DATA);
    if (data < 0) return false;
    const std::uint64_t slice = static_cast<std::uint64_t>(data) / area.slice_bytes;
    if (slice <= area.next) return true;
    area.next = slice;
  }
}

std::uint64_t WarmWalk::Warm(Area& area) {
  const std::uint64_t slice = area.next++;
  const std::uint64_t offset = slice * area.slice_bytes;
  const std::uint64_t size = std::min(area.slice_bytes, area.file.memory.size() - offset);
  std::byte* const data = area.file.memory.data() + offset;
  std::vector<std::pair<std::size_t, std::size_t>> runs = {{0, size}};
  if (!area.huge) runs = PresentRuns(data, size);
  std::uint64_t bytes = 0;
  for (const auto& [start, length] : runs) {
    // A failure is ignored: the page's first reader maps it, or fails.
    if (PopulatePages(data + start, length, Populate::kRead)) bytes += length;
  }
  area.warm[slice] = bytes == size;
  return bytes;
}

std::int64_t WarmWalk::Step() {
  if (warmed_bytes_ >= options_.budget_bytes) return BackgroundWork::kDone;
  while (area_ < areas_.size() && !Seek(areas_[area_])) ++area_;
  if (area_ < areas_.size()) {
    const std::int64_t began_ns = SystemClock::Instance().NowNs();
    Area& area = areas_[area_];
    const std::uint64_t bytes = Warm(area);
    if (area.warm[area.next - 1]) {
      warmed_bytes_ += bytes;
      progress_ = true;
    }
    const std::int64_t took_ns = SystemClock::Instance().NowNs() - began_ns;
    const auto due_ns =
        static_cast<std::int64_t>(bytes * static_cast<std::uint64_t>(kSecond) /
                                  std::max<std::uint64_t>(options_.bytes_per_second, 1));
    return std::max(due_ns - took_ns, took_ns / 4);
  }
  // The round is over. Slices without memory may have some in the next round.
  area_ = 0;
  bool left = false;
  for (Area& area : areas_) {
    area.next = 0;
    left = left || std::ranges::find(area.warm, false) != area.warm.end();
  }
  if (!left) return BackgroundWork::kDone;
  const bool progress = std::exchange(progress_, false);
  round_ns_ = progress ? kFirstRoundNs : std::min(round_ns_ * 2, kLongestRoundNs);
  return round_ns_;
}

void Warmer::Start(const std::vector<WarmWalk::File>& files, const WarmOptions& options) {
  if (options.budget_bytes == 0) return;
  walk_ = std::make_unique<WarmWalk>(files, options);
  // Low priority and not idle: this is an engine's process, and a thread that is preempted while it
  // maps pages delays the engine's own mmap(2).
  const Status started =
      work_.Start("kvcove-warm", Priority::kLow, [this] { return walk_->Step(); });
  if (!started) {
    LogWarn("the pool's memory is not mapped beforehand: {}; first reads take longer",
            started.error().detail);
  }
}

}  // namespace kvcove::requester
