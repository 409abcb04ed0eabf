// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/worker/gate.h"

#include <gtest/gtest.h>

namespace kvcove::connector {
namespace {

const AdapterPrint kNoAdapter;

class GateTest : public testing::Test {
 protected:
  // The adapters that the plan's digests were made of, by rank.
  static Plan PlanOf(std::uint64_t fingerprint, std::vector<std::uint64_t> adapters = {}) {
    Plan plan;
    plan.fingerprint = fingerprint;
    plan.adapters = std::move(adapters);
    return plan;
  }
  Gate gate_{/*number=*/1, /*fingerprints=*/true};
};

TEST_F(GateTest, AChangeOfTheWeightsClosesItUntilTheirFingerprintIsThere) {
  EXPECT_TRUE(gate_.Loads(kNoAdapter));
  EXPECT_TRUE(gate_.WeightsChanging());
  EXPECT_FALSE(gate_.Loads(kNoAdapter));
  EXPECT_FALSE(gate_.Saves(kNoAdapter, 0));
  EXPECT_FALSE(gate_.FingerprintWanted());
  gate_.TakePlan(PlanOf(4));
  gate_.TakePlan(PlanOf(0));
  EXPECT_TRUE(gate_.FingerprintWanted()) << "a later plan does not take the question back";
  EXPECT_FALSE(gate_.Loads(kNoAdapter));
  gate_.SetFingerprint("f");
  EXPECT_FALSE(gate_.FingerprintWanted());
  EXPECT_TRUE(gate_.Loads(kNoAdapter));
  const Report report = gate_.TakeReport();
  EXPECT_EQ(report.rank, 1U);
  EXPECT_EQ(report.fingerprint_asked, 4U);
  EXPECT_EQ(report.fingerprint, "f");
  EXPECT_EQ(report.fingerprint_changes, 1U);
  EXPECT_EQ(report.weight_changes, 1U);
  EXPECT_EQ(gate_.TakeReport().fingerprint_asked, 0U) << "once";
  EXPECT_EQ(gate_.TakeReport().weight_changes, 1U) << "always";
}

TEST_F(GateTest, WithoutFingerprintsAChangeIsCountedAlone) {
  Gate gate(0, /*fingerprints=*/false);
  EXPECT_FALSE(gate.WeightsChanging());
  EXPECT_TRUE(gate.Loads(kNoAdapter));
  EXPECT_EQ(gate.TakeReport().weight_changes, 1U);
}

TEST_F(GateTest, AnAdapterThatChangedBehindThePlanIsRefused) {
  const AdapterPrint adapter{.id = 5, .digest = "of all ranks"};
  EXPECT_FALSE(gate_.Loads(adapter)) << "the rank lacks it";
  gate_.SetAdapters({{.id = 5, .digest = "x"}});
  gate_.TakePlan(PlanOf(0, {9, 0}));
  EXPECT_FALSE(gate_.Loads(adapter)) << "the scheduler has not seen it";
  gate_.TakePlan(PlanOf(0, {0, 1}));
  EXPECT_TRUE(gate_.Loads(adapter));
  gate_.SetAdapters({{.id = 5, .digest = "x"}, {.id = 6, .digest = "z"}});
  EXPECT_TRUE(gate_.Loads(adapter)) << "it is the same";
  gate_.SetAdapters({{.id = 5, .digest = "y"}, {.id = 6, .digest = "z"}});
  EXPECT_FALSE(gate_.Loads(adapter));
  EXPECT_FALSE(gate_.Saves(adapter, 0));
  gate_.TakePlan(PlanOf(0));
  EXPECT_FALSE(gate_.Loads({.id = 6, .digest = {}})) << "the plan says nothing of this rank";
}

TEST_F(GateTest, AdaptersAreReportedWhenTheyChange) {
  gate_.SetAdapters({{.id = 5, .digest = "x"}});
  EXPECT_EQ(gate_.TakeReport().adapters_number, 1U);
  gate_.SetAdapters({{.id = 5, .digest = "x"}});
  EXPECT_EQ(gate_.TakeReport().adapters_number, 0U);
  gate_.SetAdapters({});
  const Report report = gate_.TakeReport();
  EXPECT_EQ(report.adapters_number, 2U);
  EXPECT_TRUE(report.adapters.empty());
}

TEST_F(GateTest, APoolWithoutRoomIsSparedForAWhile) {
  gate_.SetPressure(100);
  EXPECT_TRUE(gate_.Loads(kNoAdapter));
  EXPECT_FALSE(gate_.Saves(kNoAdapter, 99));
  EXPECT_TRUE(gate_.Saves(kNoAdapter, 100));
}

TEST_F(GateTest, WithoutAPoolNothingIsLoadedOrSaved) {
  gate_.DoWithout();
  EXPECT_FALSE(gate_.Loads(kNoAdapter));
  EXPECT_FALSE(gate_.Saves(kNoAdapter, 0));
  EXPECT_TRUE(gate_.TakeReport().without_pool);
  EXPECT_FALSE(gate_.TakeReport().without_pool) << "reported once";
  EXPECT_FALSE(gate_.Loads(kNoAdapter));
}

}  // namespace
}  // namespace kvcove::connector
