// SPDX-License-Identifier: Apache-2.0
// The bytes that owner and requester share, whatever build each of them is.
#include "kvcove/segment/layout.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "kvcove/segment/index.h"
#include "kvcove/segment/reader.h"
#include "kvcove/segment/tier_table.h"

namespace kvcove::segment {
namespace {

constexpr HeaderSizes kSizes{.max_objects = 1000, .payload_bytes = 1 << 20};

std::string Hex(const void* data, std::size_t size) {
  std::string text;
  for (std::size_t i = 0; i < size; ++i) {
    if (i > 0 && i % 8 == 0) text += ' ';
    text += fmt::format("{:02x}", static_cast<const unsigned char*>(data)[i]);
  }
  return text;
}

class LayoutTest : public testing::Test {
 protected:
  LayoutTest() : words_(HeaderFileBytes(kSizes) / 64) {
    EXPECT_TRUE(FormatHeader(data(), kSizes, {.high = 1, .low = 2}, /*hash_seed=*/99));
  }
  std::byte* data() { return reinterpret_cast<std::byte*>(words_.data()); }
  Result<HeaderView> Open() { return HeaderView::Open(data(), words_.size() * 64); }
  Header& header() { return *reinterpret_cast<Header*>(data()); }

 private:
  struct alignas(64) Line {
    std::byte bytes[64]{};
  };
  std::vector<Line> words_;
};

TEST_F(LayoutTest, TheHeadersBytesAreThose) {
  EXPECT_EQ(Hex(data(), 136),
            "6b766b7673656731 "                   // magic
            "0400000000100000 "                   // layout version, slots
            "0100000000000000 0200000000000000 "  // segment id
            "00500d0400000000 "                   // bytes of the header file
            "0000100000000000 "                   // of the payload
            "4000000008000000 "                   // granule, unit of records
            "6300000000000000 "                   // hash seed
            "0010000000000000 "                   // slots at
            "0090000000000000 "                   // ghosts at
            "0080000000000000 "                   // how many
            "0090040000000000 "                   // buckets at
            "8d01000000000000 "                   // how many
            "0000050000000000 "                   // overflow buckets at
            "cd01000000000000 "                   // how many
            "0080050000000000 "                   // records at
            "00fa800000000000");                  // how many units
  EXPECT_EQ(offsetof(Header, lease_deadline_ns), 192U);
  EXPECT_EQ(offsetof(Header, bucket_count), 256U);
  EXPECT_EQ(offsetof(Header, free_bytes), 320U);
}

TEST_F(LayoutTest, AnEntrysBytesAreThose) {
  Index index(*Open());
  const std::string key = "golden";
  const std::uint64_t hash = index.view().HashKey(3, key);
  const Extent extents[] = {{.start = 5, .count = 1}, {.start = 9, .count = 1}};
  const auto place = index.Insert({.key = key,
                                   .hash = hash,
                                   .slot = 3,
                                   .generation = 0x0102030405060708,
                                   .size_bytes = 100,
                                   .object = 11,
                                   .version = 17,
                                   .extents = extents});
  ASSERT_TRUE(place);
  EXPECT_EQ(*place, 8U);
  EXPECT_EQ(Hex(&index.view().EntryAt(*place), 56),
            "1100000000000000 "  // version
            "0807060504030201 "  // generation
            "640000c000020300 "  // size, length of the key, number of extents, slot
            "0b00000005000000 "  // object, first granule
            "0100000005000000 0100000009000000 "  // extents
            "676f6c64656e0000");                  // key
  // The half of the hash, and the place.
  EXPECT_EQ(Hex(&index.view().bucket(0).element[0], 8), "08000000b56900de");
}

TEST_F(LayoutTest, AHeaderOfAnotherLayoutIsRefused) {
  header().layout_version = kLayoutVersion + 1;
  EXPECT_EQ(Open().error().code, Code::kIncompatible);
  header().layout_version = kLayoutVersion - 1;
  const Error error = Open().error();
  EXPECT_EQ(error.code, Code::kIncompatible);
  EXPECT_NE(error.detail.find("layout version 3, the process that wants to map it knows 4"),
            std::string::npos)
      << error.detail;
}

TEST_F(LayoutTest, AHelloWithAnotherLayoutOrNoneIsRefused) {
  EXPECT_TRUE(CheckLayout(4, 4));
  EXPECT_EQ(CheckLayout(3, 4).error().code, Code::kIncompatible);
  EXPECT_EQ(CheckLayout(0, 4).error().code, Code::kIncompatible);
  EXPECT_EQ(CheckLayout(4, 0).error().code, Code::kIncompatible);
}

TEST_F(LayoutTest, AHeaderThatContradictsItselfIsRefused) {
  const auto refused = [&](auto& field, std::uint64_t wrong) {
    const auto right = field;
    field = static_cast<std::remove_reference_t<decltype(field)>>(wrong);
    const auto opened = Open();
    EXPECT_FALSE(opened);
    if (!opened) {
      EXPECT_EQ(opened.error().code, Code::kCorrupt) << opened.error().detail;
    }
    field = right;
    EXPECT_TRUE(Open());
  };
  refused(header().granule_bytes, 0);
  refused(header().granule_bytes, 96);
  refused(header().granule_bytes, 32);
  refused(header().granule_bytes, 8192);
  refused(header().record_unit_bytes, 16);
  refused(header().payload_bytes, (1 << 20) + 32);
  refused(header().payload_bytes, 1ULL << 40);  // 64 B do not reach so far
  refused(header().records_offset, HeaderFileBytes(kSizes));
}

// Where the formats meet: the session's page has the segment's version.
TEST(SessionPageTest, OfAnotherLayoutIsRefused) {
  auto page = std::make_unique<SessionPage>();
  auto* bytes = reinterpret_cast<std::byte*>(page.get());
  FormatSessionPage(bytes);
  EXPECT_TRUE(OpenSessionPage(bytes, sizeof(SessionPage)));
  page->layout_version = kLayoutVersion - 1;
  EXPECT_EQ(OpenSessionPage(bytes, sizeof(SessionPage)).error().code, Code::kIncompatible);
}

// Both processes write it, so nothing in it moves under one layout version: also not by another
// reason for a miss.
TEST(SessionPageTest, ItsFieldsLieThere) {
  const auto page = std::make_unique<SessionPage>();
  FormatSessionPage(reinterpret_cast<std::byte*>(page.get()));
  EXPECT_EQ(Hex(page.get(), 16), "6b766b7673657331 0400000000000000");
  EXPECT_EQ(offsetof(SessionPage, lookups), 64U);
  EXPECT_EQ(offsetof(SessionPage, gets), 72U);
  EXPECT_EQ(offsetof(SessionPage, bytes_read), 80U);
  EXPECT_EQ(offsetof(SessionPage, misses), 88U);
  EXPECT_EQ(offsetof(SessionPage, ring_written), 256U);
  EXPECT_EQ(offsetof(SessionPage, ring_dropped), 264U);
  EXPECT_EQ(offsetof(SessionPage, ring_read), 320U);
  EXPECT_EQ(offsetof(SessionPage, lanes), 384U);
  EXPECT_EQ(offsetof(Lane, slots), 64U);
  EXPECT_EQ(sizeof(Lane), 1088U);
  EXPECT_EQ(offsetof(SessionPage, ring), 17'792U);
  EXPECT_EQ(sizeof(SessionPage), 279'936U);
  EXPECT_EQ(kStagingOffset, 282'624U);
  EXPECT_EQ(offsetof(Staging, bytes), 64U);
  EXPECT_EQ(kSessionFileBytes, 1'331'264U);
}

TEST(SessionPageTest, AnEventsBytesAreThose) {
  const auto page = std::make_unique<SessionPage>();
  PushEvent(*page, {.kind = EventKind::kHit, .hold_until_ms = 5, .place = 7, .version = 9});
  EXPECT_EQ(Hex(&page->ring[0], 16), "0700000005000040 0900000000000000");
}

TEST_F(LayoutTest, TheDisksTableLiesThereAndItsTagsAreThose) {
  EXPECT_EQ(offsetof(Header, tier_offset), 328U);
  EXPECT_EQ(offsetof(Header, tier_limit), 336U);
  EXPECT_EQ(offsetof(Header, tier_seed), 344U);
  EXPECT_EQ(offsetof(Header, tier_on), 352U);
  EXPECT_EQ(offsetof(Header, tier_buckets), 360U);
  EXPECT_EQ(offsetof(Header, saves_until_ns), 368U);
  const Id128 hash = TierHash(/*seed=*/9, /*slot=*/3, "golden");
  EXPECT_EQ(fmt::format("{:016x} {:016x}", hash.high, hash.low),
            "bd61b8b2370757a8 bd3ba2df1c9e562f");
  EXPECT_EQ(fmt::format("{:016x}", TierTag(hash, 7)), "b8990447fce460d5");
}

}  // namespace
}  // namespace kvcove::segment
