// SPDX-License-Identifier: Apache-2.0
// Percent-encoding, and the query of a path. Any bytes are taken; none is an error.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace kvcove::http {

// Encodes all bytes but letters, digits and "-_.~".
std::string UrlEncode(std::string_view text);
// Decodes "%XX", and '+' as a space; a '%' without two hex digits remains.
std::string UrlDecode(std::string_view text);
// Returns the names and values of `a=1&b=2`, decoded. The last of equal names counts.
std::map<std::string, std::string> ParseQuery(std::string_view query);

}  // namespace kvcove::http
