// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/cluster/remote_write.h"

#include <algorithm>

#include "kvcove/base/clock.h"
#include "kvcove/base/hash.h"
#include "kvcove/requester/calls.h"
#include "kvcove/rpc/busy.h"

namespace kvcove::requester {
namespace {

// Returns the checksum of the joined pieces. Both ways give the same value; the stream costs more.
std::uint64_t ChecksumOf(std::span<const ConstBuffer> pieces) {
  if (pieces.size() == 1) {
    return Hash64(std::span(static_cast<const std::byte*>(pieces[0].data), pieces[0].size), 0);
  }
  Hash64Stream stream;
  for (const ConstBuffer& piece : pieces) {
    stream.Add({static_cast<const std::byte*>(piece.data), piece.size});
  }
  return stream.Value();
}

}  // namespace

void RemoteWrite::Add(std::span<const std::size_t> which, transport::Endpoint& owner,
                      std::int64_t now_ns) {
  // On the heap: the exchange's callback refers to it while `parts_` grows.
  parts_.push_back(std::make_unique<Part>());
  Part& part = *parts_.back();
  part.which.assign(which.begin(), which.end());
  // A tenth less than the time that is left: the answer must arrive before the deadline, too.
  const std::int64_t left_ms = (options_.deadline_ns - now_ns) * 9 / 10 / kMillisecond;
  wire::DataPut request{
      .token = options_.token,
      .items = {},
      .no_checksum = !options_.checksum,
      .budget_ms = static_cast<std::uint32_t>(std::clamp<std::int64_t>(left_ms, 1, 60000)),
      .copies = options_.copies};
  transport::Exchange exchange;
  for (const std::size_t i : which) {
    request.items.push_back({.key = items_[i].key,
                             .after = AfterOf(items_, i, {.after = options_.after}),
                             .size_bytes = static_cast<std::uint32_t>(SizeOf(items_[i].value)),
                             .checksum = options_.checksum ? ChecksumOf(items_[i].value) : 0,
                             .group = groups_[i],
                             .hints = items_[i].hints});
    for (const ConstBuffer& piece : items_[i].value) {
      exchange.out.push_back(
          {.data = static_cast<const std::byte*>(piece.data), .size = piece.size});
    }
  }
  exchange.to = &owner;
  exchange.method = wire::Method::kDataPut;
  exchange.head = wire::Encode(request);
  exchange.on_reply =
      [&part](std::span<const std::byte> head) -> Result<std::vector<transport::Piece>> {
    KVCOVE_ASSIGN(part.codes, wire::DecodeCodes(head, part.which.size()));
    return std::vector<transport::Piece>();
  };
  exchanges_.push_back(std::move(exchange));
}

void RemoteWrite::Finish() {
  for (std::size_t c = 0; c < exchanges_.size(); ++c) {
    const Part& part = *parts_[c];
    const Status& status = exchanges_[c].status;
    if (!status) {
      retry_after_ms_ = std::max(retry_after_ms_, rpc::BusyIn(status.error()).value_or(0));
    }
    for (std::size_t k = 0; k < part.which.size(); ++k) {
      ItemResult& result = results_[part.which[k]];
      const Code code = status ? part.codes[k] : status.error().code;
      // Remains whatever other owners answer: as long as an owner may still read the caller's
      // memory, the caller must not change the bytes.
      if (result.code == Code::kBufferBusy) continue;
      if (code == Code::kOk || code == Code::kNotListed) {
        ++result.replicas;
        result.code = Code::kOk;
        result.listed = code == Code::kOk;
      } else if (code == Code::kBufferBusy || result.replicas == 0) {
        result.code = code;
      }
    }
  }
}

}  // namespace kvcove::requester
