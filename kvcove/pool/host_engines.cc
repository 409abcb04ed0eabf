// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/host_engines.h"

#include <algorithm>
#include <vector>

namespace kvcove::pool {

void HostEngines::AddSession(SessionKey session) {
  const MutexLock lock(mutex_);
  sessions_.insert(session);
}

void HostEngines::EndSession(SessionKey session) {
  std::vector<Engine> mine;
  {
    const MutexLock lock(mutex_);
    sessions_.erase(session);
    for (const auto& [engine, sessions] : engines_) {
      if (sessions.contains(session)) mine.push_back(engine);
    }
  }
  // After the lock, because Drop takes it. A registration that Add notes meanwhile finds the
  // session gone, and is refused.
  for (const Engine& engine : mine) Drop(engine, session);
}

Status HostEngines::Add(const Engine& engine, SessionKey session, std::int64_t deadline_ns) {
  {
    const MutexLock lock(mutex_);
    if (!sessions_.contains(session)) return Fail(Code::kUnavailable, "this session has ended");
    engines_[engine].insert(session);
  }
  if (ends_->AwaitTold(engine, deadline_ns)) return {};
  return Fail(Code::kTimeout, "the master does not answer");
}

// The engine's last session may have ended while the master was asked, and its end may have reached
// the master before the registration did. The master would then keep an engine that has ended, so
// the end is reported once more.
void HostEngines::Check(const Engine& engine) {
  {
    const MutexLock lock(mutex_);
    if (engines_.contains(engine)) return;
  }
  ends_->Add(engine);
}

void HostEngines::Drop(const Engine& engine, SessionKey session) {
  {
    const MutexLock lock(mutex_);
    const auto at = engines_.find(engine);
    if (at == engines_.end() || at->second.erase(session) == 0 || !at->second.empty()) return;
    engines_.erase(at);
  }
  held_.Ended(engine.first, engine.second);
  ends_->Add(engine);
}

std::size_t HostEngines::ProcessesOf(const Engine& engine) const {
  const MutexLock lock(mutex_);
  const auto at = engines_.find(engine);
  if (at == engines_.end()) return 0;
  // A process has one session at each owner; one that has just begun has not all of them yet.
  std::map<std::uint32_t, std::size_t> of_owner;
  std::size_t most = 0;
  for (const SessionKey& session : at->second) most = std::max(most, ++of_owner[session.owner]);
  return most;
}

}  // namespace kvcove::pool
