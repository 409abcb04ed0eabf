// SPDX-License-Identifier: Apache-2.0
// Connections with lanes to one server. A thread of the fabric makes them when an exchange has
// found none, so no exchange waits for a device: until one is there, payload takes the sockets.
// Private to this folder.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/rpc/access.h"
#include "kvcove/rpc/address.h"
#include "kvcove/transport/verbs/ends.h"

namespace kvcove::transport::tcp {

struct LaneLine {
  UniqueFd fd;
  std::unique_ptr<verbs::RequesterEnd> lane;
  std::int64_t kept_ns = 0;  // since then it is idle
};

// Thread-safe. The thread that makes a connection has a reference of its own meanwhile.
class LaneLines : public std::enable_shared_from_this<LaneLines> {
 public:
  LaneLines(verbs::Fabric& fabric, const rpc::Address& address, const rpc::Access& access,
            const Clock& clock)
      : fabric_(fabric), address_(address), access_(access), clock_(clock) {}
  // Ends the lanes that are idle.
  ~LaneLines();
  LaneLines(const LaneLines&) = delete;
  LaneLines& operator=(const LaneLines&) = delete;

  // Returns an idle connection that has not ended. Nothing: there is none, and one is being made
  // unless that, or a lane, has failed lately.
  std::optional<LaneLine> Take();
  // Makes one now, whatever has failed lately, and keeps it. Returns the time of its first packet
  // and the acknowledgement. Errors: why none can be made; nothing is logged.
  Result<std::int64_t> TryNow();
  // Keeps a connection for later exchanges, or ends it where kMaxIdle are idle already. Ends one
  // that no exchange has needed for a minute.
  void Keep(LaneLine line);
  // Ends the idle ones, and makes none for a pause: a lane, the server or the network has failed.
  // `reason` is logged if it is another than before.
  void Failed(const std::string& reason);
  // Makes none for a pause: a lane has not moved its payload in time. The packet that a new lane is
  // tried with may pass where large ones do not.
  void Late();
  // Notes that a lane has moved its payload: the pause behind the next failure is short again.
  void Moved();

 private:
  static constexpr std::size_t kMaxIdle = 16;

  void Make();
  void Pause() KVCOVE_REQUIRES(mutex_);
  // Notes the reason why payload does not move by RDMA; empty: it does. Returns whether it is news.
  bool Note(const std::string& reason) KVCOVE_REQUIRES(mutex_);
  void Log(const std::string& reason) const;
  Result<LaneLine> Connect() const;
  static void End(std::vector<LaneLine> lines);

  verbs::Fabric& fabric_;
  const rpc::Address address_;
  const rpc::Access access_;
  const Clock& clock_;
  Mutex mutex_;
  std::vector<LaneLine> idle_ KVCOVE_GUARDED_BY(mutex_);
  bool making_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::int64_t retry_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::int64_t pause_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;  // before it
  std::string reason_ KVCOVE_GUARDED_BY(mutex_);         // of the last failure; empty: none since
};

}  // namespace kvcove::transport::tcp
