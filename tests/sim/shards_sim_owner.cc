// SPDX-License-Identifier: Apache-2.0
// The owners of ShardsSim: hellos, leases, removals, and a lane of listings for each shard.
#include <fmt/core.h>

#include <algorithm>

#include "kvcove/master/control/test_owners.h"
#include "tests/sim/shards_sim.h"

namespace kvcove::master {

void ShardsSim::Live(Owner& owner) {
  if (owner.says_hello) Hello(owner);
  if (owner.says_hello) return;
  if (clock_.NowNs() >= owner.next_renewal_ns) Renew(owner);
  if (owner.says_hello) return;
  AskRemovals(owner);
  Tell(owner);
  SendAll(owner);
}

void ShardsSim::Hello(Owner& owner) {
  wire::OwnerHello hello = Of(owner.id);
  hello.fresh = !owner.joined;
  if (owner.joined) {
    hello.pool = owner.welcome.pool;
    hello.incarnation = owner.welcome.incarnation;
    hello.seen = owner.welcome.position;
    hello.number = owner.welcome.number;
    hello.epoch = owner.new_epoch ? 0 : owner.welcome.epoch;
  }
  master_->control().Hello(hello, 0, [&](const Result<wire::OwnerWelcome>& welcome) {
    if (!welcome) return;
    if (welcome->forgotten) return Wrong("an owner is forgotten");
    owner.says_hello = owner.new_epoch = false;
    if (!owner.joined) owner.applied = welcome->removals;
    owner.joined = true;
    owner.welcome = *welcome;
    owner.next_renewal_ns = 0;
    owner.asks_removals = false;
    ++owner.call;
    if (welcome->resumed) return;
    owner.told = false;
    owner.map = nullptr;
    owner.told_map = 0;
    if (welcome->tell_first) owner.lease_until_ns = 0;
    std::erase_if(owner.ops, [](const Op& op) { return op.item.inventory; });
    owner.to_tell.clear();
    for (const auto& [key, value] : owner.held) {
      if (value.acknowledged) owner.to_tell.insert(key);
    }
  });
}

void ShardsSim::Renew(Owner& owner) {
  const std::int64_t now = clock_.NowNs();
  owner.next_renewal_ns = now + static_cast<std::int64_t>(20 + random_.Below(80)) * kMillisecond;
  const auto renewed = master_->control().Renew({.number = owner.welcome.number,
                                                 .epoch = owner.welcome.epoch,
                                                 .table = master_->control().Count().table,
                                                 .told = owner.told,
                                                 .map = owner.map ? owner.map->revision : 0,
                                                 .told_map = owner.told_map,
                                                 .leased = owner.lease_until_ns > now});
  if (!renewed || renewed->tell_again) {
    owner.says_hello = true;
    if (renewed) ++counts_.overtaken;
    return;
  }
  if (renewed->changes.map != nullptr) GetMap(owner, renewed->changes.map);
  if (!renewed->granted) return;
  owner.hidden = std::ranges::find(renewed->hidden, slot_) != renewed->hidden.end();
  owner.lease_until_ns = now + renewed->lease_ns;
  owner.recovered = owner.recovered || owner.told;
}

void ShardsSim::GetMap(Owner& owner, std::shared_ptr<const wire::ShardMap> map) {
  const std::uint64_t before = owner.map == nullptr ? 0 : owner.map->revision;
  owner.map = std::move(map);
  for (const auto& [key, value] : owner.held) {
    const bool begins = owner.map->fresh[wire::SliceOf(HashOf(key))] > before;
    if (begins && value.acknowledged && rules_.retell) owner.to_tell.insert(key);
  }
}

void ShardsSim::AskRemovals(Owner& owner) {
  if (owner.asks_removals) return;
  owner.asks_removals = true;
  master_->control().Removals(
      {.number = owner.welcome.number,
       .epoch = owner.welcome.epoch,
       .after = owner.applied,
       .matched = {},
       .dropped = owner.dropped},
      [this, &owner, call = owner.call](const Result<wire::RemovalsPage>& page) {
        After(Delay(), [this, &owner, call, page] {
          if (owner.call != call || owner.away) return;
          owner.asks_removals = false;
          if (page) return Apply(owner, *page);
          if (page.error().code == Code::kStale) owner.says_hello = true;
        });
      });
}

void ShardsSim::Apply(Owner& owner, const wire::RemovalsPage& page) {
  if (page.drop_number != 0) owner.dropped = page.drop_number;
  if (std::ranges::find(page.drop, slot_) != page.drop.end() && rules_.drop_away) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : owner.held) {
      if (value.acknowledged) keys.push_back(key);
    }
    for (const std::string& key : keys) {
      if (owner.held[key].safe) {
        Wrong(fmt::format("owner {} drops {}, and was never away", owner.id, key), key);
      }
      Drop(owner, key, /*tells=*/true);
    }
  }
  for (const wire::Removal& removal : page.removals) {
    for (const std::string& key : removal.keys) {
      const auto at = owner.held.find(key);
      if (at == owner.held.end() || at->second.removals >= removal.number) continue;
      Drop(owner, key, /*tells=*/true);
    }
  }
  owner.applied = std::max(owner.applied, page.upto);
}

void ShardsSim::Drop(Owner& owner, const std::string& key, bool tells) {
  const auto at = owner.held.find(key);
  if (at == owner.held.end()) return;
  if (tells && at->second.acknowledged) {
    Op op = OpOf(owner, key, at->second.group);
    op.item.gone = true;
    owner.ops.push_back(op);
  }
  Note(key, fmt::format("owner {} drops group {}", owner.id, at->second.group));
  owner.to_tell.erase(key);
  owner.held.erase(at);
}

void ShardsSim::Tell(Owner& owner) {
  if (owner.ops.size() < 10) {
    int told = 0;
    for (const std::string& key : owner.to_tell) {
      if (std::ranges::find(owner.ops, key, &Op::key) != owner.ops.end()) continue;
      Op op = OpOf(owner, key, owner.held[key].group);
      op.item.inventory = true;
      owner.ops.push_back(op);
      if (++told == 8) break;
    }
  }
  if (!owner.to_tell.empty()) return;
  owner.told = true;
  owner.told_map = owner.map == nullptr ? 0 : owner.map->revision;
}

ShardsSim::Op ShardsSim::OpOf(const Owner& owner, const std::string& key,
                              std::uint32_t group) const {
  return {.item = {.hash = HashOf(key),
                   .generation = token_.generation,
                   .size_bytes = 1,
                   .group = group,
                   .slot = slot_,
                   .removals = owner.applied},
          .key = key};
}

void ShardsSim::Put(Owner& owner, const std::string& key) {
  if (owner.says_hello || owner.held.contains(key) || owner.ops.size() > 20) return;
  const std::uint32_t group = ++next_group_;
  owner.held[key] = {.group = group, .removals = owner.applied};
  owner.ops.push_back(OpOf(owner, key, group));
}

// What happens to a key goes to its shard in its order; a shard without an answer holds up its own
// keys only.
void ShardsSim::SendAll(Owner& owner) {
  std::set<wire::ShardNumber> waits;
  for (std::size_t i = 0; i < owner.ops.size() && !owner.says_hello;) {
    const Op op = owner.ops[i];
    const wire::ShardNumber shard = owner.map == nullptr ? 0 : owner.map->ShardOf(op.item.hash);
    const auto code = waits.contains(shard) ? std::nullopt : Send(owner, shard, op);
    if (!code || *code == Code::kInProgress || *code == Code::kUnavailable) {
      waits.insert(shard);
      ++i;
      continue;
    }
    owner.ops.erase(owner.ops.begin() + static_cast<std::ptrdiff_t>(i));
    Answered(owner, op, *code);
  }
}

std::optional<Code> ShardsSim::Send(Owner& owner, wire::ShardNumber shard, const Op& op) {
  const std::uint64_t revision = owner.map == nullptr ? 0 : owner.map->revision;
  Lane& lane = owner.lanes[shard];
  if (lane.revision != revision || lane.epoch != owner.welcome.epoch) {
    lane = {.revision = revision, .epoch = owner.welcome.epoch, .unanswered = std::nullopt};
  }
  // One without an answer is repeated under its number.
  if (!lane.unanswered) ++lane.sequence;
  if (lane.unanswered && !(*lane.unanswered == op)) {
    Wrong("a lane repeats another listing");
    return std::nullopt;
  }
  lane.unanswered = op;
  const wire::ListRequest request{.number = owner.welcome.number,
                                  .epoch = owner.welcome.epoch,
                                  .sequence = lane.sequence,
                                  .applied = owner.applied,
                                  .session = revision,
                                  .items = {op.item}};
  std::optional<Result<wire::ListReply>> reply;
  const auto answer = [&](const Result<wire::ListReply>& one) { reply = one; };
  Follower* const at = shard == 0 ? nullptr : Serving(owner.map.get(), shard);
  if (shard == 0) {
    master_->List(request, answer);
  } else if (at != nullptr) {
    const auto ask = [&](const wire::ShardBarRequest& bar, Reply<wire::ShardBarReply> bars) {
      if (rules_.ask) {
        if (at->cut) return bars(Fail(Code::kUnavailable, "nobody leads"));
        return master_->control().AnswerBars(bar.values, std::move(bars));
      }
      wire::ShardBarReply self;
      for (const auto& [number, slot] : bar.values) {
        self.answers.push_back({.gives_way = wire::GivesWay::kThisToo,
                                .epoch = master_->standings().owner(number).epoch});
      }
      bars(self);
    };
    at->replica->List(request, ask, answer);
  }
  if (!reply) return std::nullopt;
  if (!*reply && (*reply).error().code == Code::kStale) owner.says_hello = owner.new_epoch = true;
  if (!*reply) {
    if ((*reply).error().code != Code::kInProgress) return std::nullopt;
    return Code::kInProgress;
  }
  const Code code = (*reply)->codes[0];
  Note(op.key, fmt::format("owner {} under {} and map {} {} group {} at shard {}, removals {}: {}",
                           owner.id, owner.welcome.epoch, revision,
                           op.item.gone        ? "unlists"
                           : op.item.inventory ? "tells"
                                               : "lists",
                           op.item.group, shard, op.item.removals, CodeName(code)));
  if (code == Code::kOk && !op.item.gone) known_[op.key].listed[op.item.group] = ++next_count_;
  if (random_.OneIn(20)) return std::nullopt;  // the answer gets lost
  lane.unanswered.reset();
  return code;
}

void ShardsSim::Answered(Owner& owner, const Op& op, Code code) {
  if (op.item.gone) return;
  const auto at = owner.held.find(op.key);
  if (at == owner.held.end() || at->second.group != op.item.group) {
    // It went meanwhile.
    if (code != Code::kOk) return;
    Op gone = op;
    gone.item.gone = true;
    gone.item.inventory = false;
    owner.ops.push_back(gone);
    return;
  }
  Value& value = at->second;
  if (code == Code::kOk) return Acknowledge(owner, op.key, value, op.item.inventory);
  if (!op.item.inventory) return Drop(owner, op.key, /*tells=*/false);
  if (code != Code::kExists) return;  // it is told again, or dropped before
  const Known& known = known_[op.key];
  const std::uint64_t when = known.acknowledged.at(value.group);
  const bool later = std::ranges::any_of(
      known.listed, [&](const auto& one) { return one.first != value.group && one.second > when; });
  if (!later) Wrong(fmt::format("owner {} loses {} to nobody", owner.id, op.key), op.key);
  Drop(owner, op.key, /*tells=*/false);
}

std::uint64_t ShardsSim::Latest(const Known& known) {
  std::uint64_t latest = 0;
  for (const auto& [group, when] : known.acknowledged) latest = std::max(latest, when);
  return latest;
}

bool ShardsSim::Told(const Owner& owner, const std::string& key) const {
  const auto map = master_->shards().map();
  return owner.told && (map == nullptr || map->fresh[wire::SliceOf(HashOf(key))] <= owner.told_map);
}

bool ShardsSim::Shows(const Owner& owner, const std::string& key) const {
  const auto at = owner.held.find(key);
  return at != owner.held.end() && at->second.acknowledged && !owner.away && !owner.hidden &&
         !owner.says_hello && clock_.NowNs() < owner.lease_until_ns;
}

void ShardsSim::Acknowledge(Owner& owner, const std::string& key, Value& value, bool inventory) {
  Known& known = known_[key];
  owner.to_tell.erase(key);
  if (inventory) {
    if (known.acknowledged.at(value.group) < Latest(known)) {
      Wrong(fmt::format("owner {} brings an older value of {} back", owner.id, key), key);
    }
    return;
  }
  for (const auto& [id, other] : owners_) {
    if (id == owner.id || !Shows(other, key) || !Told(other, key)) continue;
    if (other.held.at(key).removals < known.removal) continue;  // it is about to be dropped
    Wrong(fmt::format("owners {} and {} have a value of {} each", id, owner.id, key), key);
  }
  value.acknowledged = true;
  // A slot that is hidden there may yet have to be dropped, with what is put meanwhile.
  value.safe = owner.recovered && !owner.hidden;
  known.acknowledged[value.group] = ++next_count_;
  ++counts_.puts;
}

}  // namespace kvcove::master
