// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/pick/transports.h"

#include <fmt/core.h>

#include <cstdlib>
#include <utility>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/text.h"
#include "kvcove/transport/tcp/sockets.h"
#include "kvcove/transport/verbs/fabric.h"
#include "kvcove/transport/verbs/library.h"

namespace kvcove::transport {
namespace {

Result<std::vector<verbs::PortName>> PortsOf(const TransportOptions& options) {
  if (options.devices.empty()) return std::vector<verbs::PortName>();
  return verbs::ParsePortNames(options.devices);
}

// Returns the number that a variable of the environment has, 0 without it.
Result<std::uint8_t> NumberFrom(const char* variable, std::uint8_t most) {
  const char* const text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return std::uint8_t{0};
  const auto number = NumberOf<std::uint8_t>(text);
  if (number && *number <= most) return *number;
  return Fail(Code::kInvalid,
              fmt::format("{} '{}': a number from 0 to {} is wanted", variable, text, most));
}

// Takes the class of RDMA packets from the environment. The network has one class for storage on a
// host, so an engine's pool, an owner and a command that measures must all use the same one.
Status AddTraffic(verbs::FabricOptions& fabric) {
  KVCOVE_ASSIGN(fabric.service_level, NumberFrom("KVCOVE_RDMA_SERVICE_LEVEL", 15));
  KVCOVE_ASSIGN(fabric.traffic_class, NumberFrom("KVCOVE_RDMA_TRAFFIC_CLASS", 255));
  return {};
}

}  // namespace

const std::vector<Transport*>& Transports() {
  static const std::vector<Transport*> all = {&tcp::Sockets()};
  return all;
}

Transport& Preferred() { return *Transports().front(); }

std::unique_ptr<Transport> WithRdma(verbs::Fabric& fabric, bool plaintext) {
  return tcp::MakeSockets({.fabric = &fabric, .trusted = plaintext});
}

Result<TransportOptions::Kind> ParseTransport(std::string_view option, std::string_view text) {
  if (text == "auto") return TransportOptions::Kind::kAuto;
  if (text == "verbs") return TransportOptions::Kind::kVerbs;
  if (text == "tcp") return TransportOptions::Kind::kTcp;
  return Fail(Code::kInvalid,
              fmt::format("{} '{}': auto, verbs (RDMA) and tcp are known", option, text));
}

Result<Transport*> WithoutRdma(TransportOptions::Kind kind, const std::string& why) {
  if (kind == TransportOptions::Kind::kVerbs) {
    return Fail(Code::kUnavailable,
                fmt::format("the transport 'verbs' needs RDMA: {}; 'kvcove doctor' checks the "
                            "devices, and 'auto' takes TCP where none works",
                            why));
  }
  LogInfo("payload moves by TCP: {}", why);
  return &Preferred();
}

// ---- Devices

Result<Transport*> Devices::Open(const TransportOptions& options, verbs::Verbs* verbs) {
  if (options.kind == TransportOptions::Kind::kTcp) return &Preferred();
  // A mistake in a name is one on hosts without RDMA, too.
  verbs::FabricOptions fabric;
  KVCOVE_ASSIGN(fabric.ports, PortsOf(options));
  KVCOVE_TRY(AddTraffic(fabric));
  if (options.tls && !options.plaintext) {
    return WithoutRdma(options.kind,
                       "TLS protects the payload, and devices do not encrypt (--rdma-plaintext and "
                       "rdma_plaintext=1 permit that)");
  }
  auto opened = OpenVerbs(options, fabric, verbs);
  if (!opened) return WithoutRdma(options.kind, opened.error().detail);
  return opened;
}

Result<Transport*> Devices::OpenVerbs(const TransportOptions& options,
                                      const verbs::FabricOptions& fabric, verbs::Verbs* verbs) {
  if (verbs == nullptr) {
    KVCOVE_ASSIGN(verbs, verbs::VerbsOfProcess());
  }
  const Key key(ForkCount(), options.devices);
  if (Transport* const found = Find(key, options.plaintext)) return found;
  Opened opened;
  KVCOVE_ASSIGN(opened.fabric, verbs::Fabric::Open(*verbs, fabric, SystemClock::Instance()));
  opened.encrypting = WithRdma(*opened.fabric, false);
  opened.plaintext = WithRdma(*opened.fabric, true);
  LogInfo("payload of registered memory moves by RDMA through {}, to hosts that have it, too",
          opened.fabric->device().name().ToString());
  const MutexLock lock(mutex_);
  // Another thread may have been faster. What this one has opened then ends behind the lock.
  const auto [at, added] = opened_.try_emplace(key, std::move(opened));
  if (!added && at->second.fabric->device().gone()) {
    removed_.push_back(std::exchange(at->second, std::move(opened)));
  }
  return TransportOf(at->second, options.plaintext);
}

Transport* Devices::TransportOf(const Opened& opened, bool plaintext) {
  return plaintext ? opened.plaintext.get() : opened.encrypting.get();
}

Transport* Devices::Find(const Key& key, bool plaintext) {
  verbs::Fabric* fabric = nullptr;
  Transport* found = nullptr;
  {
    const MutexLock lock(mutex_);
    const auto at = opened_.find(key);
    if (at == opened_.end()) return nullptr;
    fabric = at->second.fabric.get();
    found = TransportOf(at->second, plaintext);
  }
  return fabric->DeviceGone() ? nullptr : found;
}

Result<Transport*> OpenTransport(const TransportOptions& options) {
  static auto* const devices = new Devices();  // never freed: see Devices
  return devices->Open(options);
}

}  // namespace kvcove::transport
