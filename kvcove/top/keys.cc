// SPDX-License-Identifier: Apache-2.0
#include "kvcove/top/keys.h"

#include <array>
#include <optional>
#include <utility>

namespace kvcove::top {
namespace {

constexpr char kEscapeByte = '\x1b';

// The sequences of xterm, of its application mode, and of the Linux console.
constexpr auto kSequences =
    std::to_array<std::pair<std::string_view, Key::Kind>>({{"[A", Key::Kind::kUp},
                                                           {"OA", Key::Kind::kUp},
                                                           {"[B", Key::Kind::kDown},
                                                           {"OB", Key::Kind::kDown},
                                                           {"[5~", Key::Kind::kPageUp},
                                                           {"[6~", Key::Kind::kPageDown},
                                                           {"[H", Key::Kind::kHome},
                                                           {"OH", Key::Kind::kHome},
                                                           {"[1~", Key::Kind::kHome},
                                                           {"[7~", Key::Kind::kHome},
                                                           {"[F", Key::Kind::kEnd},
                                                           {"OF", Key::Kind::kEnd},
                                                           {"[4~", Key::Kind::kEnd},
                                                           {"[8~", Key::Kind::kEnd},
                                                           {"[Z", Key::Kind::kBackTab}});

// Returns the length of the escape sequence at the begin of `bytes`, the escape included; 0: more
// bytes must follow.
std::size_t SequenceLength(std::string_view bytes) {
  if (bytes.size() < 2) return 0;
  if (bytes[1] == 'O') return bytes.size() < 3 ? 0 : 3;
  if (bytes[1] != '[') return 1;  // the key Escape, and another one behind it
  for (std::size_t i = 2; i < bytes.size(); ++i) {
    if (bytes[i] >= 0x40 && bytes[i] <= 0x7E) return i + 1;
  }
  // No terminal sends so long a key.
  return bytes.size() > 32 ? bytes.size() : 0;
}

std::optional<Key> KeyOf(std::string_view sequence) {
  if (sequence.size() == 1) return Key{.kind = Key::Kind::kEscape};
  for (const auto& [bytes, kind] : kSequences) {
    if (sequence.substr(1) == bytes) return Key{.kind = kind};
  }
  return std::nullopt;
}

std::optional<Key> KeyOf(char byte) {
  switch (byte) {
    case '\t':
      return Key{.kind = Key::Kind::kTab};
    case '\r':
    case '\n':
      return Key{.kind = Key::Kind::kEnter};
    case '\b':
    case '\x7f':
      return Key{.kind = Key::Kind::kBackspace};
    case '\f':
      return Key{.kind = Key::Kind::kRedraw};
    default:
      return std::nullopt;
  }
}

// Returns the length of a character of UTF-8 by its first byte.
std::size_t LetterLength(unsigned char first) {
  return first < 0xC0 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

}  // namespace

std::vector<Key> KeyReader::Take(std::string_view bytes) {
  pending_ += bytes;
  std::vector<Key> keys;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    std::size_t length = 1;
    if (rest.front() == kEscapeByte) {
      length = SequenceLength(rest);
      if (length == 0) break;
      if (auto key = KeyOf(rest.substr(0, length))) keys.push_back(std::move(*key));
    } else if (auto key = KeyOf(rest.front())) {
      keys.push_back(std::move(*key));
    } else {
      length = LetterLength(static_cast<unsigned char>(rest.front()));
      if (length > rest.size()) break;
      if (static_cast<unsigned char>(rest.front()) >= ' ') {
        keys.push_back({.kind = Key::Kind::kText, .text = std::string(rest.substr(0, length))});
      }
    }
    rest.remove_prefix(length);
  }
  pending_ = std::string(rest);
  return keys;
}

std::vector<Key> KeyReader::Flush() {
  const std::string bytes = std::exchange(pending_, {});
  if (bytes.empty() || bytes.front() != kEscapeByte) return {};
  std::vector<Key> keys = {{.kind = Key::Kind::kEscape}};
  if (bytes.size() > 1) {
    for (Key& key : Take(std::string_view(bytes).substr(1))) keys.push_back(std::move(key));
    pending_.clear();
  }
  return keys;
}

}  // namespace kvcove::top
