// SPDX-License-Identifier: Apache-2.0
// How long look-ups have no right answer while a master is replaced, with real processes: the
// leader of several ends (SIGTERM) and a standby leads, or the only master ends and is started
// again. Values of two owners are read from a host without an owner, and from an owner's host.
//
// KVCOVE_GAP_OBJECTS: so many objects; the figures of 10^6 are in docs/ha.md and docs/upgrade.md.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>

#include "kvcove/base/random.h"
#include "tests/fault/masters_fixture.h"

namespace kvcove {
namespace {

// On a quiet machine the longest one takes about 3 s, with 10^6 objects.
constexpr double kGapBoundMs = 20'000;
// After the last wrong answer: no more of them come.
constexpr std::int64_t kCalmNs = 3 * kSecond;

int GapObjects() {
  const char* count = std::getenv("KVCOVE_GAP_OBJECTS");
  return count == nullptr ? 2000 : std::atoi(count);
}

// Reads without a pause from a thread of its own, and knows when answers were right.
class GapReader {
 public:
  explicit GapReader(std::function<bool()> read)
      : thread_([this, read = std::move(read)] {
          std::int64_t last_right_ns = Now();
          while (!stop_) {
            const bool right = read();
            const std::int64_t now = Now();
            ++calls_;
            if (right) {
              longest_ns_ = std::max(longest_ns_.load(), now - last_right_ns);
              last_right_ns = now;
            } else {
              ++wrong_;
              last_wrong_ns_ = now;
            }
          }
        }) {}
  ~GapReader() { Stop(); }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  int calls() const { return calls_; }
  int wrong() const { return wrong_; }
  std::int64_t last_wrong_ns() const { return last_wrong_ns_; }
  // The longest time from one right answer to the next.
  double longest_ms() const { return static_cast<double>(longest_ns_) / kMillisecond; }

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<int> calls_ = 0;
  std::atomic<int> wrong_ = 0;
  std::atomic<std::int64_t> last_wrong_ns_ = 0;
  std::atomic<std::int64_t> longest_ns_ = 0;
  std::thread thread_;
};

std::string GapKey(int owner, int number) { return fmt::format("h{}-{}", owner, number); }
std::string GapValue(const std::string& key) { return "value of " + key; }

void GapFill(Session& session, int owner, int objects) {
  constexpr int kBatch = 500;
  for (int from = 0; from < objects; from += kBatch) {
    std::vector<std::string> keys;
    std::vector<std::string> values;
    std::vector<ConstBuffer> pieces;
    std::vector<PutItem> items;
    for (int i = from; i < std::min(from + kBatch, objects); ++i) {
      keys.push_back(GapKey(owner, i));
      values.push_back(GapValue(keys.back()));
    }
    for (const std::string& value : values) pieces.push_back({value.data(), value.size()});
    for (std::size_t i = 0; i < keys.size(); ++i) {
      items.push_back({.key = keys[i], .value = {&pieces[i], 1}});
    }
    std::vector<ItemResult> results(keys.size());
    (void)session.Put(items, results, {.timeout = kCallTime});
    ASSERT_TRUE(std::ranges::all_of(results, &ItemResult::ok));
  }
}

// A wrong value is a failure of its own: a gap is a time without a value, never with another's.
bool GapGet(Session& session, const std::string& key, milliseconds timeout) {
  std::string value(64, '\0');
  const MutableBuffer piece{value.data(), value.size()};
  const GetItem item{.key = key, .into = {&piece, 1}};
  ItemResult result;
  (void)session.Get({&item, 1}, {&result, 1}, {.timeout = timeout});
  if (result.ok()) {
    EXPECT_EQ(value.substr(0, result.bytes), GapValue(key));
  }
  return result.ok();
}

// Fills both owners, replaces the master under readers, and prints what they saw.
void MeasureGap(const std::string& way, std::array<Session*, 2> hosts, Session& elsewhere,
                const std::function<void()>& replace) {
  const int each = GapObjects() / 2;
  for (int owner = 0; owner < 2; ++owner) {
    ASSERT_NO_FATAL_FAILURE(GapFill(*hosts[static_cast<std::size_t>(owner)], owner, each));
  }
  const auto any = [each](Random& random) {
    return static_cast<int>(random.Below(static_cast<std::uint64_t>(each)));
  };
  const Slowness slowness;
  Random far_random(1);
  Random near_random(2);
  GapReader far([&] {
    const int owner = far_random.OneIn(2) ? 0 : 1;
    return GapGet(elsewhere, GapKey(owner, any(far_random)), milliseconds(1000));
  });
  GapReader near(
      [&] { return GapGet(*hosts[0], GapKey(0, any(near_random)), milliseconds(1000)); });
  ASSERT_TRUE(Becomes([&] { return far.calls() > 100 && near.calls() > 100; }));
  EXPECT_EQ(far.wrong() + near.wrong(), 0);
  const std::int64_t began_ns = Now();
  replace();
  const std::int64_t replaced_ns = Now();
  ASSERT_TRUE(Becomes([&] {
    const std::int64_t last = std::max({far.last_wrong_ns(), near.last_wrong_ns(), replaced_ns});
    return Now() > last + kCalmNs;
  }));
  far.Stop();
  near.Stop();
  for (int i = 0; i < each; i += std::max(1, each / 2000)) {
    ASSERT_TRUE(GapGet(elsewhere, GapKey(0, i), kCallTime)) << i;
    ASSERT_TRUE(GapGet(elsewhere, GapKey(1, i), kCallTime)) << i;
  }
  const auto until_ms = [&](const GapReader& reader) {
    return reader.wrong() == 0
               ? 0
               : static_cast<double>(reader.last_wrong_ns() - began_ns) / kMillisecond;
  };
  fmt::print(
      "{{\"way\": \"{}\", \"objects\": {}, \"replaced_ms\": {:.0f}, \"remote_reads\": {}, "
      "\"remote_without_ms\": {:.0f}, \"remote_last_miss_ms\": {:.0f}, \"local_reads\": {}, "
      "\"local_without_ms\": {:.0f}, \"local_last_miss_ms\": {:.0f}, \"slowness_ms\": {}}}\n",
      way, 2 * each, static_cast<double>(replaced_ns - began_ns) / kMillisecond, far.calls(),
      far.longest_ms(), until_ms(far), near.calls(), near.longest_ms(), until_ms(near),
      slowness.ms());
  EXPECT_LE(far.longest_ms() - static_cast<double>(slowness.ms()), kGapBoundMs);
  EXPECT_LE(near.longest_ms() - static_cast<double>(slowness.ms()), kGapBoundMs);
}

class MasterGapTest : public ClusterFaultTest {
 protected:
  MasterGapTest() {
    if (GapObjects() > 100'000) owner_memory_ = "2GiB";
  }
};

TEST_F(MasterGapTest, TheOnlyMasterEndsAndIsStartedAgain) {
  const auto pools = {Open("host0"), Open("host1")};
  std::vector<SessionPtr> hosts;
  for (const auto& pool : pools) hosts.push_back(OpenSession(*pool));
  MeasureGap("stop and start", {hosts[0].get(), hosts[1].get()}, *session_, [&] {
    End(std::exchange(master(), 0), SIGTERM);
    StartMaster();
  });
}

class MastersGapTest : public MastersTest {
 protected:
  MastersGapTest() {
    if (GapObjects() > 100'000) owner_memory_ = "2GiB";
  }
  std::string Shards() const override { return "auto"; }
};

TEST_F(MastersGapTest, TheLeaderEndsAndAStandbyLeads) {
  const auto other_pool = OpenAll("host1");
  const SessionPtr other = OpenSession(*other_pool);
  const auto leader = AwaitLeader();
  ASSERT_TRUE(leader);
  MeasureGap("standby", {near_.get(), other.get()}, *session_,
             [&] { End(std::exchange(masters_[*leader], 0), SIGTERM); });
}

}  // namespace
}  // namespace kvcove
