// SPDX-License-Identifier: Apache-2.0
#include "kvcove/segment/leftovers.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "kvcove/base/posix.h"
#include "kvcove/base/size.h"

namespace kvcove::segment {
namespace {

namespace fs = std::filesystem;

class LeftoversTest : public testing::Test {
 protected:
  void SetUp() override {
    proc_ = fs::temp_directory_path() / "kvcove-proc-XXXXXX";
    ASSERT_NE(mkdtemp(proc_.data()), nullptr);
    Process(1, "init", "5600-5700 r--p 00000000 fe:00 9 /sbin/init\n");
  }
  void TearDown() override { fs::remove_all(proc_); }
  void Process(int pid, const std::string& command, const std::string& maps) const {
    const std::string at = proc_ + "/" + std::to_string(pid);
    fs::create_directories(at);
    std::ofstream(at + "/comm") << command << "\n";
    std::ofstream(at + "/maps") << maps;
  }
  static std::string Header(const std::string& id, const char* rights) {
    return "7f0000000000-7f0000010000 " + std::string(rights) +
           " 00000000 00:01 1024 /memfd:kvcove-header-" + id + " (deleted)\n";
  }
  static std::string Payload(const std::string& id) {
    return "7e0000000000-7e0040000000 rw-s 00000000 00:01 1025 /memfd:kvcove-payload-" + id +
           " (deleted)\n";
  }
  std::string proc_;
};

TEST_F(LeftoversTest, AnOwnersMemoryIsNone) {
  Process(10, "kvcove", Header("aa", "rw-s") + Payload("aa"));
  Process(11, "python3", Header("aa", "r--s") + Payload("aa"));
  EXPECT_TRUE(FindLeftovers(proc_).empty());
}

TEST_F(LeftoversTest, WithoutItsOwnerItIsNamedWithItsHolders) {
  Process(10, "kvcove", Header("bb", "rw-s") + Payload("bb"));
  Process(11, "python3",
          Header("aa", "r--s") + Payload("aa") + Header("bb", "r--s") + Payload("bb"));
  Process(12, "python3", Header("aa", "r--s") + Payload("aa"));
  const std::vector<Leftover> leftovers = FindLeftovers(proc_);
  ASSERT_EQ(leftovers.size(), 1U);
  EXPECT_EQ(leftovers[0].segment, "aa");
  EXPECT_EQ(leftovers[0].bytes, kGiB);
  const std::string text = leftovers[0].Describe();
  EXPECT_NE(text.find("leftover: up to 1GiB"), std::string::npos) << text;
  EXPECT_NE(text.find("pid 11 (python3)"), std::string::npos) << text;
  EXPECT_NE(text.find("pid 12 (python3)"), std::string::npos) << text;
}

TEST_F(LeftoversTest, LinesThatAreNoMappingsAreLeftOut) {
  Process(13, "odd", "/memfd:kvcove-payload-aa\n- /memfd:kvcove-header-aa\nx\n\n");
  EXPECT_TRUE(FindLeftovers(proc_).empty());
  EXPECT_TRUE(FindLeftovers(proc_ + "/none").empty());
}

// As the kernel writes them.
TEST_F(LeftoversTest, FindsWhatThisProcessHolds) {
  const Id128 id = RandomId();
  const std::string header = HeaderFileName(id);
  const std::string payload = PayloadFileName(id);
  const UniqueFd header_fd = *CreateMemoryFile(header.c_str(), kMiB);
  const UniqueFd payload_fd = *CreateMemoryFile(payload.c_str(), 2 * kMiB);
  const auto mine = [&] {
    auto found = FindLeftovers();
    std::erase_if(found, [&](const Leftover& one) { return one.segment != ToHex(id); });
    return found;
  };
  const Mapping read = *Mapping::Map(header_fd.get(), kMiB, Mapping::Access::kReadOnly);
  const Mapping data = *Mapping::Map(payload_fd.get(), 2 * kMiB, Mapping::Access::kReadWrite);
  ASSERT_EQ(mine().size(), 1U);
  EXPECT_EQ(mine()[0].bytes, 2 * kMiB);
  EXPECT_EQ(mine()[0].holders.at(0).pid, getpid());
  const Mapping owned = *Mapping::Map(header_fd.get(), kMiB, Mapping::Access::kReadWrite);
  EXPECT_TRUE(mine().empty()) << "an owner maps the header writable";
}

}  // namespace
}  // namespace kvcove::segment
