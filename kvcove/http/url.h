// SPDX-License-Identifier: Apache-2.0
// Percent-encoding, and the query of a path.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "kvcove/base/result.h"

namespace kvcove::http {

// Encodes all bytes but letters, digits and "-_.~".
std::string UrlEncode(std::string_view text);
// Decodes "%XX", and '+' as a space; a '%' without two hex digits remains.
std::string UrlDecode(std::string_view text);
// Checks that each '%' begins an escape. Errors: kInvalid, with the part that does not.
Status CheckEscapes(std::string_view text);
// Returns the names and values of `a=1&b=2`, decoded. Errors: kInvalid for a name that is there
// twice, because another program may take the other one; those of CheckEscapes.
Result<std::map<std::string, std::string>> ParseQuery(std::string_view query);

}  // namespace kvcove::http
