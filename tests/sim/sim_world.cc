// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_world.h"

#include <fmt/core.h>

#include <algorithm>

namespace kvcove::sim {

World::World(std::uint64_t seed, const std::vector<int>& hosts)
    : random_(seed),
      hosts_(hosts),
      life_(hosts.size()),
      alive_(hosts.size()),
      paused_until_(hosts.size()) {
  const int count = *std::ranges::max_element(hosts) + 1;
  for (int host = 0; host < count; ++host) {
    const double drift = (static_cast<double>(random_.Below(9)) - 4) / 1000;
    clocks_.push_back(std::make_unique<HostClock>(truth_, 1.0 + drift));
  }
  cut_.assign(count, std::vector<bool>(count));
}

void World::Log(const std::string& line) const {
  if (logs_) fmt::print(stderr, "{:>9.3f} s  {}\n", static_cast<double>(NowNs()) / kSecond, line);
}

// ---- events

void World::After(std::int64_t delay_ns, std::function<void()> run) {
  events_.push_back({truth_.NowNs() + delay_ns, next_event_++, std::move(run)});
  std::ranges::push_heap(events_, Event::Later);
}

void World::In(Place place, std::int64_t delay_ns, std::function<void()> run) {
  After(delay_ns,
        [this, place, life = life_[place], run = std::move(run)] { Resume(place, life, run); });
}

void World::Resume(Place place, std::uint64_t life, const std::function<void()>& run) {
  if (life_[place] != life) return;
  const std::int64_t left = paused_until_[place] - truth_.NowNs();
  if (left <= 0) return run();
  After(left, [this, place, life, run] { Resume(place, life, run); });
}

bool World::Step(std::int64_t until_ns) {
  if (ended_ || events_.empty() || events_.front().at_ns > until_ns) return false;
  std::ranges::pop_heap(events_, Event::Later);
  const Event event = std::move(events_.back());
  events_.pop_back();
  truth_.AdvanceNs(std::max<std::int64_t>(0, event.at_ns - truth_.NowNs()));
  ++events_run_;
  event.run();
  return true;
}

void World::RunUntil(std::int64_t until_ns) {
  while (Step(until_ns)) {
  }
  if (!ended_) truth_.AdvanceNs(std::max<std::int64_t>(0, until_ns - truth_.NowNs()));
}

bool World::Await(const bool& done, std::int64_t until_ns) {
  if (!MayAwait()) return false;
  ++depth_;
  while (!done && Step(until_ns)) {
  }
  --depth_;
  return done;
}

// ---- processes

void World::Pause(Place place, std::int64_t duration_ns) {
  paused_until_[place] = std::max(paused_until_[place], truth_.NowNs() + duration_ns);
}

void World::PauseHost(int host, std::int64_t duration_ns) {
  clocks_[host]->Stop();
  std::int64_t until_ns = truth_.NowNs() + duration_ns;
  for (Place place = 0; place < static_cast<Place>(hosts_.size()); ++place) {
    if (hosts_[place] != host) continue;
    Pause(place, duration_ns);
    until_ns = std::max(until_ns, paused_until_[place]);
  }
  // The clock goes on before anything of the host does.
  After(until_ns - truth_.NowNs(), [this, host] { clocks_[host]->Go(); });
  for (Place place = 0; place < static_cast<Place>(hosts_.size()); ++place) {
    if (hosts_[place] == host) paused_until_[place] = until_ns + 1;
  }
}

std::int64_t World::QuietFromNs() const {
  return std::max(truth_.NowNs(), *std::ranges::max_element(paused_until_));
}

// ---- network

std::int64_t World::Delay(Place from, Place to) {
  if (hosts_[from] == hosts_[to]) return Some(200 * kMicrosecond);
  if (faults_ && random_.OneIn(60)) return Some(1500 * kMillisecond);
  return Some(4 * kMillisecond);
}

void World::Send(Place from, Place to, std::function<void()> deliver) {
  const bool near = hosts_[from] == hosts_[to];
  if (!alive_[to] || (!near && (IsCut(from, to) || (faults_ && random_.OneIn(250))))) return;
  In(to, Delay(from, to), std::move(deliver));
}

void World::HealAll() {
  for (std::vector<bool>& row : cut_) std::fill(row.begin(), row.end(), false);
}

}  // namespace kvcove::sim
