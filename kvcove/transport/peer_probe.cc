// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/peer_probe.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "kvcove/base/size.h"
#include "kvcove/rpc/breaker.h"
#include "kvcove/rpc/busy.h"

namespace kvcove::transport {
namespace {

constexpr int kProbeCalls = 64;  // most calls without payload
constexpr int kProbeLanes = 3;   // each of which measures one round trip
constexpr std::array<std::uint64_t, 3> kProbeSizes = {kMiB, 4 * kMiB, wire::kMaxProbeBytes};
// Calls without payload that have taken this long together are enough, so that a slow network, or a
// slow peer, does not hold the caller up 64 times. A transfer that has taken this long is the last
// one: a larger one would show no other rate.
constexpr std::int64_t kEnoughNs = 250 * kMillisecond;
constexpr std::int64_t kProbeCallNs = 5 * kSecond;

// What transfers read and write. Never freed: a device that is late may still write to it.
std::span<std::byte> ProbeBytes() {
  static auto* const buffer = new std::vector<std::byte>(wire::kMaxProbeBytes);
  return *buffer;
}

Exchange CallOf(Peer& peer, const wire::Probe& probe) {
  Exchange call;
  call.to = &peer;
  call.method = wire::Method::kProbe;
  call.head = wire::Encode(probe);
  if (probe.payload_bytes > 0) call.out = {{ProbeBytes().data(), probe.payload_bytes}};
  call.on_reply =
      [wanted = probe.wanted_bytes](std::span<const std::byte>) -> Result<std::vector<Piece>> {
    if (wanted == 0) return std::vector<Piece>();
    return std::vector<Piece>{{ProbeBytes().data(), wanted}};
  };
  return call;
}

// Makes a lane, for which it asks again while the owner's limits of calls refuse it.
Result<std::int64_t> TryLane(Peer& peer, const Clock& clock) {
  const std::int64_t until_ns = clock.NowNs() + kProbeCallNs;
  while (true) {
    auto took = peer.TryDevice();
    if (took) return took;
    const auto busy_ms = rpc::BusyIn(took.error());
    if (!busy_ms || !rpc::WaitWhileBusy(*busy_ms, until_ns, clock)) return took;
  }
}

// Why payload took the connection although a lane had just been made. `doubted`: the transport
// waited for a sign of life of the peer, and takes no idle connection then, so no lane either.
Error TookConnection(bool doubted) {
  return {Code::kUnavailable,
          doubted
              ? "a lane was made, but the owner answered so late before that its exchanges take "
                "new connections, without lanes: try again when it has less to do"
              : "two lanes were made, but the payload took the connection both times: the "
                "owner's device does not know the memory that was to be sent, or the owner "
                "closes connections when they are used"};
}

}  // namespace

PeerProbe::PeerProbe(Transport& transport, const rpc::Address& address, const rpc::Access& access,
                     const Clock& clock)
    : transport_(transport),
      clock_(clock),
      peer_(transport.Connect(address, {.access = access}, clock)) {}

Result<std::int64_t> PeerProbe::TimeOf(const wire::Probe& probe, bool by_device) {
  const std::int64_t until_ns = clock_.NowNs() + kProbeCallNs;
  while (true) {
    auto took = TimeOnce(probe, by_device, until_ns);
    if (took) return took;
    const auto busy_ms = rpc::BusyIn(took.error());
    if (!busy_ms || !rpc::WaitWhileBusy(*busy_ms, until_ns, clock_)) return took;
  }
}

Result<std::int64_t> PeerProbe::TimeOnce(const wire::Probe& probe, bool by_device,
                                         std::int64_t until_ns) {
  for (bool again = false;; again = true) {
    // Before the call, whose answer ends the doubt.
    const bool doubted = peer_->ProbeDueNs() != rpc::Breaker::kNever;
    Exchange call = CallOf(*peer_, probe);
    const std::int64_t began_ns = clock_.NowNs();
    Run({&call, 1}, until_ns, clock_);
    const std::int64_t ended_ns = clock_.NowNs();
    if (!call.status) return std::unexpected(std::move(call.status).error());
    if (!by_device || call.by_device) return std::max<std::int64_t>(ended_ns - began_ns, 1);
    if (again) return std::unexpected(TookConnection(doubted));
    // A lane may end while it is idle, and an exchange says nothing of that. A new one shows
    // whether that was all; where none can be made, its error is the reason.
    if (auto made = TryLane(*peer_, clock_); !made) {
      Error why = std::move(made).error();
      why.detail = "the first lanes moved no payload, and no other is made: " + why.detail;
      return std::unexpected(std::move(why));
    }
    until_ns = clock_.NowNs() + kProbeCallNs;
  }
}

Result<double> PeerProbe::RateOf(Way way, bool by_device) {
  double best = 0;
  for (const std::uint64_t bytes : kProbeSizes) {
    const wire::Probe probe{.payload_bytes = way == Way::kToPeer ? bytes : 0,
                            .wanted_bytes = way == Way::kFromPeer ? bytes : 0};
    // The caller's limit of bytes may permit the smaller ones alone, however long it waits.
    const auto took_ns = best > 0 ? TimeOnce(probe, by_device, clock_.NowNs() + kProbeCallNs)
                                  : TimeOf(probe, by_device);
    if (!took_ns && best > 0 && rpc::BusyIn(took_ns.error())) break;
    if (!took_ns) return std::unexpected(took_ns.error());
    best = std::max(best, static_cast<double>(bytes) * 1e9 / static_cast<double>(*took_ns));
    if (*took_ns > kEnoughNs) break;
  }
  return best;
}

Result<WayFigures> PeerProbe::ByConnection() {
  WayFigures figures{.round_trip_ns = std::numeric_limits<std::int64_t>::max()};
  const std::int64_t enough_ns = clock_.NowNs() + kEnoughNs;
  for (int i = 0; i < kProbeCalls && (i == 0 || clock_.NowNs() < enough_ns); ++i) {
    KVCOVE_ASSIGN(const std::int64_t took_ns, TimeOf({}, /*by_device=*/false));
    figures.round_trip_ns = std::min(figures.round_trip_ns, took_ns);
  }
  KVCOVE_ASSIGN(figures.from_peer, RateOf(Way::kFromPeer, /*by_device=*/false));
  KVCOVE_ASSIGN(figures.to_peer, RateOf(Way::kToPeer, /*by_device=*/false));
  return figures;
}

Result<WayFigures> PeerProbe::ByDevice() {
  WayFigures figures{.round_trip_ns = std::numeric_limits<std::int64_t>::max()};
  for (int i = 0; i < kProbeLanes; ++i) {
    KVCOVE_ASSIGN(const std::int64_t took_ns, TryLane(*peer_, clock_));
    figures.round_trip_ns = std::min(figures.round_trip_ns, took_ns);
  }
  KVCOVE_ASSIGN(auto registered, transport_.Register(ProbeBytes()));
  if (registered == nullptr) {
    return Fail(Code::kLimit, "the device registers no memory of this process: see locked memory");
  }
  auto rate = RateOf(Way::kFromPeer, /*by_device=*/true);
  if (!rate && rate.error().code == Code::kBufferBusy) {
    (void)registered.release();  // the device may still use it
    return Fail(Code::kTimeout, "the device did not end a transfer within 5 s");
  }
  if (!rate) return std::unexpected(std::move(rate).error());
  figures.from_peer = *rate;
  return figures;
}

}  // namespace kvcove::transport
