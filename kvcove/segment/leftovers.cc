// SPDX-License-Identifier: Apache-2.0
#include "kvcove/segment/leftovers.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string_view>

#include "kvcove/base/size.h"

namespace kvcove::segment {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHeader = "kvcove-header-";
constexpr std::string_view kPayload = "kvcove-payload-";
constexpr std::size_t kMostNamed = 8;  // holders in a message

struct Seen {
  bool owned = false;
  std::uint64_t payload_bytes = 0;
  std::vector<int> pids;
};

std::uint64_t HexIn(std::string_view text) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

// Returns the id of "/memfd:PREFIXid (deleted)".
std::optional<std::string> IdIn(std::string_view line, std::string_view prefix) {
  const std::size_t at = line.find(prefix);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = line.substr(at + prefix.size());
  return std::string(rest.substr(0, rest.find(' ')));
}

// Notes a line of /proc/PID/maps:
// "7f00-7f10 rw-s 00000000 00:01 1034 /memfd:kvcove-header-ID (deleted)".
void Note(std::map<std::string, Seen>& segments, std::string_view line, int pid) {
  if (line.find("/memfd:kvcove-") == std::string_view::npos) return;
  const std::size_t dash = line.find('-');
  const std::size_t space = line.find(' ');
  if (dash > space || space == std::string_view::npos || space + 2 >= line.size()) return;
  if (const auto header = IdIn(line, kHeader)) {
    Seen& seen = segments[*header];
    seen.owned = seen.owned || line[space + 2] == 'w';
  }
  const auto payload = IdIn(line, kPayload);
  if (!payload) return;
  Seen& seen = segments[*payload];
  seen.payload_bytes = std::max(seen.payload_bytes, HexIn(line.substr(dash + 1, space - dash - 1)) -
                                                        HexIn(line.substr(0, dash)));
  if (seen.pids.empty() || seen.pids.back() != pid) seen.pids.push_back(pid);
}

}  // namespace

std::string HeaderFileName(const Id128& segment) { return std::string(kHeader) + ToHex(segment); }
std::string PayloadFileName(const Id128& segment) { return std::string(kPayload) + ToHex(segment); }

std::string Leftover::Describe() const {
  std::string text =
      fmt::format("leftover: up to {} of an ended owner (segment {}), still mapped by",
                  FormatSize(bytes), segment);
  for (std::size_t i = 0; i < std::min(holders.size(), kMostNamed); ++i) {
    text += fmt::format("{} pid {} ({})", i == 0 ? "" : ",", holders[i].pid, holders[i].command);
  }
  if (holders.size() > kMostNamed) text += fmt::format(", {} others", holders.size() - kMostNamed);
  return text;
}

std::vector<Leftover> FindLeftovers(const std::string& proc) {
  std::map<std::string, Seen> segments;
  std::error_code error;
  for (fs::directory_iterator at(proc, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    int pid = 0;
    const auto [last, failed] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (failed != std::errc() || last != name.data() + name.size()) continue;
    std::ifstream maps(at->path() / "maps");
    for (std::string line; std::getline(maps, line);) Note(segments, line, pid);
  }
  std::vector<Leftover> leftovers;
  for (const auto& [id, seen] : segments) {
    if (seen.owned || seen.pids.empty()) continue;
    Leftover leftover{.segment = id, .bytes = seen.payload_bytes, .holders = {}};
    for (const int pid : seen.pids) {
      Leftover::Holder holder{.pid = pid, .command = {}};
      std::getline(std::ifstream(fmt::format("{}/{}/comm", proc, pid)), holder.command);
      leftover.holders.push_back(std::move(holder));
    }
    leftovers.push_back(std::move(leftover));
  }
  return leftovers;
}

}  // namespace kvcove::segment
