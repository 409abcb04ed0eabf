// SPDX-License-Identifier: Apache-2.0
// Promotes values from an owner's disks into its memory: for processes of this host that miss them,
// and for transfers to other hosts. A promotion is an ordinary put, so a removal or a reset before
// its commit fences it as it fences every put.
//
// Thread-safe. The disks' threads call Promote.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "kvcove/owner/core/data_store.h"
#include "kvcove/owner/disk/owner_disks.h"
#include "kvcove/wire/messages.h"

namespace kvcove::owner {

class Promotions final : public Promoter {
 public:
  Promotions(OwnerDisks& disks, Memory& memory, const Clock& clock)
      : disks_(disks), memory_(memory), clock_(clock) {}
  // Open adds the session that owns the promotions' puts; Adopt takes over that of the former
  // process. Call one of them, once, before a disk opens.
  void Open();
  void Adopt();

  // Promotes keys. Calls `done` once, from any thread or within this call, when all keys are
  // decided or `request.wait_ns` have passed. Without a wait (a prefetch) answers at once; the
  // promotions continue.
  void Read(SessionNumber session, const wire::LoadRequest& request,
            const wire::HostService::Loaded& done);
  // As DataStore::BringUp and GiveUp.
  std::shared_ptr<LoadCall> BringUp(const Token& token, std::span<const std::string_view> keys,
                                    const DataStore::Upcoming& upcoming);
  void GiveUp(LoadCall& call) { disks_.set().Cancel(call); }

  // ---- Promoter
  wire::LoadResult Promote(const Load& load, std::span<const std::byte> value) override;
  Puts PutsUnderWay() override;

 private:
  std::shared_ptr<LoadCall> Begin(const wire::LoadRequest& request,
                                  const DataStore::Upcoming& upcoming, std::int64_t hold_until_ns);
  void Add(LoadCall& call, std::size_t index, const wire::LoadRequest& request, MissReason refused)
      KVCOVE_REQUIRES(memory_.mutex);
  // Returns the loads of the disk that the load is of.
  TierLoads& LoadsOf(const Load& load);
  void Hold(const Load& load) KVCOVE_REQUIRES(memory_.mutex);

  OwnerDisks& disks_;
  Memory& memory_;
  const Clock& clock_;
  SessionNumber session_ = 0;
};

}  // namespace kvcove::owner
