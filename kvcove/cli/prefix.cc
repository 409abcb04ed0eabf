// SPDX-License-Identifier: Apache-2.0
// `kvcove prefix`: which owners have how much of a prefix, as routers ask.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "kvcove/base/text.h"
#include "kvcove/cli/admin_client.h"
#include "kvcove/cli/command.h"
#include "kvcove/cli/find_pool.h"
#include "kvcove/cli/tables.h"

namespace kvcove::cli {
namespace {

using nlohmann::json;

struct PrefixOptions {
  PoolChoice endpoint;
  AdminAccessOptions access;
  std::string name;
  std::string version;
  std::vector<std::string> keys;
};

constexpr Column kPrefixColumns[] = {{"OWNER", "owner"},           {"HOST", "host"},
                                     {"PREFIX", "prefix"},         {"IN MEMORY", "memory_prefix"},
                                     {"KEYS IN MEMORY", "memory"}, {"ON DISK", "disk"}};

void PrintPrefix(const json& body) {
  const std::string version = TextOf(body.value("version", json("")));
  fmt::print("{} of {} keys{}{}\n", TextOf(body.at("keys")), TextOf(body.at("asked")),
             version.empty() ? std::string() : fmt::format(", weights {}", version),
             body.contains("reason") ? fmt::format("; the next one: {}", TextOf(body.at("reason")))
                                     : std::string());
  PrintList(body.at("owners"), kPrefixColumns, "no owner has the first key");
}

Result<int> RunPrefix(const PrefixOptions& options) {
  for (const std::string& key : options.keys) {
    if (IsUtf8(key)) continue;
    return Fail(Code::kInvalid, fmt::format("the key {} is no UTF-8, which the endpoint's JSON "
                                            "cannot carry; Session::Locate takes any bytes",
                                            TextOf(key)));
  }
  KVCOVE_ASSIGN(const Endpoint endpoint, FindEndpoint(options.endpoint, options.access));
  KVCOVE_ASSIGN(const AdminClient client, AdminClient::Open(endpoint, options.access));
  json question{{"namespace", options.name}, {"keys", options.keys}};
  if (!options.version.empty()) question["version"] = options.version;
  KVCOVE_ASSIGN(const json body, client.Post("/v1/prefix", question));
  if (options.access.as_json) {
    fmt::print("{}\n", body.dump(-1, ' ', false, json::error_handler_t::replace));
  } else {
    PrintPrefix(body);
  }
  return 0;
}

}  // namespace

void AddPrefix(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<PrefixOptions>();
  CLI::App* command =
      app.add_subcommand("prefix", "Print which owners have how much of a prefix of keys.");
  AddPoolChoice(*command, options->endpoint);
  AddAdminAccessOptions(*command, options->access);
  command->add_option("namespace", options->name, "name of the namespace, as 'namespaces' shows it")
      ->required();
  command->add_option("keys", options->keys, "the keys, in the order of the prefix")->required();
  command
      ->add_option("--version", options->version,
                   "version of the weights (default: the one with the longest prefix)")
      ->group(kOfThisCall);
  command->callback([options, &chosen] { chosen = [options] { return RunPrefix(*options); }; });
}

}  // namespace kvcove::cli
