// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/store/facts.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "kvcove/base/hash.h"
#include "kvcove/base/little_endian.h"

namespace kvcove::master {
namespace {

// Increment it when a value's fields change.
constexpr std::uint8_t kValueVersion = 1;
constexpr std::uint8_t kCleanEndFlag = 1;
constexpr std::uint8_t kUnknownLeasesFlag = 2;
constexpr std::string_view kSlotPrefix = "slot/";
constexpr std::string_view kMemberPrefix = "member/";
constexpr std::string_view kBarrierPrefix = "barrier/";
constexpr std::string_view kOpeningPrefix = "opening/";
constexpr std::string_view kResetPrefix = "reset/";
constexpr std::string_view kEngineResetPrefix = "engine-reset/";
constexpr std::string_view kVersionPrefix = "version/";
constexpr std::string_view kPrunedPrefix = "pruned/";
constexpr std::string_view kTombstonesPrefix = "tombstones/";

// Writes little-endian fields after one byte of version.
class Writer {
 public:
  Writer() { Number(kValueVersion); }
  template <typename T>
  Writer& Number(T value) {
    AppendNumber(out_, value);
    return *this;
  }
  Writer& Text(std::string_view text) {
    Number(static_cast<std::uint16_t>(text.size()));
    out_ += text;
    return *this;
  }
  Writer& Id(const Id128& id) { return Number(id.high).Number(id.low); }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

// Reads the bytes of a Writer.
class Reader {
 public:
  explicit Reader(std::string_view bytes)
      : fields_(bytes), version_(fields_.Number<std::uint8_t>()) {}
  template <typename T>
  T Number() {
    return fields_.Number<T>();
  }
  std::string Text() { return std::string(fields_.Bytes(Number<std::uint16_t>())); }
  Id128 Id() {
    const auto high = Number<std::uint64_t>();
    return {.high = high, .low = Number<std::uint64_t>()};
  }
  bool Done() const { return version_ == kValueVersion && fields_.ok() && fields_.left() == 0; }

 private:
  FieldReader fields_;
  std::uint8_t version_;
};

bool FromHex(std::string_view text, Id128& id) {
  const auto read = IdFromHex(text);
  id = read.value_or(Id128{});
  return read.has_value();
}

bool FromSlot(std::string_view text, SlotId& slot) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), slot);
  return error == std::errc() && end == text.data() + text.size() && slot < kMaxSlots;
}

bool DecodePool(Reader& reader, PoolFact& fact) {
  fact.pool = reader.Id();
  fact.incarnation = reader.Id();
  fact.counter = reader.Number<std::uint64_t>();
  fact.longest_lease_ns = reader.Number<std::int64_t>();
  const auto flags = reader.Number<std::uint8_t>();
  fact.clean_end = (flags & kCleanEndFlag) != 0;
  fact.unknown_leases = (flags & kUnknownLeasesFlag) != 0;
  return reader.Done();
}

bool DecodeTerms(Reader& reader, std::vector<TermFact>& terms) {
  const auto count = reader.Number<std::uint16_t>();
  for (std::size_t i = 0; i < count && i < kTermsKept; ++i) {
    TermFact fact;
    fact.term = reader.Number<std::uint64_t>();
    fact.tag = reader.Number<std::uint64_t>();
    fact.first_revision = reader.Number<std::uint64_t>();
    terms.push_back(fact);
  }
  return reader.Done();
}

bool DecodeSlot(std::string_view key, const Fact& stored, StoredState& state) {
  StoredState::Slot slot{.slot = 0, .fact = {}, .revision = stored.revision};
  Reader reader(stored.value);
  slot.fact.generation = reader.Number<std::uint64_t>();
  slot.fact.free = reader.Number<std::uint8_t>() != 0;
  slot.fact.name = reader.Text();
  slot.fact.version = reader.Text();
  if (!reader.Done() || !FromSlot(key, slot.slot)) return false;
  state.slots.push_back(std::move(slot));
  return true;
}

bool DecodeMember(std::string_view key, const Fact& stored, StoredState& state) {
  StoredState::Member member;
  Reader reader(stored.value);
  member.fact.number = reader.Number<std::uint16_t>();
  member.fact.disk = reader.Number<std::uint8_t>() != 0;
  member.fact.joined_s = reader.Number<std::int64_t>();
  member.fact.address = reader.Text();
  member.fact.host = reader.Text();
  member.fact.tenant = reader.Text();
  if (!reader.Done() || !FromHex(key, member.id)) return false;
  state.members.push_back(std::move(member));
  return true;
}

bool DecodeBarrier(std::string_view key, const Fact& stored, StoredState& state) {
  StoredState::Barrier barrier;
  Reader reader(stored.value);
  barrier.fact.term = reader.Number<std::uint64_t>();
  barrier.fact.acknowledged = reader.Number<std::uint64_t>();
  if (!reader.Done() || key.size() < 34 || key[32] != '/' ||
      !FromHex(key.substr(0, 32), barrier.member) || !FromSlot(key.substr(33), barrier.slot)) {
    return false;
  }
  state.barriers.push_back(barrier);
  return true;
}

bool DecodeOpening(std::string_view key, const Fact& stored, StoredState& state) {
  StoredState::Opening opening;
  Reader reader(stored.value);
  opening.fact.opening = reader.Id();
  if (!reader.Done() || !FromHex(key, opening.member)) return false;
  state.openings.push_back(opening);
  return true;
}

bool DecodeResetId(std::string_view key, const Fact& stored, StoredState& state) {
  StoredState::ResetId reset{.tenant = {}, .id = {}, .revision = stored.revision};
  const std::size_t slash = key.rfind('/');
  if (slash == std::string_view::npos || !FromHex(key.substr(slash + 1), reset.id)) return false;
  reset.tenant = key.substr(0, slash);
  state.reset_ids.push_back(std::move(reset));
  return true;
}

bool DecodeVersion(std::string_view key, const Fact& stored, StoredState& state) {
  VersionFact fact;
  Reader reader(stored.value);
  fact.number = reader.Number<std::uint64_t>();
  fact.name = reader.Text();
  fact.version = reader.Text();
  if (!reader.Done() || key != VersionKey(fact.name, fact.version)) return false;
  state.versions.push_back(std::move(fact));
  return true;
}

bool DecodePruned(std::string_view key, const Fact& stored, StoredState& state) {
  PrunedFact fact;
  Reader reader(stored.value);
  fact.before = reader.Number<std::uint64_t>();
  fact.name = reader.Text();
  if (!reader.Done() || key != PrunedKey(fact.name)) return false;
  state.pruned.push_back(std::move(fact));
  return true;
}

bool DecodeTombstones(std::string_view key, const Fact& stored, StoredState& state) {
  TombstonesFact fact;
  Reader reader(stored.value);
  fact.number = reader.Number<std::uint32_t>();
  fact.tenant = reader.Text();
  const auto count = reader.Number<std::uint16_t>();
  for (std::size_t i = 0; i < count && i < kTombstonesInFact; ++i) {
    fact.versions.push_back(reader.Number<std::uint64_t>());
  }
  if (!reader.Done() || key != TombstonesKey(fact.tenant, fact.number)) return false;
  state.tombstones.push_back(std::move(fact));
  return true;
}

bool DecodeOne(std::string_view key, const Fact& stored, StoredState& state) {
  const auto below = [&](std::string_view prefix) {
    return key.starts_with(prefix) ? std::optional(key.substr(prefix.size())) : std::nullopt;
  };
  if (key == kPoolKey) {
    Reader reader(stored.value);
    return DecodePool(reader, state.pool.emplace());
  }
  if (key == kTermsKey) {
    Reader reader(stored.value);
    return DecodeTerms(reader, state.terms);
  }
  if (const auto rest = below(kSlotPrefix)) return DecodeSlot(*rest, stored, state);
  if (const auto rest = below(kMemberPrefix)) return DecodeMember(*rest, stored, state);
  if (const auto rest = below(kBarrierPrefix)) return DecodeBarrier(*rest, stored, state);
  if (const auto rest = below(kOpeningPrefix)) return DecodeOpening(*rest, stored, state);
  if (const auto rest = below(kResetPrefix)) return DecodeResetId(*rest, stored, state);
  if (below(kEngineResetPrefix)) {
    state.engine_resets.emplace_back(key);
    return true;
  }
  if (below(kVersionPrefix)) return DecodeVersion(key, stored, state);
  if (below(kPrunedPrefix)) return DecodePruned(key, stored, state);
  if (below(kTombstonesPrefix)) return DecodeTombstones(key, stored, state);
  return true;  // a key of a later kvcove
}

}  // namespace

std::string SlotKey(SlotId slot) { return fmt::format("{}{:05}", kSlotPrefix, slot); }
std::string MemberKey(const Id128& member) { return std::string(kMemberPrefix) + ToHex(member); }
std::string BarrierKey(const Id128& member, SlotId slot) {
  return fmt::format("{}{}/{:05}", kBarrierPrefix, ToHex(member), slot);
}
std::string OpeningKey(const Id128& member) { return std::string(kOpeningPrefix) + ToHex(member); }
std::string ResetKey(std::string_view tenant, const Id128& id) {
  return fmt::format("{}{}/{}", kResetPrefix, tenant, ToHex(id));
}
std::string EngineResetKey(std::string_view name) {
  // A name may be longer than a key, so the key has its hash. If two names have one hash, the other
  // namespace starts closed without need, which is safe.
  return std::string(kEngineResetPrefix) + ToHex(DirectoryHash(0, name));
}

// Hashes, as above. A value has the names, and Decode compares them with its key.
std::string VersionKey(std::string_view name, std::string_view version) {
  return fmt::format("{}{}/{}", kVersionPrefix, ToHex(DirectoryHash(0, name)),
                     ToHex(DirectoryHash(0, version)));
}
std::string PrunedKey(std::string_view name) {
  return std::string(kPrunedPrefix) + ToHex(DirectoryHash(0, name));
}
std::string TombstonesKey(std::string_view tenant, std::uint32_t number) {
  return fmt::format("{}{}/{:05}", kTombstonesPrefix, ToHex(DirectoryHash(0, tenant)), number);
}
std::uint64_t VersionHash(std::string_view name, std::string_view version) {
  return Hash64(version, Hash64(name, 0));
}

std::string Encode(const PoolFact& fact) {
  return Writer()
      .Id(fact.pool)
      .Id(fact.incarnation)
      .Number(fact.counter)
      .Number(fact.longest_lease_ns)
      .Number(static_cast<std::uint8_t>((fact.clean_end ? kCleanEndFlag : 0) |
                                        (fact.unknown_leases ? kUnknownLeasesFlag : 0)))
      .Take();
}

std::string Encode(const std::vector<TermFact>& terms) {
  Writer writer;
  writer.Number(static_cast<std::uint16_t>(terms.size()));
  for (const TermFact& fact : terms) {
    writer.Number(fact.term).Number(fact.tag).Number(fact.first_revision);
  }
  return writer.Take();
}

std::string Encode(const SlotFact& fact) {
  return Writer()
      .Number(fact.generation)
      .Number(static_cast<std::uint8_t>(fact.free ? 1 : 0))
      .Text(fact.name)
      .Text(fact.version)
      .Take();
}

std::string Encode(const MemberFact& fact) {
  return Writer()
      .Number(fact.number)
      .Number(static_cast<std::uint8_t>(fact.disk ? 1 : 0))
      .Number(fact.joined_s)
      .Text(fact.address)
      .Text(fact.host)
      .Text(fact.tenant)
      .Take();
}

std::string Encode(const BarrierFact& fact) {
  return Writer().Number(fact.term).Number(fact.acknowledged).Take();
}

std::string Encode(const OpeningFact& fact) { return Writer().Id(fact.opening).Take(); }

std::string Encode(const VersionFact& fact) {
  return Writer().Number(fact.number).Text(fact.name).Text(fact.version).Take();
}

std::string Encode(const PrunedFact& fact) {
  return Writer().Number(fact.before).Text(fact.name).Take();
}

std::string Encode(const TombstonesFact& fact) {
  Writer writer;
  writer.Number(fact.number).Text(fact.tenant);
  writer.Number(static_cast<std::uint16_t>(fact.versions.size()));
  for (const std::uint64_t version : fact.versions) writer.Number(version);
  return writer.Take();
}

Result<StoredState> Decode(const Facts& facts) {
  StoredState state;
  for (const auto& [key, fact] : facts) {
    if (!DecodeOne(key, fact, state)) {
      return Fail(Code::kCorrupt, fmt::format("the control store has a fact '{}' that this kvcove "
                                              "cannot read; use the one that wrote it",
                                              key));
    }
  }
  std::ranges::sort(state.reset_ids, {}, &StoredState::ResetId::revision);
  return state;
}

}  // namespace kvcove::master
