// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/cluster/remote_read.h"

#include <algorithm>

#include "kvcove/base/log.h"
#include "kvcove/requester/calls.h"
#include "kvcove/rpc/busy.h"

namespace kvcove::requester {

// ---- ValueVerifier

void ValueVerifier::Arrived(std::uint64_t bytes) {
  while (at_ < values_.size()) {
    const Value& value = values_[at_];
    if (Whole(bytes)) {
      // Most small values: one call costs half as much as a stream.
      const auto* data = static_cast<const std::byte*>(value.into.front().data);
      const bool sound = !checks_ || Hash64(std::span(data, value.size), 0) == value.checksum;
      seen_ += value.size;
      on_value_(at_++, sound);
      continue;
    }
    while (value_at_ < value.size && seen_ < bytes) {
      const MutableBuffer& piece = value.into[piece_];
      Add(std::min({piece.size - piece_at_, value.size - value_at_, bytes - seen_}));
    }
    // The rest of this value has not arrived. The stream keeps its state until the next call.
    if (value_at_ < value.size) return;
    const bool sound = !checks_ || stream_.Value() == value.checksum;
    value_at_ = 0;
    piece_ = 0;
    piece_at_ = 0;
    if (checks_) stream_.Reset();
    on_value_(at_++, sound);
  }
}

bool ValueVerifier::Whole(std::uint64_t bytes) const {
  const Value& value = values_[at_];
  return value_at_ == 0 && value.size <= bytes - seen_ && !value.into.empty() &&
         value.size <= value.into.front().size;
}

void ValueVerifier::Add(std::uint64_t bytes) {
  const MutableBuffer& piece = values_[at_].into[piece_];
  if (checks_) stream_.Add({static_cast<const std::byte*>(piece.data) + piece_at_, bytes});
  seen_ += bytes;
  value_at_ += bytes;
  piece_at_ += bytes;
  if (piece_at_ == piece.size) {
    ++piece_;
    piece_at_ = 0;
  }
}

// ---- RemoteRead

void RemoteRead::Add(std::size_t index, transport::Endpoint& owner, std::string_view name) {
  // Sizes and tiers are the look-up's, which may be old: they only shape the parts. The owner's
  // reply says what it sends, and OnReply checks that against the buffers.
  const std::uint64_t bytes = results_[index].bytes;
  Filling& filling = filling_[&owner];
  const bool on_disk = results_[index].tier == Tier::kDisk;
  Part*& part = on_disk ? filling.disk : filling.memory;
  const std::uint64_t limit =
      on_disk && filling.disk_parts <= kDiskParts ? kDiskPartBytes : kPartBytes;
  if (part == nullptr || part->which.size() >= kPartItems || part->bytes + bytes > limit) {
    if (on_disk) ++filling.disk_parts;
    parts_.push_back(std::make_unique<Part>());
    part = parts_.back().get();
    part->owner = &owner;
    part->name = name;
  }
  part->which.push_back(index);
  part->bytes += bytes;
}

std::span<transport::Exchange> RemoteRead::Exchanges() {
  for (const auto& part : parts_) exchanges_.push_back(ExchangeOf(*part));
  return exchanges_;
}

transport::Exchange RemoteRead::ExchangeOf(Part& part) {
  wire::DataGet request{.token = token_, .keys = {}, .room = {}, .no_checksum = !checksum_};
  for (const std::size_t i : part.which) {
    request.keys.push_back(items_[i].key);
    request.room.push_back(SizeOf(items_[i].into));
  }
  // `part` is on the heap, and no part is added any more, so the callbacks may refer to it.
  part.ended.resize(part.which.size());
  transport::Exchange exchange;
  exchange.to = part.owner;
  exchange.method = wire::Method::kDataGet;
  exchange.head = wire::Encode(request);
  exchange.on_reply = [this, &part](std::span<const std::byte> head) {
    return OnReply(part, head);
  };
  exchange.on_bytes = [&part](std::uint64_t arrived) { part.verifier->Arrived(arrived); };
  return exchange;
}

Result<std::vector<transport::Piece>> RemoteRead::OnReply(Part& part,
                                                          std::span<const std::byte> head) {
  KVCOVE_ASSIGN(part.values, wire::DecodeValues(head, part.which.size()));
  std::vector<transport::Piece> into;
  std::vector<ValueVerifier::Value> values;
  std::vector<std::size_t> positions;
  for (std::size_t k = 0; k < part.values.size(); ++k) {
    const wire::DataValue& value = part.values[k];
    const std::size_t i = part.which[k];
    if (value.code != Code::kOk) {
      results_[i] = {.code = value.code, .reason = value.reason, .bytes = value.size_bytes};
      part.ended[k] = true;
      continue;
    }
    std::uint64_t left = value.size_bytes;
    for (const MutableBuffer& piece : items_[i].into) {
      const std::uint64_t bytes = std::min<std::uint64_t>(piece.size, left);
      if (bytes > 0) into.push_back({.data = static_cast<std::byte*>(piece.data), .size = bytes});
      left -= bytes;
    }
    // The request named the room of each item, so this owner is broken: end the exchange before any
    // byte lands.
    if (left > 0) return Fail(Code::kCorrupt, "an owner sent more than there is room for");
    values.push_back(
        {.into = items_[i].into, .size = value.size_bytes, .checksum = value.checksum});
    positions.push_back(k);
  }
  part.verifier = std::make_unique<ValueVerifier>(
      std::move(values), checksum_,
      [this, &part, positions = std::move(positions)](std::size_t at, bool sound) {
        const std::size_t k = positions[at];
        const std::uint64_t bytes = part.values[k].size_bytes;
        ItemResult& result = results_[part.which[k]];
        part.ended[k] = true;
        const Tier tier = part.values[k].tier;
        result = {.code = Code::kOk,
                  .bytes = bytes,
                  .tier = tier == Tier::kMemory ? Tier::kRemoteMemory : tier};
        if (sound) return;
        // The bytes are in the caller's buffer already, so its contents are void.
        result = {.code = Code::kCorrupt};
        LogError("a value of {} bytes from the owner at {} does not have its checksum", bytes,
                 part.name);
      });
  return into;
}

void RemoteRead::Finish() {
  for (std::size_t c = 0; c < exchanges_.size(); ++c) {
    const Status& status = exchanges_[c].status;
    if (status) continue;
    const Code code = status.error().code;
    const Part& part = *parts_[c];
    const std::optional<std::uint32_t> busy_ms = rpc::BusyIn(status.error());
    retry_after_ms_ = std::max(retry_after_ms_, busy_ms.value_or(0));
    for (std::size_t k = 0; k < part.which.size(); ++k) {
      // A value that arrived as a whole counts, whatever the end of the exchange was.
      if (part.ended[k]) continue;
      ItemResult& result = results_[part.which[k]];
      // kBufferBusy must reach the caller as it is: its buffer is not its own yet. A busy owner's
      // kLimit lets the session ask again. Any other failure is a miss.
      if (code == Code::kCorrupt || code == Code::kBufferBusy || busy_ms) {
        result = {.code = code};
      } else {
        result = Miss(code == Code::kTimeout  ? MissReason::kTimeout
                      : code == Code::kDenied ? MissReason::kDenied
                                              : MissReason::kOwnerGone);
      }
    }
  }
}

}  // namespace kvcove::requester
