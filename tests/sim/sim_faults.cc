// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_faults.h"

#include <fmt/core.h>

namespace kvcove::sim {
namespace {

constexpr std::int64_t kFirstNs = 200 * kMillisecond;

}  // namespace

void Faults::Start() {
  world_.After(kFirstNs, [this] { Disturb(); });
}

void Faults::End() {
  ended_ = true;
  world_.Log("the faults end");
  world_.HealAll();
  world_.SetFaults(false);
  cluster_.master.disk().SetHanging(false);
  cluster_.master.disk().SetFull(false);
  cluster_.master.disk().FailNext(0);
  if (!cluster_.master.alive()) cluster_.master.Start();
  for (Place place = 0; place < Cluster::kOwners; ++place) {
    // A known gap: when the store was lost and a fresh owner came first, the master has another
    // pool id for good, and refuses owners of the old one until somebody starts them anew.
    if (cluster_.pool_lost) cluster_.KillOwner(place);
    cluster_.StartOwner(place);
  }
}

void Faults::Disturb() {
  if (ended_) return;
  world_.After(20 * kMillisecond + world_.Some(700 * kMillisecond), [this] { Disturb(); });
  switch (random().Below(16)) {
    case 0:
    case 1:
    case 2:
      return Pause(static_cast<Place>(random().Below(Cluster::kMasterPlace + 1)));
    case 3:
    case 4:
      return Cut();
    case 5:
      if (cluster_.kind.keeps) return;
      [[fallthrough]];
    case 6:
      return RestartOwner(static_cast<Place>(random().Below(Cluster::kOwners)));
    case 7:
      return RestartMaster();
    case 8:
    case 9:
      return DisturbDisk();
    case 10:
      return Forget();
    case 11:
      return PauseHost();
    default:
      return;
  }
}

std::int64_t Faults::AwayNs() {
  if (random().OneIn(8)) return 5 * kSecond + world_.Some(10 * kSecond);
  return world_.Some(random().OneIn(3) ? 4 * kSecond : 600 * kMillisecond);
}

void Faults::Compound(std::int64_t away_ns) {
  if (compounds_ >= 2 || !random().OneIn(2)) return;
  ++compounds_;
  world_.After(world_.Some(away_ns + 1), [this] {
    --compounds_;
    if (ended_) return;
    const auto who = static_cast<Place>(random().Below(Cluster::kOwners + 2));
    if (who < Cluster::kOwners) return RestartOwner(who);
    RestartMaster();
  });
}

void Faults::Pause(Place place) {
  ++cluster_.report.pauses;
  const std::int64_t away_ns = AwayNs();
  world_.Log(fmt::format("place {} pauses for {} ms", place, away_ns / kMillisecond));
  world_.Pause(place, away_ns);
  Compound(away_ns);
}

// With a clock that stands still, an expired lease proves nothing.
void Faults::PauseHost() {
  if (!cluster_.options.stopped_clocks) return;
  const auto host = static_cast<int>(random().Below(Cluster::kOwners));
  if (world_.HostPaused(host)) return;
  ++cluster_.report.pauses;
  const std::int64_t away_ns = AwayNs();
  world_.PauseHost(host, away_ns);
  Compound(away_ns);
}

void Faults::Cut() {
  ++cluster_.report.partitions;
  const int one = static_cast<int>(random().Below(5));
  const int other = static_cast<int>(random().Below(5));
  const bool one_way = random().OneIn(3);
  world_.Cut(one, other);
  if (!one_way) world_.Cut(other, one);
  const std::int64_t away_ns = AwayNs();
  world_.Log(fmt::format("host {} does not reach host {}{} for {} ms", one, other,
                         one_way ? "" : ", nor back,", away_ns / kMillisecond));
  world_.After(away_ns, [this, one, other] {
    world_.Heal(one, other);
    world_.Heal(other, one);
  });
  Compound(away_ns);
}

void Faults::RestartOwner(Place place) {
  if (cluster_.owner(place) == nullptr) return;
  if (random().OneIn(4)) cluster_.owner(place)->SayGoodbye();
  cluster_.KillOwner(place);
  const std::int64_t away_ns = AwayNs();
  world_.Log(fmt::format("owner {} dies, for {} ms", place, away_ns / kMillisecond));
  world_.After(away_ns, [this, place] { cluster_.StartOwner(place); });
  Compound(away_ns);
}

void Faults::RestartMaster() {
  if (!cluster_.master.alive()) return;
  ++cluster_.report.master_deaths;
  if (master::Master* master = cluster_.master.answering();
      master != nullptr && random().OneIn(4)) {
    master->Stop([](const Result<void>&) {});
  }
  cluster_.master.Kill();
  HarmFile();
  const std::int64_t away_ns = AwayNs();
  world_.Log(fmt::format("the master dies, for {} ms", away_ns / kMillisecond));
  world_.After(away_ns, [this] {
    if (!cluster_.master.alive()) cluster_.master.Start();
  });
  Compound(away_ns);
}

// Most often only the process is gone. Else its machine's power goes, or its disk lies.
void Faults::HarmFile() {
  FakeDisk& disk = cluster_.master.disk();
  const std::uint64_t dice = random().Below(100);
  if (dice < 60) return disk.CutPower(Loss::kNone);
  if (dice < 70) return disk.CutPower(Loss::kAll);
  if (dice < 78) return disk.CutPower(Loss::kSome);
  if (dice < 85) return disk.CutPower(Loss::kZeros);
  disk.CutPower(Loss::kNone);
  if (!cluster_.options.lost_facts || !random().OneIn(2)) return;
  if (dice < 90) {
    // What was synced goes: the owners know better, and some of them may be away.
    if (!disk.RollBack("control", 1 + random().Below(6))) return;
    cluster_.facts_lost = true;
    world_.Log("the control file is rolled back");
    cluster_.oracle.StoreRolledBack();
    return AwaitTrust();
  }
  const auto content = disk.Content("control");
  if (dice < 95 && content && !content->empty()) {
    world_.Log("a bit of the control file flips");
    cluster_.facts_lost = true;
    cluster_.pool_lost = true;
    return disk.FlipBit("control", random().Below(content->size() * 8));
  }
  world_.Log("the control file is lost");
  cluster_.facts_lost = true;
  cluster_.pool_lost = true;
  cluster_.master.LoseDisk();
}

// A store that was rolled back proves something again when each owner that lives follows its
// master.
void Faults::AwaitTrust() {
  world_.After(2 * kSecond, [this] {
    const master::Master* master = cluster_.master.answering();
    bool follow = master != nullptr;
    for (Place place = 0; follow && place < Cluster::kOwners; ++place) {
      const SimOwner* owner = cluster_.owner(place);
      follow = owner != nullptr && owner->link().term() == master->term() && owner->LeaseHolds();
    }
    if (follow) return cluster_.oracle.Trust();
    AwaitTrust();
  });
}

void Faults::DisturbDisk() {
  FakeDisk& disk = cluster_.master.disk();
  switch (random().Below(3)) {
    case 0:
      disk.SetHanging(true);
      world_.After(world_.Some(4 * kSecond), [this] { cluster_.master.disk().SetHanging(false); });
      return;
    case 1:
      disk.SetFull(true);
      world_.After(world_.Some(2 * kSecond), [this] { cluster_.master.disk().SetFull(false); });
      return;
    default:
      disk.FailNext(1 + random().Below(4));
  }
}

// Somebody ends the identity of an owner that is away. Where clocks stop, the master's view of a
// lease is no proof that nobody reads the memory, and code that forgets an owner must not assume
// it.
void Faults::Forget() {
  master::Master* master = cluster_.master.answering();
  if (master == nullptr || cluster_.master.options().strict) return;
  for (const auto& member : master->control().Describe()) {
    if (!member.leased) world_.Log(fmt::format("member {} is forgotten", member.number));
    if (!member.leased) (void)master->control().Forget(member.number);
  }
}

}  // namespace kvcove::sim
