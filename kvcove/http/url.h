// SPDX-License-Identifier: Apache-2.0
// Percent-encoding, and what stands behind a path's '?'. Any bytes are taken; none is an error.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace kvcove::http {

std::string UrlEncode(std::string_view text);
std::string UrlDecode(std::string_view text);
// `a=1&b=2`; the last of a name counts.
std::map<std::string, std::string> ParseQuery(std::string_view query);

}  // namespace kvcove::http
