// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/keys.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace kvcove {
namespace {

constexpr std::size_t kMostEdits = 32;  // of a name that is near

// Returns the number of edits that make `b` of `a`; `enough` if it takes so many or more. Looks at
// the places alone that fewer edits can reach: at most (length of `b` + enough) * 2 * enough steps,
// however long `a` is.
std::size_t Edits(std::string_view a, std::string_view b, std::size_t enough) {
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) >= enough) return enough;
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    const std::size_t from = i + 1 > enough ? i + 1 - enough : 0;
    const std::size_t to = std::min(b.size(), i + 1 + enough);
    std::size_t diagonal = std::exchange(row[from], from == 0 ? i + 1 : enough);
    std::size_t least = row[from];
    for (std::size_t j = from; j < to; ++j) {
      const std::size_t kept = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({kept, row[j] + 1, row[j + 1] + 1});
      least = std::min(least, row[j + 1]);
    }
    // The least of a row is never more than that of the next one.
    if (least >= enough) return enough;
  }
  return std::min(row.back(), enough);
}

}  // namespace

std::string_view NearestKey(std::string_view text, std::span<const std::string_view> known) {
  std::string_view nearest;
  std::size_t fewest = std::clamp<std::size_t>(text.size() / 2, 1, kMostEdits) + 1;
  for (const std::string_view key : known) {
    const std::size_t edits = Edits(text, key, fewest);
    if (edits < fewest) {
      fewest = edits;
      nearest = key;
    }
  }
  return nearest;
}

std::unexpected<Error> UnknownKey(std::string_view what, std::string_view text,
                                  std::span<const std::string_view> known) {
  std::string list;
  for (const std::string_view key : known) {
    list += list.empty() ? "" : ", ";
    list += key;
  }
  const std::string_view nearest = NearestKey(text, known);
  const std::string hint =
      nearest.empty() ? std::string() : fmt::format("; did you mean '{}'?", nearest);
  return Fail(Code::kInvalid, fmt::format("unknown {} '{}'{} (known: {})", what, text, hint, list));
}

}  // namespace kvcove
