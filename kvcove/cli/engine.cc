// SPDX-License-Identifier: Apache-2.0
// `kvcove engine`: the engines of this host, by their own sockets
// (connector/scheduler/engine_server.h); `kvcove engine [ENGINE] COMMAND` asks one.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kvcove/cli/command.h"
#include "kvcove/cli/tables.h"
#include "kvcove/connector/scheduler/engine_server.h"
#include "kvcove/pool/connection.h"
#include "kvcove/pool/pool.h"

namespace kvcove::cli {
namespace {

using connector::EngineClient;
using connector::WeightsNews;

struct EngineCommand {
  std::string engine;  // socket, its file's name, or a process; empty: not named
  std::string version;
  std::string directory = std::filesystem::path(DefaultSocketPath()).parent_path();
  bool json = false;
  std::uint32_t timeout_ms = 3000;
  std::chrono::milliseconds timeout() const { return std::chrono::milliseconds(timeout_ms); }
};

// Returns the counters, numbers but for the version. A version may be empty, and any text.
nlohmann::json CountersOf(const std::string& text) {
  nlohmann::json all = nlohmann::json::object();
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t space = line.find(' ');
    if (space == std::string::npos) continue;
    const std::string name = line.substr(0, space);
    const std::string value = line.substr(space + 1);
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

// Returns the number in engine-NAME-PID.sock; empty: the file has another name.
std::string ProcessOf(const std::string& socket) {
  const std::string stem = std::filesystem::path(socket).stem();
  const std::size_t dash = stem.rfind('-');
  const std::string number = dash == std::string::npos ? "" : stem.substr(dash + 1);
  return number.find_first_not_of("0123456789") == std::string::npos ? number : "";
}

struct EngineSockets {
  std::vector<std::string> served;  // in order of their names
  std::size_t left = 0;             // sockets of engines that were killed
};

EngineSockets SocketsIn(const std::string& directory) {
  EngineSockets sockets;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("engine-") || !name.ends_with(".sock")) continue;
    const auto nobody = pool::WhyNoOwner(entry.path());
    if (nobody && nobody->has_value()) {
      ++sockets.left;
    } else {
      sockets.served.push_back(entry.path());
    }
  }
  std::ranges::sort(sockets.served);
  return sockets;
}

std::unexpected<Error> NoEngine(const EngineCommand& command, std::size_t left) {
  return Fail(
      Code::kUnavailable,
      fmt::format("no engine's socket is served in {}{}; is an engine with "
                  "KvcoveConnector running as this user? --directory names another "
                  "directory",
                  command.directory,
                  left == 0 ? "" : fmt::format(" (sockets of engines that have ended: {})", left)));
}

// Returns the sockets that the command means: the named one, or all.
Result<std::vector<std::string>> Meant(const EngineCommand& command) {
  if (command.engine.find('/') != std::string::npos) return std::vector{command.engine};
  const EngineSockets sockets = SocketsIn(command.directory);
  if (command.engine.empty()) {
    if (sockets.served.empty()) return NoEngine(command, sockets.left);
    return sockets.served;
  }
  std::vector<std::string> found;
  for (const std::string& socket : sockets.served) {
    const std::filesystem::path path(socket);
    if (command.engine == path.filename() || command.engine == path.stem() ||
        command.engine == ProcessOf(socket)) {
      found.push_back(socket);
    }
  }
  if (!found.empty()) return found;
  return Fail(Code::kMiss, fmt::format("no engine '{}' in {}; 'kvcove engine' lists them: a "
                                       "socket, its name or a process names one",
                                       command.engine, command.directory));
}

// Returns the one engine that a change is for.
Result<EngineClient> One(const EngineCommand& command) {
  KVCOVE_ASSIGN(const std::vector<std::string> sockets, Meant(command));
  if (sockets.size() == 1) return EngineClient(sockets.front());
  return Fail(Code::kInvalid, fmt::format("there are {} engines; name one: kvcove engine {} ...",
                                          sockets.size(), sockets.front()));
}

nlohmann::json Ask(const std::string& socket, const EngineCommand& command) {
  nlohmann::json one = {{"socket", socket}, {"process", ProcessOf(socket)}};
  const Result<std::string> text = EngineClient(socket).Counters(command.timeout());
  one["answers"] = text.has_value();
  if (text) {
    one.update(CountersOf(*text));
  } else {
    one["error"] = text.error().detail;
  }
  return one;
}

// A version of the weights may be any bytes.
void PrintIndented(const nlohmann::json& body) {
  fmt::print("{}\n", body.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

void PrintEngines(nlohmann::json all, const EngineSockets& sockets) {
  constexpr Column kColumns[] = {{"PROCESS", "process"},       {"VERSION", "version", true},
                                 {"STATE", "state"},           {"ASKED TOKENS", "asked_tokens"},
                                 {"HIT TOKENS", "hit_tokens"}, {"LOADED", "loaded_bytes"},
                                 {"SAVED", "saved_bytes"},     {"SOCKET", "socket"}};
  for (auto& one : all) {
    one["state"] = !one["answers"].get<bool>()   ? "does not answer: " + one.value("error", "")
                   : one.value("closed", 0) == 1 ? "CLOSED"
                                                 : "open";
  }
  PrintList(all, kColumns, "");
  if (sockets.left > 0) {
    fmt::print("sockets of engines that have ended: {}; the next engine removes them\n",
               sockets.left);
  }
}

Result<int> ListEngines(const EngineCommand& command) {
  const EngineSockets sockets = SocketsIn(command.directory);
  nlohmann::json all = nlohmann::json::array();
  for (const std::string& socket : sockets.served) all.push_back(Ask(socket, command));
  if (command.json) {
    PrintIndented(all);
  } else if (all.empty()) {
    fmt::print("{}\n", NoEngine(command, sockets.left).error().detail);
  } else {
    PrintEngines(std::move(all), sockets);
  }
  return 0;
}

// One engine's counters are its lines, or one object; those of several have a heading each, or are
// a list.
Result<int> ShowCounters(const EngineCommand& command) {
  KVCOVE_ASSIGN(const std::vector<std::string> sockets, Meant(command));
  const bool one = sockets.size() == 1;
  nlohmann::json all = nlohmann::json::array();
  bool answered = true;
  for (const std::string& socket : sockets) {
    const Result<std::string> text = EngineClient(socket).Counters(command.timeout());
    if (!text && one) return std::unexpected(text.error());
    answered = answered && text.has_value();
    if (command.json) {
      all.push_back(one ? CountersOf(*text) : Ask(socket, command));
      continue;
    }
    if (!one) fmt::print("{}:\n", socket);
    fmt::print("{}", text ? *text : "does not answer: " + text.error().detail + "\n");
  }
  if (command.json) PrintIndented(one ? all.front() : all);
  return answered ? 0 : 1;
}

}  // namespace

void AddEngine(CLI::App& app, Action& chosen) {
  auto command = std::make_shared<EngineCommand>();
  CLI::App* engine = app.add_subcommand(
      "engine",
      "List the engines of this user on this host that use kvcove's connector, or ask one: "
      "counters, reset, weights.");
  engine->add_option("ENGINE", command->engine,
                     "the engine: its process, its socket, or the socket's name (default: the "
                     "only one; counters: all)");
  engine->add_option("--directory", command->directory, "directory of the engines' sockets")
      ->capture_default_str();
  engine->add_flag("--json", command->json, "print JSON");
  engine->add_option("--timeout-ms", command->timeout_ms, "milliseconds to wait for each answer")
      ->check(CLI::Range(1, 600'000))
      ->capture_default_str();
  engine->require_subcommand(0, 1);
  engine->fallthrough();
  engine->callback([command, engine, &chosen] {
    if (!engine->get_subcommands().empty()) return;
    chosen = [command]() -> Result<int> {
      return command->engine.empty() ? ListEngines(*command) : ShowCounters(*command);
    };
  });
  CLI::App* list = engine->add_subcommand("list", "List the engines, as without a command.");
  list->callback([command, &chosen] {
    chosen = [command]() -> Result<int> { return ListEngines(*command); };
  });
  CLI::App* counters = engine->add_subcommand(
      "counters", "Print the counters of look-ups, loads and saves, of each engine.");
  counters->callback([command, &chosen] {
    chosen = [command]() -> Result<int> { return ShowCounters(*command); };
  });
  CLI::App* reset = engine->add_subcommand("reset",
                                           "Void all KV of the engine in the pool, and wait for "
                                           "the proof. The engine's own cache remains.");
  reset->callback([command, &chosen] {
    chosen = [command]() -> Result<int> {
      KVCOVE_ASSIGN(EngineClient engine, One(*command));
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
        KVCOVE_ASSIGN(EngineClient engine, One(*command));
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
