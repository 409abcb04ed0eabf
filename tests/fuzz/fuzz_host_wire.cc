// SPDX-License-Identifier: Apache-2.0
// Any bytes as frame header, and as the body of any method, against a real pool of 1 MiB. The first
// byte chooses.
// Fuzzes: kvcove/wire kvcove/owner/core kvcove/pool/local_host.cc
#include <cstring>
#include <vector>

#include "kvcove/base/log.h"
#include "kvcove/pool/local_host.h"
#include "kvcove/wire/host_wire.h"

namespace {

struct Target {
  Target() {
    kvcove::SetLogLevel(kvcove::LogLevel::kOff);
    kvcove::pool::LocalHostOptions options;
    options.owner.memory_bytes = 1 << 20;
    host = *kvcove::pool::LocalHost::Open(options, kvcove::SystemClock::Instance());
    service = host->ServiceFor(host->AddSession(1)->number);
  }
  std::unique_ptr<kvcove::pool::LocalHost> host;
  std::unique_ptr<kvcove::wire::HostService> service;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Target target;
  if (size == 0) return 0;
  // As in the server, the body is aligned.
  std::vector<std::byte> body(size - 1);
  if (size > 1) std::memcpy(body.data(), data + 1, size - 1);
  if (body.size() >= kvcove::wire::kFrameHeaderBytes) {
    (void)kvcove::wire::DecodeFrameHeader(
        std::span<const std::byte, kvcove::wire::kFrameHeaderBytes>(
            body.data(), kvcove::wire::kFrameHeaderBytes),
        kvcove::wire::kMaxFrameBytes);
  }
  (void)kvcove::wire::DecodeHello(body);
  (void)kvcove::wire::DecodeJoin(body);
  (void)kvcove::wire::DecodeWelcome(body);
  const auto method = static_cast<kvcove::wire::Method>(1 + data[0] % kvcove::wire::kMaxMethod);
  (void)kvcove::wire::ServeHost(*target.service, method, body,
                                kvcove::SystemClock::Instance().NowNs() + 1000000);
  return 0;
}
