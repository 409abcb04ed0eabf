// SPDX-License-Identifier: Apache-2.0
// A servers' credentials file with another list of one tenant's tokens. Everything else of its text
// stays as it is, comments included.
#pragma once

#include <string>
#include <string_view>

#include "kvcove/base/result.h"

namespace kvcove::rpc {

// `text` with `token` behind the tokens that `tenant` has. `path` names the file in messages.
// Errors: kInvalid for a text that servers would not take, or a tenant without an entry.
Result<std::string> WithTokenAdded(std::string_view text, const std::string& path,
                                   const std::string& tenant, const std::string& token);
// `text` with the last token of `tenant` alone. Errors: as above, and kInvalid where it has one.
Result<std::string> WithLastToken(std::string_view text, const std::string& path,
                                  const std::string& tenant);

}  // namespace kvcove::rpc
