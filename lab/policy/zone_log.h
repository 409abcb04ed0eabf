// SPDX-License-Identifier: Apache-2.0
// A disk that is a log, in blocks of one size: what lies in which zone, which zone is freed, and
// what moves out of it. The simulation's picture of the disk tier's log (disklog/), which decides
// by the same rules.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <unordered_map>
#include <vector>

namespace kvcove::lab {

struct ZoneLogOptions {
  std::uint64_t blocks = 0;
  bool moves = false;  // what is worth it moves out of a zone that is freed, else nothing does
  double write_amplification = 1.15;  // moves keep to it
};

class ZoneLog {
 public:
  explicit ZoneLog(const ZoneLogOptions& options);

  bool full() const { return where_.size() >= options_.blocks; }
  // `brief`: it lies apart, in zones that are freed at a quarter of the age.
  void Write(std::uint32_t block, bool brief);
  void Read(std::uint32_t block);
  // Frees a zone, and returns the blocks that went with it. What `in_memory` names does not move.
  std::vector<std::uint32_t> FreeZone(const std::function<bool(std::uint32_t)>& in_memory);
  std::uint64_t moved() const { return moved_; }

 private:
  struct Zone {
    std::vector<std::uint32_t> blocks;
    std::uint64_t opened_at = 0;  // of written_
    bool brief = false;
  };
  void Append(Zone& zone, std::uint32_t block);
  std::deque<Zone>::iterator Victim();

  const ZoneLogOptions options_;
  const std::uint64_t zone_blocks_;
  std::deque<Zone> sealed_;
  Zone fresh_;
  Zone brief_;
  Zone moves_;
  std::unordered_map<std::uint32_t, std::uint64_t> where_;  // block -> when it was read; 0: never
  std::uint64_t written_ = 0;
  std::uint64_t moved_ = 0;
  double budget_ = 0;  // blocks that may move
};

}  // namespace kvcove::lab
