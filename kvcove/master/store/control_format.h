// SPDX-License-Identifier: Apache-2.0
// The bytes of the file `control`, format version 2. docs/control-store.md has the layout, byte by
// byte, and the difference between an append that was cut short and damage.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/master/store/control_store.h"

namespace kvcove::master {

inline constexpr std::size_t kSectorBytes = 512;
inline constexpr std::size_t kPieceBytes = 496;  // of a body in one sector
inline constexpr std::size_t kFactBytes = 14;    // of a snapshot, beside key and value
inline constexpr std::uint32_t kControlVersion = 2;

enum class BodyKind : std::uint8_t { kSnapshot = 1, kBatch = 2 };

// The contents of a file.
struct ControlImage {
  Facts facts;
  std::uint64_t revision = 0;
  std::uint64_t file_number = 0;
  bool cut_short = false;  // an append did not finish
};

// Returns a whole file: header and snapshot.
std::string EncodeControl(const Facts& facts, std::uint64_t revision, std::uint64_t file_number);
// Returns the bytes of one append at sector `first_sector`. The transactions get revisions from
// `first_revision` on.
std::string EncodeBatch(std::span<const std::vector<FactChange>> transactions,
                        std::uint64_t first_revision, std::uint64_t file_number,
                        std::uint64_t first_sector);
// Parses a file. Errors: kCorrupt, kIncompatible for another format version.
Result<ControlImage> ParseControl(std::string_view bytes);

// Parts of the above, for the tests and the fuzzer, which want right checksums over wrong bytes.
struct ControlHeader {
  std::uint64_t file_number = 0;
  std::uint64_t revision = 0;
  std::uint64_t snapshot_sectors = 0;
  std::uint64_t snapshot_facts = 0;
};
std::string EncodeControlHeader(const ControlHeader& header);
std::string FrameBody(std::string_view body, BodyKind kind, std::uint64_t file_number,
                      std::uint64_t first_sector);

}  // namespace kvcove::master
