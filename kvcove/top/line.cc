// SPDX-License-Identifier: Apache-2.0
#include "kvcove/top/line.h"

#include <algorithm>

#include "kvcove/top/cells.h"

namespace kvcove::top {

std::string_view SgrOf(Tone tone) {
  switch (tone) {
    case Tone::kGood:
      return "\x1b[32m";
    case Tone::kWarn:
      return "\x1b[33m";
    case Tone::kBad:
      return "\x1b[1;31m";
    case Tone::kPlain:
      break;
  }
  return {};
}

void Line::Add(std::string_view text, std::string_view sgr) {
  const std::size_t room = width_ - cells_;
  const std::size_t cells = Cells(text);
  const std::string fitting = cells <= room ? std::string(text) : Fit(text, room);
  cells_ += std::min(cells, room);
  const bool plain = !color_ || sgr.empty() || fitting.empty();
  if (!plain) text_ += sgr;
  text_ += fitting;
  if (!plain) text_ += "\x1b[0m";
}

std::string Line::Take() {
  while (text_.ends_with(' ')) text_.pop_back();
  return std::move(text_);
}

}  // namespace kvcove::top
