// SPDX-License-Identifier: Apache-2.0
// Engines without versions, whose resets are lost, late and repeated (requester/reset_keeper.h), at
// masters that start again: never do two of them work under one generation with other weights.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/base/random.h"
#include "kvcove/master/control/generations_fixture.h"

namespace kvcove::master {
namespace {

class WeightsTest : public GenerationsFixture {
 protected:
  struct Engine {
    std::string name;
    int weights = 0;
    RegisterRequest shown;                 // its next registration
    std::optional<ResetRequest> unproven;  // repeated; the session is closed meanwhile
    std::int64_t answered_ns = 0;          // when the caller of `unproven` got "not proven"
    bool on_its_way = false;               // `unproven` has not been read by the master yet
  };

  void Run(std::uint64_t seed, bool compares, int steps) {
    random_ = Random(seed);
    for (const char* name : {"a", "b", "c"}) {
      engines_.push_back({.name = name, .shown = {.name = name_, .engine = name}});
      engines_.back().shown.assume_weights = true;
    }
    for (int i = 0; i < steps && mixed_.empty(); ++i) {
      now_ += kMillisecond;
      Engine& engine = engines_[random_.Below(engines_.size())];
      switch (random_.Below(16)) {
        case 0:
          if (random_.OneIn(8)) Restart();
          break;
        case 1:
          Update();
          break;
        case 2:
        case 3:
          Read(engine);
          break;
        case 4:
        case 5:
          Repeat(engine, compares);
          break;
        default:
          Work(engine);
      }
    }
  }

  // Loads new weights into all engines, and resets each. One whose last reset is not proven may be
  // left behind.
  void Update() {
    ++weights_;
    for (Engine& engine : engines_) {
      if (engine.unproven && random_.OneIn(2)) continue;
      Read(engine);
      engine.weights = weights_;
      const ResetRequest request = Request(engine.name, std::nullopt, 0, /*late=*/false);
      const std::uint64_t fate = random_.Below(6);
      if (fate > 0) ResetAll({request});
      if (fate > 1) {
        Prove(engine);
        continue;
      }
      engine.unproven = request;
      engine.on_its_way = fate == 0;
      engine.answered_ns = ++now_;
    }
  }
  // The master reads what it was sent while it was frozen.
  void Read(Engine& engine) {
    if (!std::exchange(engine.on_its_way, false)) return;
    ResetAll({*engine.unproven});
  }
  void Repeat(Engine& engine, bool compares) {
    if (!engine.unproven) return;
    Read(engine);
    ResetRequest late = *engine.unproven;
    late.late = true;
    const std::int64_t shared_ns = generations_->SharedNs(late);
    ResetAll({late});
    if (random_.OneIn(3)) return;  // the answer is lost
    if (compares && shared_ns > engine.answered_ns) {
      late.id = engine.unproven->id = {.high = 7, .low = ++id_};
      ResetAll({late});
      if (random_.OneIn(3)) return;
    }
    Prove(engine);
  }
  void Prove(Engine& engine) {
    engine.unproven.reset();
    engine.shown.last_incarnation = generations_->incarnation();
    engine.shown.last_generation = generations_->BoundTo(name_, engine.name);
  }
  void Work(Engine& engine) {
    if (engine.unproven) return;
    const Registration bound = Register(engine.shown);
    engine.shown.assume_weights = false;
    if (!bound.open) return;
    engine.shown.last_incarnation = bound.incarnation;
    engine.shown.last_generation = bound.generation;
    ++worked_;
    const auto [under, fresh] = weights_of_.try_emplace(bound.generation, engine.weights);
    if (under->second == engine.weights) return;
    mixed_ = fmt::format("{} works with weights {} under a generation of {}", engine.name,
                         engine.weights, under->second);
  }

  Random random_{0};
  std::vector<Engine> engines_;
  int weights_ = 0;
  std::map<Generation, int> weights_of_;
  int worked_ = 0;
  std::string mixed_;  // what must not be
};

TEST_F(WeightsTest, NoTwoEnginesWorkUnderOneGenerationWithOtherWeights) {
  const std::uint64_t seed = RandomU64() % 1'000'000;
  Run(seed, /*compares=*/true, 20'000);
  EXPECT_EQ(mixed_, "") << "seed " << seed;
  EXPECT_GT(worked_, 2'000);
}

// With the comparison switched off the test must fail, or it could not have found its absence.
TEST_F(WeightsTest, NoticesWhenARepetitionTakesAnyProof) {
  Run(/*seed=*/1, /*compares=*/false, 100'000);
  EXPECT_NE(mixed_, "");
}

}  // namespace
}  // namespace kvcove::master
