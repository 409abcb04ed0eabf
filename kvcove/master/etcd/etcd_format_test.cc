// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/etcd/etcd_format.h"

#include <gmock/gmock.h>

#include "kvcove/master/etcd/etcd_client.h"

namespace kvcove::master {
namespace {

using testing::HasSubstr;

EtcdKeys Pool() {
  EtcdKeys keys;
  keys["fact/pool"] = EncodeFact("pool", {.value = "p", .revision = 1});
  keys["fact/terms"] = EncodeFact("terms", {.value = "t", .revision = 2});
  keys["head"] = Encode(EtcdHead{.revision = 2, .commit = {.high = 1, .low = 2}, .facts = 2});
  return keys;
}

TEST(EtcdFormatTest, GoldenBytes) {
  EXPECT_EQ(Encode(EtcdHead{.revision = 7, .commit = {.high = 1, .low = 2}, .facts = 3}),
            R"({"commit":"00000000000000010000000000000002","facts":3,"format":1,"parts":0,)"
            R"("revision":7,"sum":2925035276113859857})");
  EXPECT_EQ(ToBase64(EncodeFact("slot/1", {.value = "value", .revision = 9})),
            "CQAAAAAAAADOiSXnEgm0RXZhbHVl");
  EXPECT_EQ(ToBase64(EncodeParts(std::vector<FactChange>{{"a", "b"}, {"c", std::nullopt}}, 5)[0]),

            "7PQesEkXEaYBAAEAAABhYgEA/////2M=");
}

TEST(EtcdFormatTest, EveryBitOfAFactIsUnderTheChecksum) {
  const std::string bytes = EncodeFact("slot/1", {.value = "value", .revision = 9});
  EXPECT_EQ(*DecodeFact("slot/1", bytes), (Fact{.value = "value", .revision = 9}));
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string wrong = bytes;
    wrong[bit / 8] = static_cast<char>(wrong[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(DecodeFact("slot/1", wrong)) << bit;
  }
  EXPECT_FALSE(DecodeFact("slot/2", bytes)) << "a value at another key";
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeFact("slot/1", bytes.substr(0, size))) << size;
  }
}

TEST(EtcdFormatTest, AnImageIsWholeOrDamaged) {
  const auto whole = ReadImage(Pool(), "/p/");
  ASSERT_TRUE(whole) << whole.error().ToString();
  EXPECT_EQ(whole->facts.size(), 2U);
  EXPECT_EQ(whole->head.revision, 2U);
  const auto damaged = [](const char* key, const std::string& value) {
    EtcdKeys keys = Pool();
    if (value.empty()) {
      keys.erase(key);
    } else {
      keys[key] = value;
    }
    const auto image = ReadImage(keys, "/p/");
    EXPECT_FALSE(image) << key;
    return image ? std::string() : image.error().ToString();
  };
  EXPECT_THAT(damaged("fact/terms", ""), HasSubstr("it counts 2 facts, and 1 are there"));
  EXPECT_THAT(damaged("fact/terms", "short"), HasSubstr("'/p/fact/terms' in etcd is damaged"));
  EXPECT_THAT(damaged("head", ""), HasSubstr("'/p/head' in etcd is damaged: it is missing"));
  EXPECT_THAT(damaged("head", "{\"format\":2}"), HasSubstr("it has format 2"));
  EXPECT_THAT(damaged("fact/terms", EncodeFact("terms", {.value = "t", .revision = 3})),
              HasSubstr("newer than the last transaction"));
  EXPECT_THAT(damaged("dev/head", "x"), HasSubstr("'/p/' in etcd is the prefix of another pool"));
  EXPECT_THAT(damaged("registry", "x"), HasSubstr("another program's keys"));
}

TEST(EtcdFormatTest, PartsOfALargeTransactionCountWhenTheHeadSaysSo) {
  std::vector<FactChange> changes;
  for (int i = 0; i < 40; ++i) {
    changes.push_back({"key" + std::to_string(i), std::string(40'000, static_cast<char>('a' + i))});
  }
  changes.push_back({"pool", std::nullopt});
  const std::vector<std::string> parts = EncodeParts(changes, 3);
  ASSERT_GT(parts.size(), 1U);
  EtcdKeys keys = Pool();
  for (std::uint32_t i = 0; i < parts.size(); ++i) keys[PartKey(3, i)] = parts[i];
  auto image = ReadImage(keys, "/p/");
  ASSERT_TRUE(image);
  EXPECT_EQ(image->facts.size(), 2U);
  EXPECT_TRUE(image->stray_parts);
  keys["head"] = Encode(
      EtcdHead{.revision = 3, .parts = static_cast<std::uint32_t>(parts.size()), .facts = 41});
  // Some of it may have been applied already.
  keys["fact/key3"] = EncodeFact("key3", {.value = *changes[3].value, .revision = 3});
  image = ReadImage(keys, "/p/");
  ASSERT_TRUE(image) << image.error().ToString();
  EXPECT_EQ(image->facts.size(), 41U);
  EXPECT_FALSE(image->facts.contains("pool"));
  EXPECT_EQ(image->facts.at("key39"), (Fact{.value = *changes[39].value, .revision = 3}));
  keys.erase(PartKey(3, 1));
  EXPECT_FALSE(ReadImage(keys, "/p/"));
}

TEST(EtcdFormatTest, Base64) {
  for (std::size_t size = 0; size < 70; ++size) {
    std::string bytes;
    for (std::size_t i = 0; i < size; ++i) bytes += static_cast<char>(i * 37 + size);
    EXPECT_EQ(FromBase64(ToBase64(bytes)), bytes);
  }
  EXPECT_EQ(ToBase64("foo"), "Zm9v");
  EXPECT_EQ(ToBase64("fo"), "Zm8=");
  EXPECT_FALSE(FromBase64("Zm9"));
  EXPECT_FALSE(FromBase64("Z!9v"));
}

TEST(EtcdFormatTest, Places) {
  const auto place = ParseEtcdPlace("etcd://h1,h2:2380,[::1]:1/kvcove/prod/");
  ASSERT_TRUE(place);
  EXPECT_EQ(place->ToString(), "etcd://h1:2379,h2:2380,[::1]:1/kvcove/prod");
  EXPECT_EQ(place->prefix, "/kvcove/prod/");
  for (const char* wrong : {"etcd://h1", "etcd://h1/", "etcd:///p", "http://h1/p", "etcd://h1//p",
                            "etcd://h1/a b", "etcd://h1:x/p"}) {
    EXPECT_FALSE(ParseEtcdPlace(wrong)) << wrong;
  }
  EXPECT_EQ(EndOfPrefix("/a/"), "/a0");
}

}  // namespace
}  // namespace kvcove::master
