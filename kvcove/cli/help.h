// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace kvcove::cli {

// Returns help texts whose lines end at the width of the terminal, of $COLUMNS, or at 100.
std::shared_ptr<CLI::Formatter> WrappedHelp();

// Returns the text with line breaks in place of spaces, so that its lines have at most `width`
// bytes. A longer word has a line of its own.
std::string Wrapped(std::string_view text, std::size_t width);

}  // namespace kvcove::cli
