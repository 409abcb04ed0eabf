// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_end.h"

#include <fmt/core.h>

#include <algorithm>

namespace kvcove::sim {
namespace {

constexpr std::int64_t kCallNs = 3 * kSecond;

class Check {
 public:
  explicit Check(Cluster& cluster) : cluster_(cluster), world_(cluster.world) {}

  void Run() {
    if (!Owners() || !NothingIsLeft()) return;
    KeptIsFound();
    if (!world_.ended()) OneValue();
    if (!world_.ended()) PutsAndGets();
    if (world_.ended()) return;
    for (Place place = 0; place < Cluster::kOwners; ++place) {
      cluster_.owner(place)->core().CheckInvariants();
    }
  }

 private:
  bool Fail(const std::string& what) {
    cluster_.oracle.Fail("after the faults: " + what);
    return false;
  }
  const Space& SpaceOf(int space) const { return cluster_.oracle.spaces()[space]; }
  std::string NameOf(int space, const std::string& key) const {
    return fmt::format("{}/{}/{} {}", SpaceOf(space).tenant, SpaceOf(space).name,
                       SpaceOf(space).version, key);
  }

  // Each owner's process is live, and all that it holds is listed.
  bool Owners() {
    const master::Master* master = cluster_.master.answering();
    if (master == nullptr) return Fail("the master does not answer");
    for (Place place = 0; place < Cluster::kOwners; ++place) {
      const SimOwner& owner = *cluster_.owner(place);
      const auto state = owner.link().state();
      const auto members = master->control().Describe();
      const auto member =
          std::ranges::find(members, owner.identity(), &master::MemberDescription::id);
      if (member == members.end()) return Fail(fmt::format("owner {} is no member", place));
      if (!member->leased || !owner.LeaseHolds()) {
        return Fail(fmt::format("owner {} has no lease", place));
      }
      if (!member->told || !state.reported) {
        return Fail(fmt::format("owner {} has not told all it holds", place));
      }
      if (!member->barriers.empty()) return Fail(fmt::format("owner {} hides a slot", place));
      if (owner.outbox() != 0) return Fail(fmt::format("owner {} waits for a listing", place));
    }
    return true;
  }

  // No table keeps anything of what is over.
  bool NothingIsLeft() {
    const master::Control::Counts counts = cluster_.master.answering()->control().Count();
    const auto none = [&](std::size_t count, std::string_view what) {
      return count == 0 || Fail(fmt::format("{} {} are left", count, what));
    };
    if (!none(counts.proofs, "proofs")) return false;
    for (const auto& member : cluster_.master.answering()->control().Describe()) {
      for (const auto& [slot, barrier] : member.barriers) {
        world_.Log(fmt::format(
            "member {} at {} has a barrier for slot {} of term {} ({}), leased {}, away {} ms",
            member.number, member.address, slot, barrier.term, barrier.acknowledged, member.leased,
            member.away_ns.value_or(0) / kMillisecond));
      }
    }
    // Where no clock counts, an owner that is gone stays a member, and so do its barriers.
    if (!cluster_.master.options().strict && !none(counts.barriers, "barriers")) return false;
    if (counts.watches > 2 * Cluster::kOwners) return none(counts.watches, "watches");
    // Where no clock counts, a member that is gone for good must be forgotten by somebody.
    if (!cluster_.master.options().strict) {
      if (counts.members != Cluster::kOwners) {
        for (const auto& member : cluster_.master.answering()->control().Describe()) {
          world_.Log(fmt::format("member {} at {}: leased {}, away {} ms", member.number,
                                 member.address, member.leased,
                                 member.away_ns.value_or(0) / kMillisecond));
        }
        return none(counts.members, "members");
      }
      if (!none(counts.removal_entries, "removals")) return false;
    }
    const std::size_t engines = cluster_.master.answering()->generations().registrations();
    if (engines > 2 * cluster_.requesters.size()) return none(engines, "registrations");
    return true;
  }

  // Runs one call of a requester, to its end.
  Oracle::Serial Read(SimRequester& requester, int space, const std::string& key, bool local) {
    const auto found = std::make_shared<std::optional<Oracle::Serial>>();
    world_.In(requester.place(), 0, [&requester, space, key, local, found] {
      const auto done = [found](Oracle::Serial serial) { *found = serial; };
      if (local) return requester.GetLocal(space, key, done);
      requester.GetRemote(space, key, done);
    });
    const std::int64_t until_ns = world_.NowNs() + kCallNs;
    while (!*found && world_.NowNs() < until_ns && !world_.ended()) {
      world_.RunUntil(world_.NowNs() + kMillisecond);
    }
    return found->value_or(0);
  }
  Oracle::Serial ReadAny(SimRequester& requester, int space, const std::string& key) {
    const Oracle::Serial serial = Read(requester, space, key, /*local=*/true);
    return serial != 0 ? serial : Read(requester, space, key, /*local=*/false);
  }

  bool MustBeThere(const Cluster::Kept& kept) {
    const Oracle::Written& put = cluster_.oracle.written(kept.serial);
    if (world_.life(kept.owner) != kept.life) return false;  // its memory died
    if (cluster_.facts_lost || cluster_.kind.pressure) return false;
    if (cluster_.oracle.MayBeDead(put.space)) return false;
    if (cluster_.oracle.MayBeGone(kept.serial)) return false;
    if (cluster_.WasMoved(kept.owner, put.key)) return false;
    // A slot that nobody names gives way when there are few.
    const SpaceNow now = Now(put.space);
    if (cluster_.kind.few_slots && now.generation != kept.token.generation) return false;
    const SimOwner& owner = *cluster_.owner(kept.owner);
    // The value that it gave way to may have died with its owner since.
    if (owner.GaveWay(DirectoryHash(kept.token.slot, put.key))) return false;
    // Its identity ended while it was away, or it had missed a removal under another master.
    if (cluster_.Forgotten(owner)) return false;
    return !(owner.dropped().contains(kept.token.slot) &&
             cluster_.barred.contains({owner.identity(), kept.token.slot}));
  }

  struct SpaceNow {
    Generation generation = 0;
  };
  SpaceNow Now(int space) {
    for (const auto& slot : cluster_.master.answering()->generations().Describe()) {
      if (slot.name == QualifiedName(SpaceOf(space).tenant, SpaceOf(space).name) &&
          slot.version == SpaceOf(space).version) {
        return {.generation = slot.generation};
      }
    }
    return {};
  }

  void KeptIsFound() {
    for (const Cluster::Kept& kept : cluster_.kept) {
      if (!MustBeThere(kept)) continue;
      const Oracle::Written& put = cluster_.oracle.written(kept.serial);
      const auto reader =
          std::ranges::find(cluster_.requesters, SpaceOf(put.space).tenant, &SimRequester::tenant);
      const Oracle::Serial found = Read(**reader, put.space, put.key, /*local=*/false);
      if (world_.ended()) return;
      if (found == 0) {
        Fail(fmt::format("{} is lost: owner {} had acknowledged put {}", NameOf(put.space, put.key),
                         kept.owner, kept.serial));
        return;
      }
      ++cluster_.report.found_again;
    }
  }

  // All readers of a key get the same value.
  void OneValue() {
    for (int space = 0; space < static_cast<int>(cluster_.oracle.spaces().size()); ++space) {
      for (int i = 0; i < Cluster::kKeys; ++i) {
        const std::string key = fmt::format("key-{}", i);
        Oracle::Serial first = 0;
        for (const auto& requester : cluster_.requesters) {
          if (requester->tenant() != SpaceOf(space).tenant) continue;
          for (const bool local : {true, false}) {
            const Oracle::Serial serial = Read(*requester, space, key, local);
            if (world_.ended()) return;
            if (serial == 0) continue;
            if (first == 0) first = serial;
            if (serial != first) {
              Fail(fmt::format("{} has two values: {} and {}", NameOf(space, key), first, serial));
              return;
            }
          }
        }
      }
    }
  }

  // A put then a get works, to and from every host, in every namespace.
  void PutsAndGets() {
    for (const auto& requester : cluster_.requesters) {
      for (int space = 0; space < static_cast<int>(cluster_.oracle.spaces().size()); ++space) {
        if (SpaceOf(space).tenant != requester->tenant()) continue;
        if (cluster_.oracle.MayBeDead(space)) continue;
        for (Place owner = 0; owner < Cluster::kOwners; ++owner) {
          if (!PutAndGet(*requester, space, owner)) return;
        }
      }
    }
  }

  bool PutAndGet(SimRequester& requester, int space, Place owner) {
    const std::string key = fmt::format("last-{}-{}", requester.place(), owner);
    const auto code = std::make_shared<std::optional<Code>>();
    world_.In(requester.place(), 0, [&requester, space, key, owner, code] {
      requester.Put(space, key, 4, owner, 0,
                    [code](const SimRequester::Stored& stored) { *code = stored.code; });
    });
    const std::int64_t until_ns = world_.NowNs() + kCallNs;
    while (!*code && world_.NowNs() < until_ns && !world_.ended()) {
      world_.RunUntil(world_.NowNs() + kMillisecond);
    }
    if (world_.ended()) return false;
    // More versions are in use than there are slots.
    if (cluster_.kind.few_slots && *code == Code::kLimit) return true;
    if (code->value_or(Code::kTimeout) != Code::kOk) {
      return Fail(fmt::format("{} cannot be stored at owner {} from {}: {}", NameOf(space, key),
                              owner, requester.place(), CodeName(code->value_or(Code::kTimeout))));
    }
    for (const auto& reader : cluster_.requesters) {
      if (reader->tenant() != requester.tenant()) continue;
      if (ReadAny(*reader, space, key) == 0 && !world_.ended()) {
        return Fail(fmt::format("{} was stored at owner {} and is not found from {}",
                                NameOf(space, key), owner, reader->place()));
      }
    }
    return !world_.ended();
  }

  Cluster& cluster_;
  World& world_;
};

}  // namespace

void CheckEnd(Cluster& cluster) { Check(cluster).Run(); }

}  // namespace kvcove::sim
