// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/why_not.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>

#include "kvcove/base/keys.h"
#include "kvcove/cli/admin_client.h"
#include "kvcove/cli/command.h"
#include "kvcove/cli/find_pool.h"
#include "kvcove/cli/tables.h"
#include "kvcove/pool/host_status.h"
#include "kvcove/pool/pool.h"

namespace kvcove::cli {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kFactsSpace = "kvcove-facts";  // as the engines' adapters call it
constexpr std::string_view kFactsKey = "engine ";    // begins the key of an engine's facts
constexpr std::size_t kMostFactsBytes = 64 << 10;    // of one engine's facts
constexpr std::string_view kUnixScheme = "unix:";

struct WhyNotOptions {
  std::string engines[2];
  std::string pool;
  PoolChoice endpoint;
  AdminAccessOptions access;
  std::uint32_t timeout_ms = 3000;
  std::chrono::milliseconds timeout() const { return std::chrono::milliseconds(timeout_ms); }
  // Returns the pool that has the facts: as everywhere, a flag goes over a variable, and a socket
  // over $KVCOVE_POOL.
  std::string address() const {
    const char* const variable = std::getenv("KVCOVE_POOL");
    const bool flag = !pool.empty() && (variable == nullptr || pool != variable);
    if (!flag && !endpoint.socket.empty()) return std::string(kUnixScheme) + endpoint.socket;
    return pool.empty() ? std::string(kUnixScheme) + DefaultSocketPath() : pool;
  }
};

// Returns the names of the engines that have left facts.
Result<std::vector<std::string>> EnginesIn(Session& session, const WhyNotOptions& options) {
  KVCOVE_ASSIGN(const std::vector<StoredObject> stored,
                session.List(kFactsKey, {.timeout = options.timeout()}));
  std::vector<std::string> engines;
  for (const StoredObject& object : stored) engines.push_back(object.key.substr(kFactsKey.size()));
  return engines;
}

// Returns the one engine whose name begins so.
Result<std::string> EngineNamed(Session& session, const std::string& named,
                                const WhyNotOptions& options) {
  KVCOVE_ASSIGN(const std::vector<std::string> engines, EnginesIn(session, options));
  std::vector<std::string> found;
  for (const std::string& engine : engines) {
    if (engine.starts_with(named)) found.push_back(engine);
  }
  if (found.size() == 1) return found.front();
  if (!found.empty()) {
    return Fail(Code::kInvalid, fmt::format("{} engines begin with '{}'; give more of the name",
                                            found.size(), named));
  }
  const std::vector<std::string_view> views(engines.begin(), engines.end());
  const std::string_view nearest = NearestKey(named, views);
  return Fail(
      Code::kMiss,
      fmt::format("no engine '{}' has left its facts in this pool{}; 'kvcove engines' lists "
                  "those that are registered. A registered engine without facts may not write to "
                  "this pool, or its facts were evicted: start it again",
                  named, nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest)));
}

Result<EngineFacts> FactsOf(Session& session, const std::string& engine,
                            const WhyNotOptions& options) {
  const std::string key = std::string(kFactsKey) + engine;
  std::string text(kMostFactsBytes, '\0');
  const MutableBuffer piece{.data = text.data(), .size = text.size()};
  const GetItem item{.key = key, .into = {&piece, 1}};
  ItemResult result;
  KVCOVE_TRY(session.Get({&item, 1}, {&result, 1}, {.timeout = options.timeout()}));
  if (result.ok()) return ParseFacts(engine, std::string_view(text).substr(0, result.bytes));
  if (result.code != Code::kMiss) return Fail(result.code, fmt::format("reading '{}'", key));
  KVCOVE_ASSIGN(const std::string meant, EngineNamed(session, engine, options));
  if (meant == engine) return Fail(Code::kUnavailable, "its facts cannot be read now");
  return FactsOf(session, meant, options);
}

// Returns the admin endpoint of the pool, if it is named or announced.
Result<AdminClient> EndpointFor(const Pool& pool, const WhyNotOptions& options) {
  if (!options.endpoint.admin.empty() || !options.endpoint.socket.empty()) {
    KVCOVE_ASSIGN(const Endpoint endpoint, FindEndpoint(options.endpoint, options.access));
    return AdminClient::Open(endpoint, options.access);
  }
  const std::string address = options.address();
  if (address.starts_with(kUnixScheme)) {
    const std::string socket =
        address.substr(kUnixScheme.size(), address.find('?') - kUnixScheme.size());
    KVCOVE_ASSIGN(const std::string endpoint, EndpointOf(socket));
    return AdminClient::Open({endpoint}, options.access);
  }
  const std::string admin = pool.Settings().admin;
  if (!admin.empty()) return AdminClient::Open({admin}, options.access);
  return Fail(Code::kUnavailable, "the pool announces no admin endpoint; name it with --admin");
}

// Adds what the endpoint knows of the engines' weights.
Status AddWeights(const AdminClient& client, std::span<EngineFacts> engines) {
  KVCOVE_ASSIGN(const json body, client.Json("GET", "/v1/engines", {{"limit", "1000000"}}));
  for (const json& row : body.at("engines")) {
    const std::string name = TextOf(row.at("namespace"));
    for (EngineFacts& engine : engines) {
      if (TextOf(row.at("engine")) != engine.engine) continue;
      // With credentials the name has the tenant before it.
      if (name != engine.name_space && !name.ends_with(":" + engine.name_space)) continue;
      engine.version = TextOf(row.value("version", json("")));
      engine.open = row.value("open", json(true)) != json(false);  // earlier builds do not say
    }
  }
  return {};
}

json Described(const EngineFacts& engine) {
  json described{{"engine", engine.engine},
                 {"kind", engine.kind},
                 {"namespace", engine.name_space},
                 {"registered", engine.version.has_value()}};
  if (engine.version) described["version"] = *engine.version;
  if (engine.open) described["open"] = *engine.open;
  return described;
}

void PrintEngine(const EngineFacts& engine) {
  fmt::print("{}: {}, namespace {}{}\n", TextOf(engine.engine), TextOf(engine.kind),
             TextOf(engine.name_space),
             !engine.version           ? ", not registered now"
             : engine.version->empty() ? std::string()
                                       : fmt::format(", weights {}", TextOf(*engine.version)));
}

Result<int> RunWhyNot(const WhyNotOptions& options) {
  KVCOVE_ASSIGN(const std::unique_ptr<Pool> pool, Pool::Open(options.address(), options.timeout()));
  if (pool->form() == "embedded") {
    return Fail(Code::kInvalid,
                "no pool is found that engines could share; name it with --pool unix:PATH or "
                "--pool kvcove://HOST:PORT");
  }
  KVCOVE_ASSIGN(const SessionPtr session,
                pool->OpenSession({.name = kFactsSpace, .follow_always = true}));
  std::vector<EngineFacts> engines;
  for (const std::string& engine : options.engines) {
    KVCOVE_ASSIGN(engines.emplace_back(), FactsOf(*session, engine, options));
  }
  Status weights;
  if (const auto client = EndpointFor(*pool, options)) {
    weights = AddWeights(*client, engines);
  } else {
    weights = std::unexpected(client.error());
  }
  const std::vector<Difference> differences = DifferencesOf(engines[0], engines[1]);
  const int status = differences.empty() ? 0 : 1;
  if (options.access.as_json) {
    json list = json::array();
    for (const Difference& each : differences) {
      list.push_back(
          {{"fact", each.fact}, {"one", each.one}, {"other", each.other}, {"advice", each.advice}});
    }
    json body{{"schema", "kvcove.why-not.1"},
              {"engines", {Described(engines[0]), Described(engines[1])}},
              {"shares", differences.empty()},
              {"differences", list}};
    if (!weights) body["weights_unknown"] = weights.error().detail;
    fmt::print("{}\n", body.dump(-1, ' ', false, json::error_handler_t::replace));
    return status;
  }
  for (const EngineFacts& engine : engines) PrintEngine(engine);
  fmt::print("{}\n", differences.empty() ? "they share" : "they do not share:");
  for (const Difference& each : differences) {
    fmt::print("  {}: {} and {}; {}\n", TextOf(each.fact), TextOf(each.one), TextOf(each.other),
               TextOf(each.advice));
  }
  if (!weights) {
    fmt::print("their weights are not known: {}\n", weights.error().detail);
  } else if (differences.empty() && !(engines[0].version && engines[1].version)) {
    fmt::print("if their weights are equal: an engine that is not registered has none now\n");
  }
  return status;
}

}  // namespace

Result<EngineFacts> ParseFacts(const std::string& engine, std::string_view text) {
  const ordered_json parsed = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto corrupt = [&] {
    return Fail(Code::kCorrupt, fmt::format("the facts of engine '{}' cannot be read: another "
                                            "program has stored them, or a later version",
                                            engine));
  };
  if (!parsed.is_object()) return corrupt();
  const ordered_json kind = parsed.value("kind", ordered_json());
  const ordered_json name_space = parsed.value("namespace", ordered_json());
  if (!kind.is_string() || !name_space.is_string()) return corrupt();
  EngineFacts facts{.engine = engine,
                    .kind = kind.get<std::string>(),
                    .name_space = name_space.get<std::string>(),
                    .facts = parsed.value("facts", ordered_json()),
                    .advice = parsed.value("advice", ordered_json())};
  const auto strings = [](const ordered_json& map) {
    return map.is_object() &&
           std::ranges::all_of(map, [](const ordered_json& one) { return one.is_string(); });
  };
  if (!strings(facts.facts) || !strings(facts.advice)) return corrupt();
  return facts;
}

std::vector<Difference> DifferencesOf(const EngineFacts& one, const EngineFacts& other) {
  if (one.kind != other.kind) {
    return {{"engine", one.kind, other.kind, "engines of different kinds lay out KV differently"}};
  }
  std::vector<Difference> found;
  for (const auto& [fact, value] : one.facts.items()) {
    const auto theirs = other.facts.find(fact);
    if (theirs == other.facts.end() || *theirs == value) continue;
    found.push_back({fact, value.get<std::string>(), theirs->get<std::string>(),
                     one.advice.value(fact, "make it equal")});
  }
  if (found.empty() && one.name_space != other.name_space) {
    found.push_back({"namespace", one.name_space, other.name_space, "they are different models"});
  }
  if (one.version && other.version && *one.version != *other.version) {
    found.push_back({"weights", *one.version, *other.version,
                     "KV belongs to its weights: bring both to the same version"});
  }
  const auto state = [](const EngineFacts& engine) {
    return std::string(engine.open.value_or(true) ? "open" : "closed");
  };
  if (!one.open.value_or(true) || !other.open.value_or(true)) {
    found.push_back({"state", state(one), state(other),
                     "a closed engine finds and stores nothing until its next reset is proven"});
  }
  return found;
}

void AddWhyNot(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<WhyNotOptions>();
  CLI::App* command = app.add_subcommand(
      "why-not", "Print why two engines share no KV: what differs, and what to do about it.");
  command
      ->add_option("ONE", options->engines[0],
                   "an engine, as 'kvcove engines' calls it, or the beginning of its name")
      ->required();
  command->add_option("OTHER", options->engines[1], "another engine")->required();
  command->add_option("--pool", options->pool,
                      "address of the pool, as engines have it: unix:PATH or kvcove://HOST:PORT "
                      "(default: that of --socket, else this host's owner)");
  AddPoolChoice(*command, options->endpoint);
  AddAdminAccessOptions(*command, options->access);
  command->add_option("--timeout-ms", options->timeout_ms, "milliseconds to wait for each answer")
      ->check(CLI::Range(1, 600'000))
      ->capture_default_str();
  command->callback([options, &chosen] { chosen = [options] { return RunWhyNot(*options); }; });
}

}  // namespace kvcove::cli
