// SPDX-License-Identifier: Apache-2.0
// Keys as terminals send them. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvcove::top {

struct Key {
  enum class Kind {
    kText,  // `text` is one character
    kUp,
    kDown,
    kPageUp,
    kPageDown,
    kHome,
    kEnd,
    kTab,
    kBackTab,
    kEnter,
    kBackspace,
    kEscape,
    kRedraw,  // Ctrl-L
  };
  Kind kind = Kind::kText;
  std::string text = {};
  bool operator==(const Key&) const = default;
};

// Joins the bytes of a key, which may arrive one by one. A terminal sends Escape as the first byte
// of other keys, too: it is a key of its own when nothing follows it for a moment.
class KeyReader {
 public:
  std::vector<Key> Take(std::string_view bytes);
  // Bytes wait for the rest of their key; call Flush when it does not arrive.
  bool pending() const { return !pending_.empty(); }
  std::vector<Key> Flush();

 private:
  std::string pending_;
};

}  // namespace kvcove::top
