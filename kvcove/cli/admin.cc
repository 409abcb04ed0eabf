// SPDX-License-Identifier: Apache-2.0
// `kvcove admin`: what a master's admin endpoint says and does, from a terminal.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "kvcove/base/size.h"
#include "kvcove/base/text.h"
#include "kvcove/cli/command.h"
#include "kvcove/http/server.h"
#include "kvcove/http/url.h"
#include "kvcove/rpc/leader.h"

namespace kvcove::cli {
namespace {

using nlohmann::json;

struct AdminOptions {
  std::string endpoint = "127.0.0.1:7480";
  std::string token;
  bool as_json = false;
  std::map<std::string, std::string> arguments;  // of the request
  bool wait = false;
  bool all = false;
};

// Columns of equal width, the header first.
void PrintTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    while (line.ends_with(' ')) line.pop_back();
    fmt::print("{}\n", line);
  }
}

// Names and keys are whatever engines made of them.
std::string Text(const json& value) {
  if (value.is_string()) return Printable(value.get<std::string>());
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_number_float()) return fmt::format("{:.1f}", value.get<double>());
  return value.dump();
}

// A column: its title and the field; sizes end in "_bytes" or are "bytes".
using Column = std::pair<const char*, const char*>;

void PrintList(const json& list, const std::vector<Column>& columns, const char* empty) {
  if (list.empty()) return fmt::print("{}\n", empty);
  std::vector<std::vector<std::string>> rows(1);
  for (const Column& column : columns) rows[0].emplace_back(column.first);
  for (const json& item : list) {
    std::vector<std::string>& row = rows.emplace_back();
    for (const Column& column : columns) {
      const std::string_view field = column.second;
      const json& value = item.contains(field) ? item[std::string(field)] : json("");
      row.push_back(field.ends_with("bytes") && value.is_number()
                        ? FormatSize(value.get<std::uint64_t>())
                        : Text(value));
    }
  }
  PrintTable(rows);
}

class Client {
 public:
  static Result<Client> Open(const AdminOptions& options) {
    Client client;
    KVCOVE_ASSIGN(const rpc::Addresses addresses, rpc::ParseAddresses(options.endpoint, 7480));
    client.address_ = addresses.front();
    if (!options.token.empty()) {
      KVCOVE_ASSIGN(const rpc::Credential credential, rpc::LoadCredential(options.token));
      client.authorization_ = "Bearer " + rpc::BearerOf(credential);
    }
    if (addresses.several()) client.FindLeader(addresses);
    return client;
  }

  Result<http::Response> Ask(const std::string& method, const std::string& path,
                             const std::map<std::string, std::string>& arguments) const {
    std::string target = path;
    json body;
    char joint = '?';
    for (const auto& [key, value] : arguments) {
      if (method == "POST") {
        if (!IsUtf8(value)) {
          return Fail(Code::kInvalid,
                      fmt::format("{} is not UTF-8: {}; a prefix that is can name such keys", key,
                                  Printable(value)));
        }
        body[key] = value;
      } else {
        target += fmt::format("{}{}={}", joint, http::UrlEncode(key), http::UrlEncode(value));
        joint = '&';
      }
    }
    http::CallOptions call{.host = address_.host,
                           .port = address_.port,
                           .method = method,
                           .target = target,
                           .body = {},
                           .authorization = authorization_,
                           .timeout_ns = timeout_ns_};
    if (!body.is_null()) call.body = body.dump();
    return http::Call(call);
  }

  // The answer's JSON; what is no 200 is an error that says what the endpoint said.
  Result<json> Json(const std::string& method, const std::string& path,
                    const std::map<std::string, std::string>& arguments) const {
    KVCOVE_ASSIGN(const http::Response response, Ask(method, path, arguments));
    json body = json::parse(response.body, nullptr, /*allow_exceptions=*/false);
    if (response.status == 200 && !body.is_discarded()) return body;
    std::string detail = fmt::format("{} {} answered {}", method, path, response.status);
    if (body.is_object() && body.contains("detail")) detail += ": " + Text(body["detail"]);
    return Fail(response.status == 401 || response.status == 403 ? Code::kDenied
                : response.status < 500                          ? Code::kInvalid
                                                                 : Code::kUnavailable,
                detail);
  }

 private:
  // The one that says it leads; else the first that answers, whose answer says why not.
  void FindLeader(const rpc::Addresses& addresses) {
    std::optional<rpc::Address> leads;
    std::optional<rpc::Address> answers;
    timeout_ns_ = kLookNs;
    for (auto at = addresses.list().begin(); at != addresses.list().end() && !leads; ++at) {
      address_ = *at;
      const Result<json> status = Json("GET", "/v1/status", {});
      if (status && status->value("role", "leader") == "leader") leads = *at;
      if (status && !answers) answers = *at;
    }
    timeout_ns_ = kCallNs;
    address_ = leads ? *leads : answers.value_or(addresses.front());
  }

  static constexpr std::int64_t kLookNs = 2'000'000'000;
  static constexpr std::int64_t kCallNs = 30'000'000'000;
  rpc::Address address_;
  std::string authorization_;
  std::int64_t timeout_ns_ = kCallNs;
};

void PrintObject(const json& body) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [key, value] : body.items()) {
    rows.push_back({key, key.ends_with("bytes") && value.is_number()
                             ? FormatSize(value.get<std::uint64_t>())
                             : Text(value)});
  }
  if (!rows.empty()) PrintTable(rows);
}

void PrintKey(const json& body) {
  if (body["in"].empty()) fmt::print("no engine has registered a namespace that could have it\n");
  for (const json& entry : body["in"]) {
    fmt::print("{}{}: ", Text(entry["namespace"]),
               entry["version"].empty() || Text(entry["version"]).empty()
                   ? std::string()
                   : fmt::format(" (version {})", Text(entry["version"])));
    if (entry["found"].get<bool>()) {
      fmt::print("{} at", FormatSize(entry["bytes"].get<std::uint64_t>()));
      for (const json& place : entry["locations"]) {
        fmt::print(" {}{}", Text(place["owner"]), place["tier"] == "disk" ? " (disk)" : "");
      }
      fmt::print("\n");
    } else if (entry.contains("away")) {
      fmt::print("unknown: {}\n", Text(entry["away"]));
    } else if (entry.contains("started_seconds_ago")) {
      fmt::print("nowhere: {} {:.1f} s ago; it does not know what was there before\n",
                 Text(entry["reason"]), entry["started_seconds_ago"].get<double>());
    } else {
      fmt::print("nowhere: {}\n", Text(entry["reason"]));
    }
    if (entry.contains("last_miss")) {
      const json& miss = entry["last_miss"];
      fmt::print("  missed {} times lately, the last time {:.1f} s ago: {}\n", Text(miss["count"]),
                 miss["seconds_ago"].get<double>(), Text(miss["reason"]));
    }
  }
}

const std::vector<Column> kSegmentColumns = {{"OWNER", "address"},
                                             {"HOST", "host"},
                                             {"STATE", "state"},
                                             {"CAPACITY", "capacity_bytes"},
                                             {"FREE", "free_bytes"},
                                             {"OBJECTS", "objects"},
                                             {"HITS", "hits"},
                                             {"EVICTIONS", "evictions"},
                                             {"DISK", "disk_capacity_bytes"},
                                             {"DISK USED", "disk_bytes"},
                                             {"DISKS ASIDE", "disks_aside"},
                                             {"LEASE AGE MS", "lease_age_ms"}};
const std::vector<Column> kMemberColumns = {{"NUMBER", "number"},
                                            {"OWNER", "owner"},
                                            {"HOST", "host"},
                                            {"STATE", "state"},
                                            {"AWAY S", "away_seconds"},
                                            {"GENERATIONS CURRENT", "generations_current"},
                                            {"REMOVALS BEHIND", "removals_behind"},
                                            {"HIDDEN SLOTS", "hidden_slots"}};
const std::vector<Column> kMasterColumns = {
    {"MASTER", "master"},   {"SHARD", "shard"},       {"SLICES", "slices"},
    {"ENTRIES", "entries"}, {"DRAINING", "draining"}, {"LEASE MS", "lease_milliseconds"}};
const std::vector<Column> kNamespaceColumns = {
    {"NAMESPACE", "namespace"},   {"VERSION", "version"}, {"BYTES", "bytes"}, {"SLOT", "slot"},
    {"GENERATION", "generation"}, {"USED", "used"},       {"DEAD", "dead"}};
const std::vector<Column> kEngineColumns = {{"ENGINE", "engine"},
                                            {"NAMESPACE", "namespace"},
                                            {"VERSION", "version"},
                                            {"OPEN", "open"},
                                            {"PROCESSES", "processes"}};
const std::vector<Column> kKeyColumns = {{"KEY", "key"},
                                         {"NAMESPACE", "namespace"},
                                         {"SIZE", "bytes"},
                                         {"OWNER", "owner"},
                                         {"TIER", "tier"}};
const std::vector<Column> kTaskColumns = {
    {"TASK", "id"},         {"KIND", "kind"},      {"STATE", "state"},        {"FROM", "from"},
    {"TO", "to"},           {"COPIED", "copied"},  {"BYTES", "copied_bytes"}, {"LEFT", "left"},
    {"SECONDS", "seconds"}, {"MESSAGE", "message"}};

// Follows a task to its end. 0 when it is done.
Result<int> Follow(const Client& client, const AdminOptions& options, std::uint64_t id) {
  while (true) {
    KVCOVE_ASSIGN(const json body, client.Json("GET", "/v1/tasks", {}));
    const json& tasks = body["tasks"];
    const auto task = std::ranges::find_if(tasks, [&](const json& one) { return one["id"] == id; });
    if (task == tasks.end()) {
      return Fail(Code::kMiss, fmt::format("the master does not know task {} any more: it was "
                                           "started again, or has begun many others since",
                                           id));
    }
    const std::string state = Text((*task)["state"]);
    if (state != "queued" && state != "running") {
      if (options.as_json) {
        fmt::print("{}\n", task->dump());
      } else {
        PrintList(json::array({*task}), kTaskColumns, "");
      }
      return state == "done" ? 0 : 1;
    }
    if (isatty(STDERR_FILENO) != 0) {
      fmt::print(stderr, "\r{} objects, {}   ", Text((*task)["copied"]),
                 FormatSize((*task)["copied_bytes"].get<std::uint64_t>()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

using PrintJson = std::function<void(const json&)>;

Result<int> Run(const AdminOptions& options, const std::string& method, const std::string& path,
                const PrintJson& print) {
  KVCOVE_ASSIGN(const Client client, Client::Open(options));
  if (path == "/metrics" || path == "/healthz") {
    KVCOVE_ASSIGN(const http::Response response, client.Ask(method, path, {}));
    fmt::print("{}", response.body);
    return response.status == 200 ? 0 : 1;
  }
  std::map<std::string, std::string> arguments = options.arguments;
  std::erase_if(arguments, [](const auto& argument) { return argument.second.empty(); });
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
  if (options.as_json) {
    fmt::print("{}\n", body.dump(-1, ' ', false, json::error_handler_t::replace));
  } else {
    print(body);
  }
  return 0;
}

class Builder {
 public:
  Builder(CLI::App& admin, std::shared_ptr<AdminOptions> options, Action& chosen)
      : admin_(admin), options_(std::move(options)), chosen_(chosen) {}

  CLI::App* Add(const char* name, const char* help, const char* method, const char* path,
                const PrintJson& print) {
    CLI::App* command = admin_.add_subcommand(name, help);
    command->callback([options = options_, &chosen = chosen_, method, path, print] {
      chosen = [=] { return Run(*options, method, path, print); };
    });
    return command;
  }
  CLI::Option* Argument(CLI::App* command, const char* flag, const char* key, const char* help) {
    return command->add_option(flag, options_->arguments[key], help);
  }

 private:
  CLI::App& admin_;
  std::shared_ptr<AdminOptions> options_;
  Action& chosen_;
};

}  // namespace

void AddAdmin(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<AdminOptions>();
  CLI::App* admin =
      app.add_subcommand("admin", "Show and change a cluster through its master's admin endpoint.");
  admin->require_subcommand(1);
  admin->fallthrough();
  admin
      ->add_option(
          "--admin", options->endpoint,
          "host:port of the master's admin endpoint; with several masters all of them, separated "
          "by commas: the one that leads is asked")
      ->capture_default_str();
  admin->add_option("--token", options->token, "token file of a tenant with the scope admin");
  admin->add_flag("--json", options->as_json, "print the endpoint's answer as it is");
  Builder add(*admin, options, chosen);

  add.Add("health", "Check that the master answers.", "GET", "/healthz", {});
  add.Add("metrics", "Print the metrics in Prometheus' text form.", "GET", "/metrics", {});
  add.Add("status", "Print the pool in a few numbers.", "GET", "/v1/status", PrintObject);
  add.Add("segments", "List the owners and their memory.", "GET", "/v1/segments",
          [](const json& body) {
            PrintList(body["segments"], kSegmentColumns, "no owner has said hello");
          });
  add.Add(
      "members", "List every owner that the pool knows, also absent ones.", "GET", "/v1/members",
      [](const json& body) { PrintList(body["members"], kMemberColumns, "no owner has joined"); });
  add.Add("masters", "List the masters that serve the directory, and their parts of it.", "GET",
          "/v1/masters", [](const json& body) {
            PrintList(body["masters"], kMasterColumns, "this master serves all of it");
          });
  CLI::App* drain_master = add.Add(
      "drain-master", "Give a master's part of the directory to others, so that it may stop.",
      "POST", "/v1/drain-master", PrintObject);
  add.Argument(drain_master, "master", "master", "address of the master, as 'masters' shows it")
      ->required();
  add.Argument(drain_master, "--undo", "undo", "true: give the master a part again")
      ->check(CLI::IsMember({"true"}));
  CLI::App* forget = add.Add(
      "forget", "End the membership of an owner that has ended; refused while its lease runs.",
      "POST", "/v1/forget", PrintObject);
  add.Argument(forget, "owner", "owner",
               "address, number or identity of the owner, as 'members' shows it")
      ->required();
  add.Add("namespaces", "List the namespaces and their generations.", "GET", "/v1/namespaces",
          [](const json& body) {
            PrintList(body["namespaces"], kNamespaceColumns, "no engine has registered");
          });
  CLI::App* engines =
      add.Add("engines", "List the engines that are registered.", "GET", "/v1/engines",
              [](const json& body) {
                PrintList(body["engines"], kEngineColumns, "no engine is registered");
              });
  add.Argument(engines, "--limit", "limit", "at most so many (1000)");
  CLI::App* keys = add.Add("keys", "List the keys that are stored, page by page.", "GET",
                           "/v1/keys", [](const json& body) {
                             json list = body["keys"];
                             for (json& item : list) {
                               if (!item.contains("key_percent")) continue;
                               item["key"] =
                                   http::UrlDecode(item["key_percent"].get<std::string>());
                             }
                             PrintList(list, kKeyColumns, "no such keys");
                             if (body.contains("next")) {
                               fmt::print("more: --after {}, or --all\n", Text(body["next"]));
                             }
                           });
  add.Argument(keys, "--namespace", "namespace", "only values of this namespace");
  add.Argument(keys, "--version", "version", "only values of this version of the weights");
  add.Argument(keys, "--prefix", "prefix", "only keys with this prefix");
  add.Argument(keys, "--limit", "limit", "keys of a page (100, at most 1000)");
  add.Argument(keys, "--after", "after", "continue behind this key, the last one of a page");
  keys->add_flag("--all", options->all, "print all pages");
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
  CLI::App* reset = add.Add("reset", "Void all values of a namespace; every session follows.",
                            "POST", "/v1/reset", PrintObject);
  add.Argument(reset, "namespace", "namespace", "name of the namespace, as 'namespaces' shows it")
      ->required();
  add.Argument(reset, "--timeout-ms", "timeout_ms", "milliseconds to wait for the proof (2500)");
  CLI::App* prune =
      add.Add("prune",
              "Declare older weight versions of a namespace dead: nothing is found or stored under "
              "them any more.",
              "POST", "/v1/prune", PrintObject);
  add.Argument(prune, "namespace", "namespace", "name of the namespace, as 'namespaces' shows it")
      ->required();
  add.Argument(prune, "--before", "before",
               "the version that stays; those that engines named earlier than it are dead")
      ->required();
  add.Argument(prune, "--timeout-ms", "timeout_ms", "milliseconds to wait for the proof (2500)");
  CLI::App* remove =
      add.Add("remove", "Remove keys of a namespace.", "POST", "/v1/remove", PrintObject);
  add.Argument(remove, "namespace", "namespace", "name of the namespace, as 'namespaces' shows it")
      ->required();
  add.Argument(remove, "--prefix", "prefix", "remove the keys with this prefix");
  add.Argument(remove, "--pattern", "pattern",
               "remove the keys that match; '*' stands for any bytes");
  add.Argument(remove, "--version", "version", "only values of this version of the weights");
  CLI::App* pin = add.Add(
      "pin", "Keep values in memory, never evicted, for a time; they have at most half of it.",
      "POST", "/v1/pin", PrintObject);
  add.Argument(pin, "--seconds", "seconds",
               "the pin ends after so many seconds, at most 86400; repeat the command to renew it; "
               "0: it has no end")
      ->required();
  CLI::App* unpin = add.Add("unpin", "End the pins of values, whoever has pinned them.", "POST",
                            "/v1/unpin", PrintObject);
  for (CLI::App* command : {pin, unpin}) {
    add.Argument(command, "namespace", "namespace",
                 "name of the namespace, as 'namespaces' shows it")
        ->required();
    add.Argument(command, "--key", "key", "the value with this key");
    add.Argument(command, "--prefix", "prefix", "the values whose keys have this prefix");
    add.Argument(command, "--version", "version", "only values of this version of the weights");
  }

  const auto print_task = [](const json& body) {
    fmt::print("task {}; 'kvcove admin tasks' shows its progress\n", Text(body["task"]));
  };
  CLI::App* drain = add.Add("drain", "Move all values off an owner, so that it may be stopped.",
                            "POST", "/v1/drain", print_task);
  add.Argument(drain, "owner", "owner", "address of the owner, as 'segments' shows it")->required();
  drain->add_flag("--wait", options->wait, "wait until it is done; fails if the task fails");
  for (const auto& [name, path, help] :
       {std::tuple("copy", "/v1/copy", "Copy objects of an owner to another one."),
        std::tuple("move", "/v1/move", "Move objects of an owner to another one.")}) {
    CLI::App* copy = add.Add(name, help, "POST", path, print_task);
    add.Argument(copy, "from", "from", "address of the owner that has the objects")->required();
    add.Argument(copy, "--to", "to", "address of the other owner (default: one that has room)");
    add.Argument(copy, "--namespace", "namespace", "only values of this namespace");
    add.Argument(copy, "--version", "version", "only values of this version of the weights");
    add.Argument(copy, "--prefix", "prefix", "only keys with this prefix");
    copy->add_flag("--wait", options->wait, "wait until it is done; fails if the task fails");
  }
  CLI::App* repair = add.Add("repair", "Look for lost replicas and make them again.", "POST",
                             "/v1/repair", print_task);
  repair->add_flag("--wait", options->wait, "wait until it is done");
  CLI::App* cancel =
      add.Add("cancel", "Cancel a task; an owner that was drained takes objects again.", "POST",
              "/v1/cancel", PrintObject);
  add.Argument(cancel, "id", "id", "id of the task, as 'tasks' shows it")->required();
  add.Add("tasks", "List copies, moves, drains and repairs, newest first.", "GET", "/v1/tasks",
          [](const json& body) { PrintList(body["tasks"], kTaskColumns, "no tasks"); });
}

}  // namespace kvcove::cli
