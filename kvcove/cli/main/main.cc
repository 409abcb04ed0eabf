// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/command.h"

int main(int argc, char** argv) { return kvcove::cli::Main(argc, argv); }
