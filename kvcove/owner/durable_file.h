// SPDX-License-Identifier: Apache-2.0
// Small files that must survive a loss of power: the notes beside an owner's disk. Wait for the
// file system.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kvcove/base/result.h"

namespace kvcove::owner {

// Replaces the file whole; durable when it returns. Errors: kUnavailable.
Status ReplaceFile(const std::string& directory, const std::string& name, std::string_view text);
// The same for its end; one that is not there is no error.
Status RemoveFile(const std::string& directory, const std::string& name);
// Nothing when there is no such file. Errors: kUnavailable.
Result<std::optional<std::string>> ReadSmallFile(const std::string& directory,
                                                 const std::string& name);

}  // namespace kvcove::owner
