// SPDX-License-Identifier: Apache-2.0
// `kvcove owner --take-over` of an owner with a disk in a cluster (docs/upgrade.md), with real
// processes: what its disk holds is found by everybody afterwards, and what a removal or a reset
// ended meanwhile is not. The processes that fail at a stage are this binary, started with --taker.
#include <atomic>

#include "kvcove/server/daemons.h"
#include "tests/fault/cluster_disk_fixture.h"
#include "tests/fault/misbehave.h"
#include "tests/fault/take_over.h"
#include "tests/slowness.h"
#include "tests/support/process.h"

namespace kvcove {
namespace {

using server::UpgradeStage;

class ClusterDiskUpgradeTest : public ClusterDiskTest {
 protected:
  // Owner 0's process ends by itself, and with 0. On a busy machine an attempt may take too long
  // for the lease: then the old one goes on.
  void Upgrade() {
    const pid_t old = owner(0);
    int status = 0;
    bool taken = false;
    (void)Becomes([&] {
      owner(0) = Spawn(DiskOwnerWords(0), "host0",
                       {.launcher = {}, .log_file = LogOf(0), .more = {"--take-over"}});
      int refused = 0;
      while (waitpid(old, &status, WNOHANG) != old) {
        if (waitpid(owner(0), &refused, WNOHANG) == owner(0)) {
          EXPECT_TRUE(MayTakeOverLater(refused, Said(0))) << refused << Said(0);
          return HasFailure();
        }
        std::this_thread::sleep_for(milliseconds(2));
      }
      taken = true;
      return true;
    });
    if (!taken) owner(0) = old;
    ASSERT_TRUE(taken && WIFEXITED(status) && WEXITSTATUS(status) == 0) << Said(0);
    ASSERT_TRUE(Becomes([&] { return Said(0).contains("took over from process"); })) << Said(0);
  }
  // A successor that ends at the stage; the running one may still be busy with the one before.
  void FailAt(UpgradeStage stage) {
    int status = 0;
    const std::vector<std::string> words = {SocketOf(0), std::to_string(static_cast<int>(stage)),
                                            master_address().ToString(), DiskOf(0)};
    ASSERT_TRUE(Becomes([&] {
      status = End(SpawnTaker(words), 0);
      return WIFSIGNALED(status) || !Said(0).contains("try again");
    })) << Said(0);
    ASSERT_TRUE(WIFSIGNALED(status)) << Said(0);
  }
  pid_t SpawnTaker(const std::vector<std::string>& words) const {
    std::vector<std::string> texts = {"/proc/self/exe", "--take-over-disk"};
    texts.insert(texts.end(), words.begin(), words.end());
    std::vector<char*> argv;
    for (std::string& text : texts) argv.push_back(text.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, LogOf(0).c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    pid_t pid = 0;
    EXPECT_EQ(posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
  }
  // What lies on owner 0's disk and is listed at the master.
  std::vector<std::string> FilledOnDisk() {
    const auto all = Fill();
    std::vector<std::string> keys;
    EXPECT_TRUE(Becomes([&] { return OnDisk(Look(*far_, all)) >= kMany / 2; }));
    for (const auto& [key, result] : Look(*far_, all)) {
      if (result.tier == Tier::kDisk) keys.push_back(key);
    }
    return keys;
  }
  static std::string WhyNot(Session& session, const std::vector<std::string>& keys,
                            const std::set<std::string>& found) {
    std::string text;
    for (const std::string& key : keys) {
      if (found.contains(key)) continue;
      std::string value(kValue, '\0');
      const MutableBuffer piece{.data = value.data(), .size = kValue};
      const GetItem item{.key = key, .into = {&piece, 1}};
      ItemResult result;
      (void)session.Get({&item, 1}, {&result, 1}, {.timeout = kCallTime});
      text += fmt::format("\n{}: {} {}", key, CodeName(result.code), MissReasonName(result.reason));
    }
    return text + "\n";
  }
  // By both, whatever the moment at which the disk is open again.
  void ExpectAllFound(const std::vector<std::string>& keys) {
    for (Session* session : {far_.get(), here_.get()}) {
      std::set<std::string> found;
      EXPECT_TRUE(Becomes([&] {
        found.merge(Get(*session, keys).keys);
        return found.size() == keys.size();
      })) << (session == far_.get() ? "far: " : "here: ")
          << found.size() << " of " << keys.size() << WhyNot(*session, keys, found) << Said(0);
    }
    EXPECT_EQ(Look(*far_, keys).size(), keys.size()) << "the directory has them all";
  }
  static bool Removed(Session& session, const std::vector<std::string>& keys) {
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    std::vector<ItemResult> results(views.size());
    if (!session.Remove(views, results, {.timeout = kCallTime})) return false;
    return std::ranges::all_of(results, [](const ItemResult& result) {
      return result.code == Code::kOk || result.code == Code::kMiss;
    });
  }
  static std::vector<std::string> Take(std::vector<std::string>& keys, std::size_t count) {
    const std::vector<std::string> taken(keys.end() - static_cast<std::ptrdiff_t>(count),
                                         keys.end());
    keys.resize(keys.size() - count);
    return taken;
  }
  wire::OwnerStat AtMaster() const {
    rpc::TcpChannel channel(master_address(), {});
    const auto all = Await([&] {
      return wire::MasterStub(channel).Owners(SystemClock::Instance().NowNs() + 5 * kSecond);
    });
    const auto at = std::ranges::find(all.owners, "host0", &wire::OwnerStat::host);
    return at == all.owners.end() ? wire::OwnerStat{} : *at;
  }
};

TEST_F(ClusterDiskUpgradeTest, UpgradesInARowUnderLoadLoseNothingAndBringNothingBack) {
  std::vector<std::string> keys = FilledOnDisk();
  ASSERT_GE(keys.size(), 80U);
  std::vector<std::string> removed;
  // Returns true if the owner's epoch continues: in a new one it lists all anew.
  const auto upgrade = [&](int round) {
    const wire::OwnerStat before = AtMaster();
    std::atomic<bool> ends = false;
    std::atomic<int> wrong = 0;
    std::thread reader([&, all = keys] {
      while (!ends) (void)Get(*far_, all);  // it expects each value's bytes
    });
    std::thread writer([&] {
      for (int i = 0; !ends; ++i) {
        const std::string key = fmt::format("new-{}-{}", round, i % 40);
        const Code code = Put(*here_, key);
        // What is acknowledged, is there for others at once; it may have been evicted since.
        if (code == Code::kInvalid || code == Code::kCorrupt) ++wrong;
      }
    });
    const auto gone = Take(keys, 5);
    std::thread remover([&] {
      for (const std::string& key : gone) {
        if (!Becomes([&] { return Removed(*far_, {key}); })) ++wrong;
      }
    });
    Upgrade();
    remover.join();
    ends = true;
    reader.join();
    writer.join();
    if (HasFatalFailure()) return false;
    EXPECT_EQ(wrong, 0);
    removed.insert(removed.end(), gone.begin(), gone.end());
    ExpectAllFound(keys);
    EXPECT_EQ(MostFound(removed), 0U) << Said(0);
    const wire::OwnerStat after = AtMaster();
    EXPECT_EQ(after.number, before.number);
    return after.epoch == before.epoch;
  };
  const Slowness slowness;
  int rounds = 0;
  while (rounds < 4 && !HasFatalFailure()) {
    EXPECT_TRUE(slowness.Holds([&] { return upgrade(rounds++); })) << "it has told all anew";
  }
  if (HasFatalFailure()) return;
  EXPECT_TRUE(Becomes([&] { return AtMaster().live; }));
  EXPECT_GT(StatOf(0).disk_hits, 0U);
  EXPECT_EQ(StatOf(0).disk_damaged + StatOf(0).disk_errors, 0U);
  // The disk is the same owner's after a crash, too.
  KillOwner(0);
  StartDiskOwner(0, 2);
  EXPECT_EQ(MostFound(removed), 0U);
  ExpectBack(keys, keys.size() / 2);
}

TEST_F(ClusterDiskUpgradeTest, ASuccessorThatDiesLeavesTheDiskToTheOldOne) {
  std::vector<std::string> keys = FilledOnDisk();
  std::vector<std::string> removed;
  for (const UpgradeStage stage :
       {UpgradeStage::kHello, UpgradeStage::kFiles, UpgradeStage::kMapped, UpgradeStage::kState,
        UpgradeStage::kLoaded, UpgradeStage::kGo}) {
    const auto gone = Take(keys, 2);
    std::atomic<bool> proven = false;
    std::thread remover([&] { proven = Becomes([&] { return Removed(*far_, gone); }); });
    FailAt(stage);
    remover.join();
    if (HasFatalFailure()) return;
    EXPECT_TRUE(proven);
    removed.insert(removed.end(), gone.begin(), gone.end());
    ExpectAllFound(keys);
    EXPECT_EQ(MostFound(removed), 0U) << static_cast<int>(stage);
    EXPECT_EQ(Put(*here_, fmt::format("after-{}", static_cast<int>(stage))), Code::kOk);
  }
  Upgrade();
  ExpectAllFound(keys);
  EXPECT_EQ(MostFound(removed), 0U);
}

TEST_F(ClusterDiskUpgradeTest, ResetsAndPatternsDuringAnUpgradeAreProven) {
  std::vector<std::string> keys = FilledOnDisk();
  const auto others = Keys(60, "other");
  Fill(60, "other");
  std::atomic<bool> matched = false;
  std::thread pattern([&] {
    matched =
        Becomes([&] { return far_->RemoveMatching("key-*", {.timeout = kCallTime}).has_value(); });
  });
  Upgrade();
  pattern.join();
  if (HasFatalFailure()) return;
  EXPECT_TRUE(matched);
  EXPECT_EQ(MostFound(keys), 0U) << Said(0);
  // Nothing in the directory stands in the way of a new value from another host.
  EXPECT_TRUE(Becomes([&] { return Put(*far_, keys.front()) == Code::kOk; }));

  std::atomic<bool> reset = false;
  std::thread resetter(
      [&] { reset = Becomes([&] { return far_->Reset({.timeout = kCallTime}).has_value(); }); });
  Upgrade();
  resetter.join();
  if (HasFatalFailure()) return;
  EXPECT_TRUE(reset);
  EXPECT_EQ(MostFound(others), 0U);
  KillOwner(0);
  StartDiskOwner(0, 2);
  EXPECT_EQ(MostFound(keys), 0U);
  EXPECT_EQ(MostFound(others), 0U);
}

// ---- the other process

[[noreturn]] void TakeOverDisk(const std::vector<std::string>& words) {
  server::DaemonOptions options;
  options.socket_path = words[0];
  options.host.socket_path = words[0];
  options.host.owner.memory_bytes = 8 * kMiB;
  options.host.owner.disks = {{.path = words[3], .size_bytes = 64 * kMiB}};
  pool::ClusterMember member;
  member.master = Must(rpc::ParseAddress(words[2], 0));
  member.host = "host0";
  options.host.cluster = member;
  options.take_over = true;
  options.on_taken_over = [](std::int32_t /*pid*/) { _exit(0); };
  options.on_stage = Misbehave(static_cast<UpgradeStage>(std::stoi(words[1])), "die", 0);
  const auto daemon = server::OpenDaemons({options}, SystemClock::Instance());
  fmt::print(stderr, "{}\n", daemon ? "it has taken over" : daemon.error().ToString());
  _exit(3);
}

const ProcessRole kDiskTaker("--take-over-disk", TakeOverDisk);

}  // namespace
}  // namespace kvcove
