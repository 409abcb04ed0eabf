// SPDX-License-Identifier: Apache-2.0
// `kvcove top`: what a pool does, live.
#include "kvcove/top/top.h"

#include <fmt/core.h>

#include <cstdlib>

#include "kvcove/cli/command.h"
#include "kvcove/cli/find_pool.h"

namespace kvcove::cli {
namespace {

// An owner beside its master adds the latencies.
constexpr std::string_view kMasterAndOwnerHere = "127.0.0.1:7480,127.0.0.1:7481";

struct TopOptions {
  PoolChoice pool;
  AdminAccessOptions access;
  double interval_s = 1;
  bool once = false;
  bool no_color = false;
};

Result<top::SourceOptions> SourceOf(const TopOptions& options) {
  top::SourceOptions source{.endpoints = {}, .authorization = {}, .tls = options.access.tls};
  // First: a wrong token must not look like a pool that is not found.
  KVCOVE_ASSIGN(std::string authorization, AuthorizationOf(options.access));
  KVCOVE_ASSIGN(const Endpoint endpoint, FindEndpoint(options.pool, options.access));
  source.all_expected = endpoint.trusted;
  if (endpoint.trusted) source.authorization = std::move(authorization);
  const std::string admin = endpoint.trusted ? endpoint.address : std::string(kMasterAndOwnerHere);
  std::string_view rest = admin;
  while (true) {
    const std::size_t comma = rest.find(',');
    source.endpoints.emplace_back(rest.substr(0, comma));
    if (source.endpoints.back().empty()) {
      return Fail(Code::kInvalid,
                  fmt::format("--admin {}: an endpoint between commas is empty", admin));
    }
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return source;
}

// https://no-color.org: set, and not empty.
bool NoColorIsSet() {
  const char* value = std::getenv("NO_COLOR");
  return value != nullptr && *value != '\0';
}

Result<int> RunTop(const TopOptions& options) {
  if (!(options.interval_s >= top::kLeastIntervalS && options.interval_s <= top::kMostIntervalS)) {
    return Fail(Code::kInvalid,
                fmt::format("--interval {}: seconds between {} and {}", options.interval_s,
                            top::kLeastIntervalS, top::kMostIntervalS));
  }
  KVCOVE_ASSIGN(top::SourceOptions source, SourceOf(options));
  return top::Run({.source = std::move(source),
                   .interval_s = options.interval_s,
                   .once = options.once,
                   .json = options.access.as_json,
                   .color = !options.no_color && !NoColorIsSet()});
}

}  // namespace

void AddTop(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<TopOptions>();
  CLI::App* top = app.add_subcommand(
      "top", "Show live what a pool does: hits, bytes, latencies, owners, engines, namespaces.");
  AddPoolChoice(*top, options->pool);
  AddAccessOptions(*top, options->access);
  top->add_option("--interval", options->interval_s, "seconds from one sample to the next")
      ->capture_default_str();
  top->add_flag("--once", options->once,
                "print one snapshot, with the rates of one interval, and stop");
  top->add_flag("--json", options->access.as_json,
                "print a line of JSON for each interval; with --once, one line");
  top->add_flag("--no-color", options->no_color, "no colors, as with NO_COLOR in the environment");
  top->callback([options, &chosen] { chosen = [options] { return RunTop(*options); }; });
}

}  // namespace kvcove::cli
