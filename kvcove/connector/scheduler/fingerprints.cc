// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/fingerprints.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "kvcove/base/hash.h"

namespace kvcove::connector {
namespace {

// Returns the text before the next `mark`, and removes it and the mark.
std::string_view Next(std::string_view& text, char mark) {
  const std::size_t end = text.find(mark);
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return part;
}

// Joins the digests of an expert's copies: different ones in order, with '+' between them. The set
// makes the result the same whichever rank or peer is merged first.
std::string Both(std::string_view one, std::string_view other) {
  std::set<std::string_view> all;
  for (std::string_view text : {one, other}) {
    while (!text.empty()) all.insert(Next(text, '+'));
  }
  return fmt::format("{}", fmt::join(all, "+"));
}

void Merge(const WeightsPrint& from, WeightsPrint& into) {
  into.experts_in_all = std::max(into.experts_in_all, from.experts_in_all);
  for (const auto& [expert, digest] : from.experts) {
    const auto [at, first] = into.experts.emplace(expert, digest);
    if (!first && at->second != digest) at->second = Both(at->second, digest);
  }
}

std::string Named(std::string_view text) { return "w" + ToHex(Hash128(text, 0)); }

std::string ExpertsOf(const WeightsPrint& print) {
  std::string text;
  for (const auto& [expert, digest] : print.experts) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", expert, digest);
  }
  return text;
}

}  // namespace

Result<WeightsPrint> ParsePrint(std::string_view text) {
  WeightsPrint print{.digest = std::string(Next(text, ';'))};
  if (text.empty()) return print;
  const std::string_view count = Next(text, ';');
  const auto [end, error] =
      std::from_chars(count.data(), count.data() + count.size(), print.experts_in_all);
  if (error != std::errc() || end != count.data() + count.size()) {
    return Fail(Code::kCorrupt, "a fingerprint's number of experts");
  }
  while (!text.empty()) {
    std::string_view expert = Next(text, ',');
    const std::string_view name = Next(expert, '=');
    if (name.empty() || expert.empty()) return Fail(Code::kCorrupt, "a fingerprint's expert");
    print.experts.emplace(name, expert);
  }
  return print;
}

std::string TextOf(const WeightsPrint& print) {
  if (print.experts_in_all == 0) return print.digest;
  return fmt::format("{};{};{}", print.digest, print.experts_in_all, ExpertsOf(print));
}

Result<WeightsPrint> Joined(const std::vector<std::string>& ranks) {
  WeightsPrint all;
  for (const std::string& rank : ranks) {
    KVCOVE_ASSIGN(const WeightsPrint print, ParsePrint(rank));
    all.digest += print.digest + "|";
    Merge(print, all);
  }
  return all;
}

std::optional<std::string> VersionWith(const WeightsPrint& own,
                                       const std::vector<std::string>& peers) {
  if (own.experts_in_all == 0) return Named(own.digest);
  WeightsPrint all = own;
  for (const std::string& peer : peers) {
    const Result<WeightsPrint> print = ParsePrint(peer);
    if (!print || print->digest != own.digest) return std::nullopt;
    Merge(*print, all);
  }
  if (!all.complete()) return std::nullopt;
  return Named(all.digest + ExpertsOf(all));
}

std::string VersionAlone(const WeightsPrint& own) { return Named(own.digest + ExpertsOf(own)); }

}  // namespace kvcove::connector
