// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/store/control_format.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/hash.h"
#include "kvcove/base/little_endian.h"

namespace kvcove::master {
namespace {

constexpr std::string_view kStoreMagic = "kvcovecs";
constexpr std::size_t kChecked = kSectorBytes - 8;  // bytes under a sector's checksum
constexpr std::size_t kPieceAt = 8;
constexpr std::uint8_t kFirst = 1;
constexpr std::uint8_t kLast = 2;
constexpr std::uint32_t kGoes = 0xFFFFFFFF;  // in place of a value's length: deletes the key

std::uint64_t SeedOf(std::uint64_t file_number, std::uint64_t sector) {
  return (file_number << 32) + sector;
}

// Pads to a whole sector and adds its checksum.
void CloseSector(std::string& out, std::size_t begin, std::uint64_t seed) {
  out.resize(begin + kChecked, '\0');
  AppendNumber(out, Hash64(std::string_view(out).substr(begin, kChecked), seed));
}

bool AllZero(std::string_view bytes) {
  return bytes.find_first_not_of('\0') == std::string_view::npos;
}

struct Sector {
  enum class State { kWhole, kUnwritten, kDamaged };
  State state = State::kDamaged;
  BodyKind kind = BodyKind::kBatch;
  std::uint8_t flags = 0;
  std::string_view piece;
};

// Returns true if an append could have written these first bytes of a sector, up to the header's
// checksum.
bool Plausible(std::string_view bytes) {
  if (bytes.size() > 1) {
    const auto length = FieldReader(bytes).Number<std::uint16_t>();
    if (length == 0 || length > kPieceBytes) return false;
  }
  if (bytes.size() > 2 && bytes[2] != static_cast<char>(BodyKind::kBatch)) return false;
  return bytes.size() <= 3 || static_cast<std::uint8_t>(bytes[3]) <= (kFirst | kLast);
}

// Returns true if an append was cut short in this sector: the file ends in it, or only zeros follow
// the written bytes. The caller checks that only zeros follow the sector. A flipped bit cannot look
// like this: the file keeps its size, and the checksum at a sector's end does not become zero. A
// checksum with some zero bytes could be a flipped bit, so it is damage.
bool CutShort(std::string_view bytes, bool header_right) {
  const std::size_t written = bytes.find_last_not_of('\0') + 1;  // npos + 1 is 0
  if (written < kPieceAt) return Plausible(bytes.substr(0, written));
  return header_right && (bytes.size() < kSectorBytes || written <= kChecked);
}

// Reads a sector. `bytes`: from its begin, at most a sector.
Sector ReadSector(std::string_view bytes, std::uint64_t seed) {
  FieldReader reader(bytes);
  const auto length = reader.Number<std::uint16_t>();
  const auto kind = reader.Number<std::uint8_t>();
  const auto flags = reader.Number<std::uint8_t>();
  const auto header_sum = reader.Number<std::uint32_t>();
  const bool header_right =
      reader.ok() && header_sum == static_cast<std::uint32_t>(Hash64(bytes.substr(0, 4), seed));
  Sector sector;
  const bool whole = header_right && bytes.size() == kSectorBytes &&
                     FieldReader(bytes.substr(kChecked)).Number<std::uint64_t>() ==
                         Hash64(bytes.substr(0, kChecked), seed);
  if (!whole) {
    if (CutShort(bytes, header_right)) sector.state = Sector::State::kUnwritten;
    return sector;
  }
  const bool last = (flags & kLast) != 0;
  if (length == 0 || length > kPieceBytes || (!last && length < kPieceBytes) || kind < 1 ||
      kind > 2 || flags > (kFirst | kLast)) {
    return sector;
  }
  sector.state = Sector::State::kWhole;
  sector.kind = static_cast<BodyKind>(kind);
  sector.flags = flags;
  sector.piece = bytes.substr(kPieceAt, length);
  return sector;
}

std::unexpected<Error> Damaged(std::size_t at, std::string_view what) {
  return Fail(Code::kCorrupt, fmt::format("at byte {}: {}", at, what));
}

Result<ControlHeader> ParseHeader(std::string_view bytes) {
  if (bytes.size() < kSectorBytes) return Damaged(0, "the header is not whole");
  FieldReader reader(bytes);
  const std::string_view magic = reader.Bytes(kStoreMagic.size());
  const auto version = reader.Number<std::uint32_t>();
  const auto sector_bytes = reader.Number<std::uint32_t>();
  ControlHeader header;
  header.file_number = reader.Number<std::uint64_t>();
  header.revision = reader.Number<std::uint64_t>();
  header.snapshot_sectors = reader.Number<std::uint64_t>();
  header.snapshot_facts = reader.Number<std::uint64_t>();
  const auto sum = FieldReader(bytes.substr(kChecked)).Number<std::uint64_t>();
  if (magic != kStoreMagic || sum != Hash64(bytes.substr(0, kChecked), 0)) {
    return Damaged(0, "the header's checksum is wrong");
  }
  if (version != kControlVersion) {
    return Fail(Code::kIncompatible,
                fmt::format("it has format version {}, this build reads {}; use the kvcove that "
                            "wrote it, or an empty directory",
                            version, kControlVersion));
  }
  if (sector_bytes != kSectorBytes) return Damaged(12, "the sector size is impossible");
  return header;
}

// Reads two lengths, a key and a value. Returns false beyond the limits.
bool ReadKey(FieldReader& reader, std::uint16_t size, std::string& key) {
  key = reader.Bytes(size);
  return reader.ok() && size <= kMaxFactKeyBytes;
}

bool DecodeSnapshot(std::string_view body, const ControlHeader& header, Facts& facts) {
  FieldReader reader(body);
  while (reader.left() > 0) {
    const auto revision = reader.Number<std::uint64_t>();
    const auto key_size = reader.Number<std::uint16_t>();
    const auto value_size = reader.Number<std::uint32_t>();
    std::string key;
    if (!ReadKey(reader, key_size, key) || value_size > kMaxFactValueBytes) return false;
    const std::string_view value = reader.Bytes(value_size);
    if (!reader.ok() || revision > header.revision) return false;
    if (!facts.empty() && facts.rbegin()->first >= key) return false;
    facts.emplace_hint(facts.end(), std::move(key), Fact{std::string(value), revision});
  }
  return facts.size() == header.snapshot_facts;
}

bool DecodeBatch(std::string_view body, ControlImage& image) {
  FieldReader reader(body);
  if (reader.Number<std::uint64_t>() != image.revision + 1) return false;
  const auto transactions = reader.Number<std::uint32_t>();
  for (std::uint32_t i = 0; i < transactions; ++i) {
    std::vector<FactChange> changes;
    const auto count = reader.Number<std::uint32_t>();
    for (std::uint32_t j = 0; j < count && reader.ok(); ++j) {
      const auto key_size = reader.Number<std::uint16_t>();
      const auto value_size = reader.Number<std::uint32_t>();
      FactChange& change = changes.emplace_back();
      if (!ReadKey(reader, key_size, change.key)) return false;
      if (value_size == kGoes) continue;
      if (value_size > kMaxFactValueBytes) return false;
      change.value = reader.Bytes(value_size);
    }
    if (!reader.ok()) return false;
    ApplyTransaction(std::move(changes), ++image.revision, image.facts);
  }
  return transactions > 0 && reader.ok() && reader.left() == 0;
}

// Reads one body after the other.
class BodyReader {
 public:
  BodyReader(std::string_view bytes, std::uint64_t file_number)
      : bytes_(bytes), file_number_(file_number) {}
  enum class Found { kBody, kEnd, kCut, kDamage };

  // Joins the pieces of the next body, up to its last one.
  Found Next(BodyKind kind) {
    body_.clear();
    begin_ = at_;
    while (at_ < bytes_.size()) {
      const Sector sector =
          ReadSector(bytes_.substr(at_, kSectorBytes), SeedOf(file_number_, at_ / kSectorBytes));
      if (sector.state == Sector::State::kUnwritten) {
        const std::size_t next = std::min(at_ + kSectorBytes, bytes_.size());
        return AllZero(bytes_.substr(next)) ? Found::kCut : Found::kDamage;
      }
      const bool first = at_ == begin_;
      if (sector.state == Sector::State::kDamaged || sector.kind != kind ||
          ((sector.flags & kFirst) != 0) != first) {
        return Found::kDamage;
      }
      body_ += sector.piece;
      at_ += kSectorBytes;
      if ((sector.flags & kLast) != 0) return Found::kBody;
    }
    return at_ == begin_ ? Found::kEnd : Found::kCut;
  }
  const std::string& body() const { return body_; }
  // Return the positions of the body and, after damage, of the damaged sector.
  std::size_t begin() const { return begin_; }
  std::size_t at() const { return at_; }

 private:
  const std::string_view bytes_;
  const std::uint64_t file_number_;
  std::string body_;
  std::size_t begin_ = 0;
  std::size_t at_ = kSectorBytes;
};

}  // namespace

std::string EncodeControlHeader(const ControlHeader& header) {
  std::string out(kStoreMagic);
  AppendNumber(out, kControlVersion);
  AppendNumber(out, static_cast<std::uint32_t>(kSectorBytes));
  AppendNumber(out, header.file_number);
  AppendNumber(out, header.revision);
  AppendNumber(out, header.snapshot_sectors);
  AppendNumber(out, header.snapshot_facts);
  CloseSector(out, 0, 0);
  return out;
}

std::string FrameBody(std::string_view body, BodyKind kind, std::uint64_t file_number,
                      std::uint64_t first_sector) {
  std::string out;
  out.reserve((body.size() / kPieceBytes + 1) * kSectorBytes);
  for (std::uint64_t sector = first_sector; !body.empty(); ++sector) {
    const std::string_view piece = body.substr(0, kPieceBytes);
    body.remove_prefix(piece.size());
    const std::size_t begin = out.size();
    const std::uint64_t seed = SeedOf(file_number, sector);
    AppendNumber(out, static_cast<std::uint16_t>(piece.size()));
    AppendNumber(out, static_cast<std::uint8_t>(kind));
    AppendNumber(out, static_cast<std::uint8_t>((sector == first_sector ? kFirst : 0) |
                                                (body.empty() ? kLast : 0)));
    AppendNumber(out,
                 static_cast<std::uint32_t>(Hash64(std::string_view(out).substr(begin), seed)));
    out += piece;
    CloseSector(out, begin, seed);
  }
  return out;
}

std::string EncodeControl(const Facts& facts, std::uint64_t revision, std::uint64_t file_number) {
  std::string body;
  for (const auto& [key, fact] : facts) {
    AppendNumber(body, fact.revision);
    AppendNumber(body, static_cast<std::uint16_t>(key.size()));
    AppendNumber(body, static_cast<std::uint32_t>(fact.value.size()));
    body += key;
    body += fact.value;
  }
  const std::string sectors = FrameBody(body, BodyKind::kSnapshot, file_number, 1);
  return EncodeControlHeader({.file_number = file_number,
                              .revision = revision,
                              .snapshot_sectors = sectors.size() / kSectorBytes,
                              .snapshot_facts = facts.size()}) +
         sectors;
}

std::string EncodeBatch(std::span<const std::vector<FactChange>> transactions,
                        std::uint64_t first_revision, std::uint64_t file_number,
                        std::uint64_t first_sector) {
  std::string body;
  AppendNumber(body, first_revision);
  AppendNumber(body, static_cast<std::uint32_t>(transactions.size()));
  for (const std::vector<FactChange>& changes : transactions) {
    AppendNumber(body, static_cast<std::uint32_t>(changes.size()));
    for (const FactChange& change : changes) {
      AppendNumber(body, static_cast<std::uint16_t>(change.key.size()));
      AppendNumber(body, change.value ? static_cast<std::uint32_t>(change.value->size()) : kGoes);
      body += change.key;
      if (change.value) body += *change.value;
    }
  }
  return FrameBody(body, BodyKind::kBatch, file_number, first_sector);
}

Result<ControlImage> ParseControl(std::string_view bytes) {
  KVCOVE_ASSIGN(const ControlHeader header, ParseHeader(bytes));
  ControlImage image{.revision = header.revision, .file_number = header.file_number};
  using Found = BodyReader::Found;
  BodyReader reader(bytes, header.file_number);
  if (header.snapshot_sectors > 0) {
    if (reader.Next(BodyKind::kSnapshot) != Found::kBody ||
        reader.at() != (header.snapshot_sectors + 1) * kSectorBytes) {
      return Damaged(reader.at(), "the snapshot is not whole");
    }
    if (!DecodeSnapshot(reader.body(), header, image.facts)) {
      return Damaged(reader.begin(), "the snapshot has impossible fields");
    }
  } else if (header.snapshot_facts != 0) {
    return Damaged(40, "the snapshot is missing");
  }
  while (true) {
    const Found found = reader.Next(BodyKind::kBatch);
    if (found == Found::kEnd) return image;
    if (found == Found::kCut) {
      image.cut_short = true;
      return image;
    }
    if (found == Found::kDamage) return Damaged(reader.at(), "a sector is damaged");
    if (!DecodeBatch(reader.body(), image)) {
      return Damaged(reader.begin(), "a batch has impossible fields");
    }
  }
}

}  // namespace kvcove::master
