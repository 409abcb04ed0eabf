// SPDX-License-Identifier: Apache-2.0
// A host's part of an upgrade (docs/upgrade.md). The giver closes the store, the link and the data
// server before the taker opens them, because only one process may have them open.
#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/pool/local_host.h"
#include "kvcove/rpc/inherited.h"

namespace kvcove::pool {
namespace {

constexpr std::int64_t kUpgradeRepeatNs = 2 * kSecond;
// Before a hand-over, at most 1/8 of the lease may have passed since the renewal: nobody renews it
// until the successor does, and all would be a miss if it ran out.
constexpr std::int64_t kLeaseShare = 8;
constexpr std::int64_t kFreshNs = kSecond;  // longest wait for that renewal
// Longest wait for RDMA devices, which end transfers in milliseconds. MayPause finds one that has
// been silent for a second; this bounds the wait for one that has frozen since. It is a part of the
// lease that nobody renews meanwhile.
constexpr std::int64_t kDeviceNs = 200 * kMillisecond;

}  // namespace

void LocalHost::EndWaits() {
  owner_->outbox().EndWaits();
  owner_->removals().waits().Pause();
  if (alone_ != nullptr) alone_->EndWaits();
}

// Polls, because the link notifies nobody of a renewal. A lease that was renewed within the last
// eighth of its length is fresh enough.
Status LocalHost::AwaitFreshLease() {
  if (!in_cluster()) return {};
  const std::int64_t lease_ns = options_.owner.lease_ns;
  const std::int64_t until_ns = clock_->NowNs() + kFreshNs;
  link_->RenewNow();
  while (LeaseUntilNs() - clock_->NowNs() < lease_ns - (lease_ns / kLeaseShare)) {
    if (clock_->NowNs() >= until_ns) {
      return Fail(Code::kUnavailable, "the master does not renew the lease; try again");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {};
}

Status LocalHost::MayPause() {
  if (ending_ != nullptr) {
    KVCOVE_TRY(ending_->EndWithin(0));
    ending_.reset();
  }
  const MutexLock lock(data_mutex_);
  return data_server_ == nullptr ? Status() : data_server_->MayEnd();
}

// A server that does not end is kept, with the loans and reservations of its transfers: Resume
// opens another one beside it.
Status LocalHost::CloseData() {
  std::unique_ptr<owner::DataServer> server = TakeData();
  if (server == nullptr) return {};
  Status ended = server->EndWithin(kDeviceNs);
  if (!ended) ending_ = std::move(server);
  return ended;
}

Status LocalHost::Pause() {
  if (in_cluster()) {
    // Copied before the data server closes its own: with a copy open, the kernel still queues new
    // connections, for the successor or for Resume.
    listeners_ = rpc::CopyTcpListeners();
    link_->Pause();
    owner_->outbox().ForgetCallers();
    KVCOVE_TRY(CloseData());
    engines_->Pause();
    return {};
  }
  // Before the store closes, which takes the reports. Ends that are not reported by then need not
  // be: registrations are not stored, and the successor repeats those of engines that live.
  engines_->Pause();
  alone_->Pause();  // releases the store's lock
  return {};
}

// Called for every hand-over that failed, however far it was: nothing is reopened that Pause has
// not closed.
void LocalHost::Resume() {
  if (in_cluster()) {
    if (!data_open()) {
      rpc::InheritTcpListeners(std::move(listeners_));
      listeners_.clear();
      if (const Status opened = OpenData(); !opened) {
        LogError("other hosts cannot reach this one until it is restarted: {}",
                 opened.error().ToString());
      }
      rpc::DropInherited();
      link_->Resume();
    }
  } else if (alone_->paused()) {
    if (const Status opened = alone_->Resume(); !opened) {
      LogError(
          "the generations cannot be opened again: nothing is registered or reset until this "
          "process is restarted: {}",
          opened.error().ToString());
    } else {
      (void)engines_->held().Repeat(*control_, clock_->NowNs() + kUpgradeRepeatNs);
    }
  }
  StartAgain([this] { return engines_->Resume(); });
}

void LocalHost::SaveLink(StateWriter& ar) {
  if (link_ != nullptr) link_->Save(ar);
}

Result<std::unique_ptr<LocalHost>> LocalHost::Adopt(const LocalHostOptions& options,
                                                    std::unique_ptr<owner::Owner> owner,
                                                    StateReader& state, UniqueFd lineage,
                                                    const Clock& clock) {
  std::unique_ptr<LocalHost> host(new LocalHost);
  host->options_ = options;
  host->clock_ = &clock;
  host->owner_ = std::move(owner);
  KVCOVE_TRY(host->OpenEngines());
  // Until StartAdopted: the thread would report ends while the predecessor still owns the engines.
  host->engines_->Pause();
  CarryOne(state, *host);
  if (!state.ok()) return Fail(Code::kIncompatible, "the state of sessions differs");
  if (!options.cluster) {
    host->index_ = host->alone_->AddOwner(host->owner_);
    return host;
  }
  const ClusterMember& member = *host->options_.cluster;
  KVCOVE_ASSIGN(host->advertised_, net::ChooseAdvertised({.advertise = member.advertise,
                                                          .listen = member.listen,
                                                          .master = member.master}));
  owner::LinkOptions link;
  KVCOVE_TRY(host->ConnectToMaster(link));
  link.identity.address = host->advertised_.address.ToString();
  link.identity.disk = !host->owner_->disks().none();
  host->adopted_lineage_ = std::move(lineage);
  host->link_ =
      std::make_unique<owner::Link>(host->owner_->link_side(), host->owner_->outbox(), link, clock);
  host->link_->Load(state);
  if (!state.ok()) return Fail(Code::kIncompatible, "the state of the link to the master differs");
  // All but those in the request that the link repeats: queued again, they would be listed twice.
  host->owner_->EnqueueWaiting(host->link_->Asked());
  return host;
}

void LocalHost::ClaimLease() {
  if (!in_cluster()) owner_->memory().SetLease(clock_->NowNs() + options_.owner.lease_ns);
}

Status LocalHost::StartAdopted() {
  started_ = true;  // from here on the destructor ends the lease
  KVCOVE_TRY(engines_->Resume());
  if (in_cluster()) {
    KVCOVE_TRY(owner_->ResumeClusterDisks());
  } else {
    KVCOVE_TRY(owner_->ResumeDisks(DiskPlace()));
  }
  KVCOVE_TRY(owner_->Start());
  if (in_cluster()) {
    if (const Status opened = OpenData(); !opened) {
      LogError("other hosts cannot reach this one until it is restarted: {}",
               opened.error().ToString());
    }
    if (adopted_lineage_.valid()) {
      lineage_ =
          owner::Lineage::Adopt(options_.lineage, link_->identity(), std::move(adopted_lineage_));
      link_->SetLineage(lineage_.get());
    }
    KVCOVE_TRY(link_->Start());
  }
  return {};
}

// In a cluster, on_heard repeats them when the master answers (ConnectToMaster). Until then their
// slots count as named.
void LocalHost::RepeatEngines() {
  if (!in_cluster()) (void)engines_->held().Repeat(*control_, clock_->NowNs() + kUpgradeRepeatNs);
}

}  // namespace kvcove::pool
