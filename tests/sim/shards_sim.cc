// SPDX-License-Identifier: Apache-2.0
// The oracle's rules:
//   - A value that is read, and one that an owner tells again, is the last that was acknowledged.
//   - Nothing is acknowledged while another value of the key may be read.
//   - What a proven removal took is neither read nor, in the end, found.
//   - An owner that was never away loses what was acknowledged only to a later value.
//   - When all is quiet, what is held is found, and nothing else.
#include "tests/sim/shards_sim.h"

#include <fmt/core.h>

#include "kvcove/base/log.h"

namespace kvcove::master {

ShardsSim::ShardsSim(std::uint64_t seed, const ShardRules& rules) : rules_(rules), random_(seed) {
  SetLogLevel(LogLevel::kOff);
  const auto plan = PlanStart(store_.facts, store_.revision, kSecond, clock_.NowNs());
  master_ = std::make_unique<Master>(MasterOptions{.generations = {}, .shards = true}, *plan,
                                     store_, store_.revision, clock_);
  master_->Start([](const Result<void>&) {});
  // In time for their parts to begin there, or not.
  for (std::uint64_t i = 0; i < seed % 4; ++i) AddFollower();
  Pass(2500 * kMillisecond);
  master_->generations().Register({.name = "m", .engine = "e", .follow_always = true},
                                  clock_.NowNs() + kSecond,
                                  [this](const Result<Registration>& registered) {
                                    if (!registered) return Wrong("no registration");
                                    slot_ = registered->slot;
                                    token_ = {.incarnation = registered->incarnation,
                                              .generation = registered->generation,
                                              .slot = registered->slot};
                                  });
  Pass(50 * kMillisecond);
  for (std::uint64_t id = 1; id <= kOwners; ++id) owners_[id].id = id;
  while (followers_.size() < kShards) AddFollower();
}

void ShardsSim::AddFollower() {
  auto& one = followers_.emplace_back(std::make_unique<Follower>());
  one->address = fmt::format("shard{}:1", followers_.size());
  one->replica = std::make_unique<ShardReplica>(
      ShardReplicaOptions{.address = one->address, .directory = {}}, clock_);
}

ShardsSim::~ShardsSim() {
  master_->shards().Stop();
  master_.reset();
}

void ShardsSim::Wrong(const std::string& what, const std::string& key) {
  if (wrong_.size() >= 20) return;
  std::string told = fmt::format("{:.3f}: {}", static_cast<double>(clock_.NowNs()) * 1e-9, what);
  if (const auto at = known_.find(key); at != known_.end()) {
    for (const std::string& event : at->second.events) told += "\n  " + event;
  }
  wrong_.push_back(std::move(told));
}

void ShardsSim::Note(const std::string& key, const std::string& what) {
  constexpr std::size_t kEvents = 40;
  std::deque<std::string>& events = known_[key].events;
  events.push_back(fmt::format("{:.3f} {}", static_cast<double>(clock_.NowNs()) * 1e-9, what));
  if (events.size() > kEvents) events.pop_front();
}

// ---- time

void ShardsSim::After(std::int64_t ns, std::function<void()> run) {
  events_.emplace(clock_.NowNs() + ns, std::move(run));
}

void ShardsSim::Step() {
  clock_.AdvanceNs(kStepNs);
  while (!events_.empty() && events_.begin()->first <= clock_.NowNs()) {
    const auto run = std::move(events_.begin()->second);
    events_.erase(events_.begin());
    run();
  }
  for (auto& [id, owner] : owners_) {
    if (!owner.away) Live(owner);
  }
  for (const auto& one : followers_) {
    Follow(*one);
    Take(*one);
  }
  TakeBack();
  master_->Tick();
  if (const auto map = master_->shards().map(); map != seen_map_) {
    ++counts_.moves;
    for (std::size_t i = 0; i < wire::kSlices && seen_map_ != nullptr; ++i) {
      const bool came = map->shards[i] == 0 && seen_map_->shards[i] != 0;
      if (came && map->fresh[i] == seen_map_->fresh[i]) ++counts_.moved_back;
      if (came && map->fresh[i] != seen_map_->fresh[i]) ++counts_.lost;
    }
    for (auto& [key, known] : known_) {
      const wire::SliceNumber slice = wire::SliceOf(HashOf(key));
      Note(key, fmt::format("map {}: at shard {}, fresh {}", map->revision, map->shards[slice],
                            map->fresh[slice]));
    }
    seen_map_ = map;
  }
}

void ShardsSim::Pass(std::int64_t ns) {
  for (; ns > 0; ns -= kStepNs) Step();
}

void ShardsSim::Run(int steps) {
  Pass(3 * kSecond);
  for (int i = 0; i < steps && wrong_.empty(); ++i) {
    Act();
    Step();
  }
}

void ShardsSim::Act() {
  const auto key = [&] { return fmt::format("key{}", random_.Below(kKeys)); };
  const auto within = [&](std::int64_t from_ms, std::int64_t to_ms) {
    const auto span = static_cast<std::uint64_t>(to_ms - from_ms);
    return (from_ms + static_cast<std::int64_t>(random_.Below(span))) * kMillisecond;
  };
  Owner& owner = owners_[1 + random_.Below(kOwners)];
  if (random_.Below(10) < 4 && !owner.away) Put(owner, key());
  if (random_.Below(10) < 2 && !owner.away) {
    const std::string one = key();
    const auto at = owner.held.find(one);
    if (at != owner.held.end() && at->second.acknowledged) Drop(owner, one, /*tells=*/true);
  }
  if (random_.Below(10) < 4) Read(key());
  if (random_.OneIn(80)) Remove(key());
  if (random_.OneIn(600) && !owner.away) {
    owner.away = true;
    owner.recovered = false;
    for (auto& [key, value] : owner.held) value.safe = false;
    ++owner.call;
    owner.asks_removals = false;
    for (const auto& [key, value] : owner.held) {
      Note(key, fmt::format("owner {} goes away with group {}", owner.id, value.group));
    }
    After(within(50, 3000), [this, &owner] {
      owner.away = false;
      for (const auto& [key, value] : owner.held) {
        Note(key, fmt::format("owner {} is back with group {}", owner.id, value.group));
      }
      ++counts_.returns;
    });
  }
  if (random_.OneIn(600)) {
    Follower& one = *followers_[random_.Below(followers_.size())];
    bool& fault = random_.OneIn(3) ? one.dead : one.cut;
    fault = true;
    After(within(20, 2500), [&one, &fault] {
      fault = false;
      one.asked = false;
      ++one.call;
    });
  }
  if (random_.OneIn(800)) {
    const auto shards = master_->shards().Describe();
    // Both ways, and all of them at times: then the leader gets everything back.
    const bool drains = random_.OneIn(2);
    const bool all = random_.OneIn(3);
    const std::size_t which = random_.Below(shards.size());
    for (std::size_t i = 0; i < shards.size(); ++i) {
      if (shards[i].address.empty() || (!all && i != which)) continue;
      (void)master_->shards().SetDraining(shards[i].address, drains);
    }
  }
}

void ShardsSim::Settle() {
  for (const auto& one : followers_) {
    one->cut = one->dead = one->asked = false;
    ++one->call;
  }
  for (auto& [id, owner] : owners_) owner.away = false;
  for (int i = 0; i < 100 && wrong_.empty(); ++i) Pass(100 * kMillisecond);
  if (!wrong_.empty()) return;
  std::map<std::string, std::uint32_t> values;
  std::map<std::string, std::set<wire::OwnerNumber>> holders;
  for (auto& [id, owner] : owners_) {
    if (!owner.ops.empty() || !owner.to_tell.empty()) {
      Wrong(fmt::format("owner {} has not told all", id));
    }
    for (const auto& [key, value] : owner.held) {
      const auto [at, first] = values.try_emplace(key, value.group);
      if (at->second != value.group) Wrong(key + " has two values in the end", key);
      holders[key].insert(owner.welcome.number);
      ++counts_.held;
    }
  }
  for (int i = 0; i < kKeys; ++i) {
    const std::string key = fmt::format("key{}", i);
    const wire::Place place = Find(key);
    const bool held = holders.contains(key);
    if (held && place.owner == wire::kNoOwner) {
      Wrong(fmt::format("{} is held and not found: {}", key, MissReasonName(place.reason)), key);
    }
    if (place.owner != wire::kNoOwner && (!held || !holders[key].contains(place.owner))) {
      Wrong(fmt::format("{} is found where it is not", key), key);
    }
  }
}

// ---- shards

ShardsSim::Follower* ShardsSim::Serving(const wire::ShardMap* map, wire::ShardNumber shard) {
  for (const auto& one : followers_) {
    if (one->address != map->addresses[shard] || one->dead) continue;
    return one->replica->Serving() != 0 || !rules_.lease ? one.get() : nullptr;
  }
  return nullptr;
}

void ShardsSim::Follow(Follower& one) {
  if (one.cut || one.dead || one.asked) return;
  one.asked = true;
  const std::int64_t sent = clock_.NowNs();
  const std::uint64_t call = ++one.call;
  const auto lost = [&one, call] { return one.cut || one.dead || one.call != call; };
  const auto answered = [this, &one, sent, lost](const Result<wire::ShardSyncReply>& reply) {
    if (!reply) {
      return After(20 * kMillisecond, [&one, lost] {
        if (!lost()) one.asked = false;
      });
    }
    After(Delay(), [this, &one, sent, lost, reply = *reply]() mutable {
      if (lost()) return;
      for (wire::SliceState& state : reply.serves) {
        if (!rules_.freeze && state == wire::SliceState::kFrozen) state = wire::SliceState::kServes;
      }
      for (wire::Removal& removal : reply.removals) {
        if (!rules_.removals) removal.keys.clear();
      }
      one.asked = false;
      one.replica->Apply(reply, sent);
      one.replica->Tick();
    });
  };
  After(Delay(), [this, lost, answered, request = one.replica->NextSync()] {
    if (!lost()) master_->shards().Sync(request, answered);
  });
}

Result<wire::ShardPage> ShardsSim::PageOf(const wire::ShardMove& move, std::uint32_t cursor) {
  const wire::ShardPullRequest request{.term = master_->term(), .move = move.id, .cursor = cursor};
  if (move.address.empty()) return master_->shards().Pull(request);
  for (const auto& one : followers_) {
    if (one->address != move.address || one->dead) continue;
    const std::uint64_t serving = one->replica->Serving();
    if (serving != 0) return one->replica->Pull(request);
  }
  return Fail(Code::kUnavailable, "nobody");
}

void ShardsSim::Take(Follower& one) {
  const wire::ShardMove move = one.replica->Wanted();
  if (one.replica->following_number() != one.taken_for) one.taken = 0;
  one.taken_for = one.replica->following_number();
  if (one.loading) return;
  if (move.id <= one.taken) {
    if (one.replica->Forgets()) one.replica->Forget();
    return;
  }
  one.taken = move.id;
  one.loading = true;
  one.replica->BeginLoad(move);
  After(Delay(), [this, &one, move] { TakePage(one, move, 0); });
}

void ShardsSim::TakePage(Follower& one, const wire::ShardMove& move, std::uint32_t cursor) {
  one.loading = false;
  if (one.replica->Wanted().id != move.id) return;
  auto page = PageOf(move, cursor);
  if (!page && (page.error().code != Code::kStale || cursor != 0)) {
    return one.replica->LoadFailed(move.id);
  }
  one.loading = true;
  if (!page) return After(Delay(), [this, &one, move] { TakePage(one, move, 0); });
  After(Delay(), [this, &one, move, page = *page] {
    one.loading = false;
    one.replica->Load(move.id, page);
    if (page.done) return;
    one.loading = true;
    TakePage(one, move, page.cursor);
  });
}

void ShardsSim::TakeBack() {
  const wire::ShardMove move = master_->shards().Wanted();
  if (move.id <= taken_back_) return;
  taken_back_ = move.id;
  After(Delay(), [this, move] { TakeBackPage(move, 0); });
}

void ShardsSim::TakeBackPage(const wire::ShardMove& move, std::uint32_t cursor) {
  auto page = PageOf(move, cursor);
  if (!page && (page.error().code != Code::kStale || cursor != 0)) {
    return master_->shards().LoadFailed(move.id);
  }
  if (master_->shards().Wanted().id != move.id) return;
  if (!page) return After(Delay(), [this, move] { TakeBackPage(move, 0); });
  After(Delay(), [this, move, page = *page] {
    if (master_->shards().Load(move.id, page) && !page.done) TakeBackPage(move, page.cursor);
  });
}

// ---- requesters

void ShardsSim::Remove(const std::string& key) {
  Note(key, "is to be removed");
  std::set<std::uint32_t> groups;
  for (const auto& [group, when] : known_[key].acknowledged) groups.insert(group);
  master_->Remove(token_, {key}, "", clock_.NowNs() + 10 * kSecond,
                  [this, key, groups](const Result<Master::Removed>& removed) {
                    if (!removed) return;
                    ++counts_.removals;
                    Note(key, "a removal is proven");
                    known_[key].removed.insert(groups.begin(), groups.end());
                    for (const auto& [id, owner] : owners_) {
                      if (Shows(owner, key) && groups.contains(owner.held.at(key).group)) {
                        Wrong(fmt::format("{} is removed, and owner {} shows it", key, id), key);
                      }
                    }
                  });
  known_[key].removal = master_->control().Count().removals;
}

wire::Place ShardsSim::Find(const std::string& key) {
  wire::Place place{.reason = MissReason::kShardAway};
  const std::vector<Id128> hashes = {HashOf(key)};
  for (int i = 0; i < 3 && place.reason == MissReason::kShardAway; ++i) {
    if (i > 0) reader_map_ = master_->shards().map();
    const wire::ShardNumber shard = reader_map_ == nullptr ? 0 : reader_map_->ShardOf(hashes[0]);
    Follower* const at = shard == 0 ? nullptr : Serving(reader_map_.get(), shard);
    if (shard != 0 && at == nullptr) continue;
    const auto places =
        shard == 0 ? master_->Lookup(token_, hashes) : at->replica->Lookup(token_, hashes);
    if (places) place = (*places)[0];
  }
  return place;
}

void ShardsSim::Read(const std::string& key) {
  const wire::Place place = Find(key);
  if (place.owner == wire::kNoOwner) return;
  for (const auto& [id, owner] : owners_) {
    if (owner.welcome.number != place.owner || !Shows(owner, key)) continue;
    ++counts_.reads;
    const Known& known = known_[key];
    const std::uint32_t group = owner.held.at(key).group;
    if (known.removed.contains(group)) Wrong(key + " is read and was removed", key);
    if (known.acknowledged.at(group) < Latest(known)) {
      Wrong(fmt::format("an older value of {} is read at owner {}", key, id), key);
    }
  }
}

}  // namespace kvcove::master
