// SPDX-License-Identifier: Apache-2.0
// For tests: a generation table, and its facts in a store.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcove/master/control/generations.h"

namespace kvcove::master {

class GenerationsFixture : public testing::Test {
 protected:
  // Decided, stored, carried out.
  Result<Registration> TryRegister(const RegisterRequest& request) {
    auto plan = generations_->PlanRegister(request, now_);
    if (!plan) return std::unexpected(plan.error());
    return generations_->Register(request, *plan, Store(plan->changes), now_);
  }
  Registration Register(const RegisterRequest& request) {
    const auto registered = TryRegister(request);
    EXPECT_TRUE(registered) << registered.error().ToString();
    return registered.value_or(Registration{});
  }
  Registration Register(const std::string& engine, const std::string& version = "",
                        bool follow = false, bool assume = false) {
    return Register(RegisterRequest{.name = name_,
                                    .version = version,
                                    .engine = engine,
                                    .follow_always = follow,
                                    .assume_weights = assume});
  }
  // `id` 0: a new one.
  ResetRequest Request(const std::string& engine, std::optional<std::string> version,
                       std::uint64_t id, bool late) {
    return {.name = name_,
            .engine = engine,
            .version = std::move(version),
            .id = {.high = 7, .low = id == 0 ? ++id_ : id},
            .late = late};
  }
  // How many generations were raised.
  std::size_t ResetAll(const std::vector<ResetRequest>& requests) {
    const Generations::Plan plan = generations_->PlanReset(requests, now_);
    generations_->Reset(requests, plan, Store(plan.changes), now_);
    return static_cast<std::size_t>(
        std::ranges::count(plan.slots, true, &Generations::Plan::Slot::raise));
  }
  std::size_t Reset(const std::string& engine, std::optional<std::string> version = std::nullopt,
                    std::uint64_t id = 0, bool late = false) {
    return ResetAll({Request(engine, std::move(version), id, late)});
  }
  // Returns the generation of the namespace's slot without a version.
  Generation Current() const {
    return generations_->PublishedOf(*generations_->FindSlot(name_, "")).update.generation;
  }

  std::uint64_t Store(const std::vector<FactChange>& changes) {
    if (changes.empty()) return 0;
    ApplyTransaction(changes, ++revision_, facts_);
    return revision_;
  }
  // Starts another master from the stored facts.
  void Restart() {
    const auto state = Decode(facts_);
    ASSERT_TRUE(state);
    generations_ = std::make_unique<Generations>(options_, generations_->incarnation(), now_);
    generations_->Load(*state);
  }
  std::size_t StoredKeys(const std::string& prefix) const {
    return static_cast<std::size_t>(std::ranges::count_if(
        facts_, [&](const auto& fact) { return fact.first.starts_with(prefix); }));
  }

  GenerationOptions options_;
  std::int64_t now_ = 100 * kSecond;
  std::unique_ptr<Generations> generations_ =
      std::make_unique<Generations>(options_, Id128{.high = 1, .low = 1}, now_);
  std::string name_ = "model";
  Facts facts_;
  std::uint64_t revision_ = 0;
  std::uint64_t id_ = 1000;
};

}  // namespace kvcove::master
