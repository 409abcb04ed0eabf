// SPDX-License-Identifier: Apache-2.0
// The table of an owner's options. The flags of `kvcove serve`, `owner` and `run` with their
// variables and their entries in a file, and the keys of an embedded pool's address, are read by
// this table alone. An option is added here, in owner::OwnerOptions and in docs/operating.md;
// scripts/check_docs.py compares the last with this table.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/pool/local_host.h"

namespace kvcove::pool {

struct OwnerField {
  // In an address, as `disk_admit=all`. The flag has '-' in place of '_': `--disk-admit all`.
  std::string_view key;
  std::string_view standard;  // the text that stands for none; shown by --help
  std::string help;           // of the flag
  enum class Kind {
    kOne,   // given once
    kMany,  // may be repeated
    kFlag,  // a switch. The flag is `--no-KEY`; in an address it is `KEY=0`, or `KEY=1`
  };
  Kind kind = Kind::kOne;
  bool in_address = true;
  bool only_daemons = false;  // an option of `serve` and `owner`, and not of `run`
  // Reads `texts`, which are not empty, into `options`. `option` is how the user gave them, for the
  // error. Errors: kInvalid, with the option and what would be right.
  Status (*read)(std::string_view option, std::span<const std::string> texts,
                 LocalHostOptions& options) = nullptr;
};

// All of them, in the order of --help.
std::span<const OwnerField> OwnerFields();
// "--disk-admit" of "disk_admit"; "--no-populate" of "populate".
std::string FlagOf(const OwnerField& field);
// Reads 0 or 1, of an option of any pool's address. Errors: kInvalid.
Result<bool> ParseSwitch(std::string_view option, std::string_view text);
// Checks what no field knows alone: guarantees against the memory and the disks that there are.
// Errors: kInvalid.
Status CheckShares(const owner::OwnerOptions& options);

}  // namespace kvcove::pool
