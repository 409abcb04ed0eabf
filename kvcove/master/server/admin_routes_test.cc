// SPDX-License-Identifier: Apache-2.0
// Which namespace a request means, and what is asked of the pool for it.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "kvcove/master/server/fake_admin_pool.h"

namespace kvcove::master {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Knows what it is given, and keeps what it is asked.
class AskedPool final : public FakeAdminPool {
 public:
  std::vector<wire::OwnerStat> Owners() const override {
    return {{.number = 0, .address = "here:1"}, {.number = 1, .address = "there:1", .host = "h"}};
  }
  Result<std::vector<std::string>> VersionedNames() const override { return versioned; }
  void CountPrefix(const SlotDescription& slot, std::span<const std::string_view> keys,
                   std::int64_t /*deadline_ns*/, PrefixCount& count) const override {
    const auto found = prefixes.find(slot.slot);
    if (found == prefixes.end()) return count.End(MissReason::kNeverPut);
    for (const std::string_view key : keys) {
      if (count.keys() == found->second) return count.End(MissReason::kEvicted);
      looked_up.emplace_back(key);
      const PrefixCount::Holder holder{1, Tier::kMemory};
      count.Add({&holder, 1});
    }
  }
  Result<wire::ResetOutcome> Reset(const wire::ResetRequest& request,
                                   std::int64_t /*deadline_ns*/) override {
    asked.push_back(fmt::format("reset {}{}", request.name,
                                request.version ? " version " + *request.version : std::string()));
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

  std::vector<std::string> versioned;
  std::map<SlotId, std::uint64_t> prefixes;  // the keys that owner 1 has
  mutable std::vector<std::string> looked_up;
};

class AdminRoutesTest : public testing::Test {
 protected:
  http::Response Post(const std::string& path,
                      const std::map<std::string, std::string>& arguments) {
    http::Request request;
    request.query = arguments;
    return Answer(path, std::move(request));
  }
  http::Response PostBody(const std::string& path, const std::string& body) {
    http::Request request;
    request.body = body;
    return Answer(path, std::move(request));
  }
  http::Response Answer(const std::string& path, http::Request request) {
    request.method = "POST";
    request.path = path;
    return std::ranges::find(routes_, path, &http::Route::path)->answer(request);
  }
  // Returns the parameters that a path needs.
  static std::map<std::string, std::string> Needed(const std::string& path,
                                                   const std::string& name) {
    std::map<std::string, std::string> needed;
    if (path == "/v1/key") return {{"key", "k"}};
    if (path == "/v1/reset" || path == "/v1/prune") needed["timeout_ms"] = "100";
    if (path == "/v1/prune") needed["before"] = "v2";
    if (path == "/v1/pin") needed["seconds"] = "9";
    if (path == "/v1/remove" || path == "/v1/pin" || path == "/v1/unpin") needed["prefix"] = "k";
    if (!needed.empty()) needed["namespace"] = name;
    return needed;
  }
  void Slot(SlotId slot, const std::string& name, const std::string& version = {}) {
    pool_->slots.push_back({.slot = slot, .name = name, .version = version});
  }

  FakeClock clock_;
  const std::shared_ptr<AskedPool> pool_ = std::make_shared<AskedPool>();
  const std::vector<http::Route> routes_ = PoolRoutes(pool_, clock_);
};

// A hand-over of a host's owner holds its lock while probes ask /healthz. In a cluster nothing of
// this waits, and must not wait behind resets either, which may keep all workers.
TEST_F(AdminRoutesTest, AnswersLeaveTheLoopWhereTheyMayWait) {
  struct HandedOver : FakeAdminPool {
    bool AnswersWait() const override { return true; }
  };
  const auto waits = [](const std::vector<http::Route>& routes, const char* path) {
    return std::ranges::find(routes, path, &http::Route::path)->waits;
  };
  const auto of_host = PoolRoutes(std::make_shared<HandedOver>(), clock_);
  for (const char* path : {"/metrics", "/v1/status", "/v1/segments", "/v1/namespaces",
                           "/v1/versions", "/v1/engines"}) {
    EXPECT_TRUE(waits(of_host, path)) << path;
    EXPECT_FALSE(waits(routes_, path)) << path;
  }
  EXPECT_FALSE(waits(of_host, "/healthz"));
  EXPECT_TRUE(waits(routes_, "/v1/reset"));
}

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
  const auto name = [](const std::string& path) { return Needed(path, "acme:model"); };
  for (const char* path : {"/v1/reset", "/v1/prune", "/v1/remove", "/v1/pin", "/v1/unpin"}) {
    const auto refused = Post(path, name(path));
    EXPECT_EQ(refused.status, 400) << path;
    EXPECT_THAT(refused.body, HasSubstr("'model' of tenant 'acme'")) << path;
    EXPECT_THAT(refused.body, HasSubstr("'acme:model' without a tenant")) << path;
  }
  EXPECT_THAT(pool_->asked, testing::IsEmpty());
  // Only one of them has this version.
  auto versioned = name("/v1/pin");
  versioned["version"] = "v2";
  EXPECT_EQ(Post("/v1/pin", versioned).status, 200);
  EXPECT_THAT(pool_->asked, testing::ElementsAre("pin k in 2 for 9 s"));
  // One of them without a slot.
  pool_->slots.pop_back();
  pool_->versioned = {"acme:model"};
  EXPECT_EQ(Post("/v1/prune", name("/v1/prune")).status, 400);
  EXPECT_EQ(Post("/v1/reset", name("/v1/reset")).status, 200);
}

// An unset variable of a script: it must not mean any namespace, nor a pin without an end.
TEST_F(AdminRoutesTest, AnEmptyArgumentIsRefused) {
  Slot(1, "m");
  for (const char* path : {"/v1/reset", "/v1/prune", "/v1/remove", "/v1/pin", "/v1/unpin"}) {
    EXPECT_EQ(Post(path, Needed(path, "")).status, 400) << path;
  }
  auto endless = Needed("/v1/pin", "m");
  endless["seconds"] = "";
  EXPECT_EQ(Post("/v1/pin", endless).status, 400);
  auto versionless = Needed("/v1/reset", "m");
  versionless["version"] = "";
  EXPECT_EQ(Post("/v1/reset", versionless).status, 400) << "it would void all versions";
  EXPECT_THAT(pool_->asked, testing::IsEmpty());
  EXPECT_EQ(Post("/v1/pin", Needed("/v1/pin", "m")).status, 200);
}

// A name that is misspelt, or that another path takes, must not widen what is changed.
TEST_F(AdminRoutesTest, AnUnknownParameterIsRefusedByEachPath) {
  Slot(1, "m");
  for (const http::Route& route : routes_) {
    if (!route.path.starts_with("/v1/")) continue;
    http::Request request;
    request.method = route.method;
    request.path = route.path;
    request.query = Needed(route.path, "m");
    request.query["versoin"] = "v1";
    const http::Response response = route.answer(request);
    EXPECT_EQ(response.status, 400) << route.path;
    EXPECT_THAT(response.body, HasSubstr("unknown parameter")) << route.path;
  }
  EXPECT_THAT(pool_->asked, testing::IsEmpty());
  auto misspelt = Needed("/v1/reset", "m");
  misspelt["versoin"] = "v1";
  EXPECT_THAT(Post("/v1/reset", misspelt).body, HasSubstr("did you mean 'version'?"));
}

TEST_F(AdminRoutesTest, AResetVoidsTheVersionThatItNames) {
  Slot(1, "m", "v1");
  Slot(2, "m", "v2");
  auto one = Needed("/v1/reset", "m");
  EXPECT_EQ(Post("/v1/reset", one).status, 200);
  one["version"] = "v2";
  EXPECT_EQ(Post("/v1/reset", one).status, 200);
  one["version"] = "v3";
  EXPECT_EQ(Post("/v1/reset", one).status, 404);
  EXPECT_THAT(pool_->asked, testing::ElementsAre("reset m", "reset m version v2"));
}

TEST_F(AdminRoutesTest, ValuesAreTakenWholeOrRefused) {
  Slot(1, "m");
  const auto status = [&](const char* path, const std::map<std::string, std::string>& query) {
    http::Request request;
    request.query = query;
    return std::ranges::find(routes_, path, &http::Route::path)->answer(request).status;
  };
  for (const char* limit : {"", "-1", "1.5", "1e3", "0x10", " 1", "18446744073709551616"}) {
    EXPECT_EQ(status("/v1/keys", {{"limit", limit}}), 400) << limit;
    EXPECT_EQ(status("/v1/engines", {{"limit", limit}}), 400) << limit;
  }
  for (const char* after : {"", "0", "0.0.0.0", "0.0.0.0.0.0", "0.0.0.0.0 ", "0.0.0.0.65536", "a",
                            "4294967296.4294967296.0.0.0"}) {
    EXPECT_EQ(status("/v1/keys", {{"after", after}}), 400) << after;
  }
  EXPECT_EQ(status("/v1/keys", {{"after", "0.0.0.0.0"}}), 200);
  EXPECT_EQ(status("/v1/keys", {{"namespace", ""}}), 400) << "it would mean all";
  EXPECT_EQ(status("/v1/keys", {{"version", "v9"}}), 404) << "also without a namespace";
  EXPECT_EQ(status("/v1/key", {{"key", std::string(1025, 'k')}}), 400);
  EXPECT_EQ(status("/v1/versions", {{"namespace", std::string(1025, 'n')}}), 400);
}

// ---- weight versions

TEST_F(AdminRoutesTest, VersionsAreListedInTheOrderInWhichEnginesHaveNamedThem) {
  pool_->slots = {
      {.slot = 1, .name = "m", .version = "step-10", .named = true, .order = 7},
      {.slot = 2, .name = "m", .version = "step-8", .named = false, .dead = true, .order = 3},
      {.slot = 3, .name = "m", .version = "step-9", .named = false, .order = 5},
      {.slot = 4, .name = "m"},
      {.slot = 5, .name = "a", .version = "v", .named = true, .order = 9}};
  const auto versions = [&](const std::map<std::string, std::string>& arguments) {
    const auto route = std::ranges::find(routes_, "/v1/versions", &http::Route::path);
    http::Request request;
    request.query = arguments;
    return json::parse(route->answer(request).body)["versions"];
  };
  EXPECT_EQ(versions({{"namespace", "m"}}),
            json::array({{{"namespace", "m"}, {"version", "step-8"}, {"state", "dead"}},
                         {{"namespace", "m"}, {"version", "step-9"}, {"state", "unused"}},
                         {{"namespace", "m"}, {"version", "step-10"}, {"state", "in use"}}}));
  const json all = versions({});
  ASSERT_EQ(all.size(), 4U) << "one without a version is none";
  EXPECT_EQ(all[0]["namespace"], "a");
}

// ---- prefixes

TEST_F(AdminRoutesTest, APrefixIsThatOfTheVersionThatHasMostOfIt) {
  Slot(1, "m", "v1");
  Slot(2, "m", "v2");
  Slot(3, "m", "v3");
  pool_->prefixes = {{1, 1}, {2, 2}};
  const json ask = {{"namespace", "m"}, {"keys", {"a", "b", "c"}}};
  const http::Response response = PostBody("/v1/prefix", ask.dump());
  ASSERT_EQ(response.status, 200) << response.body;
  const json answer = json::parse(response.body);
  EXPECT_EQ(answer["version"], "v2");
  EXPECT_EQ(answer["asked"], 3);
  EXPECT_EQ(answer["keys"], 2);
  EXPECT_EQ(answer["reason"], "evicted");
  EXPECT_EQ(answer["owners"], json::array({{{"owner", "there:1"},
                                            {"host", "h"},
                                            {"prefix", 2},
                                            {"memory_prefix", 2},
                                            {"memory", 2},
                                            {"disk", 0}}}));
  json named = ask;
  named["version"] = "v1";
  EXPECT_EQ(json::parse(PostBody("/v1/prefix", named.dump()).body)["keys"], 1);
  named["version"] = "v3";
  const json none = json::parse(PostBody("/v1/prefix", named.dump()).body);
  EXPECT_EQ(none["keys"], 0);
  EXPECT_EQ(none["reason"], "never put");
  EXPECT_EQ(none["owners"], json::array());
  named["version"] = "v4";
  EXPECT_THAT(PostBody("/v1/prefix", named.dump()).body,
              HasSubstr("no namespace 'm' with version 'v4'; 'kvcove versions' lists them"));
}

TEST_F(AdminRoutesTest, APrefixOfAVersionThatNoEngineUsesIsForThoseWhoNameIt) {
  Slot(1, "m", "v1");
  Slot(2, "m", "v2");
  pool_->prefixes = {{1, 3}, {2, 1}};
  json ask = {{"namespace", "m"}, {"keys", {"a", "b", "c"}}};
  EXPECT_EQ(json::parse(PostBody("/v1/prefix", ask.dump()).body)["version"], "v1")
      << "none is used";
  pool_->slots[1].named = true;
  EXPECT_EQ(json::parse(PostBody("/v1/prefix", ask.dump()).body)["version"], "v2");
  ask["version"] = "v1";
  EXPECT_EQ(json::parse(PostBody("/v1/prefix", ask.dump()).body)["keys"], 3);
}

TEST_F(AdminRoutesTest, BlockHashesAreTheConnectorsKeys) {
  Slot(1, "m");
  pool_->prefixes = {{1, 3}};
  const json ask = {{"namespace", "m"},
                    {"block_hashes", {"00", "a1", "02", "b3", "04"}},
                    {"hashes_per_chunk", 2},
                    {"tags", {"g0.h0of2", "g0.h1of2"}},
                    {"adapter", "d"}};
  const http::Response response = PostBody("/v1/prefix", ask.dump());
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_THAT(pool_->looked_up,
              testing::ElementsAre("g0.h0of2@a1+d", "g0.h1of2@a1+d", "g0.h0of2@b3+d"));
  const json answer = json::parse(response.body);
  EXPECT_EQ(answer["asked"], 4) << "the last hash fills no chunk";
  EXPECT_EQ(answer["chunks"], 1) << "the second chunk lacks an object";
  EXPECT_EQ(answer["owners"][0]["prefix_chunks"], 1);
  EXPECT_EQ(answer["owners"][0]["memory_prefix_chunks"], 1);
}

TEST_F(AdminRoutesTest, APrefixThatIsNotWellFormedIsRefused) {
  Slot(1, "m");
  const auto refused = [&](const std::string& body) {
    const http::Response response = PostBody("/v1/prefix", body);
    EXPECT_EQ(response.status, 400) << body << response.body;
    return response.body;
  };
  EXPECT_THAT(refused("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(refused("{"), HasSubstr("no JSON object"));
  EXPECT_THAT(refused(R"({"keys": ["a"]})"), HasSubstr("'namespace' is missing"));
  EXPECT_THAT(refused(R"({"namespace": "m"})"), HasSubstr("'keys' or 'block_hashes'"));
  EXPECT_THAT(refused(R"({"namespace": "m", "keys": ["a"], "block_hashes": ["00"]})"),
              HasSubstr("one of them"));
  EXPECT_THAT(refused(R"({"namespace": "m", "keys": []})"), HasSubstr("not empty"));
  EXPECT_THAT(refused(std::string(R"({"namespace": "m", "keys": ["a"]})") + '\0'),
              HasSubstr("NUL byte"));
  EXPECT_THAT(refused(R"({"namespace": "m", "keys": ["a"], "keys": ["b"]})"), HasSubstr("twice"));
  EXPECT_THAT(refused(R"({"namespace": "m", "keys": [1]})"), HasSubstr("list of strings"));
  EXPECT_THAT(refused(R"({"namespace": "m", "keys": [""]})"), HasSubstr("the key is empty"));
  EXPECT_THAT(refused(R"({"namespace": "m", "kesy": ["a"]})"), HasSubstr("did you mean 'keys'?"));
  EXPECT_THAT(refused(R"({"namespace": "m", "block_hashes": ["00"]})"), HasSubstr("'tags'"));
  EXPECT_THAT(refused(R"({"namespace": "m", "block_hashes": ["0"], "tags": ["t"]})"),
              HasSubstr("block hash 0"));
  EXPECT_THAT(refused(R"({"namespace": "m", "block_hashes": ["AB"], "tags": ["t"]})"),
              HasSubstr("lower-case"));
  EXPECT_THAT(refused(R"({"namespace": "m", "block_hashes": ["00"], "tags": ["t"],
                          "hashes_per_chunk": 0})"),
              HasSubstr("at least 1"));
  EXPECT_THAT(refused(R"({"namespace": "m", "keys": [["a"], "b"]})"), HasSubstr("list of values"));
  const auto named = [](const std::string& name) {
    return json{{"namespace", name}, {"keys", json::array({"a"})}}.dump();
  };
  EXPECT_THAT(refused(named(std::string(1 << 20, 'n')).c_str()), HasSubstr("at most 1024"));
  const std::string field(1 << 20, 'f');
  EXPECT_LT(refused(json{{field, 1}}.dump().c_str()).size(), 200U);
  // As keys, these would have 64 GiB.
  const json long_tag = {{"namespace", "m"},
                         {"tags", std::vector<std::string>{std::string(1 << 20, 't')}},
                         {"block_hashes", std::vector<std::string>(kMaxBatch, "00")}};
  EXPECT_THAT(refused(long_tag.dump().c_str()), HasSubstr("at most 1024"));
  // As a tree, this would have hundreds of megabytes.
  EXPECT_THAT(refused(("{\"keys\":" + std::string(8 << 20, '[')).c_str()),
              HasSubstr("no JSON object"));
  const json many = {{"namespace", "m"}, {"keys", std::vector<std::string>(kMaxBatch + 1, "k")}};
  EXPECT_THAT(refused(many.dump().c_str()), HasSubstr("at most 65536"));
  EXPECT_EQ(PostBody("/v1/prefix", R"({"namespace": "n", "keys": ["a"]})").status, 404);
  EXPECT_THAT(pool_->looked_up, testing::IsEmpty());
}

}  // namespace
}  // namespace kvcove::master
