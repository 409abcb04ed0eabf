// SPDX-License-Identifier: Apache-2.0
// Random layouts, both ways, against a copy byte by byte. $KVCOVE_LAYOUTS says how many
// (100000: some minutes), $KVCOVE_SEED repeats a run.
#include <numeric>

#include "kvcove/transport/cuda/device_fixture.h"

namespace kvcove::transport::cuda {
namespace {

constexpr std::uint64_t kSpan = 96 << 10;  // of either memory that a layout uses

class LayoutsTest : public DeviceTest {
 protected:
  // Disjoint pieces of [0, kSpan), in a random order; some of them touch.
  static std::vector<std::uint64_t> Places(Random& random, const std::vector<std::uint64_t>& sizes,
                                           std::uint64_t align) {
    std::vector<std::size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), 0);
    const bool shuffled = random.OneIn(2);
    for (std::size_t i = order.size(); shuffled && i > 1; --i) {
      std::swap(order[i - 1], order[random.Below(i)]);
    }
    std::vector<std::uint64_t> places(sizes.size());
    std::uint64_t at = random.Below(64);
    for (const std::size_t i : order) {
      at = (at + align - 1) / align * align;
      places[i] = at;
      at += sizes[i] + (random.OneIn(2) ? 0 : random.Below(300));
    }
    return places;
  }
  std::vector<DeviceCopy> Layout(Random& random) {
    static constexpr std::uint64_t kMost[] = {1, 7, 64, 300, 1024, 4095, 4096, 20000};
    static constexpr std::uint64_t kAligns[] = {1, 2, 4, 16, 256};
    std::vector<std::uint64_t> sizes;
    std::uint64_t total = 0;
    const std::uint64_t count = 1 + random.Below(24);
    const std::uint64_t most = kMost[random.Below(std::size(kMost))];
    while (sizes.size() < count) {
      const std::uint64_t size = random.OneIn(4) ? most : 1 + random.Below(most);
      if (total + size + 300 + 256 > kSpan - 64) break;
      total += size + 300 + 256;
      sizes.push_back(size);
    }
    const auto host = Places(random, sizes, kAligns[random.Below(std::size(kAligns))]);
    const auto device = Places(random, sizes, kAligns[random.Below(std::size(kAligns))]);
    std::vector<DeviceCopy> copies;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      copies.push_back(
          {.host = ring_.data() + host[i], .device = At(device[i]), .bytes = sizes[i]});
    }
    return copies;
  }
  static void Noise(Random& random, void* memory) {
    auto* words = static_cast<std::byte*>(memory);
    for (std::uint64_t i = 0; i < kSpan; i += 8) {
      const std::uint64_t word = random.Next();
      std::memcpy(words + i, &word, 8);
    }
  }
  // What differs from the reference; both memories are looked at as a whole.
  bool Wrong(Random& random, DeviceWay way) {
    Noise(random, ring_.data());
    Noise(random, Device(0));
    const std::vector<DeviceCopy> copies = Layout(random);
    std::vector<char> host(reinterpret_cast<char*>(ring_.data()),
                           reinterpret_cast<char*>(ring_.data()) + kSpan);
    std::vector<char> device(Device(0), Device(0) + kSpan);
    for (const DeviceCopy& copy : copies) {
      char* const h = host.data() + (copy.host - ring_.data());
      char* const d = device.data() + (copy.device - At(0));
      std::memcpy(way == DeviceWay::kLoad ? d : h, way == DeviceWay::kLoad ? h : d, copy.bytes);
    }
    EXPECT_TRUE(Wait(Submit(way, copies)));
    return std::memcmp(host.data(), ring_.data(), kSpan) != 0 ||
           std::memcmp(device.data(), Device(0), kSpan) != 0;
  }
};

TEST_F(LayoutsTest, RandomLayoutsAreMovedAsByAScalarCopy) {
  const char* asked = std::getenv("KVCOVE_LAYOUTS");
  const std::uint64_t count = asked == nullptr ? 2000 : std::strtoull(asked, nullptr, 10);
  constexpr std::uint64_t kRound = 500;  // with one device
  Random random(seed_);
  std::uint64_t wrong = 0;
  std::uint64_t done = 0;
  DeviceBytes moved{};
  for (std::uint64_t round = 0; done < count; ++round) {
    fake_reset(seed_ + round);
    const bool room = round % 4 != 3;
    fake_features(static_cast<int>(random.Below(3)), 1, room ? kAll : 0, kAll);
    static constexpr std::uint64_t kThresholds[] = {0, 512, 4096, 65536};
    Open({.threshold = kThresholds[round % 4], .run_blocks = 2});
    for (std::uint64_t i = 0; i < kRound && done < count; ++i, ++done) {
      wrong += Wrong(random, i % 2 == 0 ? DeviceWay::kLoad : DeviceWay::kSave) ? 1 : 0;
    }
    for (std::size_t path = 0; path < kDevicePaths; ++path) moved[path] += moved_[path];
    moved_ = {};
    TearDown();
  }
  EXPECT_EQ(wrong, 0) << "of " << count << ", seed " << seed_;
  RecordProperty("layouts", std::to_string(done));
  for (const std::uint64_t bytes : moved) EXPECT_GT(bytes, 0) << "a path was not taken";
}

}  // namespace
}  // namespace kvcove::transport::cuda
