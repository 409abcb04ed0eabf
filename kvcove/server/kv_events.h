// SPDX-License-Identifier: Apache-2.0
// Tells routers what one owner has: follows its keys, and publishes the events (docs/kv-events.md).
//
//   core, under its lock --KeyChanges--> | kvcove-events:  Catalogue -> Encoder -> Publisher
//   disks --lost tags------------------> |
//   workers --pages of the inventory---> |
//
// At the start, and when changes were lost, it publishes AllBlocksCleared and walks over the
// owner's inventory; so it does again for routers that subscribe in its first seconds, and, without
// the event, when a disk is used from now on. Pages are read where the daemon's walks run, so that
// none is read while the owner is handed over to a successor.
// A key that changes between the request for a page and its use is taken from its change.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <vector>

#include "kvcove/base/metrics.h"
#include "kvcove/kvevents/catalogue.h"
#include "kvcove/kvevents/encoder.h"
#include "kvcove/kvevents/publisher.h"
#include "kvcove/owner/owner.h"
#include "kvcove/rpc/address.h"

namespace kvcove::server {

struct KvEventsOptions {
  rpc::Address events;
  std::optional<rpc::Address> replay;
  std::string topic;
  std::string namespaces = "*";  // a pattern; other namespaces' blocks are not told
  kvevents::EncoderOptions form;
  std::size_t most_blocks = 4 << 20;
};

// Thread-safe, but for the destructor.
class KvEvents {
 public:
  // An event is sent so long after its change at most, while the thread gets its turns.
  static constexpr std::int64_t kRoundNs = 20 * kMillisecond;
  // The option of the owner, for OwnerOptions::key_changes_bytes: 80,000 changes a round.
  static constexpr std::uint64_t kKeyChangesBytes = 8 << 20;

  // Runs a call that reads pages; false: not now. No call may run after the owner's end.
  using Post = std::function<bool(std::function<void()>)>;

  // Begins to publish. `owner` has key_changes_bytes and outlives this. Errors: those of
  // Publisher::Open and StartThread.
  static Result<std::unique_ptr<KvEvents>> Open(owner::Owner& owner, const KvEventsOptions& options,
                                                Post walk, const Clock& clock);
  ~KvEvents();
  const std::string& events_endpoint() const { return publisher_->events_endpoint(); }
  const std::string& replay_endpoint() const { return publisher_->replay_endpoint(); }
  void Collect(Metrics& metrics, const Labels& labels) const;

 private:
  // Objects that one call of `walk` has read.
  struct Pages {
    std::atomic<bool> done{false};  // set last (release)
    bool failed = false;
    wire::InventoryRequest next;  // where to go on
    std::vector<wire::HeldObject> objects;
  };
  struct Walk {
    bool active = false;
    std::int64_t not_before_ns = 0;
    wire::InventoryRequest next;
    std::shared_ptr<Pages> asked;
    std::unordered_set<std::uint64_t> changed;  // hashes of the keys that changed since
    bool changed_much = false;                  // in more keys than are kept: read the pages again
  };
  KvEvents(owner::Owner& owner, const KvEventsOptions& options, Post walk,
           std::unique_ptr<kvevents::Publisher> publisher, const Clock& clock);
  void Run();
  void Round();
  bool NewcomersMissedTheBeginning() const;
  void BeginAnew();
  void BeginWalk();
  // Applies the changes since the last call.
  void Follow();
  void Apply(const owner::KeyChanges::Change& change);
  void FollowDisks();
  void AskForPages();
  void TakePages();
  static void ReadPages(owner::Owner& owner, const Clock& clock, Pages& pages);
  void SetSlot(SlotId slot, Generation generation, bool shown, std::string_view name);
  void PutDisk(SlotId slot, std::string_view key);
  void Flush();
  std::string Encode(std::span<const kvevents::Event> events) const;
  std::string Snapshot();

  owner::Owner& owner_;
  const KvEventsOptions options_;
  const Post post_;
  const Clock& clock_;
  const kvevents::Encoder encoder_;
  std::unique_ptr<kvevents::Publisher> publisher_;
  // ---- the thread's
  kvevents::Catalogue catalogue_;
  std::vector<Generation> untold_;  // of slots whose namespace is not told, by slot; 0: it is told
  owner::KeyChanges::Batch changes_;
  Walk walk_;
  bool begin_anew_ = true;
  const std::int64_t opened_ns_;
  std::int64_t begun_ns_ = 0;     // when it last began
  std::uint64_t begun_with_ = 0;  // subscriptions that had come by then
  // ---- for Collect
  struct Counts {
    std::atomic<std::uint64_t> stored[2] = {};  // blocks, by kvevents::Medium
    std::atomic<std::uint64_t> removed[2] = {};
    std::atomic<std::uint64_t> cleared{0};
    std::atomic<std::uint64_t> blocks{0};
    std::atomic<std::uint64_t> left_out{0};
    std::atomic<std::uint64_t> foreign{0};
    std::atomic<std::uint64_t> lost{0};
  };
  Counts counts_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace kvcove::server
