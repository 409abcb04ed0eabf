// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "kvcove/cli/command.h"
#include "lab/commands/commands.h"

int main(int argc, char** argv) {
  using kvcove::cli::AddCommand;
#ifdef KVCOVE_LAB_COMMANDS
  constexpr std::array<AddCommand, 4> kLab = {kvcove::lab::AddBench, kvcove::lab::AddReplay,
                                              kvcove::lab::AddPolicy, kvcove::lab::AddPlan};
#else
  constexpr std::array<AddCommand, 0> kLab = {};
#endif
  return kvcove::cli::Main(argc, argv, kLab);
}
