// SPDX-License-Identifier: Apache-2.0
// Superblock, zone header, record. The summary is in summary.cc.
#include "kvcove/disklog/format.h"

#include "kvcove/base/little_endian.h"
#include "kvcove/disklog/checksum.h"
#include "kvcove/disklog/fields.h"

namespace kvcove::disklog {
namespace {

constexpr std::uint64_t kSuperblockMagic = 0x4B4449444556434BULL;  // "KCVEDIDK"
constexpr std::uint64_t kZoneMagic = 0x454E4F5A4556434BULL;        // "KCVEZONE"
constexpr std::uint32_t kRecordMagic = 0x4352434BU;                // "KCRC"
constexpr std::size_t kMarkBytes = 2 + 8 + 8 + 8;

// Bounds of the geometry that a superblock may name. Within them, no sum of offsets overflows.
bool SoundGeometry(const Superblock& block) {
  return block.zone_bytes >= kMinZoneBytes && block.zone_bytes <= kMaxZoneBytes &&
         block.zone_bytes % kBlockBytes == 0 && block.device_bytes < (1ULL << 60) &&
         block.device_bytes >= kZonesStart + block.zone_bytes &&
         (block.device_bytes - kZonesStart) / block.zone_bytes < (1ULL << 31);
}

}  // namespace

std::string EncodeSuperblock(const Superblock& superblock) {
  std::string out;
  AppendNumber(out, kSuperblockMagic);
  AppendNumber(out, kFormatVersion);
  const std::size_t length_at = out.size();
  AppendNumber(out, std::uint32_t{0});  // length without the padding; replaced below
  AppendNumber(out, superblock.sequence);
  for (const Id128& id :
       {superblock.pool, superblock.incarnation, superblock.identity, superblock.disk}) {
    AppendId(out, id);
  }
  AppendNumber(out, superblock.hash_seed);
  AppendNumber(out, superblock.device_bytes);
  AppendNumber(out, superblock.zone_bytes);
  AppendNumber(out, superblock.generation_counter);
  AppendNumber(out, std::uint32_t{superblock.clean ? 1U : 0U});
  const auto marks = static_cast<std::uint32_t>(superblock.removals.size());
  AppendNumber(out, marks);
  for (const RemovalMark& mark : superblock.removals) {
    AppendNumber(out, mark.slot);
    AppendNumber(out, mark.generation);
    AppendNumber(out, mark.term);
    AppendNumber(out, mark.number);
  }
  AppendNumber(out, static_cast<std::uint32_t>(superblock.lost_zones.size()));
  for (const std::uint32_t zone : superblock.lost_zones) AppendNumber(out, zone);
  if (superblock.opening != Id128{}) {
    AppendId(out, superblock.opening);
    AppendId(out, superblock.opening_before);
  }
  std::string length;
  AppendNumber(length, static_cast<std::uint32_t>(out.size() + kIdBytes));
  out.replace(length_at, length.size(), length);
  AppendId(out, Checksum::Of(out));
  out.resize(AlignUp(out.size(), kBlockBytes), '\0');
  return out;
}

std::optional<std::uint32_t> SuperblockVersion(std::string_view bytes) {
  FieldReader in(bytes);
  if (in.Number<std::uint64_t>() != kSuperblockMagic) return std::nullopt;
  const auto version = in.Number<std::uint32_t>();
  if (!in.ok()) return std::nullopt;
  return version;
}

std::optional<Superblock> ParseSuperblock(std::string_view bytes) {
  if (SuperblockVersion(bytes) != kFormatVersion) return std::nullopt;
  FieldReader in(bytes);
  in.Bytes(12);
  const auto length = in.Number<std::uint32_t>();
  if (!in.ok() || length < 16 + kIdBytes || length > bytes.size() || length > kSuperblockBytes ||
      !EndsWithChecksum(bytes.substr(0, length))) {
    return std::nullopt;
  }
  in = FieldReader(bytes.substr(16, length - 16 - kIdBytes));
  Superblock block;
  block.sequence = in.Number<std::uint64_t>();
  for (Id128* id : {&block.pool, &block.incarnation, &block.identity, &block.disk}) {
    *id = ReadId(in);
  }
  block.hash_seed = in.Number<std::uint64_t>();
  block.device_bytes = in.Number<std::uint64_t>();
  block.zone_bytes = in.Number<std::uint64_t>();
  block.generation_counter = in.Number<std::uint64_t>();
  const auto clean = in.Number<std::uint32_t>();
  const auto marks = in.Number<std::uint32_t>();
  if (!in.ok() || clean > 1 || marks > kMaxSlots || in.left() < marks * kMarkBytes) {
    return std::nullopt;
  }
  block.clean = clean == 1;
  for (std::uint32_t i = 0; i < marks; ++i) {
    RemovalMark& mark = block.removals.emplace_back();
    mark.slot = in.Number<SlotId>();
    mark.generation = in.Number<Generation>();
    mark.term = in.Number<std::uint64_t>();
    mark.number = in.Number<std::uint64_t>();
  }
  const auto lost = in.Number<std::uint32_t>();
  if (!in.ok() || lost > kMaxLostZones || in.left() < lost * sizeof(std::uint32_t)) {
    return std::nullopt;
  }
  for (std::uint32_t i = 0; i < lost; ++i) {
    block.lost_zones.push_back(in.Number<std::uint32_t>());
  }
  // Superblocks of earlier versions end here.
  if (in.left() > 0) {
    block.opening = ReadId(in);
    block.opening_before = ReadId(in);
    if (block.opening == Id128{}) return std::nullopt;  // none is drawn so
  }
  if (!in.ok() || !SoundGeometry(block)) return std::nullopt;
  return block;
}

std::string EncodeZoneHeader(const ZoneHeader& header) {
  std::string out;
  AppendNumber(out, kZoneMagic);
  AppendNumber(out, kFormatVersion);
  AppendNumber(out, header.zone);
  AppendNumber(out, header.nonce);
  AppendNumber(out, std::uint8_t{header.free ? std::uint8_t{1} : std::uint8_t{0}});
  AppendNumber(out, header.stream);
  for (const Id128& id : {header.pool, header.incarnation, header.disk}) AppendId(out, id);
  return SealBlock(std::move(out));
}

std::optional<ZoneHeader> ParseZoneHeader(std::string_view block) {
  if (block.size() != kBlockBytes || !EndsWithChecksum(block)) return std::nullopt;
  FieldReader in(block);
  if (in.Number<std::uint64_t>() != kZoneMagic || in.Number<std::uint32_t>() != kFormatVersion) {
    return std::nullopt;
  }
  ZoneHeader header;
  header.zone = in.Number<std::uint32_t>();
  header.nonce = in.Number<std::uint64_t>();
  const auto free = in.Number<std::uint8_t>();
  header.stream = in.Number<std::uint8_t>();
  for (Id128* id : {&header.pool, &header.incarnation, &header.disk}) *id = ReadId(in);
  if (free > 1) return std::nullopt;
  header.free = free == 1;
  return header;
}

std::array<std::byte, 48> EncodeRecordHead(const Record& record) {
  std::string out;
  out.reserve(48);
  AppendNumber(out, kRecordMagic);
  AppendNumber(out, static_cast<std::uint8_t>(record.kind));
  AppendNumber(out, std::uint8_t{0});
  AppendNumber(out, record.slot);
  AppendNumber(out, static_cast<std::uint16_t>(record.name.size()));
  AppendNumber(out, static_cast<std::uint16_t>(record.key.size()));
  AppendNumber(out, record.value_bytes);
  AppendNumber(out, record.nonce);
  AppendNumber(out, record.sequence);
  AppendNumber(out, record.generation);
  AppendNumber(out, record.version);
  std::array<std::byte, 48> bytes{};
  std::memcpy(bytes.data(), out.data(), bytes.size());
  return bytes;
}

std::string EncodeRecordFront(const Record& record) {
  const auto head = EncodeRecordHead(record);
  std::string out(reinterpret_cast<const char*>(head.data()), head.size());
  out.reserve(record.value_offset());
  AppendId(out, record.checksum);
  out += record.name;
  out += record.key;
  return out;
}

std::optional<Record> ParseRecord(std::string_view bytes) {
  FieldReader in(bytes);
  if (in.Number<std::uint32_t>() != kRecordMagic) return std::nullopt;
  const auto kind = in.Number<std::uint8_t>();
  const auto zero = in.Number<std::uint8_t>();
  Record record;
  record.slot = in.Number<SlotId>();
  const auto name_bytes = in.Number<std::uint16_t>();
  const auto key_bytes = in.Number<std::uint16_t>();
  record.value_bytes = in.Number<std::uint32_t>();
  record.nonce = in.Number<std::uint64_t>();
  record.sequence = in.Number<std::uint64_t>();
  record.generation = in.Number<Generation>();
  record.version = in.Number<std::uint64_t>();
  record.checksum = ReadId(in);
  record.kind = static_cast<RecordKind>(kind);
  // Each length is bounded before it is used. A tombstone has no value, and an object has one.
  const bool object = record.kind == RecordKind::kObject;
  if (!in.ok() || zero != 0 || (!object && record.kind != RecordKind::kTombstone) ||
      name_bytes > kMaxSpaceNameBytes || key_bytes == 0 || key_bytes > kMaxKeyBytes ||
      record.value_bytes > kMaxObjectBytes || object != (record.value_bytes > 0)) {
    return std::nullopt;
  }
  record.name = in.Bytes(name_bytes);
  record.key = in.Bytes(key_bytes);
  in.Bytes(record.value_bytes);
  if (!in.ok()) return std::nullopt;
  return record;
}

bool VerifyRecord(const Record& record, std::string_view bytes) {
  // Skips the checksum itself, bytes 48 to 63.
  Checksum sum;
  sum.Add(bytes.substr(0, 48));
  sum.Add(bytes.substr(kRecordHeadBytes, record.bytes() - kRecordHeadBytes));
  return sum.Value() == record.checksum;
}

}  // namespace kvcove::disklog
