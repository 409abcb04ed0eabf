// SPDX-License-Identifier: Apache-2.0
// `kvcove engine SOCKET ...`: asks an engine at its own socket
// (connector/scheduler/engine_server.h). `kvcove engine list`: which there are.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kvcove/cli/command.h"
#include "kvcove/connector/scheduler/engine_server.h"

namespace kvcove::cli {
namespace {

using connector::EngineClient;
using connector::WeightsNews;

struct EngineCommand {
  std::string socket;
  std::string version;
  std::string directory = std::filesystem::path(DefaultSocketPath()).parent_path();
  bool json = false;
  std::uint32_t timeout_ms = 3000;
  Result<EngineClient> One() const {
    if (!socket.empty()) return EngineClient(socket);
    return Fail(Code::kInvalid, "give the engine's socket; `kvcove engine list` names them");
  }
  std::chrono::milliseconds timeout() const { return std::chrono::milliseconds(timeout_ms); }
};

nlohmann::json CountersOf(const std::string& text) {
  nlohmann::json all = nlohmann::json::object();
  std::istringstream lines(text);
  std::string name;
  std::string value;
  while (lines >> name && std::getline(lines >> std::ws, value)) {
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    const bool whole = error == std::errc() && end == value.data() + value.size();
    if (whole && name != "version") {
      all[name] = number;
    } else {
      all[name] = value;
    }
  }
  return all;
}

// The doors in a directory, in order of their names.
std::vector<std::string> SocketsIn(const std::string& directory) {
  std::vector<std::string> doors;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("engine-") && name.ends_with(".sock")) doors.push_back(entry.path());
  }
  std::ranges::sort(doors);
  return doors;
}

Result<int> ListEngines(const EngineCommand& command) {
  nlohmann::json all = nlohmann::json::array();
  for (const std::string& socket : SocketsIn(command.directory)) {
    const Result<std::string> text = EngineClient(socket).Counters(command.timeout());
    nlohmann::json one = {{"socket", socket}, {"answers", text.has_value()}};
    if (text) {
      one.update(CountersOf(*text));
    } else {
      one["error"] = text.error().detail;
    }
    all.push_back(std::move(one));
  }
  if (command.json) {
    fmt::print("{}\n", all.dump(2));
    return 0;
  }
  if (all.empty())
    fmt::print("no engine socket in {}; is an engine with KvcoveConnector running as this user?\n",
               command.directory);
  for (const auto& one : all) {
    const std::string socket = one["socket"];
    if (!one["answers"]) {
      fmt::print("{}  does not answer: {}\n", socket, std::string(one["error"]));
      continue;
    }
    const std::string version = one.value("version", "");
    fmt::print("{}  version {}  hit tokens {}  loaded {} MB  saved {} MB{}\n", socket,
               version.empty() ? "-" : version, one["hit_tokens"].get<std::uint64_t>(),
               one["loaded_bytes"].get<std::uint64_t>() / 1'000'000,
               one["saved_bytes"].get<std::uint64_t>() / 1'000'000,
               one["closed"] == 1 ? "  CLOSED" : "");
  }
  return 0;
}

}  // namespace

void AddEngine(CLI::App& app, Action& chosen) {
  auto command = std::make_shared<EngineCommand>();
  CLI::App* engine = app.add_subcommand(
      "engine", "Ask an engine that uses kvcove's connector: counters, reset, weights.");
  engine->add_option("SOCKET", command->socket,
                     "the engine's socket, which its log and `kvcove engine list` name");
  engine->add_option("--timeout-ms", command->timeout_ms, "milliseconds to wait for the answer")
      ->check(CLI::Range(1, 600'000))
      ->capture_default_str();
  engine->require_subcommand(1);
  // `list` is of all engines; every other command is of one.
  CLI::App* list = engine->add_subcommand("list", "List the engines of this user on this host.");
  list->add_option("--directory", command->directory, "directory of the engines' sockets")
      ->capture_default_str();
  list->add_flag("--json", command->json, "print all counters of the engines as JSON");
  list->callback([command, &chosen] {
    chosen = [command]() -> Result<int> { return ListEngines(*command); };
  });
  CLI::App* counters = engine->add_subcommand(
      "counters", "Print the engine's counters of look-ups, loads and saves.");
  counters->add_flag("--json", command->json, "print JSON");
  counters->callback([command, &chosen] {
    chosen = [command]() -> Result<int> {
      KVCOVE_ASSIGN(EngineClient engine, command->One());
      KVCOVE_ASSIGN(const std::string text, engine.Counters(command->timeout()));
      if (command->json) {
        fmt::print("{}\n", CountersOf(text).dump(2));
      } else {
        fmt::print("{}", text);
      }
      return 0;
    };
  });
  CLI::App* reset = engine->add_subcommand("reset",
                                           "Void all KV of the engine in the pool, and wait for "
                                           "the proof. The engine's own cache remains.");
  reset->callback([command, &chosen] {
    chosen = [command]() -> Result<int> {
      KVCOVE_ASSIGN(EngineClient engine, command->One());
      KVCOVE_TRY(engine.Reset(command->timeout()));
      fmt::print("reset\n");
      return 0;
    };
  });
  const auto weights = [&](const char* name, const char* help, WeightsNews news) {
    CLI::App* sub = engine->add_subcommand(name, help);
    if (news == WeightsNews::kVersion) {
      sub->add_option("VERSION", command->version,
                      "version of the weights that the engine uses from now on")
          ->required();
    }
    sub->callback([command, &chosen, news] {
      chosen = [command, news]() -> Result<int> {
        KVCOVE_ASSIGN(EngineClient engine, command->One());
        KVCOVE_TRY(engine.Weights(news, command->version, command->timeout()));
        fmt::print("told\n");
        return 0;
      };
    });
  };
  weights("weights-changing", "Its weights are being changed: nothing is found or stored.",
          WeightsNews::kChanging);
  weights("weights-changed", "They have been: its ranks look at what they are.",
          WeightsNews::kChanged);
  weights("weight-version", "The version of its weights (weight_version_source engine or salt).",
          WeightsNews::kVersion);
}

}  // namespace kvcove::cli
