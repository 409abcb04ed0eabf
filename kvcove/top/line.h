// SPDX-License-Identifier: Apache-2.0
// A line of a screen that is built from left to right. Pure.
#pragma once

#include <string>
#include <string_view>

#include "kvcove/top/table.h"

namespace kvcove::top {

// Sequences of Select Graphic Rendition before a text; Line adds the one that ends them.
inline constexpr std::string_view kBold = "\x1b[1m";
inline constexpr std::string_view kReverse = "\x1b[7m";
std::string_view SgrOf(Tone tone);

// Never has more cells than the screen.
class Line {
 public:
  Line(std::size_t width, bool color) : width_(width), color_(color) {}
  // Adds as much of the text as fits. `sgr` counts where there is colour.
  void Add(std::string_view text, std::string_view sgr = {});
  std::size_t cells() const { return cells_; }
  // Returns the line without spaces at its end.
  std::string Take();

 private:
  const std::size_t width_;
  const bool color_;
  std::size_t cells_ = 0;
  std::string text_;
};

}  // namespace kvcove::top
