// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/verbs/memory.h"

#include <gtest/gtest.h>

#include "kvcove/transport/verbs/fake_verbs.h"

namespace kvcove::transport::verbs {
namespace {

class VerbsMemoryTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kPiece = 100;

  Memory Make(Access access) { return {context, bytes, access, kPiece}; }
  static void RegisterAll(Memory& memory) {
    while (true) {
      const auto over = memory.RegisterNext();
      ASSERT_TRUE(over);
      if (*over) return;
    }
  }
  Code CodeOf(const Memory& memory, std::ptrdiff_t offset, std::uint64_t size) {
    std::vector<Keyed> parts;
    const Status status = memory.Cover(bytes.data() + offset, size, parts);
    EXPECT_TRUE(status || parts.empty());
    return status ? Code::kOk : status.error().code;
  }

  FakeVerbs verbs;
  const std::shared_ptr<Context> context = *verbs.Open("fake0");
  std::vector<std::byte> bytes = std::vector<std::byte>(250);
};

TEST_F(VerbsMemoryTest, IsRegisteredPieceByPiece) {
  Memory memory = Make(Access::kLocal);
  for (const std::uint64_t registered : {100U, 200U, 250U}) {
    const auto over = memory.RegisterNext();
    ASSERT_TRUE(over);
    EXPECT_EQ(*over, registered == 250);
    EXPECT_EQ(memory.registered_bytes(), registered);
    EXPECT_EQ(CodeOf(memory, 0, registered), Code::kOk);
    EXPECT_EQ(CodeOf(memory, 1, registered),
              registered == 250 ? Code::kInvalid : Code::kUnavailable);
  }
  EXPECT_TRUE(*memory.RegisterNext());
  EXPECT_EQ(verbs.counts().regions, 3U);
}

TEST_F(VerbsMemoryTest, APieceThatIsRefusedIsTriedAgain) {
  Memory memory = Make(Access::kLocal);
  ASSERT_TRUE(memory.RegisterNext());
  verbs.FailCall(0);
  EXPECT_EQ(memory.RegisterNext().error().code, Code::kLimit);
  EXPECT_EQ(memory.registered_bytes(), 100U);
  RegisterAll(memory);
  EXPECT_EQ(memory.registered_bytes(), 250U);
}

TEST_F(VerbsMemoryTest, ARangeIsCutWhereARegistrationEnds) {
  Memory memory = Make(Access::kRemote);
  RegisterAll(memory);
  std::vector<Keyed> parts;
  ASSERT_TRUE(memory.Cover(bytes.data() + 50, 200, parts));
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].data, bytes.data() + 50);
  EXPECT_EQ(parts[0].bytes, 50U);
  EXPECT_EQ(parts[1].data, bytes.data() + 100);
  EXPECT_EQ(parts[1].bytes, 100U);
  EXPECT_EQ(parts[2].data, bytes.data() + 200);
  EXPECT_EQ(parts[2].bytes, 50U);
  EXPECT_NE(parts[0].local_key, parts[1].local_key);
  EXPECT_NE(parts[0].remote_key, 0U);
  parts.clear();
  ASSERT_TRUE(memory.Cover(bytes.data() + 100, 100, parts));
  EXPECT_EQ(parts.size(), 1U);
}

TEST_F(VerbsMemoryTest, NoByteBesideTheMemoryIsCovered) {
  Memory memory = Make(Access::kRemote);
  RegisterAll(memory);
  EXPECT_EQ(CodeOf(memory, -1, 1), Code::kInvalid);
  EXPECT_EQ(CodeOf(memory, 250, 1), Code::kInvalid);
  EXPECT_EQ(CodeOf(memory, 0, 251), Code::kInvalid);
  EXPECT_EQ(CodeOf(memory, 10, ~0ULL - 5), Code::kInvalid);
  EXPECT_EQ(CodeOf(memory, 250, 0), Code::kOk);
}

TEST_F(VerbsMemoryTest, NoKeyForPeersToMemoryOfItsProcessAlone) {
  Memory memory = Make(Access::kLocal);
  RegisterAll(memory);
  std::vector<Keyed> parts;
  ASSERT_TRUE(memory.Cover(bytes.data(), 250, parts));
  for (const Keyed& part : parts) EXPECT_EQ(part.remote_key, 0U);
}

TEST_F(VerbsMemoryTest, NothingIsCoveredOnceTheRegistrationsEnd) {
  Memory memory = Make(Access::kRemote);
  RegisterAll(memory);
  ASSERT_TRUE(memory.Deregister());
  EXPECT_EQ(CodeOf(memory, 0, 1), Code::kUnavailable);
  EXPECT_EQ(verbs.counts().regions, 0U);
  RegisterAll(memory);
  EXPECT_EQ(CodeOf(memory, 0, 250), Code::kOk);
}

TEST_F(VerbsMemoryTest, NothingIsCoveredWhileARegistrationDoesNotEnd) {
  Memory memory = Make(Access::kRemote);
  RegisterAll(memory);
  verbs.RefuseDeregisters(true);
  EXPECT_EQ(memory.Deregister().error().code, Code::kUnavailable);
  EXPECT_EQ(CodeOf(memory, 0, 1), Code::kUnavailable);
  EXPECT_EQ(memory.registered_bytes(), 0U);
  // A second registration of the same bytes would hide that the first one still permits writes.
  EXPECT_EQ(memory.RegisterNext().error().code, Code::kInvalid);
  EXPECT_EQ(verbs.counts().regions, 3U);
  verbs.RefuseDeregisters(false);
  ASSERT_TRUE(memory.Deregister());
  EXPECT_EQ(verbs.counts().regions, 0U);
}

}  // namespace
}  // namespace kvcove::transport::verbs
