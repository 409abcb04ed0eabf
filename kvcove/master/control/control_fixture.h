// SPDX-License-Identifier: Apache-2.0
// For tests: a master's control with a store that may hang, and owners by small numbers.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcove/base/log.h"
#include "kvcove/master/control/control.h"
#include "kvcove/master/control/test_owners.h"
#include "kvcove/master/store/fake_store.h"

namespace kvcove::master {

// Keeps the answer of a call. A second answer fails the test.
template <typename T>
class Answer {
 public:
  Reply<T> Into() const {
    return [result = result_](Result<T> answer) {
      EXPECT_FALSE(result->has_value()) << "answered twice";
      *result = std::move(answer);
    };
  }
  bool came() const { return result_->has_value(); }
  bool ok() const { return came() && result_->value().has_value(); }
  // kInProgress: not yet.
  Code code() const {
    if (!came()) return Code::kInProgress;
    return ok() ? Code::kOk : result_->value().error().code;
  }
  std::string detail() const { return came() && !ok() ? result_->value().error().detail : ""; }
  const auto& operator*() const { return **result_->operator->(); }
  const auto* operator->() const { return &**this; }

 private:
  std::shared_ptr<std::optional<Result<T>>> result_ = std::make_shared<std::optional<Result<T>>>();
};

class ControlFixture : public testing::Test {
 protected:
  static constexpr std::uint64_t kTerm = 4;
  static constexpr std::uint64_t kFirst = kTerm << 40;  // RemovalLog::FirstOf
  static constexpr Id128 kPool{.high = 1, .low = 1};
  static constexpr Id128 kIncarnation{.high = 2, .low = 2};
  static constexpr SlotId kSlot = 5;

  ControlFixture() {
    SetLogLevel(LogLevel::kOff);
    leadership_ = {.pool = kPool,
                   .position = {.term = kTerm, .tag = 44, .revision = 100},
                   .terms = {{.term = 2, .tag = 22, .first_revision = 50},
                             {.term = 3, .tag = 33, .first_revision = 80},
                             {.term = 4, .tag = 44, .first_revision = 100}}};
    options_.members = {.lease_ns = kSecond, .member_ttl_ns = 3600 * kSecond};
    store_.revision = 100;
    Make();
  }
  // Starts a master with the stored `state_`.
  void Make(std::int64_t leases_until_ns = 0) {
    control_ = std::make_unique<Control>(
        options_, leadership_, kIncarnation, commits_, standings_,
        Control::Hooks{.facts_lost = [this] { ++facts_lost_; },
                       .adopt_pool =
                           [this](const Id128& pool, Reply<void> stored) {
                             adopted_.push_back(pool);
                             adopting_ = std::move(stored);
                           },
                       .heard = [this](const Id128& process) { heard_ = process; },
                       .ended = [this](const Id128& process) { ended_ = process; }},
        clock_);
    control_->Load(state_, leases_until_ns, /*unknown_leases_until_ns=*/0);
  }

  static wire::OwnerHello Fresh(std::uint64_t id) {
    wire::OwnerHello hello = Of(id);
    hello.fresh = true;
    return hello;
  }
  Answer<wire::OwnerWelcome> Hello(const wire::OwnerHello& hello, std::uint64_t connection = 0) {
    const Answer<wire::OwnerWelcome> answer;
    control_->Hello(hello, connection, answer.Into());
    return answer;
  }
  wire::OwnerWelcome Join(std::uint64_t id, std::uint64_t connection = 0) {
    const auto answer = Hello(Fresh(id), connection);
    EXPECT_TRUE(answer.ok()) << answer.detail();
    return answer.ok() ? *answer : wire::OwnerWelcome{};
  }
  wire::OwnerHello Again(std::uint64_t id, const wire::OwnerWelcome& before) const {
    wire::OwnerHello hello = Of(id);
    hello.pool = before.pool;
    hello.incarnation = before.incarnation;
    hello.seen = before.position;
    hello.number = before.number;
    hello.epoch = before.epoch;
    return hello;
  }
  // Renews as an owner that has published all generations so far.
  Result<wire::RenewReply> Renew(const wire::OwnerWelcome& who, bool told = false) {
    return control_->Renew(
        {.number = who.number, .epoch = who.epoch, .table = table_, .told = told});
  }
  Answer<wire::Changes> Watch(const wire::OwnerWelcome& who, std::uint64_t table,
                              std::uint64_t naming) {
    const Answer<wire::Changes> answer;
    control_->Watch({.number = who.number, .epoch = who.epoch, .table = table, .naming = naming},
                    answer.Into());
    return answer;
  }
  Answer<wire::RemovalsPage> Removals(const wire::OwnerWelcome& who, std::uint64_t after,
                                      std::uint64_t dropped = 0) {
    const Answer<wire::RemovalsPage> answer;
    control_->Removals({.number = who.number,
                        .epoch = who.epoch,
                        .after = after,
                        .matched = {},
                        .dropped = dropped},
                       answer.Into());
    return answer;
  }
  // The same with removals that are applied beyond `after`, but for those `open`.
  Answer<wire::RemovalsPage> RemovalsAhead(const wire::OwnerWelcome& who, std::uint64_t after,
                                           std::uint64_t ahead, std::vector<std::uint64_t> open) {
    const Answer<wire::RemovalsPage> answer;
    control_->Removals({.number = who.number,
                        .epoch = who.epoch,
                        .after = after,
                        .matched = {},
                        .ahead = ahead,
                        .open = std::move(open)},
                       answer.Into());
    return answer;
  }
  void Publish(SlotId slot, Generation generation, const std::string& name = "acme") {
    generations_[slot] = generation;
    Deferred after(commits_);
    control_->Publish(
        kIncarnation,
        {{.update = {.slot = slot, .generation = generation, .name = name}, .revision = ++table_}},
        after);
  }
  // Awaits the proof of all that was published up to now.
  Answer<void> Await(std::int64_t for_ns = kSecond / 2) {
    const Answer<void> answer;
    control_->Await(clock_.NowNs() + for_ns, answer.Into());
    return answer;
  }
  std::map<SlotId, Generation> generations_;  // the latest that was published
  std::uint64_t Append(SlotId slot = kSlot, std::vector<std::string> keys = {"k"}) {
    const std::uint64_t number =
        control_->Append({.slot = slot, .generation = 7, .keys = std::move(keys), .pattern = {}});
    control_->Show(number);
    return number;
  }
  Answer<void> AwaitRemoval(std::uint64_t number, SlotId slot = kSlot,
                            std::int64_t for_ns = kSecond / 2) {
    const Answer<void> answer;
    control_->AwaitRemoval(number, slot, generations_[slot], clock_.NowNs() + for_ns,
                           answer.Into());
    return answer;
  }
  void Pass(std::int64_t ns) {
    clock_.AdvanceNs(ns);
    control_->Tick();
  }
  bool StoreHas(const std::string& key) const { return store_.facts.contains(key); }

  FakeClock clock_;
  FakeStore store_;
  OrderedCommits commits_{store_, 100};
  Standings standings_{clock_};
  ControlOptions options_;
  Leadership leadership_;
  StoredState state_;
  std::uint64_t table_ = 0;  // the revision of the last change of the generation table
  int facts_lost_ = 0;
  std::vector<Id128> adopted_;
  Reply<void> adopting_;
  Id128 heard_;
  Id128 ended_;
  std::unique_ptr<Control> control_;
};

}  // namespace kvcove::master
