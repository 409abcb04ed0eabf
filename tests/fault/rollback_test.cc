// SPDX-License-Identifier: Apache-2.0
// A disk, a data directory or a master's store that is put back from a copy of an earlier time:
// none brings back what was removed since.
#include "kvcove/master/store/file_store.h"
#include "kvcove/owner/disk/owner_facts.h"
#include "tests/fault/cluster_disk_fixture.h"

namespace kvcove {
namespace {

class RollbackTest : public ClusterDiskTest {
 protected:
  // What is put back of an owner.
  enum class What : std::uint8_t { kDisk, kData, kBoth };

  std::string Copy(std::size_t i) const { return fmt::format("{}/copy{}", directory(), i); }
  static std::string DataIn(const std::string& place) { return place + "/kvcove.disk.data"; }
  static void CopyFiles(const std::string& from, const std::string& to,
                        const std::vector<std::string>& names) {
    std::filesystem::create_directories(to);
    for (const std::string& name : names) {
      std::filesystem::copy_file(from + "/" + name, to + "/" + name,
                                 std::filesystem::copy_options::overwrite_existing);
    }
  }
  static void CopyDisk(const std::string& from, const std::string& to) {
    CopyFiles(from, to, {"kvcove.disk"});
  }
  // By their names: a running owner may be replacing one of them.
  static void CopyData(const std::string& from, const std::string& to) {
    CopyFiles(DataIn(from), DataIn(to), {"owner", "disk"});
  }
  void TakeCopy(std::size_t i) {
    CopyDisk(DiskOf(i), Copy(i));
    CopyData(DiskOf(i), Copy(i));
  }
  void PutBack(std::size_t i, What what) {
    if (what != What::kData) CopyDisk(Copy(i), DiskOf(i));
    if (what != What::kDisk) CopyData(Copy(i), DiskOf(i));
  }
  // Removes keys that are on the disk, and returns them.
  std::vector<std::string> RemoveSome(const std::vector<std::string>& keys) {
    std::vector<std::string> removed;
    EXPECT_TRUE(Becomes([&] { return OnDisk(Look(*far_, keys)) >= 40; }));
    for (const auto& [key, result] : Look(*far_, keys)) {
      if (result.tier == Tier::kDisk && removed.size() < 20) removed.push_back(key);
    }
    EXPECT_EQ(removed.size(), 20U);
    const std::vector<std::string_view> views(removed.begin(), removed.end());
    std::vector<ItemResult> results(views.size());
    EXPECT_TRUE(far_->Remove(views, results, {.timeout = kCallTime}));
    EXPECT_EQ(MostFound(removed), 0U);
    return removed;
  }
  bool SaysCopy(std::size_t i) const {
    return Said(i).find("put back from a copy") != std::string::npos;
  }
  void ExpectEmptyAndUsed(const std::vector<std::string>& removed) {
    EXPECT_EQ(MostFound(removed), 0U);
    EXPECT_TRUE(Becomes([&] { return SaysCopy(0); })) << Said(0);
    Fill(kMany, "after");
    EXPECT_TRUE(Becomes([&] { return StatOf(0).disk_objects >= kMany / 3; })) << Said(0);
    EXPECT_EQ(MostFound(removed), 0U);
  }
  std::uint64_t RevisionOf(const std::string& store) const {
    master::Opened opened;
    (void)Must(master::FileStore::Open(Must(master::PosixFileSystem::Open(store)), {}, opened));
    return opened.revision;
  }
};

TEST_F(RollbackTest, WhatIsPutBackOfAnOwnerThatHasStartedSinceBringsNothingBack) {
  for (const What what : {What::kDisk, What::kData, What::kBoth}) {
    SCOPED_TRACE(static_cast<int>(what));
    const auto keys = Fill();
    KillOwner(0, SIGTERM);
    TakeCopy(0);
    StartDiskOwner(0, 2);
    const auto removed = RemoveSome(keys);
    // Also if it does not end by itself.
    KillOwner(0);
    PutBack(0, what);
    StartDiskOwner(0, 2);
    ExpectEmptyAndUsed(removed);
    if (HasFailure()) return;
  }
}

// As a volume's snapshot, which nobody stops the owner for.
TEST_F(RollbackTest, ACopyOfAnOwnerThatRunsBringsNothingBackOnceTheOwnerHasEnded) {
  for (const What what : {What::kDisk, What::kBoth}) {
    SCOPED_TRACE(static_cast<int>(what));
    const auto keys = Fill();
    TakeCopy(0);
    const auto removed = RemoveSome(keys);
    KillOwner(0, SIGTERM);
    PutBack(0, what);
    StartDiskOwner(0, 2);
    ExpectEmptyAndUsed(removed);
    if (HasFailure()) return;
  }
}

TEST_F(RollbackTest, AnOwnerThatWasKilledAtAnyTimeKeepsWhatItsDiskHas) {
  const auto keys = Fill();
  std::size_t on_disk = 0;
  ASSERT_TRUE(Becomes([&] { return (on_disk = StatOf(0).disk_objects) >= kMany / 2; }));
  for (int round = 0; round < 8; ++round) {
    KillOwner(0);
    // A start that ends somewhere between its first write and its first lease.
    owner(0) =
        Spawn(DiskOwnerWords(0), "host0", {.launcher = {}, .log_file = LogOf(0), .more = {}});
    std::this_thread::sleep_for(milliseconds(1100 + round * 40));
  }
  KillOwner(0);
  StartDiskOwner(0, 2);
  ExpectBack(keys, on_disk * 9 / 10);
  EXPECT_FALSE(SaysCopy(0));
}

// A barrier proves a removal while an owner is away; then all processes end, and the store is put
// back to before the barrier. Only an owner's file says that the store had more.
TEST_F(RollbackTest, AStoreThatIsPutBackToBeforeABarrierIsNoticedThoughAllProcessesHaveEnded) {
  const auto keys = Fill();
  KillOwner(0, SIGTERM);
  WaitLive(1);
  const std::string store = directory() + "/master";
  CopyFiles(store, directory() + "/copy", {"control"});
  const auto removed = far_->RemoveMatching("key-*", {.timeout = kCallTime});
  ASSERT_TRUE(removed) << removed.error().ToString();
  const std::uint64_t copied = RevisionOf(directory() + "/copy");
  ASSERT_TRUE(Becomes([&] {
    const auto facts = owner::ReadOwnerFacts(DataIn(DiskOf(1)));
    return facts && *facts && (*facts)->seen.revision > copied;
  })) << "the position is written within a second";
  KillOwner(1);
  End(std::exchange(master(), 0), SIGKILL);
  CopyFiles(directory() + "/copy", store, {"control"});
  StartMaster();
  StartDiskOwner(1, 1);
  StartDiskOwner(0, 2);
  EXPECT_EQ(MostFound(keys), 0U);
}

}  // namespace
}  // namespace kvcove
