// SPDX-License-Identifier: Apache-2.0
// Which engines the sessions of this host's owners have registered. An engine lives as long as one
// of the sessions that registered it, at whichever owner: a process has a session at each.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <utility>

#include "kvcove/base/carry.h"
#include "kvcove/base/result.h"
#include "kvcove/pool/engine_ends.h"
#include "kvcove/requester/cluster/held_engines.h"
#include "kvcove/wire/messages.h"

namespace kvcove::pool {

// Thread-safe.
class HostEngines {
 public:
  using Engine = EngineEnds::Engine;
  // Numbers of sessions are an owner's own, so its index among the host's owners goes with them.
  struct SessionKey {
    std::uint32_t owner = 0;
    wire::SessionNumber number = 0;
    auto operator<=>(const SessionKey&) const = default;
  };

  // `tell`: as EngineEnds has it. Before the first call: Resume.
  explicit HostEngines(EngineEnds::Tell tell) : tell_(std::move(tell)) {}

  // For an upgrade of the process (docs/upgrade.md): no call is under way, and none comes until
  // Resume. Pause tells the ends that it knows, if the master answers. Errors of Resume: as
  // StartThread.
  void Pause() { ends_.reset(); }
  Status Resume() {
    if (ends_ != nullptr) return {};
    auto ends = std::make_unique<EngineEnds>(tell_);
    KVCOVE_TRY(ends->Start());
    ends_ = std::move(ends);
    return {};
  }
  template <typename Ar>
  void Carry(Ar& ar) {
    const MutexLock lock(mutex_);
    CarryAll(ar, sessions_, engines_, held_);
  }

  void AddSession(SessionKey session);
  void EndSession(SessionKey session);
  // Before a call that registers the engine, and after it.
  Status Add(const Engine& engine, SessionKey session, std::int64_t deadline_ns);
  void Check(const Engine& engine);
  void Drop(const Engine& engine, SessionKey session);
  requester::HeldEngines& held() { return held_; }

 private:
  requester::HeldEngines held_;
  Mutex mutex_;
  std::set<SessionKey> sessions_ KVCOVE_GUARDED_BY(mutex_);
  std::map<Engine, std::set<SessionKey>> engines_ KVCOVE_GUARDED_BY(mutex_);
  const EngineEnds::Tell tell_;
  std::unique_ptr<EngineEnds> ends_;  // none while paused
};

}  // namespace kvcove::pool
