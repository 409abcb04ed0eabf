// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/owner_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "kvcove/base/size.h"

namespace kvcove::pool {
namespace {

using testing::HasSubstr;

const OwnerField& Field(std::string_view key) {
  for (const OwnerField& field : OwnerFields()) {
    if (field.key == key) return field;
  }
  ADD_FAILURE() << "there is no field " << key;
  return OwnerFields().front();
}

Status Read(std::string_view key, const std::vector<std::string>& texts,
            LocalHostOptions& options) {
  return Field(key).read(FlagOf(Field(key)), texts, options);
}

TEST(OwnerFieldsTest, EachIsThereOnceAndCanBeReadFromItsStandard) {
  std::set<std::string> flags;
  LocalHostOptions options;
  for (const OwnerField& field : OwnerFields()) {
    EXPECT_TRUE(flags.insert(FlagOf(field)).second) << field.key;
    EXPECT_FALSE(field.help.empty()) << field.key;
    if (field.kind == OwnerField::Kind::kMany) {
      EXPECT_TRUE(field.standard.empty()) << field.key << ": none is the standard";
      continue;
    }
    const std::string text(field.standard);
    EXPECT_TRUE(field.read(field.key, {&text, 1}, options)) << field.key;
  }
  EXPECT_TRUE(CheckShares(options.owner));
  EXPECT_EQ(options.owner.memory_bytes, 4 * kGiB);
  EXPECT_EQ(options.owner.policy, owner::OwnerOptions{}.policy);
  EXPECT_EQ(options.owner.populate, owner::OwnerOptions{}.populate);
  EXPECT_EQ(options.owner.disk_admit, owner::OwnerOptions{}.disk_admit);
  EXPECT_EQ(options.owner.huge_pages, owner::OwnerOptions{}.huge_pages);
}

TEST(OwnerFieldsTest, AnErrorNamesTheOptionAsTheUserGaveIt) {
  const std::map<std::string, std::string> wrong = {
      {"memory", "lots"},      {"granule", "x"},           {"max_objects", "many"},
      {"populate", "perhaps"}, {"log_resets", "no"},       {"huge_pages", "yes"},
      {"disk", "/somewhere"},  {"disk_admit", "some"},     {"disk_write_rate", "fast"},
      {"quota", "acme"},       {"disk_quota", "acme=1:2"}, {"disk_bandwidth", "acme"},
  };
  for (const OwnerField& field : OwnerFields()) {
    if (field.key == "policy") continue;  // the owner knows its names
    ASSERT_TRUE(wrong.contains(std::string(field.key))) << field.key;
    for (const std::string& option : {FlagOf(field), std::string(field.key)}) {
      LocalHostOptions options;
      const Status read = field.read(option, {&wrong.at(std::string(field.key)), 1}, options);
      ASSERT_FALSE(read) << field.key;
      EXPECT_EQ(read.error().code, Code::kInvalid);
      EXPECT_THAT(read.error().detail, HasSubstr(option));
    }
  }
}

TEST(OwnerFieldsTest, AQuotaAndABandwidthOfOneNamespaceMeetInEitherOrder) {
  LocalHostOptions options;
  ASSERT_TRUE(Read("disk_bandwidth", {"acme=500MiB/s:100MiB/s"}, options));
  ASSERT_TRUE(Read("disk_quota", {"acme=2GiB:1GiB", "b=1GiB"}, options));
  const owner::DiskQuota& quota = options.owner.disk_quotas.at("acme");
  EXPECT_EQ(quota.maximum_bytes, 2 * kGiB);
  EXPECT_EQ(quota.guaranteed_bytes, kGiB);
  EXPECT_EQ(quota.read_rate, 500 * kMiB);
  EXPECT_EQ(quota.write_rate, 100 * kMiB);
  EXPECT_EQ(options.owner.disk_quotas.at("b").guaranteed_bytes, 0U);
}

TEST(OwnerFieldsTest, SharesOfMoreThanThereIsAreRefused) {
  LocalHostOptions options;
  ASSERT_TRUE(Read("memory", {"1GiB"}, options));
  ASSERT_TRUE(Read("quota", {"a=2GiB:600MiB", "b=2GiB:600MiB"}, options));
  EXPECT_THAT(CheckShares(options.owner).error().detail, HasSubstr("guarantee 1.2GiB together"));
  options.owner.quotas.clear();

  ASSERT_TRUE(Read("disk_bandwidth", {"a=1MiB/s"}, options));
  EXPECT_THAT(CheckShares(options.owner).error().detail, HasSubstr("--disk-bandwidth shares out"));
  ASSERT_TRUE(Read("disk_quota", {"a=8GiB:7GiB"}, options));
  EXPECT_THAT(CheckShares(options.owner).error().detail, HasSubstr("--disk-quota shares out"));
  options.owner.disks = {{.path = "/d", .size_bytes = 8 * kGiB}};
  EXPECT_THAT(CheckShares(options.owner).error().detail, HasSubstr("guarantee less"));
  options.owner.disk_quotas.at("a").guaranteed_bytes = 6 * kGiB;
  EXPECT_TRUE(CheckShares(options.owner));
}

}  // namespace
}  // namespace kvcove::pool
