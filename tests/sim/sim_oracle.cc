// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_oracle.h"

#include <fmt/core.h>

#include <algorithm>

namespace kvcove::sim {
namespace {

// How long a removal that nobody has proven may still take something: its master's log keeps it
// until the last member that is away has ended.
constexpr std::int64_t kUnderWayNs = 20 * kSecond;

std::uint64_t At(const std::map<int, std::uint64_t>& counts, int which) {
  const auto at = counts.find(which);
  return at == counts.end() ? 0 : at->second;
}

}  // namespace

Oracle::Oracle(World& world, std::vector<Space> spaces)
    : world_(world), spaces_(std::move(spaces)) {}

void Oracle::Fail(const std::string& what) {
  if (!violation_.empty()) return;
  violation_ = fmt::format("seed {}, {} ms: {}", seed_, world_.NowNs() / kMillisecond, what);
  world_.End();
}

// ---- puts

Oracle::Stamp Oracle::Called(int space) const {
  return {.family = At(family_called_, spaces_[space].family),
          .version = At(version_called_, space)};
}

Oracle::Serial Oracle::BeginPut(int space, const std::string& key, std::size_t words,
                                const Stamp& stamp) {
  const Serial serial = next_serial_++;
  written_[serial] = {.space = space, .key = key, .words = words, .stamp = stamp};
  by_key_[{space, key}].push_back(serial);
  return serial;
}

bool Oracle::TakenBy(const UnderWay& one, const Written& put) const {
  if (one.until_ns <= world_.NowNs()) return false;
  if (one.family >= 0) return spaces_[put.space].family == one.family;
  return put.space == one.space && one.matches(put.key);
}

void Oracle::Reserved(Serial serial) {
  Written& put = written_.at(serial);
  put.reserved = true;
  std::erase_if(under_way_, [&](const UnderWay& one) { return one.until_ns <= world_.NowNs(); });
  put.removal_called =
      put.removal_called ||
      std::ranges::any_of(under_way_, [&](const UnderWay& one) { return TakenBy(one, put); });
}

bool Oracle::MayBeGone(Serial serial) const {
  const Written& put = written_.at(serial);
  const Stamp called = Called(put.space);
  return put.removal_called || called.family > put.stamp.family ||
         called.version > put.stamp.version;
}

// ---- resets and removals

Oracle::Reset Oracle::CallReset(int family, std::optional<int> space) {
  std::uint64_t& called = space ? version_called_[*space] : family_called_[family];
  under_way_.push_back({.family = family, .matches = {}, .until_ns = world_.NowNs() + kUnderWayNs});
  return {.family = family, .space = space, .number = ++called, .trust = trust_};
}

void Oracle::ProvenReset(const Reset& reset) {
  if (reset.trust != trust_ || trust_ % 2 == 1) return;
  std::uint64_t& proven =
      reset.space ? version_proven_[*reset.space] : family_proven_[reset.family];
  proven = std::max(proven, reset.number);
}

Oracle::Removal Oracle::CallRemoval(int space,
                                    const std::function<bool(const std::string&)>& matches) {
  Removal removal{.doomed = {}, .trust = trust_, .number = next_number_++};
  under_way_.push_back({.space = space,
                        .matches = matches,
                        .until_ns = world_.NowNs() + kUnderWayNs,
                        .number = removal.number});
  for (auto at = by_key_.lower_bound({space, ""}); at != by_key_.end() && at->first.first == space;
       ++at) {
    if (!matches(at->first.second)) continue;
    for (const Serial serial : at->second) {
      Written& put = written_.at(serial);
      put.removal_called = true;
      if (put.reserved) removal.doomed.push_back(serial);
    }
  }
  return removal;
}

void Oracle::ProvenRemoval(const Removal& removal) {
  std::erase_if(under_way_, [&](const UnderWay& one) { return one.number == removal.number; });
  if (removal.trust != trust_ || trust_ % 2 == 1) return;
  for (const Serial serial : removal.doomed) {
    Written& put = written_.at(serial);
    if (put.removed_ns == 0) put.removed_ns = world_.NowNs();
    // It needs no other removal.
    std::erase(by_key_[{put.space, put.key}], serial);
  }
}

// ---- dead versions

Oracle::Registering Oracle::BeginRegistering(const std::string& tenant, const std::string& name,
                                             const std::string& version) {
  const auto of = std::ranges::find_if(spaces_, [&](const Space& space) {
    return space.tenant == tenant && space.name == name && space.version == version;
  });
  const int space = static_cast<int>(of - spaces_.begin());
  first_asked_.try_emplace(space, ++moments_);
  return {.space = space, .dead = dead_.contains(space)};
}

void Oracle::Registered(const Registering& registering) {
  const Space& space = spaces_[registering.space];
  if (registering.dead) {
    Fail(fmt::format("an engine was registered for the dead version {}/{}", space.name,
                     space.version));
  }
  first_named_.try_emplace(registering.space, ++moments_);
}

Oracle::Prune Oracle::CallPrune(int space) {
  const int family = spaces_[space].family;
  pruned_.insert(family);
  Prune prune;
  const auto asked = first_asked_.find(space);
  if (asked == first_asked_.end()) return prune;
  for (const auto& [other, named] : first_named_) {
    const Space& of = spaces_[other];
    if (of.family == family && !of.version.empty() && named < asked->second) {
      prune.dies.push_back(other);
    }
  }
  return prune;
}

void Oracle::ProvenPrune(const Prune& prune) { dead_.insert(prune.dies.begin(), prune.dies.end()); }

void Oracle::StoreRolledBack() {
  trust_ += trust_ % 2 == 0 ? 1 : 2;
  family_proven_.clear();
  version_proven_.clear();
  for (auto& [serial, put] : written_) put.removed_ns = 0;
}

// ---- reads

Oracle::Reading Oracle::BeginRead(int space, const std::string& key) const {
  return {.space = space,
          .key = key,
          .proven = {.family = At(family_proven_, spaces_[space].family),
                     .version = At(version_proven_, space)},
          .began_ns = world_.NowNs(),
          .trust = trust_,
          .dead = dead_.contains(space)};
}

Oracle::Serial Oracle::Verify(const Reading& reading, const std::vector<std::uint64_t>& words) {
  ++verified_;
  const Space& space = spaces_[reading.space];
  const std::string what =
      fmt::format("{}/{}/{} {}", space.tenant, space.name, space.version, reading.key);
  const Serial serial = words.empty() ? 0 : words[0];
  for (const std::uint64_t word : words) {
    if (word == serial) continue;
    Fail(fmt::format("torn value of {}: puts {} and {}", what, serial, word));
    return 0;
  }
  const auto put = written_.find(serial);
  if (put == written_.end() || put->second.space != reading.space ||
      put->second.key != reading.key || put->second.words != words.size()) {
    Fail(fmt::format("the value of {} is another's (put {})", what, serial));
    return 0;
  }
  const Written& written = put->second;
  // What was proven when the read began counts no more once the store has been rolled back.
  if (reading.trust == trust_ && (reading.proven.family > written.stamp.family ||
                                  reading.proven.version > written.stamp.version)) {
    Fail(fmt::format("stale: put {} of {} was begun before a reset that had been proven", serial,
                     what));
    return 0;
  }
  if (reading.dead) {
    Fail(fmt::format("put {} of {} is found under a dead version", serial, what));
    return 0;
  }
  if (written.removed_ns != 0 && written.removed_ns < reading.began_ns) {
    Fail(fmt::format("put {} of {} is back after its removal had been proven at {} ms", serial,
                     what, written.removed_ns / kMillisecond));
    return 0;
  }
  return serial;
}

}  // namespace kvcove::sim
