// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/help.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <sstream>

namespace kvcove::cli {
namespace {

constexpr std::size_t kUsualWidth = 100;
constexpr std::size_t kLeastWidth = 60;
constexpr std::size_t kMostWidth = 120;  // longer lines are hard to read

std::size_t HelpWidth() {
  std::size_t width = kUsualWidth;
  winsize size{};
  const char* const columns = std::getenv("COLUMNS");
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    width = size.ws_col;
  } else if (columns != nullptr) {
    const std::string_view text = columns;
    (void)std::from_chars(text.data(), text.data() + text.size(), width);
  }
  return std::clamp(width, kLeastWidth, kMostWidth);
}

class WrappedFormatter final : public CLI::Formatter {
 public:
  std::string make_option_desc(const CLI::Option* option) const override {
    return Wrapped(CLI::Formatter::make_option_desc(option), width_ - column_width_);
  }
  std::string make_subcommand(const CLI::App* command) const override {
    std::stringstream out;
    CLI::detail::format_help(out, command->get_display_name(true),
                             Wrapped(command->get_description(), width_ - column_width_),
                             column_width_);
    return out.str();
  }
  std::string make_description(const CLI::App* app) const override {
    return Wrapped(CLI::Formatter::make_description(app), width_);
  }
  std::string make_footer(const CLI::App* app) const override {
    return Wrapped(CLI::Formatter::make_footer(app), width_);
  }

 private:
  const std::size_t width_ = HelpWidth();
};

}  // namespace

std::shared_ptr<CLI::Formatter> WrappedHelp() { return std::make_shared<WrappedFormatter>(); }

std::string Wrapped(std::string_view text, std::size_t width) {
  std::string lines;
  std::size_t column = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(" \n"), text.size());
    const std::string_view word = text.substr(0, end);
    if (column > 0 && column + 1 + word.size() > width) {
      lines += '\n';
      column = 0;
    } else if (column > 0) {
      lines += ' ';
      ++column;
    }
    lines += word;
    column += word.size();
    if (end < text.size() && text[end] == '\n') {
      lines += '\n';
      column = 0;
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace kvcove::cli
