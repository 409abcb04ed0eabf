// SPDX-License-Identifier: Apache-2.0
// Memory: devices that must be copied by way of the host, and values of another size.
#include "kvcove/connector/roles_fixture.h"

namespace kvcove::connector {
namespace {

using testing::IsEmpty;
using testing::UnorderedElementsAre;

int Lines(const std::string& text, const std::string& with) {
  int lines = 0;
  for (std::size_t at = text.find(with); at != std::string::npos; at = text.find(with, at + 1)) {
    ++lines;
  }
  return lines;
}

// Layers that lie side by side in a block are copied as one, as far as they touch.
TEST_F(RolesTest, ABlocksLayersThatTouchAreOnePiece) {
  constexpr std::size_t kLayer = kBlockBytes / 4;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    std::vector<LayerMemory> layers;
    for (std::size_t layer = 0; layer < 4; ++layer) {
      layers.push_back(
          {.name = std::to_string(layer),
           .base = reinterpret_cast<std::uintptr_t>(memory_[rank].data()) + layer * kLayer,
           .element_bytes = kLayer,
           .axes = {{.kind = AxisKind::kBlock, .count = kBlocks, .stride_bytes = kBlockBytes}}});
    }
    if (rank == 1) std::swap(layers[0], layers[3]);  // it has other layers beside each other
    ASSERT_TRUE(workers_[rank]->Register(layers));
  }
  StoreAll(8);
  const Match match = Load("r", 10, 20);
  EXPECT_EQ(match.tokens, 8U);
  plan_ = scheduler_->BuildPlan(pins_);
  for (const std::size_t rank : {0, 1}) {
    pool_.most_pieces = 0;
    workers_[rank]->Begin(plan_);
    while (workers_[rank]->RunOne()) {
    }
    EXPECT_EQ(pool_.most_pieces, rank == 0 ? 1U : 3U);
    EXPECT_EQ(
        std::memcmp(&memory_[rank][20 * kBlockBytes], &memory_[rank][kBlockBytes], 2 * kBlockBytes),
        0);
  }
}

// 11.14: the size of what was read is compared with what was asked for.
TEST_F(RolesTest, AValueOfAnotherSizeIsAFailedBlock) {
  StoreAll(8);
  pool_.values.begin()->second += "more";
  (void)Load("r", 10, 20);
  const auto ended = Step();
  EXPECT_EQ(ended[0].failed_blocks.size() + ended[1].failed_blocks.size(), 1U);
}

// Values of another size than this engine's go, and what it computes takes their place.
TEST_F(RolesTest, AValueOfAnotherSizeIsReplacedByTheNextSave) {
  for (const bool larger : {true, false}) {
    pool_.values.clear();
    StoreAll(8);
    for (auto& [key, value] : pool_.values) value = larger ? value + "more" : value.substr(1);
    const auto misfits = scheduler_->stats().ranks.misfit_keys;
    (void)Load("r", 10, 20);
    (void)Step();
    EXPECT_TRUE(scheduler_->LoadEnded("r"));
    EXPECT_EQ(scheduler_->stats().ranks.misfit_keys - misfits, 4U);
    EXPECT_THAT(pool_.values, IsEmpty());
    Compute("r", 0, 8, 30);
    (void)Step();
    EXPECT_EQ(pool_.values.size(), 4U);
    scheduler_->Finished("r");
    (void)Load("s", 10, 40);
    for (const Ended& ended : Step()) EXPECT_THAT(ended.failed_blocks, IsEmpty());
    scheduler_->Finished("s");
    clock_.AdvanceNs(60 * kSecond);
  }
}

// A look-up does not know the size of what lies on a disk: it is not taken for another one.
TEST_F(RolesTest, ASaveLeavesWhatLiesOnADisk) {
  StoreAll(8);
  pool_.on_disk = true;
  const std::uint64_t puts = pool_.puts;
  Compute("again", 0, 8, 30);
  (void)Step();
  EXPECT_EQ(pool_.values.size(), 4U);
  EXPECT_EQ(pool_.puts, puts);
  EXPECT_EQ(scheduler_->stats().ranks.misfit_keys, 0U);
}

// An engine that only stores never loads what is in its way. Rank 0 asks first, rank 1 does not.
TEST_F(RolesTest, ASaveReplacesAValueOfAnotherSize) {
  StoreAll(8);
  for (auto& [key, value] : pool_.values) value += "more";
  SetLogLevel(LogLevel::kWarn);
  testing::internal::CaptureStderr();
  Compute("again", 0, 8, 30);
  (void)Step();
  const std::string said = testing::internal::GetCapturedStderr();
  ASSERT_EQ(pool_.values.size(), 4U);
  for (const auto& [key, value] : pool_.values) EXPECT_EQ(value.size(), kBlockBytes) << key;
  EXPECT_EQ(scheduler_->stats().ranks.misfit_keys, 4U);
  EXPECT_EQ(Lines(said, "has 36 bytes, not the 32"), 2) << said;
}

}  // namespace
}  // namespace kvcove::connector
