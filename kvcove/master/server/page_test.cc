// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/page.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kvcove/base/size.h"
#include "kvcove/master/server/fake_admin_pool.h"
#include "kvcove/master/server/page_history.h"

namespace kvcove::master {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class PageTest : public testing::Test {
 protected:
  PageTest() {
    for (unsigned i = 0; i < 3; ++i) AddOwner(i);
  }
  void AddOwner(unsigned i) {
    pool_->owners.push_back({.number = static_cast<wire::OwnerNumber>(i),
                             .address = fmt::format("10.0.{}.{}:7401", i / 256, i % 256),
                             .socket = {},
                             .host = fmt::format("node{}", i),
                             .capacity_bytes = kGiB,
                             .free_bytes = kGiB / 2,
                             .live = true,
                             .objects = 10,
                             .tenant = {}});
  }
  void AddSlot(const std::string& name, const std::string& version, std::uint64_t bytes) {
    pool_->slots.push_back({.slot = static_cast<SlotId>(pool_->slots.size()),
                            .name = name,
                            .version = version,
                            .used = true});
    pool_->bytes_by_slot.push_back(bytes);
  }
  const http::Route& RouteOf(const std::string& path) const {
    return *std::ranges::find(page_.routes, path, &http::Route::path);
  }
  http::Response Get(const std::string& path,
                     const std::map<std::string, std::string>& query = {}) const {
    http::Request request;
    request.method = "GET";
    request.path = path;
    request.query = query;
    return RouteOf(path).answer(request);
  }
  json Page(const std::map<std::string, std::string>& query = {}) const {
    const http::Response response = Get("/v1/page", query);
    EXPECT_EQ(response.status, 200) << response.body;
    return json::parse(response.body);
  }

  FakeClock clock_;
  const std::shared_ptr<FakeAdminPool> pool_ = std::make_shared<FakeAdminPool>();
  const master::Page page_ = PageOf(pool_, {.drains = true}, clock_);
};

TEST_F(PageTest, ItsFilesAreOpenAndItsFiguresAreNot) {
  for (const char* path : {"/", "/page.css", "/page.js", "/page.svg"}) {
    EXPECT_TRUE(RouteOf(path).open) << path;
    EXPECT_FALSE(RouteOf(path).metrics) << path;
  }
  EXPECT_FALSE(RouteOf("/v1/page").open);
  EXPECT_TRUE(RouteOf("/v1/page").waits) << "a large pool would hold up /healthz";
}

TEST_F(PageTest, NothingOfAnotherOriginMayBeLoadedOrFrameIt) {
  for (const char* path : {"/", "/page.css", "/page.js", "/page.svg"}) {
    std::map<std::string, std::string> headers;
    for (const auto& [name, value] : Get(path).headers) headers[name] = value;
    EXPECT_THAT(headers["Content-Security-Policy"], HasSubstr("default-src 'none'")) << path;
    EXPECT_THAT(headers["Content-Security-Policy"], HasSubstr("frame-ancestors 'none'")) << path;
    EXPECT_THAT(headers["Content-Security-Policy"], Not(HasSubstr("unsafe"))) << path;
    EXPECT_EQ(headers["X-Content-Type-Options"], "nosniff") << path;
    EXPECT_EQ(headers["Referrer-Policy"], "no-referrer") << path;
  }
}

TEST_F(PageTest, ItsFilesNameNoOtherOrigin) {
  const std::string html = Get("/").body;
  EXPECT_THAT(html, HasSubstr("<title>kvcove</title>"));
  for (const char* path : {"/", "/page.css", "/page.js"}) {
    const std::string body = Get(path).body;
    EXPECT_THAT(body, Not(HasSubstr("https://"))) << path;
    EXPECT_THAT(body, Not(HasSubstr("innerHTML"))) << path;
  }
  // The policy forbids both, so they would do nothing.
  EXPECT_THAT(html, Not(HasSubstr(" style=")));
  EXPECT_THAT(html, Not(HasSubstr(" onclick=")));
}

TEST_F(PageTest, SaysInOneLineWhetherThePoolIsWell) {
  json page = Page();
  EXPECT_EQ(page["health"], "good");
  EXPECT_EQ(page["verdict"], "The pool is well: 3 owners, 50 % of 3GiB of memory in use.");
  pool_->owners[1].live = false;
  page = Page();
  EXPECT_EQ(page["health"], "bad");
  EXPECT_EQ(page["pool"]["live"], 2);
  EXPECT_EQ(page["pool"]["capacity"], 2 * kGiB) << "an owner that is gone gives nothing";
}

// One host estimates what other sizes would bring; a master does not.
TEST_F(PageTest, SaysWhatMoreMemoryWouldBring) {
  EXPECT_EQ(Page()["advice"], json::array());
  struct Estimating : FakeAdminPool {
    json Status() const override {
      const json memory = {{"half", 0.1}, {"same", 0.2}, {"double", 0.4}, {"quadruple", 0.6}};
      const json disk = {{"half", nullptr}, {"same", 0.2}, {"double", 0.4}, {"quadruple", 0.6}};
      return {{"expected",
               {{"asked", asked_for}, {"hit_ratio", {{"memory", memory}, {"disk", disk}}}}}};
    }
    int asked_for = 100;
  };
  const auto pool = std::make_shared<Estimating>();
  const master::Page page = PageOf(pool, {}, clock_);
  const auto route = std::ranges::find(page.routes, "/v1/page", &http::Route::path);
  const json advice = json::parse(route->answer({}).body)["advice"];
  ASSERT_EQ(advice.size(), 1U) << "not of the disk, of which one estimate is not known";
  EXPECT_THAT(advice[0].get<std::string>(),
              testing::StartsWith("Twice the memory would bring 20 points of hit ratio, four times "
                                  "the memory 40 points; half of it would cost 10 points."));
  pool->asked_for = 99;
  EXPECT_EQ(json::parse(route->answer({}).body)["advice"], json::array()) << "too few";
}

TEST_F(PageTest, OwnersThatNeedAttentionComeFirst) {
  pool_->owners[2].live = false;
  pool_->owners[1].draining = true;
  const json rows = Page()["owners"]["rows"];
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0]["state"], "gone");
  EXPECT_EQ(rows[1]["state"], "draining");
  EXPECT_EQ(rows[2]["state"], "live");
  EXPECT_EQ(rows[2]["owner"], "10.0.0.0:7401");
}

TEST_F(PageTest, ListsAreReadInPagesAndSearched) {
  for (unsigned i = 3; i < 1000; ++i) AddOwner(i);
  json owners = Page()["owners"];
  EXPECT_EQ(owners["all"], 1000);
  EXPECT_EQ(owners["rows"].size(), 10U);
  owners = Page({{"owners_from", "980"}})["owners"];
  EXPECT_EQ(owners["from"], 980);
  EXPECT_EQ(owners["rows"].size(), 10U);
  owners = Page({{"owners_find", "NODE99"}})["owners"];
  EXPECT_EQ(owners["matching"], 11);
  EXPECT_EQ(owners["all"], 1000);
  // The list has become shorter than the page that somebody looks at.
  owners = Page({{"owners_find", "node99"}, {"owners_from", "500"}})["owners"];
  EXPECT_EQ(owners["from"], 10);
  EXPECT_EQ(owners["rows"].size(), 1U) << "the last page";
  owners = Page({{"owners_find", "nobody"}, {"owners_from", "10"}})["owners"];
  EXPECT_EQ(owners["from"], 0);
  EXPECT_EQ(owners["rows"].size(), 0U);
  EXPECT_EQ(Get("/v1/page", {{"owners_from", "x"}}).status, 400);
}

TEST_F(PageTest, ANamespaceHasItsVersionsWithTheirBytes) {
  AddSlot("acme/small", "", 1);
  for (int i = 0; i < 8; ++i) AddSlot("acme/large", fmt::format("v{}", i), 100U + i);
  pool_->slots[1].dead = true;
  const json rows = Page()["namespaces"]["rows"];
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0]["namespace"], "acme/large");
  EXPECT_EQ(rows[0]["bytes"], 828);
  EXPECT_EQ(rows[0]["versions_all"], 8);
  ASSERT_EQ(rows[0]["versions"].size(), 6U);
  EXPECT_EQ(rows[0]["versions"][0], (json{{"version", "v7"}, {"bytes", 107}}));
  EXPECT_EQ(rows[1]["versions"][0], (json{{"version", ""}, {"bytes", 1}}));
}

TEST_F(PageTest, EnginesThatMustResetComeFirst) {
  pool_->engines = {
      {.name = "acme/llama", .engine = "e1", .version = "v2", .open = true, .processes = 2},
      {.name = "acme/llama", .engine = "e2", .version = {}, .open = false, .processes = 1}};
  const json engines = Page()["engines"];
  EXPECT_EQ(engines["all"], 2);
  EXPECT_EQ(engines["rows"][0]["engine"], "e2");
  EXPECT_EQ(engines["rows"][0]["open"], false);
  EXPECT_EQ(engines["rows"][1]["version"], "v2");
}

TEST_F(PageTest, ADrainsTaskKnowsHowMuchThereIs) {
  pool_->tasks = {
      {.id = 1,
       .request = {.kind = TaskKind::kDrain, .from = "10.0.0.1:7401", .to = {}, .prefix = {}},
       .state = TaskState::kRunning,
       .copied = 30,
       .message = {}}};
  const json task = Page()["tasks"][0];
  EXPECT_EQ(task["kind"], "drain");
  EXPECT_EQ(task["copied"], 30);
  EXPECT_EQ(task["objects"], 40);
}

TEST_F(PageTest, TasksThatWaitDoNotHideTheOneThatRuns) {
  for (std::uint64_t id = 20; id > 0; --id) {
    pool_->tasks.push_back({.id = id, .request = {}, .state = TaskState::kQueued, .message = {}});
  }
  pool_->tasks.back().state = TaskState::kRunning;
  const json tasks = Page()["tasks"];
  ASSERT_EQ(tasks.size(), 8U);
  EXPECT_EQ(tasks[0]["id"], 1);
  EXPECT_EQ(tasks[1]["id"], 20);
}

TEST_F(PageTest, PointsOfAnotherProcessOrWithAnotherCallAreReplaced) {
  pool_->counts.calls = {{"lookup", {}}, {"reset", {}}};
  const auto sample = [&] {
    page_.tick();
    clock_.AdvanceNs(PageHistory::kIntervalNs);
  };
  for (int i = 0; i < 5; ++i) {
    pool_->counts.calls[1].second[3] += 1;
    sample();
  }
  const json history = Page()["history"];
  EXPECT_EQ(history["call"], "reset");
  const std::string of = history["of"];
  EXPECT_EQ(Page({{"points_from", "4"}, {"points_of", of}})["history"]["first"], 4);
  // Another process numbers its points from 0, too.
  const master::Page other = PageOf(pool_, {.drains = true}, clock_);
  for (int i = 0; i < 6; ++i) {
    other.tick();
    clock_.AdvanceNs(PageHistory::kIntervalNs);
  }
  http::Request asks;
  asks.query = {{"points_from", "4"}, {"points_of", of}};
  const auto route = std::ranges::find(other.routes, "/v1/page", &http::Route::path);
  EXPECT_EQ(json::parse(route->answer(asks).body)["history"]["points"].size(), 5U);
  // The first look-up: its latency is drawn from now on.
  pool_->counts.calls[0].second[3] += 1;
  sample();
  const json later = Page({{"points_from", "4"}, {"points_of", of}})["history"];
  EXPECT_EQ(later["call"], "lookup");
  EXPECT_EQ(later["first"], 0);
  EXPECT_NE(later["of"], of);
}

TEST_F(PageTest, TheHourIsSampledByTicksAndToldOnce) {
  for (int second = 0; second < 25; ++second) {
    pool_->owners[0].hits += 3;
    pool_->counts.misses[static_cast<std::size_t>(MissReason::kEvicted)] += 1;
    page_.tick();
    clock_.AdvanceNs(kSecond);
  }
  json page = Page();
  ASSERT_EQ(page["history"]["points"].size(), 2U);
  EXPECT_EQ(page["history"]["points"][0][1], 0.75);
  EXPECT_EQ(page["misses"][0]["reason"], "evicted");
  EXPECT_EQ(page["misses"][0]["hour"], 20);
  EXPECT_EQ(page["misses"][0]["alarming"], false);
  page = Page({{"points_from", "2"}});
  EXPECT_EQ(page["history"]["first"], 2);
  EXPECT_EQ(page["history"]["points"].size(), 0U);
}

// The page asks every 5 s; its first answer has the whole hour.
TEST_F(PageTest, TheLargestPoolCostsLittle) {
  for (unsigned i = 3; i < 1000; ++i) AddOwner(i);
  for (wire::OwnerStat& owner : pool_->owners) owner.disks = 8;
  for (int i = 0; i < 10'000; ++i)
    AddSlot(fmt::format("tenant{}/model-{}", i % 97, i), "step-1", 1000U + i);
  for (int i = 0; i < 5000; ++i) {
    pool_->engines.push_back(
        {.name = "acme/llama", .engine = fmt::format("engine-{}", i), .version = "v1"});
  }
  pool_->counts.calls = {{"lookup", {}}};
  for (std::size_t i = 0; i <= PageHistory::kPoints; ++i) {
    pool_->owners[i].hits += 12345;
    pool_->owners[i].hit_bytes += 123456789012;
    pool_->counts.calls[0].second[i % 20] += 1000;
    for (std::uint64_t& misses : pool_->counts.misses) misses += 17;
    page_.tick();
    clock_.AdvanceNs(PageHistory::kIntervalNs);
  }
  EXPECT_LT(Get("/v1/page").body.size(), 40'000U);
  EXPECT_LT(Get("/v1/page", {{"points_from", "359"}}).body.size(), 5U * 5000 / 2)
      << "beside the headers";
}

TEST(HostPageTest, APoolOfOneHostHasNoTasks) {
  FakeClock clock;
  const Page page = PageOf(std::make_shared<FakeAdminPool>(), {}, clock);
  const auto route = std::ranges::find(page.routes, "/v1/page", &http::Route::path);
  const json answer = json::parse(route->answer({}).body);
  EXPECT_EQ(answer["drains"], false);
  EXPECT_FALSE(answer.contains("tasks"));
}

}  // namespace
}  // namespace kvcove::master
