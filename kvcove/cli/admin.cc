// SPDX-License-Identifier: Apache-2.0
// `kvcove admin`, and `kvcove keys` and its like: what an admin endpoint says and does, from a
// terminal.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "kvcove/base/size.h"
#include "kvcove/cli/admin_client.h"
#include "kvcove/cli/command.h"
#include "kvcove/cli/find_pool.h"
#include "kvcove/cli/tables.h"
#include "kvcove/http/url.h"

namespace kvcove::cli {
namespace {

using nlohmann::json;

struct AdminOptions {
  AdminAccessOptions access;
  PoolChoice pool;
  bool find = false;  // the endpoint, where none is named
  // Of the request: those that were given, the empty ones, too. Else --version '' of a removal, or
  // --namespace '' of a move, would mean all of them.
  std::map<std::string, std::string> arguments;
  bool wait = false;
  bool all = false;
};

Result<AdminClient> OpenClient(const AdminOptions& options) {
  const bool nobody_named = !options.find && options.pool.admin.empty();
  KVCOVE_ASSIGN(const Endpoint endpoint, nobody_named ? MasterHere(options.access)
                                                      : FindEndpoint(options.pool, options.access));
  return AdminClient::Open(endpoint, options.access);
}

constexpr std::string_view kStatusFields[] = {"role",
                                              "pid",
                                              "owners",
                                              "owners_live",
                                              "capacity_bytes",
                                              "free_bytes",
                                              "objects",
                                              "hits",
                                              "puts",
                                              "evictions",
                                              "disks",
                                              "disks_aside",
                                              "disk_capacity_bytes",
                                              "disk_bytes",
                                              "lookups",
                                              "resets",
                                              "slots",
                                              "registrations",
                                              "members",
                                              "barriers"};

void PrintFields(const json& body) { PrintObject(body); }

// Returns "half 21.8 %, same 28.4 %, ..."; empty while nothing was asked for.
std::string SizesText(const json& ratios) {
  std::string text;
  for (const char* const size : {"half", "same", "double", "quadruple", "any"}) {
    const auto ratio = ratios.find(size);
    if (ratio == ratios.end() || !ratio->is_number()) continue;
    text +=
        fmt::format("{}{} {:.1f} %", text.empty() ? "" : ", ", size, 100 * ratio->get<double>());
  }
  return text;
}

void PrintStatus(const json& body) {
  json shown = body;
  shown.erase("expected");
  const json ratios = body.value(json::json_pointer("/expected/hit_ratio"), json::object());
  for (const auto& [tier, sizes] : ratios.items()) {
    if (std::string text = SizesText(sizes); !text.empty()) {
      shown["expected_hits_" + tier] = std::move(text);
    }
  }
  PrintObject(shown, kStatusFields);
}

void PrintKey(const json& body) {
  if (body.at("in").empty())
    fmt::print("no engine has registered a namespace that could have it\n");
  for (const json& entry : body.at("in")) {
    const std::string version = TextOf(entry.value("version", json("")));
    fmt::print("{}{}: ", TextOf(entry.at("namespace")),
               version.empty() ? std::string() : fmt::format(" (version {})", version));
    if (entry.at("found").get<bool>()) {
      const bool sized = entry.contains("bytes");
      fmt::print("{} at", sized ? FormatSize(entry.at("bytes").get<std::uint64_t>())
                                : std::string("stored"));
      for (const json& place : entry.at("locations")) {
        fmt::print(" {}{}", TextOf(place.at("owner")), place.at("tier") == "disk" ? " (disk)" : "");
      }
      fmt::print("\n");
    } else if (entry.contains("away")) {
      fmt::print("unknown: {}\n", TextOf(entry.at("away")));
    } else if (entry.contains("started_seconds_ago")) {
      fmt::print("nowhere: {} {:.1f} s ago; it does not know what was there before\n",
                 TextOf(entry.at("reason")), entry.at("started_seconds_ago").get<double>());
    } else {
      fmt::print("nowhere: {}\n", TextOf(entry.at("reason")));
    }
    if (entry.contains("last_miss")) {
      const json& miss = entry.at("last_miss");
      fmt::print("  missed {} times lately, the last time {:.1f} s ago: {}\n",
                 TextOf(miss.at("count")), miss.at("seconds_ago").get<double>(),
                 TextOf(miss.at("reason")));
    }
  }
}

constexpr Column kSegmentColumns[] = {{"OWNER", "address"},
                                      {"HOST", "host"},
                                      {"STATE", "state"},
                                      {"CAPACITY", "capacity_bytes"},
                                      {"FREE", "free_bytes"},
                                      {"OBJECTS", "objects"},
                                      {"HITS", "hits"},
                                      {"EVICTIONS", "evictions"},
                                      {"DISK", "disk_capacity_bytes", true},
                                      {"DISK USED", "disk_bytes", true},
                                      {"DISKS ASIDE", "disks_aside", true},
                                      {"LEASE AGE MS", "lease_age_ms"}};
constexpr Column kMemberColumns[] = {{"NUMBER", "number"},
                                     {"OWNER", "owner"},
                                     {"HOST", "host"},
                                     {"STATE", "state"},
                                     {"AWAY S", "away_seconds"},
                                     {"GENERATIONS CURRENT", "generations_current"},
                                     {"REMOVALS BEHIND", "removals_behind"},
                                     {"HIDDEN SLOTS", "hidden_slots"}};
constexpr Column kMasterColumns[] = {{"MASTER", "master"},     {"SHARD", "shard"},
                                     {"SLICES", "slices"},     {"ENTRIES", "entries"},
                                     {"DRAINING", "draining"}, {"LEASE MS", "lease_milliseconds"}};
constexpr Column kNamespaceColumns[] = {{"NAMESPACE", "namespace"},
                                        {"VERSION", "version", true},
                                        {"BYTES", "bytes", true},
                                        {"SLOT", "slot"},
                                        {"GENERATION", "generation"},
                                        {"USED", "used"},
                                        {"DEAD", "dead"}};
constexpr Column kVersionColumns[] = {{"NAMESPACE", "namespace"},
                                      {"VERSION", "version"},
                                      {"BYTES", "bytes", true},
                                      {"STATE", "state"}};
constexpr Column kEngineColumns[] = {{"ENGINE", "engine"},
                                     {"NAMESPACE", "namespace"},
                                     {"VERSION", "version", true},
                                     {"OPEN", "open"},
                                     {"PROCESSES", "processes"}};
constexpr Column kKeyColumns[] = {
    {"KEY", "key"},    {"NAMESPACE", "namespace"}, {"VERSION", "version", true},
    {"SIZE", "bytes"}, {"OWNER", "owner"},         {"TIER", "tier"}};
constexpr Column kTaskColumns[] = {{"TASK", "id"},
                                   {"KIND", "kind"},
                                   {"STATE", "state"},
                                   {"FROM", "from", true},
                                   {"TO", "to", true},
                                   {"COPIED", "copied"},
                                   {"BYTES", "copied_bytes"},
                                   {"LEFT", "left"},
                                   {"SECONDS", "seconds"},
                                   {"MESSAGE", "message", true}};

// Follows a task to its end. 0 when it is done.
Result<int> Follow(const AdminClient& client, const AdminOptions& options, std::uint64_t id) {
  while (true) {
    KVCOVE_ASSIGN(const json body, client.Json("GET", "/v1/tasks", {}));
    const json& tasks = body.at("tasks");
    const auto task =
        std::ranges::find_if(tasks, [&](const json& one) { return one.at("id") == id; });
    if (task == tasks.end()) {
      return Fail(Code::kMiss, fmt::format("the master does not know task {} any more: it was "
                                           "started again, or has begun many others since",
                                           id));
    }
    const std::string state = TextOf(task->at("state"));
    if (state != "queued" && state != "running") {
      if (options.access.as_json) {
        fmt::print("{}\n", task->dump());
      } else {
        PrintList(json::array({*task}), kTaskColumns, "");
      }
      return state == "done" ? 0 : 1;
    }
    if (isatty(STDERR_FILENO) != 0) {
      fmt::print(stderr, "\r{} objects, {}   ", TextOf(task->at("copied")),
                 FormatSize(task->at("copied_bytes").get<std::uint64_t>()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

using PrintJson = std::function<void(const json&)>;

Result<int> RunAt(const AdminClient& client, const AdminOptions& options, const std::string& method,
                  const std::string& path, const PrintJson& print) {
  if (path == "/metrics" || path == "/healthz") {
    KVCOVE_ASSIGN(const http::Response response, client.Ask(method, path, {}));
    fmt::print("{}", response.body);
    return response.status == 200 ? 0 : 1;
  }
  std::map<std::string, std::string> arguments = options.arguments;
  KVCOVE_ASSIGN(json body, client.Json(method, path, arguments));
  if (body.contains("task") && options.wait) {
    return Follow(client, options, body["task"].get<std::uint64_t>());
  }
  // Keys come in pages.
  while (options.all && body.contains("next")) {
    arguments["after"] = body["next"].get<std::string>();
    KVCOVE_ASSIGN(json more, client.Json(method, path, arguments));
    for (json& key : more["keys"]) body["keys"].push_back(std::move(key));
    body.erase("next");
    if (more.contains("next")) body["next"] = more["next"];
  }
  if (options.access.as_json) {
    fmt::print("{}\n", body.dump(-1, ' ', false, json::error_handler_t::replace));
  } else {
    print(body);
  }
  return 0;
}

Result<int> Run(const AdminOptions& options, const std::string& method, const std::string& path,
                const PrintJson& print) {
  KVCOVE_ASSIGN(const AdminClient client, OpenClient(options));
  return RunAt(client, options, method, path, print);
}

class Builder {
 public:
  Builder(CLI::App& admin, std::shared_ptr<AdminOptions> options, Action& chosen)
      : admin_(admin), options_(std::move(options)), chosen_(chosen) {}

  CLI::App* Add(const char* name, const char* help, const char* method, const char* path,
                const PrintJson& print) {
    CLI::App* command = admin_.add_subcommand(name, help);
    if (options_->find) {
      AddPoolChoice(*command, options_->pool);
      AddAdminAccessOptions(*command, options_->access);
    }
    command->callback([command, options = options_, &chosen = chosen_, method, path, print] {
      if (!command->get_subcommands().empty()) return;  // the parser calls this one last
      chosen = [=] { return Run(*options, method, path, print); };
    });
    return command;
  }
  AdminOptions& options() { return *options_; }
  CLI::Option* Argument(CLI::App* command, const char* flag, const char* key, const char* help) {
    CLI::Option* const option = command->add_option_function<std::string>(
        flag,
        [options = options_, key = std::string(key)](const std::string& value) {
          options->arguments[key] = value;
        },
        help);
    if (options_->find) option->group(kOfThisCall);
    return option;
  }

  // Returns a builder of the subcommands of a command.
  Builder Below(CLI::App* command) const { return {*command, options_, chosen_}; }

 private:
  CLI::App& admin_;
  std::shared_ptr<AdminOptions> options_;
  Action& chosen_;
};

void AddPrune(Builder add) {
  CLI::App* prune =
      add.Add("prune",
              "Declare older weight versions of a namespace dead: nothing is found or stored under "
              "them any more.",
              "POST", "/v1/prune", PrintFields);
  add.Argument(prune, "namespace", "namespace", "name of the namespace, as 'namespaces' shows it")
      ->required();
  add.Argument(prune, "--before", "before",
               "the version that stays; those that engines named earlier than it are dead")
      ->required();
  add.Argument(prune, "--timeout-ms", "timeout_ms",
               "milliseconds to wait for the proof (2500; at most 60000)");
}

void AddQuestions(Builder& add) {
  add.Add("metrics", "Print the metrics in Prometheus' text form.", "GET", "/metrics", {});
  add.Add("namespaces", "List the namespaces and their generations.", "GET", "/v1/namespaces",
          [](const json& body) {
            PrintList(body.at("namespaces"), kNamespaceColumns, "no engine has registered");
          });
  CLI::App* versions =
      add.Add("versions",
              "List the weight versions of namespaces and the bytes of their values, the earliest "
              "first.",
              "GET", "/v1/versions", [](const json& body) {
                PrintList(body.at("versions"), kVersionColumns, "no engine has named a version");
              });
  add.Argument(versions, "--namespace", "namespace", "only versions of this namespace");
  versions->require_subcommand(0, 1);
  AddPrune(add.Below(versions));
  CLI::App* engines =
      add.Add("engines", "List the engines that are registered.", "GET", "/v1/engines",
              [](const json& body) {
                PrintList(body.at("engines"), kEngineColumns, "no engine is registered");
              });
  add.Argument(engines, "--limit", "limit", "at most so many (1000)");
  CLI::App* keys = add.Add("keys", "List the keys that are stored, page by page.", "GET",
                           "/v1/keys", [](const json& body) {
                             json list = body.at("keys");
                             for (json& item : list) {
                               if (!item.contains("key_percent")) continue;
                               item["key"] =
                                   http::UrlDecode(item.at("key_percent").get<std::string>());
                             }
                             PrintList(list, kKeyColumns, "no such keys");
                             if (body.contains("next")) {
                               fmt::print("more: --after {}, or --all\n", TextOf(body.at("next")));
                             }
                           });
  add.Argument(keys, "--namespace", "namespace", "only values of this namespace");
  add.Argument(keys, "--version", "version", "only values of this version of the weights");
  add.Argument(keys, "--prefix", "prefix", "only keys with this prefix");
  add.Argument(keys, "--limit", "limit", "keys of a page (100, at most 1000)");
  add.Argument(keys, "--after", "after", "continue where a page has ended, which says how");
  keys->add_flag("--all", add.options().all, "print all pages");
  for (const char* name : {"key", "why"}) {
    CLI::App* key = add.Add(name,
                            std::string_view(name) == "key"
                                ? "Print where the value of a key is."
                                : "Print why a key is missed, and when it was missed last.",
                            "GET", "/v1/key", PrintKey);
    add.Argument(key, "key", "key", "the key")->required();
    add.Argument(key, "--namespace", "namespace", "only in this namespace");
    add.Argument(key, "--version", "version", "only values of this version of the weights");
  }
  add.Add("tasks", "List copies, moves, drains and repairs, newest first.", "GET", "/v1/tasks",
          [](const json& body) { PrintList(body.at("tasks"), kTaskColumns, "no tasks"); });
}

void AddChanges(Builder& add) {
  CLI::App* reset = add.Add("reset", "Void all values of a namespace; every session follows.",
                            "POST", "/v1/reset", PrintFields);
  add.Argument(reset, "namespace", "namespace", "name of the namespace, as 'namespaces' shows it")
      ->required();
  add.Argument(reset, "--version", "version", "only values of this version of the weights");
  add.Argument(reset, "--timeout-ms", "timeout_ms",
               "milliseconds to wait for the proof (2500; at most 60000)");
  AddPrune(add);
  CLI::App* remove =
      add.Add("remove", "Remove keys of a namespace.", "POST", "/v1/remove", PrintFields);
  add.Argument(remove, "namespace", "namespace", "name of the namespace, as 'namespaces' shows it")
      ->required();
  add.Argument(remove, "--prefix", "prefix", "remove the keys with this prefix");
  add.Argument(remove, "--pattern", "pattern",
               "remove the keys that match; '*' stands for any bytes");
  add.Argument(remove, "--version", "version", "only values of this version of the weights");
  CLI::App* pin = add.Add(
      "pin", "Keep values in memory, never evicted, for a time; they have at most half of it.",
      "POST", "/v1/pin", PrintFields);
  add.Argument(pin, "--seconds", "seconds",
               "the pin ends after so many seconds, at most 86400; repeat the command to renew it; "
               "0: it has no end")
      ->required();
  CLI::App* unpin = add.Add("unpin", "End the pins of values, whoever has pinned them.", "POST",
                            "/v1/unpin", PrintFields);
  for (CLI::App* command : {pin, unpin}) {
    add.Argument(command, "namespace", "namespace",
                 "name of the namespace, as 'namespaces' shows it")
        ->required();
    add.Argument(command, "--key", "key", "the value with this key");
    add.Argument(command, "--prefix", "prefix", "the values whose keys have this prefix");
    add.Argument(command, "--version", "version", "only values of this version of the weights");
  }
}

void AddOfCluster(Builder& add) {
  add.Add("segments", "List the owners and their memory.", "GET", "/v1/segments",
          [](const json& body) {
            PrintList(body.at("segments"), kSegmentColumns, "no owner has said hello");
          });
  add.Add("members", "List every owner that the pool knows, also absent ones.", "GET",
          "/v1/members", [](const json& body) {
            PrintList(body.at("members"), kMemberColumns, "no owner has joined");
          });
  add.Add("masters", "List the masters that serve the directory, and their parts of it.", "GET",
          "/v1/masters", [](const json& body) {
            PrintList(body.at("masters"), kMasterColumns, "this master serves all of it");
          });
  CLI::App* drain_master = add.Add(
      "drain-master", "Give a master's part of the directory to others, so that it may stop.",
      "POST", "/v1/drain-master", PrintFields);
  add.Argument(drain_master, "master", "master", "address of the master, as 'masters' shows it")
      ->required();
  add.Argument(drain_master, "--undo", "undo", "true: give the master a part again")
      ->check(CLI::IsMember({"true"}));
  CLI::App* forget = add.Add(
      "forget", "End the membership of an owner that has ended; refused while its lease runs.",
      "POST", "/v1/forget", PrintFields);
  add.Argument(forget, "owner", "owner",
               "address, number or identity of the owner, as 'members' shows it")
      ->required();
  const auto print_task = [](const json& body) {
    fmt::print("task {}; 'kvcove admin tasks' shows its progress\n", TextOf(body.at("task")));
  };
  CLI::App* drain = add.Add("drain", "Move all values off an owner, so that it may be stopped.",
                            "POST", "/v1/drain", print_task);
  add.Argument(drain, "owner", "owner", "address of the owner, as 'segments' shows it")->required();
  drain->add_flag("--wait", add.options().wait, "wait until it is done; fails if the task fails");
  for (const auto& [name, path, help] :
       {std::tuple("copy", "/v1/copy", "Copy objects of an owner to another one."),
        std::tuple("move", "/v1/move", "Move objects of an owner to another one.")}) {
    CLI::App* copy = add.Add(name, help, "POST", path, print_task);
    add.Argument(copy, "from", "from", "address of the owner that has the objects")->required();
    add.Argument(copy, "to,--to", "to", "address of the other owner (default: one that has room)");
    add.Argument(copy, "--namespace", "namespace",
                 "only values of this namespace, in all versions of the weights that it has now");
    add.Argument(copy, "--version", "version", "only values of this version of the weights");
    add.Argument(copy, "--prefix", "prefix", "only keys with this prefix");
    copy->add_flag("--wait", add.options().wait, "wait until it is done; fails if the task fails");
  }
  CLI::App* repair = add.Add("repair", "Look for lost replicas and make them again.", "POST",
                             "/v1/repair", print_task);
  repair->add_flag("--wait", add.options().wait, "wait until it is done");
  CLI::App* cancel =
      add.Add("cancel", "Cancel a task; an owner that was drained takes objects again.", "POST",
              "/v1/cancel", PrintFields);
  add.Argument(cancel, "id", "id", "id of the task, as 'tasks' shows it")->required();
}

}  // namespace

void AddAdmin(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<AdminOptions>();
  CLI::App* admin = app.add_subcommand(
      "admin", "Show and change a pool through the admin endpoint that --admin names.");
  admin->require_subcommand(1);
  admin->fallthrough();
  admin->add_option(
      "--admin", options->pool.admin,
      fmt::format(
          "host:port of the master's admin endpoint; with several masters all of them, separated "
          "by commas: the one that leads is asked; or unix:PATH of a host's (default: {}, which "
          "is asked without a token)",
          kMasterHere));
  AddAdminAccessOptions(*admin, options->access);
  Builder add(*admin, options, chosen);
  add.Add("health", "Check that the master, or an owner, answers.", "GET", "/healthz", {});
  add.Add("status", "Print the pool in a few numbers.", "GET", "/v1/status", PrintStatus);
  AddOfCluster(add);
  AddQuestions(add);
  AddChanges(add);
}

void AddPoolCommands(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<AdminOptions>();
  options->find = true;
  Builder add(app, options, chosen);
  AddQuestions(add);
  AddChanges(add);
}

Result<int> PrintPoolStatus(const Endpoint& endpoint, const AdminAccessOptions& access) {
  KVCOVE_ASSIGN(const AdminClient client, AdminClient::Open(endpoint, access));
  return RunAt(client, {.access = access, .pool = {}, .arguments = {}}, "GET", "/v1/status",
               PrintStatus);
}

}  // namespace kvcove::cli
