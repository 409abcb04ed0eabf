// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/admin_request.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "kvcove/base/keys.h"

namespace kvcove::master {
namespace {

using http::Request;

constexpr std::uint64_t kProofMs = 2500;        // for which a change waits for its proof
constexpr std::uint64_t kMostProofMs = 60'000;  // it keeps a thread of the endpoint meanwhile
constexpr std::size_t kShown = 64;              // bytes of a wrong value that a message repeats

}  // namespace

std::unexpected<Error> NoSuchName(const std::string& name, const std::vector<std::string>& known,
                                  const std::string& with) {
  std::vector<std::string> readable;
  for (const std::string& one : known) readable.push_back(ReadableName(one));
  std::string nearest;
  for (std::size_t i = 0; i < known.size() && nearest.empty(); ++i) {
    if (readable[i] != name && NameWithinTenant(known[i]) == name) nearest = readable[i];
  }
  if (nearest.empty()) {
    const std::vector<std::string_view> views(readable.begin(), readable.end());
    nearest = NearestKey(name, views);
  }
  // A name that is known has no such version.
  const bool other = !nearest.empty() && nearest != name;
  return Fail(Code::kMiss, fmt::format("no namespace{}{}; {}",
                                       name.empty() ? "" : fmt::format(" '{}'", name), with,
                                       other          ? fmt::format("did you mean '{}'?", nearest)
                                       : with.empty() ? "'kvcove namespaces' lists them"
                                                      : "'kvcove versions' lists them"));
}

Status CheckOne(const std::set<std::string>& names) {
  if (names.size() <= 1) return {};
  std::string all;
  for (const std::string& name : names) {
    const std::string_view tenant = TenantOf(name);
    all += fmt::format("{}'{}' {}", all.empty() ? "" : " and ", NameWithinTenant(name),
                       tenant.empty() ? "without a tenant" : fmt::format("of tenant '{}'", tenant));
  }
  return Fail(Code::kInvalid,
              fmt::format("'{}' may be {}; a session of an engine has only the one of its tenant",
                          ReadableName(*names.begin()), all));
}

JsonAnswer Taking(std::vector<std::string_view> parameters, JsonAnswer answer) {
  return [parameters = std::move(parameters),
          answer = std::move(answer)](const Request& request) -> Result<nlohmann::json> {
    for (const auto& [name, value] : request.query) {
      if (std::ranges::find(parameters, name) != parameters.end()) continue;
      if (!parameters.empty()) {
        return UnknownKey("parameter", name.substr(0, kShown), parameters);
      }
      return Fail(Code::kInvalid, fmt::format("unknown parameter '{}': this path takes none",
                                              name.substr(0, kShown)));
    }
    return answer(request);
  };
}

Result<std::int64_t> ProofTimeIn(const Request& request) {
  KVCOVE_ASSIGN(const std::uint64_t timeout_ms, NumberIn(request, "timeout_ms", kProofMs));
  if (timeout_ms <= kMostProofMs) return static_cast<std::int64_t>(timeout_ms) * kMillisecond;
  return Fail(Code::kInvalid, fmt::format("timeout_ms={}: at most {}", timeout_ms, kMostProofMs));
}

Result<std::uint64_t> NumberIn(const Request& request, const std::string& name,
                               std::uint64_t otherwise) {
  if (!request.query.contains(name)) return otherwise;
  const std::string text = request.Get(name);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range && end == text.data() + text.size()) {
    return Fail(Code::kInvalid, fmt::format("{}={} is too large", name, text.substr(0, kShown)));
  }
  if (error != std::errc() || end != text.data() + text.size()) {
    return Fail(Code::kInvalid,
                fmt::format("{}='{}' is not a number, 0 or more", name, text.substr(0, kShown)));
  }
  return value;
}

Result<bool> IsTrue(const Request& request, const std::string& name) {
  const std::string text = request.Get(name, "false");
  if (text == "true" || text == "false") return text == "true";
  return Fail(Code::kInvalid,
              fmt::format("{}='{}' is neither 'true' nor 'false'", name, text.substr(0, kShown)));
}

Result<std::string> TextIn(const Request& request, const std::string& name) {
  if (!request.query.contains(name)) return std::string();
  KVCOVE_ASSIGN(std::string text, request.Need(name));
  if (text.size() <= kMaxKeyBytes) return text;
  return Fail(Code::kInvalid, fmt::format("'{}' has {} bytes; at most {} are allowed", name,
                                          text.size(), kMaxKeyBytes));
}

Result<std::vector<SlotDescription>> SlotsIn(const AdminPool& pool, const Request& request) {
  KVCOVE_ASSIGN(const std::string name, TextIn(request, "namespace"));
  const bool versioned = request.query.contains("version");
  std::vector<SlotDescription> found;
  std::vector<std::string> known;
  std::set<std::string> meant;
  if (versioned && request.Get("version").size() > kMaxKeyBytes) {
    KVCOVE_TRY(TextIn(request, "version"));  // an empty version is a namespace's own
  }
  KVCOVE_ASSIGN(const std::vector<SlotDescription> all, pool.Namespaces());
  for (const SlotDescription& slot : all) {
    known.push_back(slot.name);
    if (!name.empty() && ReadableName(slot.name) != name) continue;
    if (versioned && slot.version != request.Get("version")) continue;
    if (!name.empty()) meant.insert(slot.name);
    found.push_back(slot);
  }
  KVCOVE_TRY(CheckOne(meant));
  if (!found.empty() || (name.empty() && !versioned)) return found;
  return NoSuchName(
      name, known,
      versioned ? fmt::format(" with version '{}'", request.Get("version")) : std::string());
}

}  // namespace kvcove::master
