// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>

#include "kvcove/base/random.h"
#include "kvcove/master/server/admin_json.h"
#include "kvcove/master/server/admin_pool.h"
#include "kvcove/master/server/admin_request.h"
#include "kvcove/master/server/prefix_route.h"

namespace kvcove::master {
namespace {

using http::ErrorResponse;
using http::Request;
using http::Response;
using nlohmann::json;

constexpr std::uint32_t kMaxPage = 1000;
constexpr std::int64_t kPageWalkNs = 2 * kSecond;  // for which a page looks for keys

// Answers the paths; http::Server calls it from its threads. Thread-safe.
class PoolAnswers {
 public:
  PoolAnswers(std::shared_ptr<AdminPool> pool, const Clock& clock)
      : pool_(std::move(pool)), clock_(clock) {}

  Result<json> Segments() const {
    json list = json::array();
    for (const wire::OwnerStat& owner : pool_->Owners()) list.push_back(OwnerJson(owner));
    return json{{"segments", list}};
  }

  Result<json> Namespaces() const {
    json list = json::array();
    KVCOVE_ASSIGN(const std::vector<SlotDescription> slots, pool_->Namespaces());
    const std::vector<std::uint64_t> bytes = pool_->BytesBySlot();
    const std::vector<std::uint64_t> entries = pool_->EntriesBySlot();
    for (const SlotDescription& slot : slots) {
      list.push_back({{"namespace", ReadableName(slot.name)},
                      {"version", slot.version},
                      {"slot", slot.slot},
                      {"generation", slot.generation},
                      {"used", slot.used},
                      {"named", slot.named},
                      {"dead", slot.dead}});
      if (!bytes.empty()) list.back()["bytes"] = bytes[slot.slot];
      if (!entries.empty()) list.back()["entries"] = entries[slot.slot];
    }
    return json{{"namespaces", list}};
  }

  // Lists weight versions, those of a namespace in the order in which engines have named them: what
  // is before one is what a prune with it ends.
  Result<json> Versions(const Request& request) const {
    KVCOVE_ASSIGN(std::vector<SlotDescription> slots, SlotsIn(*pool_, request));
    std::erase_if(slots, [](const SlotDescription& slot) { return slot.version.empty(); });
    std::ranges::sort(slots, {}, [](const SlotDescription& slot) {
      return std::tie(slot.name, slot.order, slot.version);
    });
    const std::vector<std::uint64_t> bytes = pool_->BytesBySlot();
    json list = json::array();
    for (const SlotDescription& slot : slots) {
      list.push_back({{"namespace", ReadableName(slot.name)},
                      {"version", slot.version},
                      {"state", slot.dead    ? "dead"
                                : slot.named ? "in use"
                                             : "unused"}});
      if (!bytes.empty()) list.back()["bytes"] = bytes[slot.slot];
    }
    return json{{"versions", list}};
  }

  Result<json> Engines(const Request& request) const {
    KVCOVE_ASSIGN(const std::uint64_t limit, NumberIn(request, "limit", kMaxPage));
    KVCOVE_ASSIGN(const AdminPool::EngineList engines, pool_->Engines(limit));
    json list = json::array();
    for (const EngineDescription& engine : engines.engines) {
      list.push_back({{"engine", engine.engine},
                      {"namespace", ReadableName(engine.name)},
                      {"version", engine.version.value_or("")},
                      {"open", engine.open},
                      {"processes", engine.processes}});
    }
    return json{{"engines", list}, {"registered", engines.registered}};
  }

  // Lists keys, a page at a time, from one owner after the other, of a named namespace in one
  // weight version after the other. `after`, as `next` of the page before: the index of an owner, a
  // cursor at that owner, and the slot; if owners join or end between two pages, keys may be missed
  // or repeated. For a named namespace the disks are listed, too; a key in both tiers is one entry.
  // Among many other keys a page may have fewer than it could, or none.
  Result<json> Keys(const Request& request) const {
    wire::InventoryRequest page{.with_keys = true};
    if (!request.Get("prefix").empty()) {
      KVCOVE_ASSIGN(page.prefix, TextIn(request, "prefix"));
    }
    std::vector<std::optional<SlotId>> slots{std::nullopt};  // all of them in one walk
    if (request.query.contains("namespace") || request.query.contains("version")) {
      KVCOVE_ASSIGN(const std::vector<SlotDescription> named, SlotsIn(*pool_, request));
      slots.clear();
      for (const SlotDescription& slot : named) slots.emplace_back(slot.slot);
      std::ranges::sort(slots);
      page.disks = true;
    }
    KVCOVE_ASSIGN(const std::uint64_t limit, NumberIn(request, "limit", 100));
    KeyWalk walk{.page = page};
    SlotId from = 0;
    KVCOVE_TRY(ReadAfter(request.Get("after", "0.0.0.0.0"), walk, from));
    std::erase_if(slots,
                  [from](const std::optional<SlotId>& slot) { return slot && *slot < from; });
    walk.most = std::clamp<std::uint64_t>(limit, 1, kMaxPage);
    walk.until_ns = clock_.NowNs() + kPageWalkNs;
    KVCOVE_ASSIGN(const std::vector<SlotDescription> known, pool_->Namespaces());
    for (const SlotDescription& slot : known) walk.names[slot.slot] = slot;
    walk.owners = pool_->Owners();
    json answer{{"keys", json::array()}};
    for (const std::optional<SlotId> slot : slots) {
      // The position that `after` has is one in its own slot, which may be gone by now.
      if (slot && *slot != from) {
        walk.owner = 0;
        walk.page = page;
      }
      walk.page.slot = slot;
      KVCOVE_ASSIGN(const bool whole, AddKeys(walk, answer["keys"]));
      if (whole) continue;
      answer["next"] = fmt::format("{}.{}.{}.{}.{}", walk.owner, walk.page.cursor, walk.page.within,
                                   walk.page.since, slot.value_or(0));
      break;
    }
    return answer;
  }

  // Says which owners have the key, or why no owner has it; in each weight version of the
  // namespace, or of all.
  Result<json> Key(const Request& request) const {
    KVCOVE_ASSIGN(const std::string key, request.Need("key"));
    KVCOVE_TRY(CheckKey(key));
    KVCOVE_ASSIGN(const std::vector<SlotDescription> slots, SlotsIn(*pool_, request));
    const AdminPool::Found found = pool_->Find(slots, key, clock_.NowNs() + 2 * kSecond);
    const std::vector<wire::HeldKey>& own = found.own.empty() ? found.keys : found.own;
    const std::vector<wire::OwnerStat> owners = pool_->Owners();
    json list = json::array();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      json entry = KeyJson(found.keys[i], own[i], found, owners);
      entry["namespace"] = ReadableName(slots[i].name);
      entry["version"] = slots[i].version;
      if (found.keys[i].reason == MissReason::kShardAway) entry["away"] = found.away;
      list.push_back(std::move(entry));
    }
    json answer{{"key", key}, {"in", list}};
    AddPercent(key, answer);
    return answer;
  }

  Result<json> Reset(const Request& request) {
    KVCOVE_TRY(request.Need("namespace"));
    KVCOVE_ASSIGN(const std::vector<SlotDescription> slots, SlotsIn(*pool_, request));
    wire::ResetRequest reset{
        .name = slots.front().name, .engine = {}, .version = {}, .id = RandomId()};
    if (request.query.contains("version")) {
      // An empty one would void all versions.
      KVCOVE_ASSIGN(reset.version, request.Need("version"));
    }
    KVCOVE_ASSIGN(const std::int64_t timeout_ns, ProofTimeIn(request));
    const std::int64_t began = clock_.NowNs();
    KVCOVE_ASSIGN(const wire::ResetOutcome outcome, pool_->Reset(reset, began + timeout_ns));
    return json{{"proven", true},
                {"raised", outcome.raised},
                {"milliseconds", static_cast<double>(clock_.NowNs() - began) * 1e-6}};
  }

  Result<json> Prune(const Request& request) {
    KVCOVE_ASSIGN(const std::string name, PrunedName(request));
    KVCOVE_ASSIGN(const std::string before, request.Need("before"));
    KVCOVE_ASSIGN(const std::int64_t timeout_ns, ProofTimeIn(request));
    const std::int64_t began = clock_.NowNs();
    KVCOVE_ASSIGN(const wire::PruneOutcome outcome,
                  pool_->Prune({.name = name, .before = before}, began + timeout_ns));
    return json{{"proven", true},
                {"versions", outcome.versions},
                {"raised", outcome.raised},
                {"milliseconds", static_cast<double>(clock_.NowNs() - began) * 1e-6}};
  }

  Result<json> Remove(const Request& request) {
    KVCOVE_ASSIGN(std::string pattern, TextIn(request, "pattern"));
    KVCOVE_ASSIGN(const std::string prefix, TextIn(request, "prefix"));
    if (pattern.empty() == prefix.empty()) {
      return Fail(Code::kInvalid, "give 'prefix' or 'pattern', one of them");
    }
    if (!prefix.empty() && prefix.find_first_of("*?") != std::string::npos) {
      return Fail(Code::kInvalid,
                  "this prefix holds '*' or '?', which stand for other bytes in a pattern; if that "
                  "is meant, give it as 'pattern', with a '*' at its end");
    }
    if (pattern.empty()) pattern = prefix + "*";
    KVCOVE_TRY(request.Need("namespace"));
    KVCOVE_ASSIGN(const std::vector<SlotDescription> slots, SlotsIn(*pool_, request));
    std::uint64_t removed = 0;
    for (const SlotDescription& slot : slots) {
      KVCOVE_ASSIGN(const std::uint64_t count,
                    pool_->Remove(slot, pattern, clock_.NowNs() + 10 * kSecond));
      removed += count;
    }
    return json{{"removed", removed}};
  }

  Result<json> Pin(const Request& request) {
    KVCOVE_ASSIGN(PinRequest pins, PinsOf(request));
    KVCOVE_TRY(request.Need("seconds"));
    KVCOVE_ASSIGN(const std::uint64_t seconds, NumberIn(request, "seconds", 0));
    constexpr std::uint64_t kLongest = std::chrono::seconds(kLongestHardPin).count();
    if (seconds > kLongest) {
      return Fail(Code::kInvalid,
                  fmt::format("seconds={}: a pin ends after {} seconds at most; 0 stands for a pin "
                              "without an end",
                              seconds, kLongest));
    }
    pins.kind = wire::PinKind::kHard;
    pins.duration_ns = static_cast<std::int64_t>(seconds) * kSecond;
    KVCOVE_ASSIGN(const PinCounts counts, pool_->Pin(pins, clock_.NowNs() + 10 * kSecond));
    return json{{"pinned", counts.done}, {"refused", counts.refused}};
  }

  Result<json> Unpin(const Request& request) {
    KVCOVE_ASSIGN(const PinRequest pins, PinsOf(request));
    KVCOVE_ASSIGN(const PinCounts counts, pool_->Pin(pins, clock_.NowNs() + 10 * kSecond));
    return json{{"unpinned", counts.done}};
  }

  Result<json> ListTasks() const {
    json list = json::array();
    for (const TaskStat& task : pool_->Tasks()) list.push_back(TaskJson(task));
    return json{{"tasks", list}};
  }

 private:
  // Where a page of keys is, and what its entries need.
  struct KeyWalk {
    wire::InventoryRequest page;
    std::size_t owner = 0;
    std::uint64_t most = 0;
    std::int64_t until_ns = 0;
    std::vector<wire::OwnerStat> owners;
    std::map<SlotId, SlotDescription> names;
  };

  // Reads where a page has ended: five numbers with dots between them.
  static Status ReadAfter(std::string_view after, KeyWalk& walk, SlotId& from) {
    const auto read = [&after](auto& number, bool last) {
      const char* const end = after.data() + after.size();
      const auto [stop, error] = std::from_chars(after.data(), end, number);
      const bool valid = error == std::errc() && (last ? stop == end : stop != end && *stop == '.');
      if (valid)
        after.remove_prefix(static_cast<std::size_t>(stop - after.data()) + (last ? 0 : 1));
      return valid;
    };
    if (read(walk.owner, false) && read(walk.page.cursor, false) && read(walk.page.within, false) &&
        read(walk.page.since, false) && read(from, true)) {
      return {};
    }
    return Fail(Code::kInvalid, "'after' must be the 'next' of an earlier answer");
  }

  // Adds keys until the page is full or its time is over. Returns whether all owners were asked for
  // all of theirs.
  Result<bool> AddKeys(KeyWalk& walk, json& keys) const {
    wire::InventoryRequest& page = walk.page;
    const std::int64_t deadline_ns = clock_.NowNs() + 5 * kSecond;
    for (; walk.owner < walk.owners.size();
         ++walk.owner, page.cursor = 0, page.within = 0, page.since = 0) {
      const wire::OwnerStat& owner = walk.owners[walk.owner];
      if (!owner.live) continue;
      KVCOVE_ASSIGN(const AdminPool::AskPage ask, pool_->PagesOf(owner));
      while (page.cursor != wire::kInventoryDone && keys.size() < walk.most &&
             clock_.NowNs() < walk.until_ns) {
        page.at_most = static_cast<std::uint32_t>(walk.most - keys.size());
        KVCOVE_ASSIGN(const wire::InventoryReply got, ask(page, deadline_ns));
        for (const wire::HeldObject& object : got.objects) {
          keys.push_back(HeldJson(object, walk.names[object.slot], owner));
        }
        page.cursor = got.cursor;
        page.within = got.within;
        page.since = got.since;
      }
      if (page.cursor != wire::kInventoryDone) return false;
    }
    return true;
  }

  // Returns the namespace of a request, qualified by its tenant. It may have no slot now: its
  // versions have an order all the same.
  Result<std::string> PrunedName(const Request& request) const {
    KVCOVE_ASSIGN(const std::string name, request.Need("namespace"));
    KVCOVE_ASSIGN(std::vector<std::string> known, pool_->VersionedNames());
    KVCOVE_ASSIGN(const std::vector<SlotDescription> slots, pool_->Namespaces());
    for (const SlotDescription& slot : slots) known.push_back(slot.name);
    std::set<std::string> meant;
    for (const std::string& one : known) {
      if (ReadableName(one) == name) meant.insert(one);
    }
    KVCOVE_TRY(CheckOne(meant));
    if (meant.empty()) return NoSuchName(name, known);
    return *meant.begin();
  }
  // Returns the values that a request to pin or unpin names.
  Result<PinRequest> PinsOf(const Request& request) const {
    PinRequest pins{.slots = {}, .key = {}, .prefix = {}, .kind = {}};
    KVCOVE_ASSIGN(pins.key, TextIn(request, "key"));
    KVCOVE_ASSIGN(pins.prefix, TextIn(request, "prefix"));
    if (pins.key.empty() == pins.prefix.empty()) {
      return Fail(Code::kInvalid, "give 'key' or 'prefix', one of them");
    }
    KVCOVE_TRY(request.Need("namespace"));
    KVCOVE_ASSIGN(pins.slots, SlotsIn(*pool_, request));
    return pins;
  }

  const std::shared_ptr<AdminPool> pool_;
  const Clock& clock_;
};

http::Route Text(const char* path, std::function<Response(const Request&)> answer) {
  return {.method = "GET", .path = path, .open = true, .answer = std::move(answer)};
}

}  // namespace

void AddRoute(std::vector<http::Route>& routes, const char* method, const std::string& path,
              bool waits, std::function<Result<json>(const Request&)> answer) {
  routes.push_back({.method = method,
                    .path = path,
                    .open = false,
                    .waits = waits,
                    .answer = [answer = std::move(answer)](const Request& request) {
                      const Result<json> body = answer(request);
                      return body ? http::JsonResponse(*body) : ErrorResponse(body.error());
                    }});
}

std::vector<http::Route> PoolRoutes(const std::shared_ptr<AdminPool>& pool, const Clock& clock) {
  const auto answers = std::make_shared<PoolAnswers>(pool, clock);
  // On the loop unless it may wait: resets that wait for their proof may keep all workers.
  const bool waits_here = pool->AnswersWait();
  std::vector<http::Route> routes;
  routes.push_back(Text(
      "/healthz", [](const Request&) { return Response{.body = "ok\n", .type = "text/plain"}; }));
  routes.push_back(Text("/readyz", [pool](const Request&) {
    const AdminPool::Readiness now = pool->Ready();
    return Response{.status = now.ready ? 200 : 503, .body = now.text + "\n", .type = "text/plain"};
  }));
  http::Route metrics = Text("/metrics", [pool](const Request&) {
    return Response{.body = pool->Metrics(), .type = "text/plain; version=0.0.4"};
  });
  metrics.open = false;
  metrics.metrics = true;
  metrics.waits = waits_here;
  routes.push_back(std::move(metrics));
  using Names = std::vector<std::string_view>;
  const auto add = [&](const char* method, const char* path, bool waits, Names parameters,
                       JsonAnswer answer) {
    AddRoute(routes, method, path, waits, Taking(std::move(parameters), std::move(answer)));
  };
  add("GET", "/v1/status", waits_here, {},
      [pool](const Request&) -> Result<json> { return pool->Status(); });
  add("GET", "/v1/segments", waits_here, {},
      [answers](const Request&) { return answers->Segments(); });
  add("GET", "/v1/namespaces", waits_here, {},
      [answers](const Request&) { return answers->Namespaces(); });
  add("GET", "/v1/versions", waits_here, {"namespace", "version"},
      [answers](const Request& request) { return answers->Versions(request); });
  add("GET", "/v1/engines", waits_here, {"limit"},
      [answers](const Request& request) { return answers->Engines(request); });
  add("GET", "/v1/keys", true, {"namespace", "version", "prefix", "limit", "after"},
      [answers](const Request& request) { return answers->Keys(request); });
  add("GET", "/v1/key", true, {"key", "namespace", "version"},
      [answers](const Request& request) { return answers->Key(request); });
  add("POST", kPrefixPath, true, {},  // its body is its own
      [pool](const Request& request) { return AnswerPrefix(*pool, request); });
  routes.back().body_bytes = kMaxPrefixBody;
  add("GET", "/v1/tasks", false, {}, [answers](const Request&) { return answers->ListTasks(); });
  add("POST", "/v1/reset", true, {"namespace", "version", "timeout_ms"},
      [answers](const Request& request) { return answers->Reset(request); });
  add("POST", "/v1/prune", true, {"namespace", "before", "timeout_ms"},
      [answers](const Request& request) { return answers->Prune(request); });
  add("POST", "/v1/remove", true, {"namespace", "version", "prefix", "pattern"},
      [answers](const Request& request) { return answers->Remove(request); });
  add("POST", "/v1/pin", true, {"namespace", "version", "key", "prefix", "seconds"},
      [answers](const Request& request) { return answers->Pin(request); });
  add("POST", "/v1/unpin", true, {"namespace", "version", "key", "prefix"},
      [answers](const Request& request) { return answers->Unpin(request); });
  return routes;
}

}  // namespace kvcove::master
