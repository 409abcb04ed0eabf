// SPDX-License-Identifier: Apache-2.0
// Files that must survive a loss of power whole, such as the notes beside an owner's disk. These
// calls wait for the file system.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kvcove/base/result.h"

namespace kvcove {

// Replaces the file whole, for this user alone; durable when it returns. Of a new one that could
// not be written nothing is left. Errors: kUnavailable, and then the file is what it was, or the
// new one and not durable yet.
Status ReplaceFile(const std::string& directory, const std::string& name, std::string_view text);
// The same for its end; one that is not there is no error.
Status RemoveFile(const std::string& directory, const std::string& name);
// Makes changes of the directory durable: files that were made, renamed or removed.
Status SyncDirectory(const std::string& directory);
// At most 4 KiB; nothing when there is no such file. Errors: kUnavailable.
Result<std::optional<std::string>> ReadSmallFile(const std::string& directory,
                                                 const std::string& name);

}  // namespace kvcove
