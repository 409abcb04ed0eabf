// SPDX-License-Identifier: Apache-2.0
// The table of an owner's options. Only this table reads the flags of `kvcove serve`, `owner` and
// `run` (with their variables and their entries in a file) and the keys of an embedded pool's
// address. A new option is added here, in owner::OwnerOptions and in docs/operating.md;
// scripts/check_docs.py compares that page with this table. All functions are thread-safe.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kvcove/pool/local_host.h"

namespace kvcove::pool {

struct OwnerField {
  // Key in an address, such as `disk_admit=all`. The flag has '-' in place of '_': `--disk-admit
  // all`.
  std::string_view key;
  std::string_view standard;  // the default value as a text; shown by --help
  std::string help;           // text of the flag in --help
  enum class Kind {
    kOne,   // given once
    kMany,  // may be repeated
    kFlag,  // a switch: the flag is `--no-KEY`, in an address `KEY=0` or `KEY=1`
  };
  Kind kind = Kind::kOne;
  bool in_address = true;
  bool only_daemons = false;  // an option of `serve` and `owner`, and not of `run`
  // Reads `texts`, of which there is at least one, into `options`. `option` names the option in
  // errors as the user gave it. Errors: kInvalid, with the option and a right value.
  Status (*read)(std::string_view option, std::span<const std::string> texts,
                 LocalHostOptions& options) = nullptr;
};

// Returns all options, in the order of --help.
std::span<const OwnerField> OwnerFields();
// Returns the flag: "--disk-admit" for "disk_admit", "--no-populate" for "populate".
std::string FlagOf(const OwnerField& field);
// Reads a switch of a pool's address: 0 is off, any other number on. Errors: kInvalid.
Result<bool> ParseSwitch(std::string_view option, std::string_view text);
// Checks what no field can check alone: the guarantees against the size of memory and disks.
// Errors: kInvalid.
Status CheckShares(const owner::OwnerOptions& options);

}  // namespace kvcove::pool
