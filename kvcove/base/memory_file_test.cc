// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/memory_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "kvcove/base/size.h"

namespace kvcove {
namespace {

namespace fs = std::filesystem;

// A host as its kernel shows it.
class FakeHost {
 public:
  FakeHost() {
    root_ = fs::temp_directory_path() / "kvcove-host-XXXXXX";
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
  }
  ~FakeHost() { fs::remove_all(root_); }
  FakeHost(const FakeHost&) = delete;
  FakeHost& operator=(const FakeHost&) = delete;
  void Write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
  }
  void WritePool(int set_aside, int free, int promised) const {
    const std::string pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
    Write("/proc/meminfo", "MemTotal: 1000 kB\nHugepagesize:    2048 kB");
    Write(pool + "nr_hugepages", std::to_string(set_aside));
    Write(pool + "free_hugepages", std::to_string(free));
    Write(pool + "resv_hugepages", std::to_string(promised));
  }
  HugePageHost Read() const { return HugePageHost::Read(root_); }

 private:
  std::string root_;
};

TEST(HugePageHostTest, CountsWhatIsFreeAndNamesTheSysctlForTheRest) {
  const FakeHost fake;
  fake.WritePool(100, 40, 10);
  fake.Write("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
             "always within_size [advise] never deny force");
  const HugePageHost host = fake.Read();
  EXPECT_EQ(host.page_bytes, 2 * kMiB);
  EXPECT_EQ(host.free, 30U);
  EXPECT_TRUE(host.Transparent());
  EXPECT_EQ(host.Needed(2 * kMiB + 1), 2U);
  EXPECT_EQ(host.Sysctl(100 * kMiB), "sysctl -w vm.nr_hugepages=120") << "20 are missing";
  EXPECT_EQ(host.Sysctl(60 * kMiB), "sysctl -w vm.nr_hugepages=100");
}

TEST(HugePageHostTest, ASettingOfOneSizeGoesOverTheCommonOne) {
  const FakeHost fake;
  fake.WritePool(0, 0, 0);
  fake.Write("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "[always] never");
  const std::string own = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled";
  fake.Write(own, "always inherit within_size advise [never]");
  EXPECT_FALSE(fake.Read().Transparent());
  fake.Write(own, "always [inherit] within_size advise never");
  EXPECT_TRUE(fake.Read().Transparent());
}

TEST(HugePageHostTest, AKernelWithoutThemHasNone) {
  const FakeHost fake;
  fake.Write("/proc/meminfo", "MemTotal: 1000 kB");
  const HugePageHost host = fake.Read();
  EXPECT_EQ(host.page_bytes, 0U);
  EXPECT_FALSE(host.Transparent());
}

const HugePageHost kNone{.page_bytes = 2 * kMiB, .set_aside = 7, .free = 0, .shmem = {}};

TEST(MemoryFileTest, AutoFallsBackToBasePagesWithAReason) {
  const auto file = CreateMemoryFile("kvcove-test", 5 * kMiB + 64, HugePages::kAuto, kNone);
  ASSERT_TRUE(file) << file.error().ToString();
  EXPECT_EQ(file->pages, MemoryFile::Pages::kBase);
  EXPECT_EQ(file->file_bytes, 5 * kMiB + 64);
  EXPECT_NE(file->why.find("0 of 3 huge pages of 2MiB are free"), std::string::npos) << file->why;
  EXPECT_NE(file->Describe().find("page tables of"), std::string::npos) << file->Describe();
}

// The pages may go to others between the look and the allocation; or a control group forbids them.
TEST(MemoryFileTest, AutoFallsBackWhenTheKernelHasFewerThanItSaid) {
  HugePageHost host = kNone;
  host.free = 1ULL << 30;
  const auto file = CreateMemoryFile("kvcove-test", 1ULL << 46, HugePages::kAuto, host);
  ASSERT_TRUE(file) << file.error().ToString();
  EXPECT_EQ(file->pages, MemoryFile::Pages::kBase);
  EXPECT_FALSE(file->why.empty());
}

TEST(MemoryFileTest, AutoUsesTransparentOnesWhereTheHostAllowsThem) {
  HugePageHost host = kNone;
  host.shmem = "advise";
  const auto file = CreateMemoryFile("kvcove-test", 5 * kMiB, HugePages::kAuto, host);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->pages, MemoryFile::Pages::kTransparent);
  EXPECT_EQ(file->file_bytes, 5 * kMiB) << "only hugetlb needs whole pages";
}

TEST(MemoryFileTest, RequireFailsWithTheSysctlToRun) {
  const auto file = CreateMemoryFile("kvcove-test", 5 * kMiB, HugePages::kRequire, kNone);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, Code::kUnavailable);
  EXPECT_NE(file.error().detail.find("sysctl -w vm.nr_hugepages=10"), std::string::npos)
      << file.error().detail;
}

TEST(MemoryFileTest, OffIsOff) {
  HugePageHost host = kNone;
  host.shmem = "always";
  const auto file = CreateMemoryFile("kvcove-test", kMiB, HugePages::kOff, host);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->pages, MemoryFile::Pages::kBase);
}

// With real ones, where this host has them.
TEST(MemoryFileTest, HugePagesAreAllThereBeforeTheFirstTouchAndTheFileIsWholePages) {
  const HugePageHost host = HugePageHost::Read();
  if (host.free < 3) GTEST_SKIP() << "needs 3 free huge pages (vm.nr_hugepages)";
  const std::uint64_t size = 2 * host.page_bytes + 64;
  auto file = CreateMemoryFile("kvcove-test", size, HugePages::kRequire, host);
  ASSERT_TRUE(file) << file.error().ToString();
  EXPECT_EQ(file->file_bytes, 3 * host.page_bytes);
  EXPECT_EQ(HugePageHost::Read().free, host.free - 3);
  EXPECT_EQ(fcntl(file->fd.get(), F_GET_SEALS) & F_SEAL_SHRINK, F_SEAL_SHRINK);
  {
    const auto mapping =
        Mapping::Map(file->fd.get(), file->file_bytes, Mapping::Access::kReadWrite);
    ASSERT_TRUE(mapping);
    mapping->data()[size - 1] = std::byte{1};
  }
  file->fd.Reset();
  EXPECT_EQ(HugePageHost::Read().free, host.free) << "mapped and closed: given back";
}

TEST(ParseHugePagesTest, TakesThreeWords) {
  EXPECT_EQ(*ParseHugePages("huge_pages", "auto"), HugePages::kAuto);
  EXPECT_EQ(*ParseHugePages("huge_pages", "require"), HugePages::kRequire);
  EXPECT_EQ(*ParseHugePages("huge_pages", "off"), HugePages::kOff);
  EXPECT_EQ(ParseHugePages("huge_pages", "yes").error().code, Code::kInvalid);
}

}  // namespace
}  // namespace kvcove
