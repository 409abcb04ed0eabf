// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "kvcove/cli/command.h"
#include "lab/commands/commands.h"

int main(int argc, char** argv) {
  using kvcove::cli::AddCommand;
  constexpr std::array<AddCommand, 3> kLab = {kvcove::lab::AddBench, kvcove::lab::AddReplay,
                                              kvcove::lab::AddPolicy};
  return kvcove::cli::Main(argc, argv, kLab);
}
