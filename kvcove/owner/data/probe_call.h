// SPDX-License-Identifier: Apache-2.0
// Answers a measurement (wire/probe.h): discards its payload, and sends bytes that are no value's.
// Private to this folder.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/owner/data/data_service.h"
#include "kvcove/transport/service.h"
#include "kvcove/wire/probe.h"

namespace kvcove::owner {

class ProbeCall final : public transport::Served {
 public:
  // Returns the exchange of a kProbe; null: the head is malformed. `bytes`: what it sends, as often
  // as it takes; they outlive the exchange.
  static std::unique_ptr<transport::Served> Begin(const DataService::Session& session,
                                                  std::span<const std::byte> head,
                                                  std::span<const std::byte> bytes) {
    const Result<wire::Probe> probe = wire::DecodeProbe(head);
    if (!probe) return nullptr;
    // As of values: a measurement takes the network from them.
    if (Status may = session.MayMove(probe->payload_bytes + probe->wanted_bytes); !may) {
      return std::make_unique<transport::Refused>(probe->payload_bytes, std::move(may).error());
    }
    return std::unique_ptr<transport::Served>(new ProbeCall(*probe, bytes));
  }

  transport::Step Next() override {
    if (const std::uint64_t bytes = std::exchange(probe_.payload_bytes, 0); bytes > 0) {
      return {.kind = transport::Step::Kind::kReceive, .into = {{.data = nullptr, .size = bytes}}};
    }
    transport::Step reply = transport::ReplyStep(Code::kOk, {});
    for (std::uint64_t left = probe_.wanted_bytes; left > 0;) {
      const std::uint64_t size = std::min<std::uint64_t>(left, bytes_.size());
      reply.out.push_back({.data = bytes_.data(), .size = size});
      left -= size;
    }
    return reply;
  }
  void Received(std::uint64_t /*bytes*/) override {}

 private:
  ProbeCall(const wire::Probe& probe, std::span<const std::byte> bytes)
      : probe_(probe), bytes_(bytes) {}

  wire::Probe probe_;
  const std::span<const std::byte> bytes_;
};

}  // namespace kvcove::owner
