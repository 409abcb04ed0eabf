// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/token_exchange.h"

#include <fmt/core.h>
#include <toml++/toml.h>

#include "kvcove/rpc/credentials.h"

namespace kvcove::rpc {
namespace {

// Returns the offset of a position of toml++ in `text`. A column is a byte, because ParseTenants
// takes only ASCII.
std::size_t OffsetOf(std::string_view text, const toml::source_position& position) {
  std::size_t offset = 0;
  for (toml::source_index line = 1; line < position.line; ++line) {
    offset = text.find('\n', offset) + 1;
  }
  return offset + position.column - 1;
}

// Offsets of a tenant's tokens: where the first one begins, and where the last one begins and ends.
struct Places {
  std::size_t first = 0;
  std::size_t last = 0;
  std::size_t end = 0;
  std::size_t count = 0;
};

Result<Places> Find(std::string_view text, const std::string& path, const std::string& tenant) {
  KVCOVE_ASSIGN(const TenantTable known, ParseTenants(text, path));
  if (!known.contains(tenant)) {
    return Fail(Code::kInvalid, fmt::format("'{}' has no tenant '{}'; without --exchange and "
                                            "--strike 'kvcove token' adds one",
                                            path, tenant));
  }
  // ParseTenants has accepted the text, so this does not throw, and the list exists.
  const toml::table file = toml::parse(text);
  const toml::array& tokens = *file["tenants"][tenant]["tokens"].as_array();
  return Places{.first = OffsetOf(text, tokens.front().source().begin),
                .last = OffsetOf(text, tokens.back().source().begin),
                .end = OffsetOf(text, tokens.back().source().end),
                .count = tokens.size()};
}

}  // namespace

Result<std::string> WithTokenAdded(std::string_view text, const std::string& path,
                                   const std::string& tenant, const std::string& token) {
  KVCOVE_ASSIGN(const Places at, Find(text, path, tenant));
  std::string added(text);
  added.insert(at.end, fmt::format(", \"{}\"", token));
  return added;
}

Result<std::string> WithLastToken(std::string_view text, const std::string& path,
                                  const std::string& tenant) {
  KVCOVE_ASSIGN(const Places at, Find(text, path, tenant));
  if (at.count == 1) {
    return Fail(Code::kInvalid,
                fmt::format("'{}': '{}' has one token only, which nothing replaces; add a new one "
                            "with --exchange first",
                            path, tenant));
  }
  std::string left(text);
  left.erase(at.first, at.last - at.first);
  return left;
}

}  // namespace kvcove::rpc
