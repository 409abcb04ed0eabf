// SPDX-License-Identifier: Apache-2.0
#include "kvcove/top/sample.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kvcove/base/text.h"
#include "kvcove/top/metrics_text.h"

namespace kvcove::top {
namespace {

using nlohmann::json;

std::string TextOf(const json& object, const char* field) {
  const auto at = object.find(field);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

// A number below zero, or with a fraction, is no counter: it counts as missing.
std::optional<std::uint64_t> CounterIn(const json& object, const char* field) {
  const auto at = object.find(field);
  if (at == object.end() || !at->is_number_unsigned()) return std::nullopt;
  return at->get<std::uint64_t>();
}

std::uint64_t NumberIn(const json& object, const char* field) {
  return CounterIn(object, field).value_or(0);
}

// Parses the answer of one path. A null value: the endpoint does not have the path.
Result<json> BodyOf(const Answers& answers, const char* path) {
  const auto at = answers.bodies.find(path);
  if (at == answers.bodies.end()) return json();
  json body = json::parse(at->second, nullptr, /*allow_exceptions=*/false);
  if (body.is_object()) return body;
  return Fail(Code::kCorrupt,
              fmt::format("{} answers {} with something that is no JSON object; does 'kvcove' "
                          "serve this port?",
                          answers.endpoint, path));
}

// Calls `take` for each object of the list `field`. False: the answer has no such list.
template <typename Take>
bool ForEachIn(const json& body, const char* field, Take&& take) {
  const auto list = body.find(field);
  if (!body.is_object() || list == body.end() || !list->is_array()) return false;
  for (const json& item : *list) {
    if (item.is_object()) take(item);
  }
  return true;
}

Owner OwnerFrom(const json& item) {
  Owner owner{.address = TextOf(item, "address"),
              .host = TextOf(item, "host"),
              .tenant = TextOf(item, "tenant"),
              .state = TextOf(item, "state"),
              .capacity_bytes = NumberIn(item, "capacity_bytes"),
              .free_bytes = NumberIn(item, "free_bytes"),
              .objects = NumberIn(item, "objects"),
              .disk_capacity_bytes = NumberIn(item, "disk_capacity_bytes"),
              .disk_bytes = NumberIn(item, "disk_bytes"),
              .disks = NumberIn(item, "disks"),
              .disks_aside = NumberIn(item, "disks_aside"),
              .hits = CounterIn(item, "hits"),
              .hit_bytes = CounterIn(item, "hit_bytes"),
              .put_bytes = CounterIn(item, "put_bytes"),
              .evictions = CounterIn(item, "evictions"),
              .disk_hits = CounterIn(item, "disk_hits"),
              .disk_hit_bytes = CounterIn(item, "disk_hit_bytes")};
  if (item.contains("lease_age_ms")) {
    owner.lease_age_s = static_cast<double>(NumberIn(item, "lease_age_ms")) * 1e-3;
  }
  return owner;
}

Task TaskFrom(const json& item) {
  const auto seconds = item.find("seconds");
  return {.id = NumberIn(item, "id"),
          .kind = TextOf(item, "kind"),
          .state = TextOf(item, "state"),
          .from = TextOf(item, "from"),
          .to = TextOf(item, "to"),
          .copied = NumberIn(item, "copied"),
          .copied_bytes = NumberIn(item, "copied_bytes"),
          .left = NumberIn(item, "left"),
          .seconds = seconds != item.end() && seconds->is_number() ? seconds->get<double>() : 0.0};
}

Engine EngineFrom(const json& item) {
  const auto open = item.find("open");
  const bool is_open = open == item.end() || !open->is_boolean() || open->get<bool>();
  return {.name = TextOf(item, "engine"),
          .space = TextOf(item, "namespace"),
          .version = TextOf(item, "version"),
          .state = is_open ? "open" : "must reset"};
}

Namespace NamespaceFrom(const json& item) {
  Namespace space{.name = TextOf(item, "namespace"),
                  .version = TextOf(item, "version"),
                  .bytes = CounterIn(item, "bytes"),
                  .dead = {}};
  if (const auto dead = item.find("dead"); dead != item.end() && dead->is_boolean()) {
    space.dead = dead->get<bool>();
  }
  return space;
}

// Reads the paths that a master has.
Status AddMaster(const Answers& answers, Sample& sample) {
  KVCOVE_ASSIGN(const json status, BodyOf(answers, "/v1/status"));
  if (status.is_object()) {
    sample.role = TextOf(status, "role");
    sample.term = NumberIn(status, "term");
  }
  KVCOVE_ASSIGN(const json segments, BodyOf(answers, "/v1/segments"));
  std::vector<Owner> owners;
  if (ForEachIn(segments, "segments", [&](const json& one) { owners.push_back(OwnerFrom(one)); })) {
    sample.owners = std::move(owners);
  }
  KVCOVE_ASSIGN(const json namespaces, BodyOf(answers, "/v1/namespaces"));
  std::vector<Namespace> spaces;
  if (ForEachIn(namespaces, "namespaces",
                [&](const json& one) { spaces.push_back(NamespaceFrom(one)); })) {
    sample.namespaces = std::move(spaces);
  }
  KVCOVE_ASSIGN(const json registered, BodyOf(answers, "/v1/engines"));
  std::vector<Engine> engines;
  if (ForEachIn(registered, "engines",
                [&](const json& one) { engines.push_back(EngineFrom(one)); })) {
    sample.engines = std::move(engines);
    sample.registered = NumberIn(registered, "registered");
  }
  KVCOVE_ASSIGN(const json listed, BodyOf(answers, "/v1/tasks"));
  std::vector<Task> tasks;
  if (ForEachIn(listed, "tasks", [&](const json& one) { tasks.push_back(TaskFrom(one)); })) {
    sample.tasks = std::move(tasks);
  }
  return {};
}

// The metrics of one endpoint, summed over the labels that the view does not show.
struct Figures {
  std::map<std::string, std::uint64_t> requester_misses;
  std::map<std::string, std::uint64_t> local_misses;
  std::map<std::string, Times> calls;
  std::map<std::string, std::uint64_t> counters;
  Expected expected;
  bool has_owner = false;
  Owner owner;
  // Each owner of a host follows the same resets.
  std::uint64_t owner_resets = 0;
};

// Returns a counter of the metrics, which another process may have written: also one that is no
// number, or that 64 bits do not hold.
std::uint64_t CountOf(double value) {
  return value > 0 ? static_cast<std::uint64_t>(std::min(value, 0x1p63)) : 0;
}

// The counters that are shown as they are, by metric.
constexpr std::pair<const char*, std::string_view> kCounters[] = {
    {"resets", "kvcove_master_resets_total"},
    {"resets not proven", "kvcove_master_resets_not_proven_total"},
    {"prunes", "kvcove_master_prunes_total"},
    {"prunes not proven", "kvcove_master_prunes_not_proven_total"},
    {"refused calls", "kvcove_master_refused_calls_total"},
    {"refused calls", "kvcove_owner_refused_calls_total"},
};

// Returns the name of the call that a histogram's bucket belongs to; empty: none that is shown.
std::string CallOf(std::string_view metric, const Labels& labels) {
  const auto call = labels.find("call");
  std::string of = call == labels.end() ? std::string() : call->second;
  if (metric == "kvcove_master_call_seconds_bucket") return of;
  if (metric == "kvcove_owner_call_seconds_bucket") return "remote " + of;
  if (metric == "kvcove_owner_reset_seconds_bucket") return "local reset";
  if (metric == "kvcove_owner_disk_read_seconds_bucket") return "disk read";
  if (metric == "kvcove_owner_disk_write_seconds_bucket") return "disk write";
  return {};
}

std::string LabelOf(const Labels& labels, const char* name) {
  const auto at = labels.find(name);
  return at == labels.end() ? std::string() : at->second;
}

// Takes a figure of an owner about itself; those with tier="disk" have a series for each disk.
void AddToOwner(std::string_view name, const Labels& labels, double value, Owner& owner) {
  constexpr std::string_view kPrefix = "kvcove_owner_";
  const std::string_view figure = name.substr(kPrefix.size());
  const bool disk = LabelOf(labels, "tier") == "disk" || labels.contains("disk");
  const std::uint64_t count = CountOf(value);
  if (figure == "capacity_bytes")
    (disk ? owner.disk_capacity_bytes : owner.capacity_bytes) += count;
  if (figure == "capacity_bytes" && disk) ++owner.disks;
  if (figure == "free_bytes") owner.free_bytes = count;
  if (figure == "objects" && !disk) owner.objects = count;
  if (figure == "object_bytes" && disk) owner.disk_bytes += count;
  if (figure == "disk_aside") owner.disks_aside += count;
  if (figure == "hits_total") owner.hits = count;
  if (figure == "hit_bytes_total") owner.hit_bytes = count;
  if (figure == "put_bytes_total") owner.put_bytes = count;
  if (figure == "evictions_total") owner.evictions = count;
  if (figure == "disk_hits_total") owner.disk_hits = owner.disk_hits.value_or(0) + count;
  if (figure == "disk_hit_bytes_total")
    owner.disk_hit_bytes = owner.disk_hit_bytes.value_or(0) + count;
  if (figure == "lease_seconds") owner.lease_left_s = value;
}

void AddToExpected(std::string_view name, const Labels& labels, std::uint64_t count,
                   Expected& expected) {
  if (name == "kvcove_owner_expected_asked_total") expected.asked += count;
  if (name == "kvcove_owner_distinct_values") expected.distinct += count;
  if (name != "kvcove_owner_expected_hits_total") return;
  const bool disk = LabelOf(labels, "tier") == "disk";
  (disk ? expected.disk : expected.memory)[LabelOf(labels, "size")] += count;
}

void Add(const Expected& more, Expected& sum) {
  sum.asked += more.asked;
  sum.distinct += more.distinct;
  for (const auto& [size, hits] : more.memory) sum.memory[size] += hits;
  for (const auto& [size, hits] : more.disk) sum.disk[size] += hits;
}

std::map<std::string, double> RatiosOf(const std::map<std::string, std::uint64_t>& hits,
                                       std::uint64_t asked) {
  std::map<std::string, double> ratios;
  if (asked == 0) return ratios;
  for (const auto& [size, count] : hits) {
    ratios[size] = static_cast<double>(count) / static_cast<double>(asked);
  }
  return ratios;
}

Figures FiguresOf(const std::string& metrics) {
  Figures figures;
  const auto wanted = [](std::string_view name) {
    return name.starts_with("kvcove_owner_") || name == "kvcove_requester_misses_total" ||
           name == "kvcove_master_call_seconds_bucket" ||
           std::ranges::find(kCounters, name, [](const auto& one) { return one.second; }) !=
               std::end(kCounters);
  };
  ReadMetrics(metrics, wanted, [&](std::string_view name, const Labels& labels, double value) {
    const std::uint64_t count = CountOf(value);
    if (name == "kvcove_requester_misses_total") {
      figures.requester_misses[LabelOf(labels, "reason")] += count;
    } else if (name == "kvcove_owner_local_misses_total") {
      figures.local_misses[LabelOf(labels, "reason")] += count;
    } else if (const std::string call = CallOf(name, labels); !call.empty()) {
      const double bound = NumberOf<double>(LabelOf(labels, "le")).value_or(INFINITY);
      if (!std::isnan(bound)) figures.calls[call].up_to[bound] += count;
    }
    for (const auto& [shown, metric] : kCounters) {
      if (name == metric) figures.counters[shown] += count;
    }
    if (name == "kvcove_owner_resets_total") {
      figures.owner_resets = std::max(figures.owner_resets, count);
    }
    if (name.starts_with("kvcove_owner_")) {
      figures.has_owner = true;
      AddToOwner(name, labels, value, figures.owner);
      AddToExpected(name, labels, count, figures.expected);
    }
  });
  return figures;
}

// Adds what an owner alone says about itself.
Status AddOwner(const Answers& answers, Owner owner, Sample& sample) {
  owner.address = answers.endpoint;
  owner.state = owner.lease_left_s.value_or(1) > 0 ? "live" : "no lease";
  if (!sample.owners) sample.owners.emplace();
  sample.owners->push_back(std::move(owner));
  KVCOVE_ASSIGN(const json stat, BodyOf(answers, "/v1/stat"));
  std::vector<Namespace> spaces;
  if (ForEachIn(stat, "namespaces",
                [&](const json& one) { spaces.push_back(NamespaceFrom(one)); })) {
    if (!sample.namespaces) sample.namespaces.emplace();
    std::map<std::string, std::size_t> known;
    for (std::size_t i = 0; i < sample.namespaces->size(); ++i) {
      known[(*sample.namespaces)[i].name] = i;
    }
    for (Namespace& space : spaces) {
      const auto [at, added] = known.try_emplace(space.name, sample.namespaces->size());
      if (added) {
        sample.namespaces->push_back(std::move(space));
      } else {
        std::optional<std::uint64_t>& bytes = (*sample.namespaces)[at->second].bytes;
        bytes = bytes.value_or(0) + space.bytes.value_or(0);
      }
    }
  }
  std::vector<Engine> engines;
  if (ForEachIn(stat, "sessions", [&](const json& one) {
        engines.push_back(
            {.name = fmt::format("process {}", NumberIn(one, "pid")),
             .state = fmt::format("{} objects being read", NumberIn(one, "protected_objects"))});
      })) {
    if (!sample.engines) sample.engines.emplace();
    std::ranges::move(engines, std::back_inserter(*sample.engines));
  }
  return {};
}

// Takes the counters that the paths of a host leave out from its metrics.
void Complete(const Owner& metrics, Owner& owner) {
  for (const auto counter : {&Owner::hits, &Owner::hit_bytes, &Owner::put_bytes, &Owner::evictions,
                             &Owner::disk_hits, &Owner::disk_hit_bytes}) {
    if (!(owner.*counter)) owner.*counter = metrics.*counter;
  }
}

// Returns the master that leads, else the first endpoint with a status; null: there is none.
const Answers* LeaderOf(const std::vector<Answers>& endpoints) {
  const Answers* first = nullptr;
  for (const Answers& one : endpoints) {
    const Result<json> status = BodyOf(one, "/v1/status");
    if (!status || !status->is_object()) continue;
    if (TextOf(*status, "role").starts_with("leader")) return &one;
    if (first == nullptr) first = &one;
  }
  return first;
}

}  // namespace

std::optional<double> Times::Quantile(double part) const {
  const std::uint64_t all = count();
  if (all == 0) return std::nullopt;
  const double rank = part * static_cast<double>(all);
  double lower = 0;
  std::uint64_t below = 0;
  for (const auto& [bound, calls] : up_to) {
    if (static_cast<double>(calls) >= rank && calls > below) {
      if (std::isinf(bound)) return lower;
      return lower + (bound - lower) * (rank - static_cast<double>(below)) /
                         static_cast<double>(calls - below);
    }
    lower = bound;
    below = calls;
  }
  return lower;
}

void Times::Add(const Times& other) {
  for (const auto& [bound, calls] : other.up_to) up_to[bound] += calls;
}

Times Times::Since(const Times& before) const {
  Times since;
  for (const auto& [bound, calls] : up_to) {
    const auto at = before.up_to.find(bound);
    const std::uint64_t earlier = at == before.up_to.end() ? 0 : at->second;
    since.up_to[bound] = calls - std::min(calls, earlier);
  }
  return since;
}

std::map<std::string, double> Expected::OfMemory() const {
  std::map<std::string, double> ratios = RatiosOf(memory, asked);
  // Each value is missed once, when it is asked for first.
  if (!ratios.empty()) {
    ratios["any"] =
        static_cast<double>(asked - std::min(asked, distinct)) / static_cast<double>(asked);
  }
  return ratios;
}

std::map<std::string, double> Expected::OfDisk() const { return RatiosOf(disk, asked); }

Result<Sample> MakeSample(const std::vector<Answers>& endpoints) {
  Sample sample;
  const Answers* const leader = LeaderOf(endpoints);
  if (leader != nullptr) KVCOVE_TRY(AddMaster(*leader, sample));
  const bool owners_known = sample.owners.has_value();
  std::map<std::string, std::uint64_t> local_misses;
  std::optional<std::uint64_t> owner_resets;
  for (const Answers& one : endpoints) {
    const bool other_master = &one != leader && one.bodies.contains("/v1/status");
    const auto metrics = one.bodies.find("/metrics");
    if (other_master || metrics == one.bodies.end()) continue;
    const Figures figures = FiguresOf(metrics->second);
    sample.summed.push_back(one.endpoint);
    for (const auto& [call, times] : figures.calls) sample.calls[call].Add(times);
    for (const auto& [name, count] : figures.counters) sample.counters[name] += count;
    Add(figures.expected, sample.expected);
    for (const auto& [reason, count] : figures.requester_misses) sample.misses[reason] += count;
    for (const auto& [reason, count] : figures.local_misses) local_misses[reason] += count;
    if (!figures.has_owner) continue;
    owner_resets = std::max(owner_resets.value_or(0), figures.owner_resets);
    if (!owners_known) {
      KVCOVE_TRY(AddOwner(one, figures.owner, sample));
    } else if (&one == leader && sample.owners->size() == 1) {
      Complete(figures.owner, sample.owners->front());
    }
  }
  // Keys that a host's processes miss in its own memory may be found at another host, so these
  // count only where no master knows the final reasons.
  if (sample.misses.empty()) sample.misses = std::move(local_misses);
  // Likewise the resets that owners have followed.
  if (owner_resets) sample.counters.try_emplace("resets", *owner_resets);
  if (sample.role.empty()) sample.role = "owner";
  return sample;
}

}  // namespace kvcove::top
