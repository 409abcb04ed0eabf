// SPDX-License-Identifier: Apache-2.0
// The engines that sessions of this host's owners have registered. An engine lives until the last
// session that registered it ends: a process has a session at each owner of its host. The mutex is
// taken alone; EngineEnds reports the ends of engines to the master.
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
  // Each owner numbers its sessions by itself, so a key has the owner's index, too.
  struct SessionKey {
    std::uint32_t owner = 0;
    wire::SessionNumber number = 0;
    auto operator<=>(const SessionKey&) const = default;
  };

  // `tell`: as EngineEnds::Tell. Call Resume before anything else.
  explicit HostEngines(EngineEnds::Tell tell) : tell_(std::move(tell)) {}

  // For an upgrade of the process (docs/upgrade.md), while no other call is under way: Pause
  // reports the pending ends, if the master answers, and joins the thread; Resume starts it. Errors
  // of Resume: as StartThread.
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

  // Add and end a session. The engines that only this session had registered end with it.
  void AddSession(SessionKey session);
  void EndSession(SessionKey session);
  // Notes that the session registers the engine; call it before the master is asked. Waits until
  // the master knows of an earlier end of the engine. Errors: kTimeout, kUnavailable for a session
  // that has ended.
  Status Add(const Engine& engine, SessionKey session, std::int64_t deadline_ns);
  // Reports the engine's end again if its last session ended since Add; call it after the master
  // has answered.
  void Check(const Engine& engine);
  // Ends the session's registration of the engine; with the last one, the engine.
  void Drop(const Engine& engine, SessionKey session);
  // Returns how many processes keep the engine registered.
  std::size_t ProcessesOf(const Engine& engine) const;
  // Returns the registrations that are repeated to a new master.
  requester::HeldEngines& held() { return held_; }

 private:
  requester::HeldEngines held_;
  mutable Mutex mutex_;
  std::set<SessionKey> sessions_ KVCOVE_GUARDED_BY(mutex_);
  std::map<Engine, std::set<SessionKey>> engines_ KVCOVE_GUARDED_BY(mutex_);
  const EngineEnds::Tell tell_;
  std::unique_ptr<EngineEnds> ends_;  // null while paused
};

}  // namespace kvcove::pool
