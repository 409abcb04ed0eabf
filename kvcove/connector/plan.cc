// SPDX-License-Identifier: Apache-2.0
// Codes the messages: integers are little-endian, a length precedes its bytes or items, and the
// first byte names the form and its version. A change of a field's order, type or number needs a
// new first byte: a rank and a scheduler of different versions must refuse each other's messages.
#include "kvcove/connector/plan.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kvcove/base/result.h"
namespace kvcove::connector {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint8_t kPlanForm = 0x14;
constexpr std::uint8_t kReportForm = 0x27;
constexpr std::uint8_t kQuestionForm = 0x31;

template <typename V, typename T>
void Visit(V& visit, T& value);

class Writer {
 public:
  template <typename T>
    requires std::is_integral_v<T>
  void operator()(const T& value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void operator()(const std::string& text) {
    (*this)(static_cast<std::uint32_t>(text.size()));
    text_ += text;
  }
  void operator()(const BlockHash& hash) {
    const std::string_view bytes = hash;
    (*this)(static_cast<std::uint32_t>(bytes.size()));
    text_ += bytes;
  }
  void Reserve(std::size_t bytes) { text_.reserve(bytes); }
  template <typename T>
  void operator()(const std::vector<T>& items) {
    (*this)(static_cast<std::uint32_t>(items.size()));
    for (const T& item : items) Visit(*this, item);
  }
  template <typename T, std::size_t N>
  void operator()(const std::array<T, N>& items) {
    for (const T& item : items) (*this)(item);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <typename T>
    requires std::is_integral_v<T>
  void operator()(T& value) {
    if (bytes_.size() < sizeof(value)) return Spoil();
    if constexpr (std::is_same_v<T, bool>) {
      value = bytes_[0] != 0;
    } else {
      (void)bytes_.copy(reinterpret_cast<char*>(&value), sizeof(value));
    }
    bytes_.remove_prefix(sizeof(value));
  }
  void operator()(std::string& text) {
    std::uint32_t size = 0;
    (*this)(size);
    if (bytes_.size() < size) return Spoil();
    text = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
  }
  void operator()(BlockHash& hash) {
    std::uint32_t size = 0;
    (*this)(size);
    if (size > BlockHash::kMostBytes || bytes_.size() < size) return Spoil();
    hash = BlockHash(bytes_.substr(0, size));
    bytes_.remove_prefix(size);
  }
  template <typename T>
  void operator()(std::vector<T>& items) {
    std::uint32_t count = 0;
    (*this)(count);
    items.clear();
    // Every item has at least one byte, so a larger count is garbage. Checked before items are
    // made: else four bytes could ask for gigabytes.
    if (count > bytes_.size()) return Spoil();
    if constexpr (std::is_same_v<T, ChunkPlace>) {
      items.reserve(std::min<std::size_t>(count, bytes_.size() / kChunkBytes));
      for (std::uint32_t i = 0; i < count && good_; ++i) ReadChunk(items);
    } else {
      for (std::uint32_t i = 0; i < count && good_; ++i) Visit(*this, items.emplace_back());
    }
  }
  template <typename T, std::size_t N>
  void operator()(std::array<T, N>& items) {
    for (T& item : items) (*this)(item);
  }
  bool Ended() const { return good_ && bytes_.empty(); }

 private:
  static constexpr std::size_t kChunkBytes = 21;  // bytes of a chunk, without its hash

  // Reads what Visit() writes for a ChunkPlace, with one check of the bytes left instead of one a
  // field: the engine's thread waits while a plan's chunks are read.
  void ReadChunk(std::vector<ChunkPlace>& items) {
    if (bytes_.size() < kChunkBytes) return Spoil();
    ChunkPlace& place = items.emplace_back();
    std::uint32_t size = 0;
    const char* const at = bytes_.data();
    std::memcpy(&place.group, at, 4);
    std::memcpy(&place.chunk, at + 4, 8);
    std::memcpy(&place.block, at + 12, 4);
    std::uint8_t tier = 0;
    std::memcpy(&tier, at + 16, 1);
    std::memcpy(&size, at + 17, 4);
    if (tier >= kTiers) return Spoil();
    place.tier = Tier{tier};
    if (size > BlockHash::kMostBytes || bytes_.size() - kChunkBytes < size) return Spoil();
    place.hash = BlockHash(bytes_.substr(kChunkBytes, size));
    bytes_.remove_prefix(kChunkBytes + size);
  }
  // Marks the message as garbage. Clears the bytes, so that all later reads fail, too.
  void Spoil() {
    good_ = false;
    bytes_ = {};
  }
  std::string_view bytes_;
  bool good_ = true;
};

// Lists the fields once for both directions, so that they cannot differ. `T` is const for writing.
template <typename V, typename T>
void Visit(V& visit, T& value) {
  using Type = std::remove_const_t<T>;
  if constexpr (std::is_integral_v<Type> || std::is_same_v<Type, std::string>) {
    visit(value);
  } else if constexpr (std::is_same_v<Type, ChunkPlace>) {
    visit(value.group);
    visit(value.chunk);
    visit(value.block);
    auto tier = static_cast<std::uint8_t>(value.tier);
    visit(tier);
    if constexpr (!std::is_const_v<T>) value.tier = Tier{tier};
    visit(value.hash);
  } else if constexpr (std::is_same_v<Type, AdapterPrint>) {
    visit(value.id);
    visit(value.digest);
  } else if constexpr (std::is_same_v<Type, LoadOrder>) {
    visit(value.job);
    visit(value.request);
    visit(value.version);
    Visit(visit, value.adapter);
    visit(value.sync);
    visit(value.chunks);
  } else if constexpr (std::is_same_v<Type, SaveOrder>) {
    visit(value.job);
    visit(value.request);
    visit(value.token.incarnation.high);
    visit(value.token.incarnation.low);
    visit(value.token.generation);
    visit(value.token.slot);
    visit(value.version);
    Visit(visit, value.adapter);
    visit(value.chunks);
    visit(value.behind);
    visit(value.hints.output_tokens);
    visit(value.hints.ephemeral_from);
    visit(value.hints.session_ends);
    visit(value.goes_on);
  } else if constexpr (std::is_same_v<Type, SaveDone>) {
    visit(value.job);
    visit(value.missing);
    visit(value.on_disk);
  } else if constexpr (std::is_same_v<Type, LoadDone>) {
    visit(value.job);
    visit(value.failed);
    visit(value.ns);
    visit(value.bytes);
  } else if constexpr (std::is_same_v<Type, Plan>) {
    visit(value.fingerprint);
    visit(value.pool);
    visit(value.engine);
    visit(value.loads);
    visit(value.saves);
    visit(value.cancelled);
    visit(value.refused);
    visit(value.adapters);
    visit(value.step);
  } else if constexpr (std::is_same_v<Type, EngineQuestion>) {
    visit(value.budget_ms);
    visit(value.salt);
    visit(value.hashes);
    visit(value.news);
    visit(value.version);
  } else if constexpr (std::is_same_v<Type, Counters>) {
    for (auto* count :
         {&value.loaded_keys, &value.loaded_bytes, &value.failed_keys, &value.saved_keys,
          &value.saved_bytes, &value.existing_keys, &value.stale_keys, &value.refused_keys,
          &value.dropped_keys, &value.misfit_keys, &value.copy_errors, &value.load_ns,
          &value.save_ns, &value.load_jobs, &value.save_jobs, &value.queued_jobs}) {
      visit(*count);
    }
    visit(value.failed_by_tier);
    visit(value.keys_by_tier);
    visit(value.bytes_by_tier);
    visit(value.load_time.counts);
    visit(value.save_time.counts);
    visit(value.missed);
    visit(value.device_load_bytes);
    visit(value.device_save_bytes);
    for (auto* count : {&value.device_load_ns, &value.device_save_ns, &value.device_tickets,
                        &value.device_lent_bytes, &value.device_pinned_bytes,
                        &value.device_load_in_place_bytes, &value.device_save_in_place_bytes,
                        &value.device_in_place_bytes, &value.device_segment_pinned_bytes}) {
      visit(*count);
    }
    visit(value.device_load_time.counts);
    visit(value.device_save_time.counts);
  } else if constexpr (std::is_same_v<Type, Report>) {
    visit(value.rank);
    visit(value.weight_changes);
    visit(value.fingerprint_asked);
    visit(value.fingerprint);
    visit(value.fingerprint_changes);
    visit(value.adapters_number);
    visit(value.adapters);
    visit(value.saves);
    visit(value.loads);
    Visit(visit, value.counters);
    visit(value.step);
    visit(value.without_pool);
  }
}

template <typename T>
std::string EncodeAs(std::uint8_t form, const T& value) {
  Writer writer;
  writer(form);
  Visit(writer, value);
  return writer.Take();
}

template <typename T>
Result<T> DecodeAs(std::uint8_t form, std::string_view bytes, const char* what) {
  Reader reader(bytes);
  std::uint8_t found = 0;
  reader(found);
  T value;
  if (found == form) Visit(reader, value);
  if (found != form || !reader.Ended()) {
    return Fail(Code::kCorrupt, std::string("this is no ") + what + " of this version of kvcove");
  }
  return value;
}

}  // namespace

void Latency::Add(std::int64_t ns) {
  const double seconds = static_cast<double>(ns) / 1e9;
  std::size_t bucket = 0;
  while (bucket < kBounds.size() && seconds > kBounds[bucket]) ++bucket;
  ++counts[bucket];
}

void Latency::Add(const Latency& other) {
  for (std::size_t i = 0; i < kBuckets; ++i) counts[i] += other.counts[i];
}

void Counters::Add(const Counters& other) {
  loaded_keys += other.loaded_keys;
  loaded_bytes += other.loaded_bytes;
  failed_keys += other.failed_keys;
  saved_keys += other.saved_keys;
  saved_bytes += other.saved_bytes;
  existing_keys += other.existing_keys;
  stale_keys += other.stale_keys;
  refused_keys += other.refused_keys;
  dropped_keys += other.dropped_keys;
  misfit_keys += other.misfit_keys;
  copy_errors += other.copy_errors;
  load_ns += other.load_ns;
  save_ns += other.save_ns;
  load_jobs += other.load_jobs;
  save_jobs += other.save_jobs;
  queued_jobs += other.queued_jobs;
  for (std::size_t i = 0; i < kTiers; ++i) {
    failed_by_tier[i] += other.failed_by_tier[i];
    keys_by_tier[i] += other.keys_by_tier[i];
    bytes_by_tier[i] += other.bytes_by_tier[i];
  }
  load_time.Add(other.load_time);
  save_time.Add(other.save_time);
  for (std::size_t i = 0; i < kMissReasons; ++i) missed[i] += other.missed[i];
  for (std::size_t i = 0; i < device_load_bytes.size(); ++i) {
    device_load_bytes[i] += other.device_load_bytes[i];
    device_save_bytes[i] += other.device_save_bytes[i];
  }
  device_load_ns += other.device_load_ns;
  device_save_ns += other.device_save_ns;
  device_tickets += other.device_tickets;
  device_lent_bytes += other.device_lent_bytes;
  device_pinned_bytes += other.device_pinned_bytes;
  device_load_in_place_bytes += other.device_load_in_place_bytes;
  device_save_in_place_bytes += other.device_save_in_place_bytes;
  device_in_place_bytes += other.device_in_place_bytes;
  device_segment_pinned_bytes += other.device_segment_pinned_bytes;
  device_load_time.Add(other.device_load_time);
  device_save_time.Add(other.device_save_time);
}

std::string Encode(const Plan& plan) {
  std::size_t chunks = 0;
  for (const LoadOrder& load : plan.loads) chunks += load.chunks.size();
  for (const SaveOrder& save : plan.saves) chunks += save.chunks.size();
  Writer writer;
  writer.Reserve(1024 + chunks * (20 + BlockHash::kMostBytes / 2));
  writer(kPlanForm);
  Visit(writer, plan);
  return writer.Take();
}
std::string Encode(const Report& report) { return EncodeAs(kReportForm, report); }
Result<Plan> DecodePlan(std::string_view bytes) {
  return DecodeAs<Plan>(kPlanForm, bytes, "step plan");
}
Result<Report> DecodeReport(std::string_view bytes) {
  return DecodeAs<Report>(kReportForm, bytes, "rank's report");
}

std::string Encode(const EngineQuestion& question) { return EncodeAs(kQuestionForm, question); }
Result<EngineQuestion> DecodeQuestion(std::string_view bytes) {
  return DecodeAs<EngineQuestion>(kQuestionForm, bytes, "question to an engine");
}

}  // namespace kvcove::connector
