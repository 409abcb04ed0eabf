// SPDX-License-Identifier: Apache-2.0
// Text in a terminal's cells, and figures as people read them. Pure, and the same in each locale.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvcove::top {

// Returns how many cells a terminal needs for the text, which is UTF-8 without control characters.
std::size_t Cells(std::string_view text);
// Returns the text in exactly so many cells: with spaces behind it (or in front: `right`), or cut,
// with '~' in its last cell.
std::string Fit(std::string_view text, std::size_t cells, bool right = false);

// "950", "12.3k", "1.2M"; "-" where it is not known.
std::string CountText(std::optional<double> count);
// "12.3MiB"; with "/s" behind it for a rate.
std::string BytesText(std::optional<double> bytes);
// "850ns", "12us", "1.3ms", "2.1s", "3m20s", "2h05m".
std::string TimeText(std::optional<double> seconds);
// "93.1 %".
std::string PercentText(std::optional<double> ratio);

}  // namespace kvcove::top
