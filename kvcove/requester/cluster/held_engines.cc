// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/cluster/held_engines.h"

#include <algorithm>

namespace kvcove::requester {

void HeldEngines::Registered(const wire::RegisterRequest& request,
                             const wire::Registration& registration) {
  if (!registration.open) return;
  wire::RegisterRequest again = request;
  // The generation to which the engine is bound: a repetition shows it to the new master, and does
  // not bind the session to another one.
  again.last_incarnation = registration.incarnation;
  again.last_generation = registration.generation;
  const MutexLock lock(mutex_);
  Engine& engine = engines_[{request.name, request.engine}];
  engine.versions.Set(request.version, std::move(again));
}

void HeldEngines::Named(std::string_view name, std::string_view engine,
                        const std::vector<std::string>& versions) {
  const MutexLock lock(mutex_);
  const auto at = engines_.find(Key(name, engine));
  if (at == engines_.end()) return;
  at->second.names = true;
  at->second.named = versions;
  // A version that the engine names no more would be held at each new master for nothing. The entry
  // without a version is not named, and remains.
  at->second.versions.EraseIf([&](const std::string& version) {
    return !version.empty() && std::ranges::find(versions, version) == versions.end();
  });
}

void HeldEngines::Ended(std::string_view name, std::string_view engine) {
  const MutexLock lock(mutex_);
  engines_.erase(Key(name, engine));
}

bool HeldEngines::Forgotten(std::uint64_t term, std::int64_t now_ns) {
  const std::int64_t heard_ns = heard_ns_.exchange(now_ns);
  return term_.exchange(term) != term || (heard_ns != 0 && now_ns - heard_ns > kSilenceNs);
}

Status HeldEngines::Repeat(wire::GenerationService& master, std::int64_t deadline_ns) {
  // A copy, because no call is made under the lock. An engine that ends meanwhile may be registered
  // again: its end must reach the master after this call (ClusterHost::TellEngines).
  std::map<Key, Engine> engines;
  {
    const MutexLock lock(mutex_);
    engines = engines_;
  }
  Status done;
  // Notes an answer. False: the master does not answer, so each further call would wait in vain.
  const auto note = [&](const Status& said) {
    if (said || said.error().code == Code::kInvalid || said.error().code == Code::kDenied) {
      return true;
    }
    done = said;
    return said.error().answered || said.error().code == Code::kLimit;
  };
  const auto all = [&] {
    for (const auto& [key, engine] : engines) {
      // The last one becomes the engine's current version at the master, as it was at the one
      // before: a reset that names another version is a change of version, and voids nothing.
      for (const wire::RegisterRequest* request : engine.versions.InOrderOfUse()) {
        const auto registered = master.Register(*request, deadline_ns);
        if (!note(registered ? Status() : std::unexpected(registered.error()))) return;
      }
      if (!engine.names) continue;
      if (!note(master.NameVersions(key.first, key.second, engine.named, deadline_ns))) return;
    }
  };
  all();
  // No master has term 0, so the next Forgotten is true.
  if (!done) term_ = 0;
  return done;
}

}  // namespace kvcove::requester
