// SPDX-License-Identifier: Apache-2.0
// Virtual time for a simulated cluster: events, hosts with clocks that drift or stop, processes
// that pause and die, and a network that delays, loses and cuts. Everything random comes from one
// seed, and nothing waits: an hour of it takes as long as its events do.
//
// A place is one process. Places of one host share its clock, and no cut ever parts them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/random.h"
#include "kvcove/base/result.h"

namespace kvcove::sim {

using Place = int;

// A host's clock. It drifts within the 1 % that leases allow for; it stands still only while its
// virtual machine is paused.
class HostClock final : public Clock {
 public:
  HostClock(const FakeClock& truth, double rate) : truth_(truth), rate_(rate) {}
  std::int64_t NowNs() const override {
    return Scaled((stopped_ns_ != 0 ? stopped_ns_ : truth_.NowNs()) - lost_ns_);
  }
  void Stop() {
    if (stopped_ns_ == 0) stopped_ns_ = truth_.NowNs();
  }
  bool stopped() const { return stopped_ns_ != 0; }
  void Go() {
    if (stopped_ns_ != 0) lost_ns_ += truth_.NowNs() - stopped_ns_;
    stopped_ns_ = 0;
  }

 private:
  std::int64_t Scaled(std::int64_t ns) const {
    return static_cast<std::int64_t>(static_cast<double>(ns) * rate_);
  }
  const FakeClock& truth_;
  const double rate_;
  std::int64_t stopped_ns_ = 0;  // since then; 0: it runs
  std::int64_t lost_ns_ = 0;
};

class World {
 public:
  // `hosts`: of each place.
  World(std::uint64_t seed, const std::vector<int>& hosts);

  Random& random() { return random_; }
  // Up to `bound`, of the seed.
  std::int64_t Some(std::int64_t bound_ns) {
    return static_cast<std::int64_t>(random_.Below(static_cast<std::uint64_t>(bound_ns)));
  }
  std::int64_t NowNs() const { return truth_.NowNs(); }
  const Clock& clock(Place place) const { return *clocks_[hosts_[place]]; }
  std::int64_t NowOf(Place place) const { return clock(place).NowNs(); }

  // ---- events
  void After(std::int64_t delay_ns, std::function<void()> run);
  // In the process at `place`, in this life of it, when it is not paused.
  void In(Place place, std::int64_t delay_ns, std::function<void()> run);
  void RunUntil(std::int64_t until_ns);
  // Runs events until `done` or this time; a blocking call waits so. Bounded in depth: true only
  // when `done`.
  bool Await(const bool& done, std::int64_t until_ns);
  bool MayAwait() const { return depth_ < kMaxDepth; }
  // The run ends: no event runs any more.
  void End() { ended_ = true; }
  bool ended() const { return ended_; }

  // What happens, line by line, for whoever looks for the cause of a violation: on stderr, when
  // KVCOVE_SIM_LOG is set.
  bool logs() const { return logs_; }
  void Log(const std::string& line) const;

  // ---- processes
  std::uint64_t life(Place place) const { return life_[place]; }
  // Whatever was under way in it, or on its way to it, ends.
  void Die(Place place) {
    ++life_[place];
    alive_[place] = false;
  }
  // A new process starts there.
  void Born(Place place) {
    alive_[place] = true;
    paused_until_[place] = 0;
  }
  bool alive(Place place) const { return alive_[place]; }
  void Pause(Place place, std::int64_t duration_ns);
  // A virtual machine: its processes stand still, and so does its clock.
  void PauseHost(int host, std::int64_t duration_ns);
  bool HostPaused(int host) const { return clocks_[host]->stopped(); }
  // When all that is paused goes on; now, if nothing is.
  std::int64_t QuietFromNs() const;

  // ---- network
  // Delivered late, or not at all, into the life that `to` has now; a dead process gets nothing.
  void Send(Place from, Place to, std::function<void()> deliver);
  void Cut(int from_host, int to_host) { cut_[from_host][to_host] = true; }
  void Heal(int from_host, int to_host) { cut_[from_host][to_host] = false; }
  void HealAll();
  bool IsCut(Place from, Place to) const { return cut_[hosts_[from]][hosts_[to]]; }
  // Messages are lost and late only while there are faults.
  void SetFaults(bool faults) { faults_ = faults; }
  bool faults() const { return faults_; }
  int host(Place place) const { return hosts_[place]; }
  std::uint64_t events_run() const { return events_run_; }

 private:
  static constexpr int kMaxDepth = 60;
  struct Event {
    std::int64_t at_ns = 0;
    std::uint64_t number = 0;
    std::function<void()> run;
    static bool Later(const Event& a, const Event& b) {
      return a.at_ns != b.at_ns ? a.at_ns > b.at_ns : a.number > b.number;
    }
  };
  void Resume(Place place, std::uint64_t life, const std::function<void()>& run);
  // Runs the next event if it comes by then.
  bool Step(std::int64_t until_ns);
  std::int64_t Delay(Place from, Place to);

  Random random_;
  FakeClock truth_;
  const std::vector<int> hosts_;
  std::vector<std::unique_ptr<HostClock>> clocks_;  // by host
  std::vector<Event> events_;                       // a heap, the soonest on top
  std::uint64_t next_event_ = 0;
  std::uint64_t events_run_ = 0;
  std::vector<std::uint64_t> life_;
  std::vector<bool> alive_;
  std::vector<std::int64_t> paused_until_;
  std::vector<std::vector<bool>> cut_;  // by host
  bool faults_ = true;
  bool ended_ = false;
  const bool logs_ = std::getenv("KVCOVE_SIM_LOG") != nullptr;
  int depth_ = 0;
};

}  // namespace kvcove::sim
