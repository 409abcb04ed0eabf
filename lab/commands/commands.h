// SPDX-License-Identifier: Apache-2.0
// The commands of the laboratory: `kvcove bench`, `replay`, `policy` and `plan`.
#pragma once

#include "kvcove/cli/command.h"

namespace kvcove::lab {

void AddBench(CLI::App& app, cli::Action& chosen);
void AddReplay(CLI::App& app, cli::Action& chosen);
void AddPolicy(CLI::App& app, cli::Action& chosen);
void AddPlan(CLI::App& app, cli::Action& chosen);

}  // namespace kvcove::lab
