// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/backup.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "kvcove/master/control/start.h"
#include "kvcove/master/etcd/fake_etcd.h"
#include "kvcove/master/store/facts.h"

namespace kvcove::master {
namespace {

using testing::HasSubstr;

class BackupTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = std::filesystem::temp_directory_path() / "kvcove-backup-XXXXXX";
    directory_ = mkdtemp(name.data());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  static Backup Pool(std::uint64_t low = 1) {
    Facts facts;
    const PoolFact pool{.pool = {.high = 7, .low = low},
                        .incarnation = {.high = 8, .low = 8},
                        .counter = 100,
                        .longest_lease_ns = kSecond,
                        .clean_end = true};
    facts[std::string(kPoolKey)] = {.value = Encode(pool), .revision = 3};
    facts[std::string(kTermsKey)] = {
        .value = Encode(std::vector<TermFact>{{.term = 5, .tag = 55, .first_revision = 2}}),
        .revision = 2};
    facts[SlotKey(4)] = {
        .value = Encode(SlotFact{.generation = 0x123, .name = "acme", .version = "v"}),
        .revision = 4};
    return {.facts = facts, .revision = 4};
  }
  static std::int64_t In(std::int64_t seconds) {
    return SystemClock::Instance().NowNs() + seconds * kSecond;
  }
  static Status ToEtcd(const FakeEtcd& etcd, const Backup& backup, bool replace = false) {
    EtcdClient client(etcd.Options(), SystemClock::Instance());
    return RestoreEtcd(backup, client, {.replace = replace}, In(10), SystemClock::Instance());
  }
  static Result<Backup> FromEtcd(const FakeEtcd& etcd) {
    EtcdClient client(etcd.Options(), SystemClock::Instance());
    return BackUpEtcd(client, In(10), SystemClock::Instance());
  }
  std::string directory_;
};

TEST_F(BackupTest, ABackupIsReadWhole) {
  const std::string bytes = EncodeBackup(Pool());
  const auto read = ParseBackup(bytes);
  ASSERT_TRUE(read) << read.error().ToString();
  EXPECT_EQ(read->facts, Pool().facts);
  EXPECT_EQ(read->revision, 4U);
  EXPECT_FALSE(ParseBackup(bytes.substr(0, bytes.size() / 2)));
  std::string wrong = bytes;
  wrong[600] = static_cast<char>(wrong[600] ^ 1);
  EXPECT_FALSE(ParseBackup(wrong));
  EXPECT_FALSE(ParseBackup("")) << "no pool";
}

TEST_F(BackupTest, ARestoredStoreVoidsEverythingAndGivesNoNumberTwice) {
  const auto restored = ToRestore(Pool());
  ASSERT_TRUE(restored);
  const auto state = Decode(restored->facts);
  ASSERT_TRUE(state);
  EXPECT_EQ(state->pool->pool, (Id128{.high = 7, .low = 1})) << "the same pool";
  EXPECT_NE(state->pool->incarnation, (Id128{.high = 8, .low = 8})) << "a new incarnation";
  EXPECT_GT(state->pool->counter, 1'000'000U);
  EXPECT_FALSE(state->pool->clean_end);
  EXPECT_TRUE(state->pool->unknown_leases);
  EXPECT_GT(state->terms.back().term, 1000U) << "no term that ran since the backup";
  ASSERT_EQ(state->slots.size(), 1U);
  EXPECT_TRUE(state->slots[0].fact.free);
  EXPECT_EQ(restored->revision, 5U);
  // The next master waits for leases that it cannot know of.
  const auto plan = PlanStart(restored->facts, restored->revision, kSecond, 1000 * kSecond);
  ASSERT_TRUE(plan);
  EXPECT_GT(plan->unknown_leases_until_ns, 1000 * kSecond);
}

TEST_F(BackupTest, AFileIsReplacedOnlyWhenSaidSoAndNeverAnotherPools) {
  const std::string data = directory_ + "/data";
  ASSERT_TRUE(RestoreFile(Pool(), data, {}));
  auto now = BackUpFile(data);
  ASSERT_TRUE(now) << now.error().ToString();
  EXPECT_EQ(now->facts, Pool().facts);
  Status again = RestoreFile(Pool(), data, {});
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, Code::kExists);
  EXPECT_TRUE(RestoreFile(*ToRestore(Pool()), data, {.replace = true}));
  EXPECT_EQ(BackUpFile(data)->revision, 5U);
  again = RestoreFile(Pool(2), data, {.replace = true});
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().detail, HasSubstr("of another pool"));
  const auto running = PosixFileSystem::Open(data);
  again = RestoreFile(Pool(), data, {.replace = true});
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, Code::kUnavailable) << "a master runs";
}

TEST_F(BackupTest, EtcdIsReplacedOnlyWhenSaidSoAndWhileNobodyLeads) {
  FakeEtcd etcd;
  Status restored = ToEtcd(etcd, Pool());
  ASSERT_TRUE(restored) << restored.error().ToString();
  EXPECT_EQ(FromEtcd(etcd)->facts, Pool().facts);
  restored = ToEtcd(etcd, Pool());
  ASSERT_FALSE(restored);
  EXPECT_EQ(restored.error().code, Code::kExists);
  restored = ToEtcd(etcd, Pool(2), true);
  ASSERT_FALSE(restored);
  EXPECT_EQ(restored.error().code, Code::kIncompatible);
  etcd.Set("/pool/fact/slot", "damaged");
  EXPECT_EQ(FromEtcd(etcd).error().code, Code::kCorrupt);
  EXPECT_FALSE(ToEtcd(etcd, Pool()));
  EXPECT_TRUE(ToEtcd(etcd, *ToRestore(Pool()), true));
  EXPECT_EQ(FromEtcd(etcd)->revision, 5U);
  EtcdClient client(etcd.Options(), SystemClock::Instance());
  std::optional<EtcdLeader> leader;
  const auto leads = EtcdLeadership::Campaign(client, {.address = "m1:7400"}, {},
                                              SystemClock::Instance(), In(5), leader);
  ASSERT_TRUE(leads && *leads != nullptr);
  restored = ToEtcd(etcd, Pool(), true);
  ASSERT_FALSE(restored);
  EXPECT_THAT(restored.error().detail, HasSubstr("the master at m1:7400 leads this pool"));
}

// A restore that ends in the middle leaves nothing that a master would take for facts.
TEST_F(BackupTest, ARestoreIsAllOrDamage) {
  Backup large = Pool();
  for (std::uint16_t i = 10; i < 500; ++i) {
    large.facts[SlotKey(i)] = {.value = Encode(SlotFact{.generation = i}), .revision = 4};
  }
  FakeEtcd whole;
  ASSERT_TRUE(ToEtcd(whole, large));
  EXPECT_EQ(FromEtcd(whole)->facts, large.facts);
  FakeEtcd etcd;
  ASSERT_TRUE(ToEtcd(etcd, Pool()));
  using Fault = FakeEtcd::Fault;
  // The campaign, the first two steps; then etcd refuses.
  etcd.Faults({Fault::kNone, Fault::kNone, Fault::kNone, Fault::kNoSpace});
  ASSERT_FALSE(ToEtcd(etcd, large, true));
  EXPECT_EQ(FromEtcd(etcd).error().code, Code::kCorrupt);
  EXPECT_TRUE(ToEtcd(etcd, large, true));
  EXPECT_EQ(FromEtcd(etcd)->facts, large.facts);
}

}  // namespace
}  // namespace kvcove::master
