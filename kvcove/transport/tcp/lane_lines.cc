// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/tcp/lane_lines.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "kvcove/base/log.h"
#include "kvcove/rpc/client.h"
#include "kvcove/wire/frame.h"

namespace kvcove::transport::tcp {
namespace {

// The device may wait for the network's addresses, so this is more than a connection needs.
constexpr std::int64_t kMakeNs = 5 * kSecond;
// The limit for a connection and its hello: a host that does not answer delays the others' lanes.
constexpr std::int64_t kLaneConnectNs = 200 * kMillisecond;
// The limit for a first packet and its acknowledgement. Packets that nobody drops need
// microseconds.
constexpr std::int64_t kTryNs = 50 * kMillisecond;
// After a failure the next lane is made after this time, and then after twice as long, at most this
// long: a server without RDMA may be replaced by one that has it.
constexpr std::int64_t kAgainNs = kSecond;
constexpr std::int64_t kMostAgainNs = 64 * kSecond;
// A burst of exchanges side by side leaves as many lanes. An owner has places for
// LaneSide::kMaxLanes, of all its requesters, so those that only a burst has needed end after this
// time.
constexpr std::int64_t kUnusedNs = 60 * kSecond;

}  // namespace

LaneLines::~LaneLines() { End(std::move(idle_)); }

void LaneLines::End(std::vector<LaneLine> lines) {
  // The connection first: the owner sees its end, and ends its own lane meanwhile.
  for (LaneLine& line : lines) {
    line.fd.Reset();
    verbs::RequesterEnd::End(std::move(line.lane), nullptr);
  }
}

std::optional<LaneLine> LaneLines::Take() {
  while (true) {
    LaneLine line;
    {
      const MutexLock lock(mutex_);
      if (idle_.empty()) break;
      line = std::move(idle_.back());
      idle_.pop_back();
    }
    // As of every idle connection: a server sends nothing unasked.
    pollfd poller{.fd = line.fd.get(), .events = POLLIN, .revents = 0};
    if (poll(&poller, 1, 0) == 0) return line;
    std::vector<LaneLine> ended;
    ended.push_back(std::move(line));
    End(std::move(ended));
  }
  {
    const MutexLock lock(mutex_);
    if (making_ || clock_.NowNs() < retry_ns_) return std::nullopt;
    making_ = true;
  }
  // The peer may end before the connector takes this up. Nobody needs the connection then.
  if (!fabric_.connectors().Post([weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->Make();
      })) {
    const MutexLock lock(mutex_);
    making_ = false;
  }
  return std::nullopt;
}

void LaneLines::Make() {
  auto line = Connect();
  const std::string reason = line ? "" : line.error().detail;
  bool news = false;
  {
    const MutexLock lock(mutex_);
    making_ = false;
    news = Note(reason);
    if (line) {
      line->kept_ns = clock_.NowNs();
      idle_.push_back(std::move(*line));
    } else {
      Pause();
    }
  }
  if (news) Log(reason);
}

Result<std::int64_t> LaneLines::TryNow() {
  KVCOVE_ASSIGN(LaneLine line, Connect());
  const std::int64_t round_trip_ns = line.lane->round_trip_ns();
  Keep(std::move(line));
  return round_trip_ns;
}

// Failures within a pause are mostly of one cause, such as a cable: they do not make it longer.
void LaneLines::Pause() {
  const std::int64_t now_ns = clock_.NowNs();
  if (now_ns < retry_ns_) return;
  pause_ns_ = std::clamp(2 * pause_ns_, kAgainNs, kMostAgainNs);
  retry_ns_ = now_ns + pause_ns_;
}

bool LaneLines::Note(const std::string& reason) { return std::exchange(reason_, reason) != reason; }

void LaneLines::Log(const std::string& reason) const {
  if (reason.empty()) {
    LogInfo("payload of the owner at {} moves by RDMA", address_.ToString());
  } else {
    LogInfo("payload of the owner at {} moves by TCP: {}", address_.ToString(), reason);
  }
}

Result<LaneLine> LaneLines::Connect() const {
  // The hello first: an owner proves that it has the tenant's token before it learns where a queue
  // pair of this host is.
  KVCOVE_ASSIGN(rpc::Client client,
                rpc::Client::Connect(address_, access_, clock_.NowNs() + kLaneConnectNs));
  const std::int64_t until_ns = clock_.NowNs() + kMakeNs;
  KVCOVE_ASSIGN(auto lane, verbs::RequesterEnd::Open(fabric_));
  KVCOVE_ASSIGN(
      const std::string answer,
      client.Call(wire::Method::kLane, wire::AsBytes(wire::Encode(lane->hello())), until_ns));
  KVCOVE_ASSIGN(const wire::LaneEnd owner, wire::DecodeLaneEnd(wire::AsBytes(answer)));
  // Until here the lane is fresh and connected to nobody, so its destructor is its end.
  if (Status s = lane->Connect(owner, clock_.NowNs() + kTryNs, clock_); !s) {
    verbs::RequesterEnd::End(std::move(lane), nullptr);
    return std::unexpected(std::move(s).error());
  }
  return LaneLine{.fd = client.TakeFd(), .lane = std::move(lane)};
}

void LaneLines::Keep(LaneLine line) {
  line.kept_ns = clock_.NowNs();
  std::vector<LaneLine> surplus;
  {
    const MutexLock lock(mutex_);
    // Take() takes the newest, so the first one has waited longest.
    if (!idle_.empty() && line.kept_ns - idle_.front().kept_ns > kUnusedNs) {
      surplus.push_back(std::move(idle_.front()));
      idle_.erase(idle_.begin());
    }
    std::vector<LaneLine>& where = idle_.size() < kMaxIdle ? idle_ : surplus;
    where.push_back(std::move(line));
  }
  End(std::move(surplus));
}

void LaneLines::Failed(const std::string& reason) {
  std::vector<LaneLine> ended;
  bool news = false;
  {
    const MutexLock lock(mutex_);
    ended.swap(idle_);
    Pause();
    news = Note(reason);
  }
  End(std::move(ended));
  if (news) Log(reason);
}

void LaneLines::Late() {
  const MutexLock lock(mutex_);
  Pause();
}

void LaneLines::Moved() {
  const MutexLock lock(mutex_);
  pause_ns_ = 0;
}

}  // namespace kvcove::transport::tcp
