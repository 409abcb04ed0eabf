// SPDX-License-Identifier: Apache-2.0
// Changes the list of one tenant's tokens in the text of a server's credentials file. The rest of
// the text remains as it is, with its comments. Thread-safe; no I/O.
#pragma once

#include <string>
#include <string_view>

#include "kvcove/base/result.h"

namespace kvcove::rpc {

// Returns `text` with `token` behind the tokens of `tenant`. `path` names the file in messages.
// Errors: kInvalid for a text that servers would refuse, or a tenant without an entry.
Result<std::string> WithTokenAdded(std::string_view text, const std::string& path,
                                   const std::string& tenant, const std::string& token);
// Returns `text` with only the last token of `tenant`. Errors: as above, and kInvalid where the
// tenant has only one.
Result<std::string> WithLastToken(std::string_view text, const std::string& path,
                                  const std::string& tenant);

}  // namespace kvcove::rpc
