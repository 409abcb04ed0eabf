// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/registry.h"

#include <gtest/gtest.h>

#include <optional>

#include "kvcove/transport/peer.h"

namespace kvcove::transport {
namespace {

class CountingTransport final : public Transport {
 public:
  std::string_view name() const override { return "fake"; }
  std::shared_ptr<Peer> Connect(const rpc::Address&, const PeerOptions&, const Clock&) override {
    return nullptr;
  }
  Result<std::unique_ptr<Server>> Serve(const ServerOptions&, rpc::Gate&, Service&,
                                        const Clock&) override {
    return Fail(Code::kInternal, "these tests have no server");
  }
  Result<std::unique_ptr<Registered>> Register(std::span<std::byte> memory) override {
    if (memory.size() > most) return Fail(Code::kLimit, "the device can hold no more");
    return std::make_unique<One>(known);
  }
  void Wait(std::span<Transfer* const>, std::int64_t) override {}
  int known = 0;
  std::size_t most = 1000;

 private:
  struct One final : Registered {
    explicit One(int& count) : known(count) { ++known; }
    ~One() override { --known; }
    int& known;
  };
};

TEST(RegistryTest, EveryTransportKnowsTheMemoryAsLongAsItIsRegistered) {
  CountingTransport one;
  CountingTransport other;
  std::vector<std::byte> memory(1000);
  std::optional<Registry> registry(std::in_place, std::vector<Transport*>{&one, &other});
  auto registered = registry->Register(memory);
  ASSERT_TRUE(registered);
  EXPECT_EQ(registry->count(), 1U);
  EXPECT_EQ(one.known + other.known, 2);
  registry.reset();
  EXPECT_EQ(one.known + other.known, 2) << "it may outlive the registry";
  registered->reset();
  EXPECT_EQ(one.known + other.known, 0);
}

TEST(RegistryTest, MemoryThatOneTransportCannotTakeNoTransportHas) {
  CountingTransport one;
  CountingTransport other;
  other.most = 10;
  std::vector<std::byte> memory(1000);
  Registry registry({&one, &other});
  EXPECT_EQ(registry.Register(memory).error().code, Code::kLimit);
  EXPECT_EQ(one.known, 0);
  EXPECT_EQ(registry.count(), 0U);
}

TEST(RegistryTest, NoMemoryAndTooManyRegistrationsAreRefused) {
  Registry registry({});
  EXPECT_EQ(registry.Register({}).error().code, Code::kInvalid);
  std::vector<std::byte> memory(10);
  std::vector<std::shared_ptr<void>> all;
  for (std::size_t i = 0; i < Registry::kMaxRegistrations; ++i) {
    auto registered = registry.Register(memory);
    ASSERT_TRUE(registered);
    all.push_back(std::move(*registered));
  }
  EXPECT_EQ(registry.Register(memory).error().code, Code::kLimit);
  all.pop_back();
  EXPECT_TRUE(registry.Register(memory));
}

}  // namespace
}  // namespace kvcove::transport
