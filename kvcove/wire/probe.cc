// SPDX-License-Identifier: Apache-2.0
#include "kvcove/wire/probe.h"

#include "kvcove/wire/cluster_flat.h"

namespace kvcove::wire {

std::string Encode(const Probe& message) {
  Builder builder;
  return Done(builder, fb::CreateProbe(builder, message.payload_bytes, message.wanted_bytes));
}

Result<Probe> DecodeProbe(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Probe>(body));
  const Probe probe{.payload_bytes = root->payload_bytes(), .wanted_bytes = root->wanted_bytes()};
  if (probe.payload_bytes > kMaxProbeBytes || probe.wanted_bytes > kMaxProbeBytes) {
    return Fail(Code::kCorrupt, "a measurement of too many bytes");
  }
  return probe;
}

}  // namespace kvcove::wire
