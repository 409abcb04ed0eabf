// SPDX-License-Identifier: Apache-2.0
#include "kvcove/kvevents/block_key.h"

#include <algorithm>

#include "kvcove/base/text.h"

namespace kvcove::kvevents {
namespace {

struct Share {
  std::uint32_t index = 0;
  std::uint32_t of = 1;
};

// Reads "<index>of<of>".
std::optional<Share> ParseShare(std::string_view text) {
  const std::size_t of = text.find("of");
  if (of == std::string_view::npos) return std::nullopt;
  const auto index = NumberOf<std::uint32_t>(text.substr(0, of));
  const auto count = NumberOf<std::uint32_t>(text.substr(of + 2));
  if (!index || !count || *index >= *count || *count > BlockPart::kMostParts) return std::nullopt;
  return Share{.index = *index, .of = *count};
}

int DigitOf(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

std::optional<BlockHash> ParseHash(std::string_view digits) {
  BlockHash hash;
  if (digits.empty() || digits.size() % 2 != 0 || digits.size() > 2 * hash.bytes.size()) {
    return std::nullopt;
  }
  hash.size = static_cast<std::uint8_t>(digits.size() / 2);
  for (std::size_t i = 0; i < hash.size; ++i) {
    const int high = DigitOf(digits[2 * i]);
    const int low = DigitOf(digits[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    hash.bytes[i] = static_cast<std::byte>(high << 4 | low);
  }
  return hash;
}

}  // namespace

std::uint64_t BlockHash::AsNumber() const {
  std::uint64_t number = 0;
  for (std::size_t i = size - std::min<std::size_t>(size, 8); i < size; ++i) {
    number = number << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  }
  return number;
}

std::optional<BlockPart> ParseBlockKey(std::string_view key) {
  const std::size_t at = key.find('@');
  if (at == std::string_view::npos || !key.starts_with('g')) return std::nullopt;
  std::string_view tag = key.substr(1, at - 1);
  std::string_view rest = key.substr(at + 1);
  BlockPart found;
  if (const std::size_t plus = rest.find('+'); plus != std::string_view::npos) {
    found.adapter = rest.substr(plus + 1);
    rest = rest.substr(0, plus);
  }
  const auto hash = ParseHash(rest);
  const auto group = NumberOf<std::uint32_t>(tag.substr(0, tag.find('.')));
  if (!hash || !group) return std::nullopt;
  found.block = {.group = *group, .hash = *hash};
  bool heads = false;
  while (tag.find('.') != std::string_view::npos) {
    tag = tag.substr(tag.find('.') + 1);
    const std::string_view field = tag.substr(0, tag.find('.'));
    const auto share = field.empty() ? std::nullopt : ParseShare(field.substr(1));
    if (!share) return std::nullopt;
    switch (field[0]) {
      case 'd':  // follows from the other ranks
        continue;
      case 'h':
        heads = true;
        break;
      case 'p':
      case 'c':
        break;
      default:
        return std::nullopt;
    }
    found.part += share->index * found.parts;
    found.parts *= share->of;
    if (found.parts > BlockPart::kMostParts) return std::nullopt;
  }
  if (!heads) return std::nullopt;
  return found;
}

}  // namespace kvcove::kvevents
