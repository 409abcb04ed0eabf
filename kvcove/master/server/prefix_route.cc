// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/prefix_route.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kvcove/base/keys.h"
#include "kvcove/master/server/admin_request.h"

namespace kvcove::master {
namespace {

using nlohmann::json;

// For all versions of the namespace, from the request's arrival: while another master is silent,
// requests that queue behind others must not each wait that long again.
constexpr std::int64_t kPrefixNs = kSecond;

// The keys of a prefix, and the namespace that they are looked up in.
struct Question {
  http::Request where;  // only `query` is set: the namespace, and the version if one is named
  std::vector<std::string> texts;
  std::vector<std::string_view> keys;
  std::size_t keys_per_chunk = 0;  // 0: the request names keys, not blocks
};

// Parses a body. Drops what is nested deeper than a request is: its memory would be many times that
// of its text.
Result<json> Parse(const std::string& text) {
  bool nested = false;
  std::size_t fields = 0;
  const auto keep = [&](int depth, json::parse_event_t event, json& /*parsed*/) {
    if (event == json::parse_event_t::key && depth == 1) ++fields;
    const bool begins =
        event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (begins && depth > 1) nested = true;
    return depth < 2 || !begins;
  };
  // To the parser a NUL byte is the end.
  if (text.contains('\0')) return Fail(Code::kInvalid, "the body has a NUL byte, so it is no JSON");
  json body = json::parse(text, keep, /*allow_exceptions=*/false);
  if (!body.is_object()) return Fail(Code::kInvalid, "the body is no JSON object");
  if (nested) return Fail(Code::kInvalid, "a field is neither a value nor a list of values");
  if (fields != body.size()) return Fail(Code::kInvalid, "a field is given twice");
  return body;
}

Status CheckFields(const json& body) {
  constexpr std::string_view kFields[] = {
      "namespace", "version", "keys", "block_hashes", "tags", "adapter", "hashes_per_chunk"};
  for (const auto& [field, value] : body.items()) {
    if (std::ranges::find(kFields, field) != std::end(kFields)) continue;
    const std::string_view nearest = NearestKey(field, kFields);
    return Fail(Code::kInvalid,
                fmt::format("unknown field '{:.64}'{}", field,
                            nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest)));
  }
  return {};
}

// Returns a field that is a list of strings; empty: the field is missing.
Result<std::vector<std::string_view>> Strings(const json& body, const char* field) {
  std::vector<std::string_view> strings;
  const auto at = body.find(field);
  if (at == body.end()) return strings;
  const bool valid = at->is_array() && !at->empty() &&
                     std::ranges::all_of(*at, [](const json& one) { return one.is_string(); });
  if (!valid) {
    return Fail(Code::kInvalid, fmt::format("'{}' must be a list of strings, not empty", field));
  }
  strings.reserve(at->size());
  for (const json& one : *at) strings.push_back(one.get_ref<const std::string&>());
  return strings;
}

Result<std::string> String(const json& body, const char* field) {
  const auto at = body.find(field);
  if (at == body.end()) return std::string();
  if (!at->is_string()) return Fail(Code::kInvalid, fmt::format("'{}' must be a string", field));
  return at->get<std::string>();
}

bool IsHash(std::string_view text) {
  const bool hex = std::ranges::all_of(text, [](char digit) {
    return (digit >= '0' && digit <= '9') || (digit >= 'a' && digit <= 'f');
  });
  return hex && !text.empty() && text.size() % 2 == 0;
}

// Makes the connector's keys of an engine's block hashes (connector/shape.h): of each chunk, which
// its last block's hash names, one key for each tag.
Status AddKeysOfBlocks(const json& body, Question& question) {
  KVCOVE_ASSIGN(const std::vector<std::string_view> hashes, Strings(body, "block_hashes"));
  KVCOVE_ASSIGN(const std::vector<std::string_view> tags, Strings(body, "tags"));
  KVCOVE_ASSIGN(const std::string adapter, String(body, "adapter"));
  if (tags.empty()) {
    return Fail(Code::kInvalid,
                "'block_hashes' need 'tags', the beginnings of a chunk's keys: "
                "'python -m kvcove.vllm explain --json' prints them");
  }
  const json every = body.value("hashes_per_chunk", json(1U));
  if (!every.is_number_unsigned() || every.get<std::uint64_t>() == 0) {
    return Fail(Code::kInvalid, "'hashes_per_chunk' must be a number, at least 1");
  }
  const std::uint64_t per_chunk = every.get<std::uint64_t>();
  if (hashes.size() / per_chunk * tags.size() > kMaxBatch) {
    return Fail(Code::kInvalid, fmt::format("at most {} keys: hashes times tags", kMaxBatch));
  }
  question.keys_per_chunk = tags.size();
  const std::string end = adapter.empty() ? adapter : "+" + adapter;
  for (std::uint64_t last = per_chunk; last <= hashes.size(); last += per_chunk) {
    const std::string_view hash = hashes[last - 1];
    if (!IsHash(hash)) {
      return Fail(Code::kInvalid,
                  fmt::format("block hash {} is not a whole number of bytes in lower-case "
                              "hexadecimal digits",
                              last - 1));
    }
    for (const std::string_view tag : tags) {
      std::string& key = question.texts.emplace_back(tag);
      key.append("@").append(hash).append(end);
      KVCOVE_TRY(CheckKey(key));  // now: thousands that are too long would fill the memory
    }
  }
  question.keys.assign(question.texts.begin(), question.texts.end());
  return {};
}

// `body` must outlive the result, which has views into it.
Result<Question> QuestionIn(const json& body) {
  KVCOVE_TRY(CheckFields(body));
  Question question;
  for (const char* const field : {"namespace", "version"}) {
    if (!body.contains(field)) continue;
    KVCOVE_ASSIGN(std::string name, String(body, field));
    if (name.size() > kMaxKeyBytes) {
      return Fail(Code::kInvalid, fmt::format("'{}' has {} bytes; at most {} are allowed", field,
                                              name.size(), kMaxKeyBytes));
    }
    question.where.query[field] = std::move(name);
  }
  KVCOVE_TRY(question.where.Need("namespace"));
  if (body.contains("keys") == body.contains("block_hashes")) {
    return Fail(Code::kInvalid, "give 'keys' or 'block_hashes', one of them");
  }
  if (body.contains("block_hashes")) {
    KVCOVE_TRY(AddKeysOfBlocks(body, question));
  } else {
    KVCOVE_ASSIGN(question.keys, Strings(body, "keys"));
  }
  if (question.keys.size() > kMaxBatch) {
    return Fail(Code::kInvalid, fmt::format("at most {} keys", kMaxBatch));
  }
  for (const std::string_view key : question.keys) KVCOVE_TRY(CheckKey(key));
  return question;
}

// Returns the slots of the request's namespace and version; without a version, those of versions
// that engines use, if any do: values of another one are of no use to them.
Result<std::vector<SlotDescription>> SlotsOf(const AdminPool& pool, const http::Request& where) {
  KVCOVE_ASSIGN(std::vector<SlotDescription> slots, SlotsIn(pool, where));
  const auto versioned = [](const SlotDescription& slot) { return !slot.version.empty(); };
  const bool used = std::ranges::any_of(
      slots, [&](const SlotDescription& slot) { return versioned(slot) && slot.named; });
  if (used && !where.query.contains("version")) {
    std::erase_if(slots,
                  [&](const SlotDescription& slot) { return versioned(slot) && !slot.named; });
  }
  return slots;
}

json OwnersOf(const PrefixShares& shares, const AdminPool& pool, std::size_t keys_per_chunk) {
  const std::vector<wire::OwnerStat> owners = pool.Owners();
  json list = json::array();
  for (const PrefixShare& share : shares.owners) {
    const auto owner = std::ranges::find(owners, share.owner, &wire::OwnerStat::number);
    if (owner == owners.end()) continue;  // it has ended since
    list.push_back({{"owner", owner->address},
                    {"host", owner->host},
                    {"prefix", share.prefix},
                    {"memory_prefix", share.memory_prefix},
                    {"memory", share.memory},
                    {"disk", share.disk}});
    if (keys_per_chunk == 0) continue;
    list.back()["prefix_chunks"] = share.prefix / keys_per_chunk;
    list.back()["memory_prefix_chunks"] = share.memory_prefix / keys_per_chunk;
  }
  return list;
}

}  // namespace

Result<json> AnswerPrefix(const AdminPool& pool, const http::Request& request) {
  KVCOVE_ASSIGN(const json body, Parse(request.body));
  KVCOVE_ASSIGN(const Question question, QuestionIn(body));
  KVCOVE_ASSIGN(const std::vector<SlotDescription> slots, SlotsOf(pool, question.where));
  const std::int64_t deadline_ns = request.arrived_ns + kPrefixNs;
  PrefixShares best;
  const SlotDescription* best_slot = nullptr;
  for (const SlotDescription& slot : slots) {
    PrefixCount count;
    pool.CountPrefix(slot, question.keys, deadline_ns, count);
    if (best_slot != nullptr && count.keys() <= best.keys) continue;
    best = count.Shares();
    best_slot = &slot;
  }
  json answer{{"namespace", ReadableName(best_slot->name)},
              {"version", best_slot->version},
              {"asked", question.keys.size()},
              {"keys", best.keys},
              {"owners", OwnersOf(best, pool, question.keys_per_chunk)}};
  if (question.keys_per_chunk != 0) answer["chunks"] = best.keys / question.keys_per_chunk;
  if (best.reason != MissReason::kNone) answer["reason"] = MissReasonName(best.reason);
  return answer;
}

}  // namespace kvcove::master
