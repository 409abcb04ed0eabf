// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/owner_facts.h"

#include <fmt/core.h>

#include <charconv>

#include "kvcove/base/durable_file.h"
#include "kvcove/base/hash.h"
#include "kvcove/base/log.h"

namespace kvcove::owner {
namespace {

constexpr const char* kName = "owner";
constexpr std::string_view kHead = "kvcove owner 1\n";
constexpr std::string_view kSum = "sum ";

std::string SumOf(std::string_view text) {
  return fmt::format("{:016x}", Hash64(std::as_bytes(std::span(text)), 0));
}

// Takes the next line, which must begin with `word` and a space, and returns the rest of the line.
std::optional<std::string_view> Take(std::string_view& text, std::string_view word) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos || !text.starts_with(word) || text.size() <= word.size() ||
      text[word.size()] != ' ') {
    return std::nullopt;
  }
  const std::string_view value = text.substr(word.size() + 1, end - word.size() - 1);
  text.remove_prefix(end + 1);
  return value;
}

bool TakeId(std::string_view& text, std::string_view word, Id128& id) {
  const auto value = Take(text, word);
  const auto parsed = value ? IdFromHex(*value) : std::nullopt;
  if (parsed) id = *parsed;
  return parsed.has_value();
}

bool TakeNumber(std::string_view& text, std::string_view word, std::uint64_t& number) {
  const auto value = Take(text, word);
  if (!value) return false;
  const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), number);
  return error == std::errc() && end == value->data() + value->size();
}

}  // namespace

std::string Encode(const OwnerFacts& facts) {
  std::string text =
      fmt::format("{}identity {}\npool {}\nincarnation {}\nterm {}\ntag {}\nrevision {}\n", kHead,
                  ToHex(facts.identity), ToHex(facts.pool), ToHex(facts.incarnation),
                  facts.seen.term, facts.seen.tag, facts.seen.revision);
  if (facts.opening != Id128{}) {
    text +=
        fmt::format("opening {}\nbefore {}\n", ToHex(facts.opening), ToHex(facts.opening_before));
  }
  return fmt::format("{}{}{}\n", text, kSum, SumOf(text));
}

std::optional<OwnerFacts> DecodeOwnerFacts(const std::string& whole) {
  const std::size_t at = whole.rfind(kSum);
  if (at == std::string::npos) return std::nullopt;
  std::string_view text = std::string_view(whole).substr(0, at);
  if (whole.substr(at) != fmt::format("{}{}\n", kSum, SumOf(text)) || !text.starts_with(kHead)) {
    return std::nullopt;
  }
  text.remove_prefix(kHead.size());
  OwnerFacts facts;
  bool sound =
      TakeId(text, "identity", facts.identity) && TakeId(text, "pool", facts.pool) &&
      TakeId(text, "incarnation", facts.incarnation) && TakeNumber(text, "term", facts.seen.term) &&
      TakeNumber(text, "tag", facts.seen.tag) && TakeNumber(text, "revision", facts.seen.revision);
  // Earlier versions wrote no openings.
  if (sound && !text.empty()) {
    sound = TakeId(text, "opening", facts.opening) &&
            TakeId(text, "before", facts.opening_before) && text.empty();
  }
  if (!sound || facts.identity == Id128{}) return std::nullopt;
  return facts;
}

Result<std::optional<OwnerFacts>> ReadOwnerFacts(const std::string& directory) {
  KVCOVE_ASSIGN(const std::optional<std::string> text, ReadSmallFile(directory, kName));
  if (!text) return std::optional<OwnerFacts>();
  const std::optional<OwnerFacts> facts = DecodeOwnerFacts(*text);
  if (!facts) {
    LogWarn("{}/{} is damaged: this owner gets a new identity, and its disk starts empty",
            directory, kName);
  }
  return facts;
}

Status WriteOwnerFacts(const std::string& directory, const OwnerFacts& facts) {
  return ReplaceFile(directory, kName, Encode(facts));
}

}  // namespace kvcove::owner
