// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_rollbacks.h"

#include <fmt/core.h>

#include <algorithm>

namespace kvcove::sim {
namespace {

constexpr std::int64_t kLookNs = 200 * kMillisecond;
constexpr std::int64_t kPauseNs = kSecond;  // between two episodes

}  // namespace

void Rollbacks::Start() {
  // Else the owners that know of the reset could stay away for as long as the other one.
  world_.SetFaults(false);
  world_.After(kPauseNs, [this] { Begin(); });
}

bool Rollbacks::AllFollow() const {
  const master::Master* master = cluster_.master.answering();
  for (Place place = 0; master != nullptr && place < Cluster::kOwners; ++place) {
    const SimOwner* owner = cluster_.owner(place);
    if (owner->link().term() != master->term() || !owner->LeaseHolds()) return false;
  }
  return master != nullptr;
}

void Rollbacks::Begin() {
  if (ended_) return;
  const auto store = cluster_.master.disk().Content("control");
  if (!AllFollow() || !store) return world_.After(kLookNs, [this] { Begin(); });
  // One whose host reads what the reset voids.
  const Place place = random().OneIn(2) ? 0 : 2;
  const std::int64_t away_ns = 2500 * kMillisecond + world_.Some(2 * kSecond);
  SendAway(place, away_ns);
  const Episode episode{.store = *store, .returns_ns = world_.NowNs() + away_ns};
  world_.After(world_.Some(300 * kMillisecond), [this, episode] { Reset(episode); });
}

void Rollbacks::SendAway(Place place, std::int64_t away_ns) {
  const bool stands_still = random().OneIn(2);
  world_.Log(fmt::format("owner {} {} for {} ms", place,
                         stands_still ? "stands still" : "does not reach the master",
                         away_ns / kMillisecond));
  if (stands_still) return world_.Pause(place, away_ns);
  const int one = world_.host(place);
  const int other = world_.host(Cluster::kMasterPlace);
  world_.Cut(one, other);
  world_.Cut(other, one);
  world_.After(away_ns, [this, one, other] {
    world_.Heal(one, other);
    world_.Heal(other, one);
  });
}

void Rollbacks::Reset(const Episode& episode) {
  SimRequester& requester = *cluster_.requesters[Cluster::kOwners];
  world_.In(requester.place(), 0, [this, &requester, episode] {
    const int family = cluster_.oracle.spaces()[0].family;
    const Oracle::Reset reset = cluster_.oracle.CallReset(family, std::nullopt);
    requester.Reset(family, std::nullopt, /*by_engine=*/false, [=, this](bool proven) {
      // In strict mode an owner that is away leaves it unproven.
      if (!proven) return world_.After(kPauseNs, [this] { Begin(); });
      world_.Log("the reset is proven");
      ++cluster_.report.resets_proven;
      cluster_.oracle.ProvenReset(reset);
      world_.After(world_.Some(300 * kMillisecond), [this, episode] { RollBack(episode); });
    });
  });
}

void Rollbacks::RollBack(const Episode& episode) {
  if (ended_) return;
  ++cluster_.report.rollbacks;
  cluster_.facts_lost = true;
  world_.Log("the master dies, and its store is put back");
  cluster_.master.Kill();
  cluster_.master.disk().CutPower(Loss::kNone);
  cluster_.master.disk().Put("control", episode.store);
  const std::int64_t starts_ns = episode.returns_ns + world_.Some(600 * kMillisecond);
  const std::int64_t wait_ns = starts_ns - 300 * kMillisecond - world_.NowNs();
  world_.After(std::max<std::int64_t>(0, wait_ns), [this] {
    if (!cluster_.master.alive()) cluster_.master.Start();
    world_.After(kPauseNs, [this] { Begin(); });
  });
}

}  // namespace kvcove::sim
