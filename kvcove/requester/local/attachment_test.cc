// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/local/attachment.h"

#include <gtest/gtest.h>

#include <cstring>

namespace kvcove::requester {
namespace {

class FakeAttachment final : public Attachment {
 public:
  explicit FakeAttachment(segment::Staging* staging)
      : Attachment(segment::HeaderView(), nullptr, nullptr, staging) {}
  wire::HostService& service() override { std::abort(); }  // nothing here calls the owner
};

class StagedValuesTest : public testing::Test {
 protected:
  static ConstBuffer Of(std::string_view text) {
    return {.data = text.data(), .size = text.size()};
  }

  std::unique_ptr<segment::Staging> staging_ = std::make_unique<segment::Staging>();
  FakeAttachment attachment_{staging_.get()};
};

TEST_F(StagedValuesTest, LieOneBehindTheOtherUnderOneNumber) {
  StagedValues staged(attachment_);
  const std::vector<ConstBuffer> first = {Of("ab"), Of("c")};
  const std::vector<ConstBuffer> second = {Of("defg")};
  const wire::StagedAt a = staged.Add(first, 3);
  const wire::StagedAt b = staged.Add(second, 4);
  EXPECT_EQ(a.sequence, 1U);
  EXPECT_EQ(b.sequence, 1U);
  EXPECT_EQ(std::memcmp(staging_->bytes + a.offset, "abc", 3), 0);
  EXPECT_EQ(std::memcmp(staging_->bytes + b.offset, "defg", 4), 0);
  EXPECT_EQ(staging_->sequence.load(), 1U);
}

// An owner that still copies what an earlier put laid here sees that it is too late.
TEST_F(StagedValuesTest, EachPutHasANumberOfItsOwn) {
  const std::vector<ConstBuffer> value = {Of("a")};
  for (std::uint64_t put = 1; put <= 3; ++put) {
    StagedValues staged(attachment_);
    EXPECT_EQ(staging_->sequence.load(), put) << "before anything is written";
    EXPECT_EQ(staged.Add(value, 1).sequence, put);
  }
}

TEST_F(StagedValuesTest, OnePutHasTheAreaAtATime) {
  const std::vector<ConstBuffer> value = {Of("a")};
  {
    StagedValues first(attachment_);
    StagedValues second(attachment_);
    EXPECT_EQ(second.Add(value, 1).sequence, 0U);
    EXPECT_EQ(staging_->sequence.load(), 1U) << "the first one's values are still good";
    EXPECT_NE(first.Add(value, 1).sequence, 0U);
  }
  StagedValues third(attachment_);
  EXPECT_NE(third.Add(value, 1).sequence, 0U);
}

TEST_F(StagedValuesTest, TakeNoMoreThanTheAreaHas) {
  const std::vector<std::byte> large(segment::Staging::kBytes);
  const std::vector<ConstBuffer> all = {{.data = large.data(), .size = large.size()}};
  const std::vector<ConstBuffer> more = {Of("a")};
  StagedValues staged(attachment_);
  EXPECT_NE(staged.Add(all, large.size()).sequence, 0U);
  EXPECT_EQ(staged.Add(more, 1).sequence, 0U);
}

// An older owner's session file ends before the area, and an embedded pool needs none.
TEST_F(StagedValuesTest, WithoutAnAreaNothingIsStaged) {
  FakeAttachment without(nullptr);
  StagedValues staged(without);
  const std::vector<ConstBuffer> value = {Of("a")};
  EXPECT_EQ(staged.Add(value, 1).sequence, 0U);
  EXPECT_EQ(segment::StagingOf(nullptr, segment::kSessionFileBytes - 1), nullptr);
}

}  // namespace
}  // namespace kvcove::requester
