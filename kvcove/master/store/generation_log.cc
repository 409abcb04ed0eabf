// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/store/generation_log.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/hash.h"
#include "kvcove/base/little_endian.h"

namespace kvcove::master {
namespace {

constexpr std::string_view kLogMagic = "kvcovegn";
constexpr std::uint32_t kFileVersion = 1;
constexpr std::size_t kHeaderBytes = 48;
constexpr std::uint8_t kCleanEnd = 255;
constexpr std::uint32_t kMaxRecordBytes = 4096;

std::string Frame(const std::string& payload) {
  std::string out;
  AppendNumber(out, static_cast<std::uint32_t>(payload.size()));
  AppendNumber(out, static_cast<std::uint32_t>(Hash64(payload, payload.size())));
  return out + payload;
}

Result<OldRecord> DecodeRecord(std::string_view payload) {
  FieldReader reader(payload);
  OldRecord record;
  record.kind = static_cast<OldRecord::Kind>(reader.Number<std::uint8_t>());
  record.slot = reader.Number<std::uint16_t>();
  record.generation = reader.Number<std::uint64_t>();
  record.reset_id.high = reader.Number<std::uint64_t>();
  record.reset_id.low = reader.Number<std::uint64_t>();
  record.name = reader.Bytes(reader.Number<std::uint16_t>());
  record.version = reader.Bytes(reader.Number<std::uint16_t>());
  const auto kind = static_cast<std::uint8_t>(record.kind);
  if (!reader.ok() || reader.left() != 0 || kind < 1 || kind > 6 || record.slot > kMaxSlots) {
    return Fail(Code::kCorrupt, "a record of the generation file has impossible fields");
  }
  return record;
}

}  // namespace

std::string EncodeHeader(Id128 incarnation, std::int64_t lease_ns) {
  std::string out(kLogMagic);
  AppendNumber(out, kFileVersion);
  AppendNumber(out, std::uint32_t{0});
  AppendNumber(out, incarnation.high);
  AppendNumber(out, incarnation.low);
  AppendNumber(out, static_cast<std::uint64_t>(lease_ns));
  AppendNumber(out, Hash64(out, 0));
  return out;
}

std::string EncodeRecord(const OldRecord& record) {
  std::string payload;
  AppendNumber(payload, static_cast<std::uint8_t>(record.kind));
  AppendNumber(payload, record.slot);
  AppendNumber(payload, record.generation);
  AppendNumber(payload, record.reset_id.high);
  AppendNumber(payload, record.reset_id.low);
  AppendNumber(payload, static_cast<std::uint16_t>(record.name.size()));
  payload += record.name;
  AppendNumber(payload, static_cast<std::uint16_t>(record.version.size()));
  payload += record.version;
  return Frame(payload);
}

std::string EncodeCleanEnd() { return Frame(std::string(1, static_cast<char>(kCleanEnd))); }

Result<Restored> ParseLog(std::string_view bytes) {
  FieldReader reader(bytes);
  const std::string_view header = bytes.substr(0, std::min(bytes.size(), kHeaderBytes));
  if (reader.Bytes(kLogMagic.size()) != kLogMagic) {
    return Fail(Code::kIncompatible, "it is no generation file of kvcove");
  }
  const auto version = reader.Number<std::uint32_t>();
  if (reader.ok() && version != kFileVersion) {
    return Fail(Code::kIncompatible,
                fmt::format("it has format version {}, this build reads {}; use the kvcove that "
                            "wrote it, or an empty directory",
                            version, kFileVersion));
  }
  reader.Number<std::uint32_t>();
  Restored restored;
  restored.incarnation.high = reader.Number<std::uint64_t>();
  restored.incarnation.low = reader.Number<std::uint64_t>();
  restored.running_lease_ns = static_cast<std::int64_t>(reader.Number<std::uint64_t>());
  const auto checksum = reader.Number<std::uint64_t>();
  if (!reader.ok() || checksum != Hash64(header.substr(0, kHeaderBytes - 8), 0)) {
    return Fail(Code::kCorrupt, "its header is damaged");
  }
  while (reader.left() > 0) {
    const auto length = reader.Number<std::uint32_t>();
    const auto sum = reader.Number<std::uint32_t>();
    if (!reader.ok() || length > reader.left())
      break;  // the append was cut short, so no process ever learned of the record
    const std::string_view payload = reader.Bytes(length);
    if (length > kMaxRecordBytes || static_cast<std::uint32_t>(Hash64(payload, length)) != sum) {
      // Even the last record is whole, so a process may have acted on it.
      return Fail(Code::kCorrupt, "a record is damaged");
    }
    if (length == 1 && static_cast<std::uint8_t>(payload[0]) == kCleanEnd) {
      restored.running_lease_ns = 0;
      continue;
    }
    KVCOVE_ASSIGN(OldRecord record, DecodeRecord(payload));
    restored.records.push_back(std::move(record));
  }
  return restored;
}

}  // namespace kvcove::master
