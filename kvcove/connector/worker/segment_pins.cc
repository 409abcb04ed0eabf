// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/worker/segment_pins.h"

#include <algorithm>
#include <exception>
#include <functional>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/size.h"

namespace kvcove::connector {
namespace {

// Pauses between two looks: while an owner populates its memory, and afterwards.
constexpr std::int64_t kGrowingNs = 250 * kMillisecond;
constexpr std::int64_t kQuietNs = 5 * kSecond;
// Pieces between two looks while memory is pinned. By estimate a piece takes 50 ms with its rest,
// so that is about as often as while an owner populates.
constexpr int kPiecesALook = 4;
// Rest per time of work, so that threads which wait for the driver's locks get them.
constexpr std::int64_t kRest = 4;

const std::byte* Begin(const SegmentRange& range) {
  return static_cast<const std::byte*>(range.data);
}

}  // namespace

bool PinnedSegment::Holds(const void* data, std::uint64_t bytes) const {
  const auto* const at = static_cast<const std::byte*>(data);
  const std::byte* const begin = Begin(range_);
  if (std::less<>()(at, begin)) return false;
  const auto offset = static_cast<std::uint64_t>(at - begin);
  const std::uint64_t pinned = this->bytes();
  return offset <= pinned && bytes <= pinned - offset;
}

SegmentPins::SegmentPins(transport::DeviceQueue& queue, Source source, SegmentPinsOptions options)
    : queue_(queue), source_(std::move(source)), options_(std::move(options)) {
  if (!options_.thread) return;
  if (auto thread = StartThread("kvcove-pin", [this] { Loop(); })) {
    thread_ = std::move(*thread);
  } else {
    LogWarn("{}: the pool's memory is not pinned, so copies use the ring: {}", options_.name,
            thread.error().detail);
  }
}

void SegmentPins::Start() {
  const MutexLock lock(mutex_);
  started_ = true;
  wake_.NotifyAll();
}

void SegmentPins::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void SegmentPins::Loop() {
  {
    const MutexLock lock(mutex_);
    while (!started_ && !stopping_) wake_.Wait(mutex_);
    if (stopping_) return;
  }
  while (true) {
    std::int64_t rest_ns = kQuietNs;
    try {
      rest_ns = Step();
    } catch (const std::exception& error) {  // uncaught, it would end the engine's process
      LogWarn("{}: the pool's memory is not pinned further now: {}", options_.name, error.what());
    }
    const MutexLock lock(mutex_);
    if (!stopping_) wake_.WaitFor(mutex_, std::chrono::nanoseconds(rest_ns));
    if (stopping_) return;
  }
}

std::shared_ptr<const PinnedSegment> SegmentPins::Find(const void* data,
                                                       std::uint64_t bytes) const {
  const MutexLock lock(mutex_);
  const auto behind = std::ranges::upper_bound(
      segments_, static_cast<const std::byte*>(data), std::less<>(),
      [](const std::shared_ptr<PinnedSegment>& each) { return Begin(each->range_); });
  if (behind == segments_.begin()) return nullptr;
  const std::shared_ptr<PinnedSegment>& segment = *std::prev(behind);
  return segment->Holds(data, bytes) ? segment : nullptr;
}

std::uint64_t SegmentPins::bytes() const {
  const MutexLock lock(mutex_);
  std::uint64_t bytes = 0;
  for (const auto& segment : segments_) bytes += segment->bytes();
  return bytes;
}

std::int64_t SegmentPins::Step() {
  std::shared_ptr<PinnedSegment> segment = since_look_ < kPiecesALook ? Next() : nullptr;
  if (segment == nullptr) {
    Look();
    since_look_ = 0;
    if (Next() != nullptr) return 0;
    const MutexLock lock(mutex_);
    const bool growing = std::ranges::any_of(segments_, [](const auto& each) {
      return each->range_.populated_bytes < each->range_.size_bytes;
    });
    return segments_.empty() || growing ? kGrowingNs : kQuietNs;
  }
  const std::int64_t start_ns = SystemClock::Instance().NowNs();
  PinPiece(*segment);
  ++since_look_;
  return kRest * (SystemClock::Instance().NowNs() - start_ns);
}

void SegmentPins::Look() {
  const Result<std::vector<SegmentRange>> ranges = source_();
  if (!ranges) return;
  Segments over;  // destroyed after the unlock: that unpins, by calls of the driver
  const MutexLock lock(mutex_);
  for (const auto& segment : segments_) ++segment->absent_;
  for (const SegmentRange& range : *ranges) {
    const auto known = std::ranges::find_if(
        segments_, [&](const auto& each) { return each->range_.number == range.number; });
    if (known == segments_.end()) {
      segments_.push_back(std::make_shared<PinnedSegment>(range));
      continue;
    }
    (*known)->range_.populated_bytes = range.populated_bytes;
    (*known)->absent_ = 0;
  }
  // An owner that is slow to answer is absent from one look, too, and pinning again would cost
  // seconds. So a segment is dropped only after several looks; its memory is kept until then.
  std::erase_if(segments_, [&](const auto& segment) {
    if (segment->absent_ < kAbsentLooks) return false;
    over.push_back(segment);
    return true;
  });
  if (!over.empty()) refused_ = false;  // the host may pin more once these are unpinned
  std::ranges::sort(segments_, std::less<>(), [](const auto& each) { return Begin(each->range_); });
}

std::uint64_t SegmentPins::PieceBytes(const PinnedSegment& segment, std::uint64_t piece_bytes) {
  const std::uint64_t pinned = segment.bytes();
  return std::min(piece_bytes, segment.range_.size_bytes - pinned);
}

std::shared_ptr<PinnedSegment> SegmentPins::Next() {
  if (refused_) return nullptr;
  const std::uint64_t all = bytes();
  const MutexLock lock(mutex_);
  for (const auto& segment : segments_) {
    const std::uint64_t piece = PieceBytes(*segment, options_.piece_bytes);
    if (piece == 0 || segment->absent_ > 0 || all + piece > options_.most_bytes) continue;
    if (segment->bytes() + piece <= segment->range_.populated_bytes) return segment;
  }
  return nullptr;
}

void SegmentPins::PinPiece(PinnedSegment& segment) {
  const std::uint64_t pinned = segment.bytes();
  const std::uint64_t piece = PieceBytes(segment, options_.piece_bytes);
  auto registered =
      queue_.RegisterHost({static_cast<std::byte*>(segment.range_.data) + pinned, piece});
  if (registered) {
    // The mark grows only once the driver has the piece: a device must not be given other memory.
    segment.pieces_.push_back(std::move(*registered));
    segment.pinned_.store(pinned + piece, std::memory_order_release);
    return;
  }
  refused_ = true;
  if (std::exchange(said_, true)) return;
  LogWarn(
      "{}: of the pool's {} on this host {} are pinned for the GPU, and no more: {}. Transfers of "
      "other memory use pinned buffers, which costs a copy; \"device_pin\" sets a bound, and "
      "\"off\" switches this off",
      options_.name, FormatSize(segment.range_.size_bytes), FormatSize(pinned),
      registered.error().detail);
}

}  // namespace kvcove::connector
