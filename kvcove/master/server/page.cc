// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/page.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "kvcove/base/random.h"
#include "kvcove/base/text.h"
#include "kvcove/master/server/admin_json.h"
#include "kvcove/master/server/admin_request.h"
#include "kvcove/master/server/page_files.h"
#include "kvcove/master/server/page_history.h"
#include "kvcove/master/server/page_verdict.h"

namespace kvcove::master {
namespace {

using http::Request;
using http::Response;
using nlohmann::json;

// Bounds of one answer, whatever the size of the pool: the page asks every 5 s, and takes less than
// 5 kB/s. Lists are read in pages, and searched here.
constexpr std::size_t kRows = 10;
constexpr std::size_t kVersions = 6;  // of a namespace
constexpr std::size_t kTaskRows = 8;
constexpr std::size_t kMaxEngines = 4096;  // of which are listed and searched
constexpr std::int64_t kMinuteS = 60;

// Nothing of another origin is loaded or asked, no text of the pool can become a script or a
// style, and no other page can frame this one to lead clicks astray.
constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

Response FileResponse(std::string_view body, std::string_view type) {
  return {.body = std::string(body),
          .type = std::string(type),
          .headers = {{"Content-Security-Policy", std::string(kPolicy)},
                      {"X-Content-Type-Options", "nosniff"},
                      {"X-Frame-Options", "DENY"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cross-Origin-Opener-Policy", "same-origin"},
                      {"Cross-Origin-Resource-Policy", "same-origin"}}};
}

// Which part of a list the page shows.
struct Part {
  std::uint64_t from = 0;
  std::string find;  // in lower case; empty: all
};

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), ToLower);
  return lower;
}

Result<Part> PartOf(const Request& request, const std::string& list) {
  Part part;
  KVCOVE_ASSIGN(part.from, NumberIn(request, list + "_from", 0));
  part.find = Lower(request.Get(list + "_find"));
  return part;
}

bool Matches(const Part& part, std::string_view text) {
  return part.find.empty() || Lower(text).find(part.find) != std::string::npos;
}

// Returns the part's rows of a list that is sorted already and has only what matches.
template <typename Item, typename Row>
json ListJson(const std::vector<Item>& matching, std::size_t all, const Part& part, Row&& row) {
  // A list may have become shorter than the page that is shown.
  std::uint64_t from = std::min<std::uint64_t>(part.from, matching.size());
  if (from == matching.size() && from > 0) from = (from - 1) / kRows * kRows;
  json rows = json::array();
  for (std::size_t i = from; i < std::min<std::size_t>(matching.size(), from + kRows); ++i) {
    rows.push_back(row(matching[i]));
  }
  return {{"all", all}, {"matching", matching.size()}, {"from", from}, {"rows", std::move(rows)}};
}

std::string_view StateOf(const wire::OwnerStat& owner) {
  if (!owner.live) return "gone";
  return owner.draining ? "draining" : "live";
}

json OwnersJson(const std::vector<wire::OwnerStat>& owners, const Part& part) {
  std::vector<const wire::OwnerStat*> matching;
  for (const wire::OwnerStat& owner : owners) {
    if (Matches(part, owner.address) || Matches(part, owner.host) || Matches(part, owner.tenant) ||
        Matches(part, StateOf(owner))) {
      matching.push_back(&owner);
    }
  }
  // Those that need an operator come first.
  std::ranges::sort(matching, {}, [](const wire::OwnerStat* owner) {
    const int rank = !owner->live ? 0 : owner->disks_aside > 0 ? 1 : owner->draining ? 2 : 3;
    return std::pair<int, std::string_view>(rank, owner->address);
  });
  return ListJson(matching, owners.size(), part, [](const wire::OwnerStat* owner) {
    json row{{"owner", owner->address},   {"host", owner->host},
             {"state", StateOf(*owner)},  {"capacity", owner->capacity_bytes},
             {"free", owner->free_bytes}, {"objects", owner->objects}};
    if (!owner->tenant.empty()) row["tenant"] = owner->tenant;
    if (owner->disks > 0) {
      row["disks"] = owner->disks;
      row["aside"] = owner->disks_aside;
      row["disk_capacity"] = owner->disk_capacity_bytes;
      row["disk_used"] = owner->disk_bytes;
    }
    return row;
  });
}

struct Space {
  std::string name;  // as people read it
  std::uint64_t bytes = 0;
  struct Version {
    std::string name;
    std::uint64_t bytes = 0;
    bool dead = false;
  };
  std::vector<Version> versions;
};

// Returns the namespaces, those with most bytes first, each with its weight versions.
std::vector<Space> SpacesOf(const AdminPool& pool, const std::vector<SlotDescription>& slots) {
  const std::vector<std::uint64_t> by_slot = pool.BytesBySlot();
  std::map<std::string_view, Space> spaces;
  for (const SlotDescription& slot : slots) {
    Space& space = spaces[slot.name];
    if (space.name.empty()) space.name = ReadableName(slot.name);
    const std::uint64_t bytes = slot.slot < by_slot.size() ? by_slot[slot.slot] : 0;
    space.versions.push_back({.name = slot.version, .bytes = bytes, .dead = slot.dead});
    space.bytes += bytes;
  }
  std::vector<Space> sorted;
  sorted.reserve(spaces.size());
  for (auto& [name, space] : spaces) sorted.push_back(std::move(space));
  std::ranges::sort(sorted, [](const Space& a, const Space& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.name < b.name;
  });
  return sorted;
}

json SpacesJson(const AdminPool& pool, const std::vector<SlotDescription>& slots,
                const Part& part) {
  std::vector<Space> spaces = SpacesOf(pool, slots);
  const std::size_t all = spaces.size();
  std::erase_if(spaces, [&](const Space& space) { return !Matches(part, space.name); });
  return ListJson(spaces, all, part, [](Space space) {
    std::ranges::sort(space.versions, [](const Space::Version& a, const Space::Version& b) {
      return a.bytes != b.bytes ? a.bytes > b.bytes : a.name < b.name;
    });
    json versions = json::array();
    for (const Space::Version& one : space.versions) {
      if (versions.size() == kVersions) break;
      json version{{"version", one.name}, {"bytes", one.bytes}};
      if (one.dead) version["dead"] = true;
      versions.push_back(std::move(version));
    }
    return json{{"namespace", space.name},
                {"bytes", space.bytes},
                {"versions_all", space.versions.size()},
                {"versions", std::move(versions)}};
  });
}

json EnginesJson(const AdminPool::EngineList& engines, const Part& part) {
  std::vector<const EngineDescription*> matching;
  for (const EngineDescription& engine : engines.engines) {
    if (Matches(part, engine.engine) || Matches(part, ReadableName(engine.name)) ||
        Matches(part, engine.version.value_or(""))) {
      matching.push_back(&engine);
    }
  }
  // Those that find and store nothing come first.
  std::ranges::sort(matching, {}, [](const EngineDescription* engine) {
    return std::pair(engine->open, engine);
  });
  return ListJson(matching, engines.registered, part, [](const EngineDescription* engine) {
    return json{{"engine", engine->engine},
                {"namespace", ReadableName(engine->name)},
                {"version", engine->version.value_or("")},
                {"open", engine->open},
                {"processes", engine->processes}};
  });
}

// Returns the objects that a drain has to do with: those that it has copied, and those that its
// owner still holds. Nothing: other tasks end somewhere in between, and nobody knows where.
std::optional<std::uint64_t> ObjectsOf(const TaskStat& task,
                                       const std::vector<wire::OwnerStat>& owners) {
  if (task.request.kind != TaskKind::kDrain) return std::nullopt;
  const auto owner = std::ranges::find(owners, task.request.from, &wire::OwnerStat::address);
  if (owner == owners.end()) return std::nullopt;
  return task.copied + owner->objects;
}

json TasksJson(std::vector<TaskStat> tasks, const std::vector<wire::OwnerStat>& owners) {
  // Tasks run in their order, so many that wait would hide the one that runs.
  const auto running = std::ranges::find(tasks, TaskState::kRunning, &TaskStat::state);
  if (running != tasks.end()) std::rotate(tasks.begin(), running, running + 1);
  json rows = json::array();
  for (const TaskStat& task : tasks) {
    if (rows.size() == kTaskRows) break;
    rows.push_back(TaskJson(task));
    if (const auto objects = ObjectsOf(task, owners)) rows.back()["objects"] = *objects;
  }
  return rows;
}

// Returns the call whose latency the page draws: the first one that was made in the last hour.
std::optional<std::size_t> ChartedCall(const std::vector<PageHistory::Point>& points) {
  for (std::size_t call = 0; call < PageHistory::kCalls; ++call) {
    for (const PageHistory::Point& point : points) {
      if (point.calls[call].count > 0) return call;
    }
  }
  return std::nullopt;
}

json PointJson(const PageHistory::Point& point, std::optional<std::size_t> call) {
  const auto rate = [&](std::uint64_t count) {
    return point.seconds > 0 ? std::llround(static_cast<double>(count) / point.seconds) : 0;
  };
  const double ratio = point.HitRatio();
  json p99;
  if (call && point.calls[*call].count > 0) p99 = point.calls[*call].p99_us;
  return {point.time_s, ratio < 0 ? json() : json(std::round(1000 * ratio) / 1000),
          rate(point.down_bytes), rate(point.up_bytes), std::move(p99)};
}

json MissesJson(const std::vector<PageHistory::Point>& points) {
  std::vector<json> rows;
  for (std::size_t i = 1; i < kMissReasons; ++i) {
    std::uint64_t hour = 0;
    std::uint64_t minute = 0;
    for (const PageHistory::Point& point : points) {
      hour += point.misses[i];
      if (point.time_s > points.back().time_s - kMinuteS) minute += point.misses[i];
    }
    if (hour == 0) continue;
    const auto reason = static_cast<MissReason>(i);
    rows.push_back({{"reason", MissReasonName(reason)},
                    {"meaning", MeaningOf(reason)},
                    {"alarming", IsAlarming(reason)},
                    {"minute", minute},
                    {"hour", hour}});
  }
  std::ranges::sort(rows, std::greater<>(), [](const json& row) {
    return std::pair(row["hour"].get<std::uint64_t>(), row["minute"].get<std::uint64_t>());
  });
  return json(rows);
}

json CallsJson(const std::vector<PageHistory::Point>& points, const AdminPool::Counts& counts) {
  json rows = json::array();
  for (std::size_t i = 0; i < std::min(counts.calls.size(), PageHistory::kCalls); ++i) {
    std::uint64_t hour = 0;
    std::uint32_t worst_us = 0;
    PageHistory::Call last;
    for (const PageHistory::Point& point : points) {
      hour += point.calls[i].count;
      worst_us = std::max(worst_us, point.calls[i].p99_us);
      if (point.calls[i].count > 0) last = point.calls[i];
    }
    if (hour == 0) continue;
    rows.push_back({{"call", counts.calls[i].first},
                    {"hour", hour},
                    {"p50_us", last.p50_us},
                    {"p99_us", last.p99_us},
                    {"worst_us", worst_us}});
  }
  return rows;
}

// Estimates of fewer values than these say nothing.
constexpr std::uint64_t kAskedEnough = 100;

// Returns the estimates of a tier ("memory" or "disk") from the status of a pool, if it has any.
ExpectedRatios ExpectedOf(const json& status, const char* tier) {
  const json expected = status.value("expected", json::object());
  if (expected.value("asked", std::uint64_t{0}) < kAskedEnough) return {};
  const json ratios = expected.at("hit_ratio").value(tier, json::object());
  const auto of = [&](const char* size) -> std::optional<double> {
    const auto ratio = ratios.find(size);
    if (ratio == ratios.end() || !ratio->is_number()) return std::nullopt;
    return ratio->get<double>();
  };
  return {.half = of("half"),
          .same = of("same"),
          .twice = of("double"),
          .quadruple = of("quadruple"),
          .any = of("any")};
}

std::optional<std::size_t> RefusedHello(const AdminPool::Counts& counts) {
  for (std::size_t i = 0; i < std::min(counts.calls.size(), PageHistory::kCalls); ++i) {
    if (counts.calls[i].first == kRefusedHello) return i;
  }
  return std::nullopt;
}

// Thread-safe.
class PageAnswers {
 public:
  PageAnswers(std::shared_ptr<AdminPool> pool, const PageOptions& options, const Clock& clock)
      : pool_(std::move(pool)), options_(options), clock_(clock) {}

  void Tick() {
    const std::int64_t now_ns = clock_.NowNs();
    if (!history_.Due(now_ns)) return;
    history_.Add(pool_->Owners(), pool_->Count(), now_ns);
  }

  Result<json> Answer(const Request& request) const {
    KVCOVE_ASSIGN(const Part owners_part, PartOf(request, "owners"));
    KVCOVE_ASSIGN(const Part spaces_part, PartOf(request, "namespaces"));
    KVCOVE_ASSIGN(const Part engines_part, PartOf(request, "engines"));
    KVCOVE_ASSIGN(const std::uint64_t points_from, NumberIn(request, "points_from", 0));
    KVCOVE_ASSIGN(const std::vector<SlotDescription> slots, pool_->Namespaces());
    KVCOVE_ASSIGN(const AdminPool::EngineList engines, pool_->Engines(kMaxEngines));
    const AdminPool::Counts counts = pool_->Count();
    const json status = pool_->Status();
    const PageFacts facts{.ready = pool_->Ready(),
                          .owners = pool_->Owners(),
                          .points = history_.Since(0).points,
                          .tasks = pool_->Tasks(),
                          .engines = engines.engines,
                          .refused_hello = RefusedHello(counts),
                          .memory = ExpectedOf(status, "memory"),
                          .disk = ExpectedOf(status, "disk")};
    const Verdict verdict = VerdictOf(facts);
    json answer{{"schema", "kvcove.page.1"},
                {"health", HealthName(verdict.health)},
                {"verdict", verdict.text},
                {"advice", AdviceOf(facts)},
                {"drains", options_.drains},
                {"pool", PoolJson(facts.owners)},
                {"history", HistoryJson(request, points_from, facts.points, counts)},
                {"misses", MissesJson(facts.points)},
                {"calls", CallsJson(facts.points, counts)},
                {"resets", {{"all", counts.resets}, {"not_proven", counts.resets_not_proven}}},
                {"owners", OwnersJson(facts.owners, owners_part)},
                {"namespaces", SpacesJson(*pool_, slots, spaces_part)},
                {"engines", EnginesJson(engines, engines_part)}};
    if (options_.drains) answer["tasks"] = TasksJson(facts.tasks, facts.owners);
    return answer;
  }

 private:
  // Sums over owners that are there: memory of one that is gone can store nothing.
  static json PoolJson(const std::vector<wire::OwnerStat>& owners) {
    wire::OwnerStat sum;
    std::uint64_t live = 0;
    for (const wire::OwnerStat& owner : owners) {
      if (!owner.live) continue;
      ++live;
      sum.capacity_bytes += owner.capacity_bytes;
      sum.free_bytes += owner.free_bytes;
      sum.objects += owner.objects;
      sum.disks += owner.disks;
      sum.disks_aside += owner.disks_aside;
      sum.disk_capacity_bytes += owner.disk_capacity_bytes;
      sum.disk_bytes += owner.disk_bytes;
    }
    return {{"owners", owners.size()},        {"live", live},
            {"capacity", sum.capacity_bytes}, {"free", sum.free_bytes},
            {"objects", sum.objects},         {"disks", sum.disks},
            {"aside", sum.disks_aside},       {"disk_capacity", sum.disk_capacity_bytes},
            {"disk_used", sum.disk_bytes}};
  }

  // The page keeps the points that it has, and asks for later ones. It gets all if its own are
  // those of another process, or have the latency of another call: the two would be one line.
  json HistoryJson(const Request& request, std::uint64_t from,
                   const std::vector<PageHistory::Point>& all,
                   const AdminPool::Counts& counts) const {
    const std::optional<std::size_t> call = ChartedCall(all);
    const std::string of = fmt::format("{:x}.{}", process_, call ? *call : PageHistory::kCalls);
    const PageHistory::Points wanted =
        history_.Since(request.Get("points_of", of) == of ? from : 0);
    json points = json::array();
    for (const PageHistory::Point& point : wanted.points) points.push_back(PointJson(point, call));
    json answer{{"of", of}, {"first", wanted.first}, {"points", std::move(points)}};
    if (call && *call < counts.calls.size()) answer["call"] = counts.calls[*call].first;
    return answer;
  }

  const std::shared_ptr<AdminPool> pool_;
  const PageOptions options_;
  const Clock& clock_;
  PageHistory history_;
  const std::uint64_t process_ = RandomU64();  // stands for this process's points
};

}  // namespace

Page PageOf(std::shared_ptr<AdminPool> pool, const PageOptions& options, const Clock& clock) {
  const auto answers = std::make_shared<PageAnswers>(std::move(pool), options, clock);
  Page page;
  const auto file = [&](const char* path, std::string_view body, const char* type) {
    page.routes.push_back(
        {.method = "GET", .path = path, .open = true, .answer = [body, type](const Request&) {
           return FileResponse(body, type);
         }});
  };
  file("/", kPageHtml, "text/html; charset=utf-8");
  file("/page.css", kPageCss, "text/css; charset=utf-8");
  file("/page.js", kPageJs, "text/javascript; charset=utf-8");
  file("/page.svg", kPageSvg, "image/svg+xml");
  AddRoute(page.routes, "GET", "/v1/page", /*waits=*/true,
           Taking({"points_from", "points_of", "owners_from", "owners_find", "namespaces_from",
                   "namespaces_find", "engines_from", "engines_find"},
                  [answers](const Request& request) { return answers->Answer(request); }));
  page.tick = [answers] { answers->Tick(); };
  return page;
}

}  // namespace kvcove::master
