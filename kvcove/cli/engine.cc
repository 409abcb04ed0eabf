// SPDX-License-Identifier: Apache-2.0
// `kvcove engine SOCKET ...`: asks an engine at its own door (connector/engine_server.h).
#include <fmt/core.h>

#include "kvcove/cli/command.h"
#include "kvcove/connector/engine_server.h"

namespace kvcove::cli {
namespace {

using connector::EngineClient;
using connector::WeightsNews;

struct EngineCommand {
  std::string socket;
  std::string version;
  std::uint32_t timeout_ms = 3000;
  std::chrono::milliseconds timeout() const { return std::chrono::milliseconds(timeout_ms); }
};

}  // namespace

void AddEngine(CLI::App& app, Action& chosen) {
  auto command = std::make_shared<EngineCommand>();
  CLI::App* engine = app.add_subcommand(
      "engine", "Ask an engine that uses kvcove's connector: counters, reset, weights.");
  engine->add_option("SOCKET", command->socket, "its socket: the engine's log names it")
      ->required();
  engine->add_option("--timeout-ms", command->timeout_ms, "for the answer")
      ->check(CLI::Range(1, 600'000))
      ->capture_default_str();
  engine->require_subcommand(1);
  engine->add_subcommand("counters", "What it has looked up, loaded and saved.")
      ->callback([command, &chosen] {
        chosen = [command]() -> Result<int> {
          KVCOVE_ASSIGN(const std::string text,
                        EngineClient(command->socket).Counters(command->timeout()));
          fmt::print("{}", text);
          return 0;
        };
      });
  engine->add_subcommand("reset", "Void all that was computed; done only when it is proven.")
      ->callback([command, &chosen] {
        chosen = [command]() -> Result<int> {
          KVCOVE_TRY(EngineClient(command->socket).Reset(command->timeout()));
          fmt::print("reset\n");
          return 0;
        };
      });
  const auto weights = [&](const char* name, const char* help, WeightsNews news) {
    CLI::App* sub = engine->add_subcommand(name, help);
    if (news == WeightsNews::kVersion) {
      sub->add_option("VERSION", command->version, "from now on")->required();
    }
    sub->callback([command, &chosen, news] {
      chosen = [command, news]() -> Result<int> {
        KVCOVE_TRY(
            EngineClient(command->socket).Weights(news, command->version, command->timeout()));
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
