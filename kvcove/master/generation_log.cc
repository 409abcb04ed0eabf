// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/generation_log.h"

#include <fmt/core.h>

#include <algorithm>
#include <type_traits>

#include "kvcove/base/hash.h"

namespace kvcove::master {
namespace {

constexpr std::string_view kMagic = "kvcovegn";
constexpr std::uint32_t kFileVersion = 1;
constexpr std::size_t kHeaderBytes = 48;
constexpr std::uint8_t kCleanEnd = 255;
constexpr std::uint32_t kMaxRecordBytes = 4096;

template <typename T>
void PutNumber(std::string& out, T value) {
  static_assert(std::is_unsigned_v<T>);
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i));
}

// Reads little-endian fields; `ok` turns false at the end of the bytes and stays so.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <typename T>
  T Number() {
    T value = 0;
    const std::string_view field = Bytes(sizeof(T));
    for (std::size_t i = 0; i < field.size(); ++i) {
      value = static_cast<T>(
          value | static_cast<T>(static_cast<T>(static_cast<std::uint8_t>(field[i])) << (8 * i)));
    }
    return value;
  }
  std::string_view Bytes(std::size_t count) {
    if (count > bytes_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view field = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return field;
  }
  bool ok() const { return ok_; }
  std::size_t left() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

std::string Frame(const std::string& payload) {
  std::string out;
  PutNumber(out, static_cast<std::uint32_t>(payload.size()));
  PutNumber(out, static_cast<std::uint32_t>(Hash64(payload, payload.size())));
  return out + payload;
}

Result<OldRecord> DecodeRecord(std::string_view payload) {
  Reader reader(payload);
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
  std::string out(kMagic);
  PutNumber(out, kFileVersion);
  PutNumber(out, std::uint32_t{0});
  PutNumber(out, incarnation.high);
  PutNumber(out, incarnation.low);
  PutNumber(out, static_cast<std::uint64_t>(lease_ns));
  PutNumber(out, Hash64(out, 0));
  return out;
}

std::string EncodeRecord(const OldRecord& record) {
  std::string payload;
  PutNumber(payload, static_cast<std::uint8_t>(record.kind));
  PutNumber(payload, record.slot);
  PutNumber(payload, record.generation);
  PutNumber(payload, record.reset_id.high);
  PutNumber(payload, record.reset_id.low);
  PutNumber(payload, static_cast<std::uint16_t>(record.name.size()));
  payload += record.name;
  PutNumber(payload, static_cast<std::uint16_t>(record.version.size()));
  payload += record.version;
  return Frame(payload);
}

std::string EncodeCleanEnd() { return Frame(std::string(1, static_cast<char>(kCleanEnd))); }

Result<Restored> ParseLog(std::string_view bytes) {
  Reader reader(bytes);
  const std::string_view header = bytes.substr(0, std::min(bytes.size(), kHeaderBytes));
  if (reader.Bytes(kMagic.size()) != kMagic) {
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
      break;  // cut while it was appended: nobody knew of it
    const std::string_view payload = reader.Bytes(length);
    if (length > kMaxRecordBytes || static_cast<std::uint32_t>(Hash64(payload, length)) != sum) {
      // Also the last one: it is whole, so somebody may know of it.
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
