// SPDX-License-Identifier: Apache-2.0
// For tests: members of a pool, by small numbers.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/master/control/members.h"
#include "kvcove/master/control/test_owners.h"

namespace kvcove::master {

class MembersFixture : public testing::Test {
 protected:
  static constexpr std::uint64_t kTerm = 4;
  static constexpr std::uint64_t kTable = 10;  // the current revision of the generation table
  static constexpr std::uint64_t kFirst = kTerm << 40;  // RemovalLog::FirstOf

  static StoredState::Member Stored(std::uint64_t id, wire::OwnerNumber number) {
    return {.id = IdOf(id),
            .fact = {.number = number, .address = Of(id).address, .host = {}, .tenant = {}}};
  }
  void Use(const MembersOptions& options) {
    std::destroy_at(&members_);
    std::construct_at(&members_, options, kTerm, 1);
  }
  void Load(std::vector<StoredState::Member> members, std::int64_t leases_until_ns,
            std::vector<StoredState::Barrier> barriers = {}) {
    StoredState state;
    state.members = std::move(members);
    state.barriers = std::move(barriers);
    members_.Load(state, kFirst, leases_until_ns, now_);
  }
  wire::OwnerWelcome Hello(std::uint64_t id, bool seen_before = false) {
    wire::OwnerHello hello = Of(id);
    if (seen_before) hello.seen = {.term = kTerm - 1, .tag = 5, .revision = 1};
    EXPECT_TRUE(members_.Admit(hello, now_));
    return members_.Welcome(hello, false, now_);
  }
  wire::OwnerWelcome Join(std::uint64_t id, bool disk = false) {
    wire::OwnerHello hello = Of(id);
    hello.disk = disk;
    members_.Add(hello.owner, *members_.FactFor(hello, 0), kFirst, now_);
    return Hello(id);
  }
  // Says hello again as the process that got this welcome.
  wire::OwnerWelcome Resume(const wire::OwnerWelcome& before, bool overtaken = false) {
    wire::OwnerHello hello = Of(1);
    hello.seen = {.term = kTerm, .tag = 1, .revision = 1};
    hello.number = before.number;
    hello.epoch = before.epoch;
    return members_.Welcome(hello, overtaken, now_);
  }
  Members::Renewal Renew(const wire::OwnerWelcome& who, std::uint64_t table = kTable,
                         bool told = false, std::uint64_t current = kTable) {
    return members_.Renew({.number = who.number, .epoch = who.epoch, .table = table, .told = told},
                          current, now_, [this](std::int64_t) { return present_; });
  }

  std::int64_t now_ = 1000 * kSecond;
  bool present_ = true;
  Members members_{{.lease_ns = kSecond, .member_ttl_ns = 3600 * kSecond}, kTerm, 1};
};

}  // namespace kvcove::master
