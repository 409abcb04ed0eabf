// SPDX-License-Identifier: Apache-2.0
// A master is killed and started again, and everybody comes back at once: owners have their leases
// after a few messages each, and requesters are served, whatever else wants to be. The master is a
// process; owners and requesters are those of tests/herd.h.
//
//   KVCOVE_HERD=OWNERS:REQUESTERS:OBJECTS   how many, and what each owner has to tell; with
//   KVCOVE_TEST_TIMES the figures of docs/scale.md. 1000:8000:10000 needs `ulimit -n` 16384 here
//   and for the master.
#include "tests/herd.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "kvcove/base/descriptors.h"
#include "kvcove/base/log.h"
#include "tests/fault/cluster_processes.h"

namespace kvcove {
namespace {

using Lane = owner::LinkCore::Lane;

struct Scale {
  std::size_t owners = 100;
  std::size_t requesters = 800;
  std::uint32_t objects = 1000;  // of each owner
};

Scale ScaleOf() {
  Scale scale;
  const char* text = std::getenv("KVCOVE_HERD");
  if (text != nullptr) {
    std::sscanf(text, "%zu:%zu:%u", &scale.owners, &scale.requesters, &scale.objects);
  }
  // What this process may have open decides where it is less.
  const std::uint64_t may = RaiseDescriptorLimit() - 200;
  const std::uint64_t wanted = 4 * scale.owners + scale.requesters;
  if (wanted > may) {
    scale.owners = std::max<std::size_t>(scale.owners * may / wanted, 1);
    scale.requesters = scale.requesters * may / wanted;
    fmt::print("scaled down to {} owners and {} requesters: raise `ulimit -n`\n", scale.owners,
               scale.requesters);
  }
  return scale;
}

class HerdTest : public testing::Test, protected ClusterProcesses {
 protected:
  struct Owner {
    Owner(std::size_t number, std::uint32_t objects)
        : target(objects),
          core(target,
               {.owner = RandomId(),
                .process = RandomId(),
                .address = fmt::format("127.1.{}.{}:7401", number / 256, number % 256),
                .socket = {},
                .host = fmt::format("host{}", number),
                .tenant = {}},
               250 * kMillisecond, SystemClock::Instance()) {
      for (const Lane lane : owner::LinkCore::kLanes) lanes.emplace_back(core, lane);
    }
    HerdOwner target;
    owner::LinkCore core;
    std::deque<HerdOwnerLane> lanes;
  };

  void Begin(const Scale& scale, const LaunchOptions& options = {}) {
    SetLogLevel(LogLevel::kOff);
    options_ = options;
    StartMaster("off", options_);
    // A namespace that all have objects of.
    rpc::TcpChannel channel(master_address(), {});
    const auto registered = wire::MasterStub(channel).Register({.name = "herd", .engine = "e"},
                                                               Herd::Now() + 5 * kSecond);
    ASSERT_TRUE(registered) << registered.error().ToString();
    herd_.emplace(master_address());
    for (std::size_t i = 0; i < scale.owners; ++i) {
      owners_of_herd_.push_back(std::make_unique<Owner>(i, scale.objects));
      for (HerdOwnerLane& lane : owners_of_herd_.back()->lanes) {
        herd_->Add(lane, static_cast<std::uint32_t>(i));
      }
    }
    ASSERT_TRUE(herd_->RunUntil([&] { return Leased() == scale.owners; }, 60 * kSecond))
        << Leased() << " have a lease at first";
    for (std::size_t i = 0; i < scale.requesters; ++i) {
      requesters_.push_back(
          std::make_unique<HerdRequester>(Token{.incarnation = registered->incarnation,
                                                .generation = registered->generation,
                                                .slot = registered->slot}));
      herd_->Add(*requesters_.back(), static_cast<std::uint32_t>(10'000 + i));
    }
    ASSERT_TRUE(herd_->RunUntil(
        [&] { return Served() == scale.requesters && Told() == scale.owners; }, 120 * kSecond))
        << Served() << " are served and " << Told() << " have told at first";
  }
  // Killed and started again at once; then whatever is counted begins anew.
  void Restart() {
    End(std::exchange(master(), 0), SIGKILL);
    StartMaster("off", options_);
    for (const auto& owner : owners_of_herd_) {
      (void)owner->target.TakeTold();
      for (HerdOwnerLane& lane : owner->lanes) lane.attempts = lane.calls = lane.busy = 0;
    }
    for (const auto& requester : requesters_) {
      requester->attempts = requester->calls = requester->busy = 0;
    }
    restarted_ns_ = Herd::Now();
    own_cpu_s_ = OwnCpu();
  }
  // How many connections the kernel keeps for the master, which it has not accepted yet. Asked each
  // 500 ms at most: with tens of thousands of sockets the kernel's table takes tens of
  // milliseconds.
  void LookAtBacklog(std::uint64_t& most) {
    if (Herd::Now() < backlog_look_ns_) return;
    most = std::max(most, Backlog());
    backlog_look_ns_ = Herd::Now() + kSecond / 2;
  }
  std::uint64_t Backlog() const {
    std::ifstream table("/proc/net/tcp");
    const std::string port = fmt::format(":{:04X}", master_address().port);
    for (std::string line; std::getline(table, line);) {
      unsigned long long queue = 0;
      if (line.find(port) != 14 || line.substr(34, 2) != "0A") continue;
      std::sscanf(line.c_str() + 46, "%llx", &queue);
      return queue;
    }
    return 0;
  }
  // Of this master: given after it was started again.
  std::size_t Leased() const {
    const std::int64_t now = Herd::Now();
    return static_cast<std::size_t>(std::ranges::count_if(owners_of_herd_, [&](const auto& owner) {
      return owner->target.lease_ns() > std::max(now, restarted_ns_ + kSecond);
    }));
  }
  std::size_t Told() const {
    return static_cast<std::size_t>(std::ranges::count_if(
        owners_of_herd_, [](const auto& owner) { return owner->target.told(); }));
  }
  std::size_t Served() const {
    return static_cast<std::size_t>(std::ranges::count_if(
        requesters_, [](const auto& requester) { return requester->served(); }));
  }
  template <typename Get>
  static std::uint64_t Most(const auto& all, Get get) {
    std::uint64_t most = 0;
    for (const auto& one : all) most = std::max<std::uint64_t>(most, get(*one));
    return most;
  }
  std::uint64_t MostAttempts(Lane lane) const {
    return Most(owners_of_herd_, [lane](const Owner& owner) {
      return owner.lanes[static_cast<std::size_t>(lane)].attempts;
    });
  }
  std::uint64_t MostCalls(Lane lane) const {
    return Most(owners_of_herd_, [lane](const Owner& owner) {
      return owner.lanes[static_cast<std::size_t>(lane)].calls;
    });
  }
  std::uint64_t RefusedRenewals() const {
    return Most(owners_of_herd_, [](const Owner& owner) {
      return owner.lanes[static_cast<std::size_t>(Lane::kLease)].busy;
    });
  }
  // This thread was late with renewals: leases that ran out meanwhile say nothing of the master.
  bool StoodStill() const { return herd_->longest_turn_ns() > kSecond / 4; }
  // Seconds, since it was started.
  double MasterCpu() {
    std::ifstream file(fmt::format("/proc/{}/stat", master()));
    std::string text;
    std::getline(file, text);
    unsigned long user = 0;
    unsigned long system = 0;
    std::sscanf(text.c_str() + text.rfind(')') + 2,
                "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
    return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  static double OwnCpu() { return static_cast<double>(clock()) / CLOCKS_PER_SEC; }
  // Owners and requesters share the cores with the master.
  std::string Cpu() {
    return fmt::format("CPU: the master's {:.2f} s, owners' and requesters' {:.2f} s", MasterCpu(),
                       OwnCpu() - own_cpu_s_);
  }
  double Ms() const { return static_cast<double>(Herd::Now() - restarted_ns_) / 1e6; }
  static void Print(const std::string& line) {
    if (std::getenv("KVCOVE_TEST_TIMES") == nullptr) return;
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }

  LaunchOptions options_;
  std::optional<Herd> herd_;
  std::vector<std::unique_ptr<Owner>> owners_of_herd_;
  std::vector<std::unique_ptr<HerdRequester>> requesters_;
  std::int64_t restarted_ns_ = 0;
  double own_cpu_s_ = 0;
  std::int64_t backlog_look_ns_ = 0;
};

TEST_F(HerdTest, AllOwnersHaveLeasesAfterAFewMessagesEach) {
  const Scale scale = ScaleOf();
  Begin(scale);
  if (HasFatalFailure()) return;
  Restart();
  std::uint64_t backlog = 0;
  ASSERT_TRUE(herd_->RunUntil(
      [&] {
        LookAtBacklog(backlog);
        return Leased() == scale.owners;
      },
      60 * kSecond))
      << Leased() << " of " << scale.owners << " owners have a lease";
  Print(
      fmt::format("{} owners, {} requesters: all leases after {:.0f} ms, {} served by then; a "
                  "lease's lane connected {} times at most and made {} calls at most; {}",
                  scale.owners, scale.requesters, Ms(), Served(), MostAttempts(Lane::kLease),
                  MostCalls(Lane::kLease), Cpu()));
  EXPECT_LE(MostAttempts(Lane::kLease), 8U);
  // A hello, and renewals until the generations of now are published; another one each 250 ms.
  EXPECT_LE(MostCalls(Lane::kLease), 8U + static_cast<std::uint64_t>(Ms() / 100));
  ASSERT_TRUE(herd_->RunUntil(
      [&] {
        LookAtBacklog(backlog);
        return Served() == scale.requesters;
      },
      60 * kSecond))
      << Served() << " of " << scale.requesters << " requesters are served";
  const auto attempts = [](const HerdRequester& requester) { return requester.attempts; };
  Print(
      fmt::format("all requesters served after {:.0f} ms; one connected {} times at most; peak "
                  "of connections that wait to be accepted {}; {}",
                  Ms(), Most(requesters_, attempts), backlog, Cpu()));
  EXPECT_LE(Most(requesters_, attempts), 12U);
  ASSERT_TRUE(herd_->RunUntil([&] { return Told() == scale.owners; }, 120 * kSecond))
      << Told() << " of " << scale.owners << " owners have told their inventory";
  EXPECT_TRUE(Leased() == scale.owners || StoodStill())
      << "a lease ran out while inventories were told";
  EXPECT_EQ(RefusedRenewals(), 0U) << "the master refused a lease while inventories were told";
  EXPECT_TRUE(herd_->RunUntil([&] { return Leased() == scale.owners; }, 10 * kSecond))
      << Leased() << " of " << scale.owners << " owners have a lease behind inventories";
  Print(
      fmt::format("all inventories ({} objects) told after {:.0f} ms, in {} calls of an owner at "
                  "most; {}",
                  scale.owners * scale.objects, Ms(), MostCalls(Lane::kList), Cpu()));
}

// Requesters ask for more than the master takes on; what is kept for owners is theirs.
TEST_F(HerdTest, RequestersWaitWhileOwnersComeBackFromTheReserve) {
  // 10 calls a second each, as docs/security.md has it, fit into the reserve: an eighth of all.
  const Scale scale{.owners = 8, .requesters = 900, .objects = 100};
  RaiseDescriptorLimit();
  Begin(scale, {.more = {"--max-total-calls", "640"}});
  if (HasFatalFailure()) return;
  Restart();
  ASSERT_TRUE(herd_->RunUntil([&] { return Leased() == scale.owners; }, 30 * kSecond))
      << Leased() << " of " << scale.owners << " owners have a lease";
  EXPECT_LE(MostAttempts(Lane::kLease), 8U);
  std::size_t least = scale.owners;
  (void)herd_->RunUntil(
      [&] {
        least = std::min(least, Leased());
        return false;
      },
      3 * kSecond);
  std::uint64_t busy = 0;
  for (const auto& requester : requesters_) busy += requester->busy;
  EXPECT_GT(busy, 0U) << "the limit was never met";
  EXPECT_TRUE(least == scale.owners || StoodStill())
      << "of " << scale.owners << " owners only " << least << " kept their lease beside requesters";
  EXPECT_EQ(RefusedRenewals(), 0U) << "the master refused an owner's lease beside requesters";
  EXPECT_TRUE(herd_->RunUntil([&] { return Leased() == scale.owners; }, 10 * kSecond))
      << Leased() << " of " << scale.owners << " owners have a lease beside requesters";
  EXPECT_TRUE(herd_->RunUntil([&] { return Served() == scale.requesters; }, 30 * kSecond))
      << Served() << " of " << scale.requesters << " requesters are served";
}

}  // namespace
}  // namespace kvcove
