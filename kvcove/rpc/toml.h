// SPDX-License-Identifier: Apache-2.0
// TOML of a file that a person has written.
#pragma once

#include <toml++/toml.h>

#include <string>
#include <string_view>

#include "kvcove/base/result.h"

namespace kvcove::rpc {

// Parses the text of the file `path`, which must be ASCII. Errors: kInvalid, with file and line.
Result<toml::table> ParseToml(std::string_view text, const std::string& path);

}  // namespace kvcove::rpc
