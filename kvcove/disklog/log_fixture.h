// SPDX-License-Identifier: Apache-2.0
// A log on a fake device, and values that follow from their keys, so that tests can check every
// byte that they read.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "kvcove/disklog/fake_device.h"
#include "kvcove/disklog/log.h"

namespace kvcove::disklog {

inline constexpr Id128 kPool{.high = 1, .low = 2};
inline constexpr Id128 kIncarnation{.high = 3, .low = 4};
inline constexpr SlotId kSlot = 7;
inline constexpr Generation kGeneration = 0x1234;

// Returns the bytes of a key's value with this version.
inline std::string ValueOf(const std::string& key, std::uint64_t version, std::size_t size) {
  Random random(Hash64(key, version));
  std::string value(size, '\0');
  for (char& byte : value) byte = static_cast<char>(random.Next());
  return value;
}

inline LogOptions SmallLog(std::vector<SlotGeneration> generations = {{kSlot, kGeneration}}) {
  LogOptions options{
      .pool = kPool, .incarnation = kIncarnation, .generations = std::move(generations)};
  options.cleaner.write_amplification = 100;  // of small values in blocks of 4 KiB
  options.writer = {
      .queue_bytes = 256 << 10, .chunk_bytes = 16 << 10, .streams = 2, .reserved_zones = 2};
  return options;
}

inline constexpr std::uint64_t kSmallZone = 64 << 10;

inline std::unique_ptr<FakeDevice> FormattedDevice(std::uint32_t zones, std::uint64_t seed) {
  auto device = std::make_unique<FakeDevice>(kZonesStart + (zones * kSmallZone), seed);
  EXPECT_TRUE(
      Format(*device, {.pool = kPool, .incarnation = kIncarnation, .zone_bytes = kSmallZone}));
  return device;
}

// Polls until `until` is true, or until the device is off.
template <typename Until>
bool PollUntil(Log& log, FakeDevice& device, Until&& until) {
  for (int i = 0; i < 2'000'000; ++i) {
    if (until()) return true;
    if (device.off()) return false;
    log.Poll(0);
  }
  ADD_FAILURE() << "the log does not come to an end";
  return false;
}

inline std::unique_ptr<Log> OpenLog(FakeDevice& device, LogOptions options) {
  auto log = Log::Open(device, std::move(options));
  if (!log) {
    ADD_FAILURE() << log.error().ToString();
    return nullptr;
  }
  PollUntil(**log, device, [&] { return (*log)->recovered(); });
  return *std::move(log);
}

// Puts a value and waits until it is written; repeats the put while the queue is full.
inline Status Put(Log& log, FakeDevice& device, const std::string& key, std::uint64_t version,
                  std::size_t size, std::uint8_t stream = 0) {
  const std::string value = ValueOf(key, version, size);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(value));
  for (;;) {
    Status outcome = Fail(Code::kTimeout, "the power is off");
    bool done = false;
    const auto kept = std::make_shared<std::pair<Status, bool>>(outcome, false);
    const Status added = log.Put({.slot = kSlot,
                                  .generation = kGeneration,
                                  .version = version,
                                  .name = "space",
                                  .key = key,
                                  .value = std::span(&bytes, 1),
                                  .stream = stream},
                                 [kept](const Status& status) { *kept = {status, true}; });
    if (!added && added.error().code != Code::kLimit) return added;
    log.Flush();
    if (added) {
      PollUntil(log, device, [&] { return kept->second; });
      return kept->second ? kept->first : outcome;
    }
    if (!PollUntil(log, device, [&] { return done = log.space().queued_bytes == 0; }))
      return outcome;
  }
}

inline Status WaitFor(Log& log, FakeDevice& device, const std::function<void(Done)>& start) {
  const auto kept = std::make_shared<std::pair<Status, bool>>(Status(), false);
  start([kept](const Status& status) { *kept = {status, true}; });
  if (!PollUntil(log, device, [&] { return kept->second; })) {
    return Fail(Code::kTimeout, "the power is off");
  }
  return kept->first;
}

inline Status Remove(Log& log, FakeDevice& device, const std::string& key) {
  Status added;
  const std::string_view view = key;
  const auto status = WaitFor(log, device, [&](const Done& done) {
    added = log.Remove(
        {.slot = kSlot, .generation = kGeneration, .name = "space", .keys = std::span(&view, 1)},
        done);
    if (!added) done(added);
  });
  return status;
}

struct Read {
  ReadMiss miss = ReadMiss::kAbsent;
  std::uint64_t version = 0;
  std::string value;
};
inline Read Get(Log& log, FakeDevice& device, const std::string& key,
                Generation generation = kGeneration) {
  const auto found = log.Find(kSlot, generation, key);
  if (!found) return {};
  AlignedBuffer buffer(found->buffer_bytes);
  std::optional<ReadResult> result;
  log.Read(*found, {.slot = kSlot, .generation = generation, .key = key}, buffer.span(),
           [&](const ReadResult& read) { result = read; });
  PollUntil(log, device, [&] { return result.has_value(); });
  if (!result) return {};
  return {.miss = result->miss,
          .version = result->version,
          .value = std::string(buffer.view().substr(result->value_offset, result->value_bytes))};
}

}  // namespace kvcove::disklog
