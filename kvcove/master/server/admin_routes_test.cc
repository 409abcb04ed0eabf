// SPDX-License-Identifier: Apache-2.0
// Which namespace a request means, and what is asked of the pool for it.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kvcove/master/server/admin_pool.h"

namespace kvcove::master {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Knows what it is given, and keeps what it is asked.
class AskedPool final : public AdminPool {
 public:
  Readiness Ready() const override { return {}; }
  json Status() const override { return {}; }
  std::string Metrics() const override { return {}; }
  std::vector<wire::OwnerStat> Owners() const override { return {}; }
  Result<std::vector<SlotDescription>> Namespaces() const override { return slots; }
  Result<std::vector<std::string>> VersionedNames() const override { return versioned; }
  Result<EngineList> Engines(std::size_t /*at_most*/) const override { return EngineList(); }
  Result<AskPage> PagesOf(const wire::OwnerStat& /*owner*/) const override { return AskPage(); }
  Found Find(std::span<const SlotDescription> /*of*/, std::string_view /*key*/,
             std::int64_t /*deadline_ns*/) const override {
    return {};
  }
  Result<wire::ResetOutcome> Reset(const wire::ResetRequest& request,
                                   std::int64_t /*deadline_ns*/) override {
    asked.push_back("reset " + request.name);
    return wire::ResetOutcome{};
  }
  Result<wire::PruneOutcome> Prune(const wire::PruneRequest& request,
                                   std::int64_t /*deadline_ns*/) override {
    asked.push_back(fmt::format("prune {} before {}", request.name, request.before));
    return wire::PruneOutcome{.versions = 1, .raised = 0};
  }
  Result<std::uint64_t> Remove(const SlotDescription& slot, std::string_view pattern,
                               std::int64_t /*deadline_ns*/) override {
    asked.push_back(fmt::format("remove {} {}", slot.slot, pattern));
    return 1;
  }
  Result<PinCounts> Pin(const PinRequest& request, std::int64_t /*deadline_ns*/) override {
    std::string of;
    for (const SlotDescription& slot : request.slots) of += fmt::format(" {}", slot.slot);
    asked.push_back(fmt::format("{}{}{} in{} for {} s", request.kind ? "pin " : "unpin ",
                                request.key, request.prefix, of, request.duration_ns / kSecond));
    return PinCounts{.done = 2, .refused = 1};
  }

  std::vector<SlotDescription> slots;
  std::vector<std::string> versioned;
  std::vector<std::string> asked;
};

class AdminRoutesTest : public testing::Test {
 protected:
  http::Response Post(const std::string& path,
                      const std::map<std::string, std::string>& arguments) {
    const auto route = std::ranges::find(routes_, path, &http::Route::path);
    http::Request request;
    request.method = "POST";
    request.path = path;
    request.query = arguments;
    return route->answer(request);
  }
  void Slot(SlotId slot, const std::string& name, const std::string& version = {}) {
    pool_->slots.push_back({.slot = slot, .name = name, .version = version});
  }

  FakeClock clock_;
  const std::shared_ptr<AskedPool> pool_ = std::make_shared<AskedPool>();
  const std::vector<http::Route> routes_ = PoolRoutes(pool_, clock_);
};

// Slots that nobody names are reused; the order of the versions remains.
TEST_F(AdminRoutesTest, ANamespaceWithoutASlotIsPruned) {
  Slot(1, QualifiedName("acme", "other"));
  pool_->versioned = {QualifiedName("acme", "model")};
  const auto pruned = Post("/v1/prune", {{"namespace", "acme:model"}, {"before", "v2"}});
  EXPECT_EQ(pruned.status, 200) << pruned.body;
  EXPECT_EQ(json::parse(pruned.body)["versions"], 1);
  EXPECT_THAT(pool_->asked,
              testing::ElementsAre("prune " + QualifiedName("acme", "model") + " before v2"));
  const auto unknown = Post("/v1/prune", {{"namespace", "model"}, {"before", "v2"}});
  EXPECT_EQ(unknown.status, 404);
  EXPECT_THAT(unknown.body, HasSubstr("did you mean 'acme:model'?"));
  EXPECT_EQ(pool_->asked.size(), 1U);
  // One without versions is answered by the keeper, which says why.
  EXPECT_EQ(Post("/v1/prune", {{"namespace", "acme:other"}, {"before", "v2"}}).status, 200);
}

TEST_F(AdminRoutesTest, ANameOfTwoNamespacesIsRefusedWithBoth) {
  Slot(1, QualifiedName("acme", "model"), "v1");
  Slot(2, "acme:model", "v2");
  const std::map<std::string, std::string> name = {{"namespace", "acme:model"},
                                                   {"before", "v2"},
                                                   {"prefix", "k"},
                                                   {"seconds", "9"},
                                                   {"timeout_ms", "100"}};
  for (const char* path : {"/v1/reset", "/v1/prune", "/v1/remove", "/v1/pin", "/v1/unpin"}) {
    const auto refused = Post(path, name);
    EXPECT_EQ(refused.status, 400) << path;
    EXPECT_THAT(refused.body, HasSubstr("'model' of tenant 'acme'")) << path;
    EXPECT_THAT(refused.body, HasSubstr("'acme:model' without a tenant")) << path;
  }
  EXPECT_THAT(pool_->asked, testing::IsEmpty());
  // Only one of them has this version.
  auto versioned = name;
  versioned["version"] = "v2";
  EXPECT_EQ(Post("/v1/pin", versioned).status, 200);
  EXPECT_THAT(pool_->asked, testing::ElementsAre("pin k in 2 for 9 s"));
  // One of them without a slot.
  pool_->slots.pop_back();
  pool_->versioned = {"acme:model"};
  EXPECT_EQ(Post("/v1/prune", name).status, 400);
  EXPECT_EQ(Post("/v1/reset", name).status, 200);
}

// An unset variable of a script: it must not mean any namespace, nor a pin without an end.
TEST_F(AdminRoutesTest, AnEmptyArgumentIsRefused) {
  Slot(1, "m");
  const std::map<std::string, std::string> all = {
      {"namespace", "m"}, {"before", "v2"}, {"prefix", "k"}, {"seconds", "9"}};
  for (const char* path : {"/v1/reset", "/v1/prune", "/v1/remove", "/v1/pin", "/v1/unpin"}) {
    auto nameless = all;
    nameless["namespace"] = "";
    EXPECT_EQ(Post(path, nameless).status, 400) << path;
  }
  auto endless = all;
  endless["seconds"] = "";
  EXPECT_EQ(Post("/v1/pin", endless).status, 400);
  EXPECT_THAT(pool_->asked, testing::IsEmpty());
  EXPECT_EQ(Post("/v1/pin", all).status, 200);
}

}  // namespace
}  // namespace kvcove::master
