// SPDX-License-Identifier: Apache-2.0
// The options --kv-events... of `kvcove serve`, `owner` and `run` (docs/kv-events.md).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvcove/cli/command.h"
#include "kvcove/server/daemon.h"
#include "kvcove/server/kv_events.h"

namespace kvcove::cli {

struct KvEventsTexts {
  std::string events = "off";
  std::string replay = "off";
  std::string topic;
  std::string namespaces = "*";
  std::string hashes = "int";
  std::string form = "map";
  std::size_t most_blocks = server::KvEventsOptions().most_blocks;
};

void AddKvEventsOptions(CLI::App& app, KvEventsTexts& texts);
// Reads the options; nothing without --kv-events. `owners`: those of this process, which take ports
// in a row. Errors: kInvalid with the option, kUnavailable without ZeroMQ.
Result<std::optional<server::KvEventsOptions>> KvEventsOf(const KvEventsTexts& texts, bool insecure,
                                                          std::size_t owners);
// Publishes the events of each owner, on ports in a row, until the result ends: after all that
// answers with metrics, and before the owners. Tries again for `patience_ns` while an address is in
// use. Errors: as KvEvents::Open, StepPort.
Result<std::vector<std::unique_ptr<server::KvEvents>>> ServeKvEvents(
    std::span<const std::unique_ptr<server::Daemon>> daemons,
    const std::optional<server::KvEventsOptions>& options, std::int64_t patience_ns);

}  // namespace kvcove::cli
