// SPDX-License-Identifier: Apache-2.0
#include "kvcove/kvevents/encoder.h"

#include <bit>
#include <string_view>

namespace kvcove::kvevents {
namespace {

// vLLM's words. It tells a disk from memory as STORAGE from CPU since 0.27.
std::string_view WordOf(Medium medium) { return medium == Medium::kMemory ? "CPU" : "STORAGE"; }

void AddByte(std::uint32_t byte, std::string& out) {
  out.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
}

// Appends the lowest `bytes` bytes of `value`, the highest first.
void AddBigEndian(std::uint64_t value, unsigned bytes, std::string& out) {
  for (unsigned left = bytes; left > 0; --left) {
    AddByte(static_cast<std::uint32_t>(value >> (8 * (left - 1)) & 0xFF), out);
  }
}

void AddNil(std::string& out) { AddByte(0xC0, out); }

void AddNumber(std::uint64_t value, std::string& out) {
  if (value < 0x80) return AddByte(static_cast<std::uint32_t>(value), out);
  const unsigned size = value <= 0xFF ? 0 : value <= 0xFFFF ? 1 : value <= 0xFFFF'FFFF ? 2 : 3;
  AddByte(0xCC + size, out);
  AddBigEndian(value, 1U << size, out);
}

void AddArray(std::size_t count, std::string& out) {
  if (count < 16) return AddByte(0x90 | static_cast<std::uint32_t>(count), out);
  const bool small = count <= 0xFFFF;
  AddByte(small ? 0xDC : 0xDD, out);
  AddBigEndian(count, small ? 2 : 4, out);
}

// `fields` < 16.
void AddMap(std::uint32_t fields, std::string& out) { AddByte(0x80 | fields, out); }

// Shorter than 32 bytes.
void AddText(std::string_view text, std::string& out) {
  AddByte(0xA0 | static_cast<std::uint32_t>(text.size()), out);
  out += text;
}

void AddBytes(const BlockHash& hash, std::string& out) {
  AddByte(0xC4, out);
  AddByte(hash.size, out);
  for (std::size_t i = 0; i < hash.size; ++i) {
    AddByte(std::to_integer<std::uint32_t>(hash.bytes[i]), out);
  }
}

// Writes an event's fields, by name or in their order.
class Fields {
 public:
  // `count`: of the fields that follow.
  Fields(std::string_view type, std::uint32_t count, bool arrays, std::string& out)
      : arrays_(arrays), out_(out) {
    arrays ? AddArray(count + 1, out) : AddMap(count + 1, out);
    Name("type");
    AddText(type, out);
  }
  void Name(std::string_view name) {
    if (!arrays_) AddText(name, out_);
  }
  void Nil(std::string_view name) {
    Name(name);
    AddNil(out_);
  }

 private:
  const bool arrays_;
  std::string& out_;
};

}  // namespace

std::string Encoder::Batch(double seconds, std::span<const Event> events) const {
  std::string out;
  AddArray(3, out);
  AddByte(0xCB, out);
  AddBigEndian(std::bit_cast<std::uint64_t>(seconds), 8, out);
  AddArray(events.size(), out);
  for (const Event& event : events) AddEvent(event, out);
  AddNumber(0, out);  // data_parallel_rank
  return out;
}

void Encoder::AddEvent(const Event& event, std::string& out) const {
  const bool arrays = options_.arrays;
  if (event.kind == Event::Kind::kCleared) {
    const Fields none("AllBlocksCleared", 0, arrays, out);
    return;
  }
  const bool stored = event.kind == Event::Kind::kStored;
  // Arrays have all fields of the vLLM that encoded events so, and no locality: readers take each
  // text behind the group for the kind of its cache.
  const std::uint32_t count = arrays ? (stored ? 11 : 3) : (stored ? 9 : 4);
  Fields fields(stored ? "BlockStored" : "BlockRemoved", count, arrays, out);
  fields.Name("block_hashes");
  AddHashes(event, out);
  if (stored) {
    fields.Nil("parent_block_hash");
    fields.Name("token_ids");
    AddArray(0, out);
    fields.Name("block_size");
    AddNumber(0, out);
    fields.Nil("lora_id");
  }
  fields.Name("medium");
  AddText(WordOf(event.medium), out);
  if (stored) fields.Nil("lora_name");
  if (stored && arrays) AddNil(out);  // extra_keys
  fields.Name("group_idx");
  AddNumber(event.group, out);
  if (arrays) {
    if (!stored) return;
    AddNil(out);  // kv_cache_spec_kind
    AddNil(out);  // kv_cache_spec_sliding_window
    return;
  }
  fields.Name("locality");
  AddText("LOCAL", out);
}

void Encoder::AddHashes(const Event& event, std::string& out) const {
  AddArray(event.hashes.size(), out);
  for (const BlockHash& hash : event.hashes) {
    options_.whole_hashes ? AddBytes(hash, out) : AddNumber(hash.AsNumber(), out);
  }
}

}  // namespace kvcove::kvevents
