// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/cluster/placement.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kvcove/base/keys.h"

namespace kvcove {
namespace {
constexpr std::array<std::string_view, 3> kNames = {"local-first", "free-ratio-first", "random"};
}  // namespace

Result<Placement> ParsePlacement(std::string_view name) {
  const auto known = std::ranges::find(kNames, name);
  if (known == kNames.end()) return UnknownKey("placement strategy", name, kNames);
  return static_cast<Placement>(known - kNames.begin());
}

std::string_view PlacementName(Placement placement) {
  return kNames[static_cast<std::size_t>(placement)];
}

}  // namespace kvcove

namespace kvcove::requester {
namespace {

// Returns a random number in (0, 1]; 0 would have no logarithm.
double Unit(Random& random) {
  return static_cast<double>((random.Next() >> 11) + 1) / static_cast<double>(1ULL << 53);
}

double Score(const PlacementRequest& request, const wire::OwnerStat& owner, Random& random) {
  switch (request.strategy) {
    case Placement::kFreeRatioFirst:
      return owner.capacity_bytes == 0 ? 0
                                       : static_cast<double>(owner.free_bytes) /
                                             static_cast<double>(owner.capacity_bytes);
    case Placement::kRandom:
      return Unit(random);
    case Placement::kLocalFirst:
      break;
  }
  // A random order, weighted by free bytes: many requesters know the same, slightly old figures,
  // and would all choose the same owner otherwise. (Efraimidis and Spirakis, 2006: keys u^(1/w),
  // here their logarithms.)
  const double weight = static_cast<double>(owner.free_bytes) + 1;
  return std::log(Unit(random)) / weight;
}

}  // namespace

std::vector<std::string> PreferredOwners(std::string_view segments) {
  std::vector<std::string> owners;
  while (!segments.empty()) {
    const std::size_t end = segments.find(',');
    if (end != 0) owners.emplace_back(segments.substr(0, end));
    segments = end == std::string_view::npos ? std::string_view() : segments.substr(end + 1);
  }
  return owners;
}

std::vector<wire::OwnerNumber> OrderOwners(const PlacementRequest& request,
                                           std::vector<wire::OwnerStat> owners, Random& random) {
  std::erase_if(owners, [](const wire::OwnerStat& owner) { return !owner.live || owner.draining; });
  struct Ranked {
    const wire::OwnerStat* owner;
    int group;
    double score;
  };
  std::vector<Ranked> ranked;
  for (const wire::OwnerStat& owner : owners) {
    // 0: others; 1: owners of this host; from 3 on: preferred owners, the first one highest.
    int group = 0;
    const auto preferred = std::ranges::find(request.preferred, owner.address);
    if (preferred != request.preferred.end()) {
      group = 2 + static_cast<int>(request.preferred.end() - preferred);
    } else if (request.strategy == Placement::kLocalFirst && owner.host == request.host) {
      group = 1;
    }
    ranked.push_back({.owner = &owner, .group = group, .score = Score(request, owner, random)});
  }
  std::ranges::sort(ranked, [](const Ranked& a, const Ranked& b) {
    return a.group != b.group ? a.group > b.group : a.score > b.score;
  });
  std::vector<wire::OwnerNumber> order;
  std::vector<std::string_view> hosts;
  std::vector<wire::OwnerNumber> same_host;
  for (const Ranked& one : ranked) {
    // A preferred owner keeps its place, also behind another one of its host.
    const bool new_host = std::ranges::find(hosts, one.owner->host) == hosts.end();
    if (new_host || one.group > 2) {
      hosts.push_back(one.owner->host);
      order.push_back(one.owner->number);
    } else {
      same_host.push_back(one.owner->number);
    }
  }
  order.insert(order.end(), same_host.begin(), same_host.end());
  return order;
}

}  // namespace kvcove::requester
