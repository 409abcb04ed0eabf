// SPDX-License-Identifier: Apache-2.0
// The owner of one host's memory: the segment's files, the lock around its `Core`, and the thread
// that does what happens by itself. Thread-safe.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <thread>

#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/owner/core.h"

namespace kvcove::owner {

struct OwnerOptions {
  std::uint64_t memory_bytes = 0;  // of payload
  std::uint64_t max_objects = 0;   // 0: one per 512 bytes of payload, at most 2^27
  std::string policy = "default";
  std::unordered_map<std::string, Quota> quotas;
  bool populate = true;  // in the background, so that puts meet no page faults
  std::int64_t lease_ns = kSecond;
  std::int64_t lease_renewal_ns = 250 * kMillisecond;
};

class Owner {
 public:
  // Errors: kInvalid when the host cannot give the memory, or for an unknown policy; kInternal.
  static Result<std::unique_ptr<Owner>> Open(const OwnerOptions& options, const Clock& clock);
  ~Owner();

  // Starts the lease and the background thread.
  void Start();
  // Ends the lease: nobody trusts the memory any more. Joins the threads.
  void Stop();

  struct Grant {
    SessionNumber number = 0;
    UniqueFd page;                           // a sealed memory file with one SessionPage
    segment::SessionPage* mapped = nullptr;  // the owner's own mapping, valid until EndSession
  };
  Result<Grant> AddSession(std::int32_t pid);
  void EndSession(SessionNumber number);

  void Publish(const Id128& incarnation, const std::vector<SlotUpdate>& updates);

  std::vector<PutResult> Put(SessionNumber session, const Token& token,
                             std::span<const PutItem> items);
  std::vector<Code> Finish(SessionNumber session, std::span<const FinishItem> items);
  std::vector<Code> Remove(SlotId slot, std::span<const std::string_view> keys);
  // Errors: kTimeout, with what was removed so far gone; kInvalid for the pattern.
  Result<std::uint64_t> RemoveMatching(SlotId slot, std::string_view pattern,
                                       std::int64_t deadline_ns);
  std::vector<Code> Pin(SlotId slot, std::span<const std::string_view> keys,
                        std::optional<PinKind> kind, std::int64_t duration_ns);
  std::vector<std::optional<ObjectStat>> StatObjects(SlotId slot,
                                                     std::span<const std::string_view> keys);
  PoolStat Stat();
  bool Populated();

  int header_fd() const { return header_fd_.get(); }
  int payload_fd() const { return payload_fd_.get(); }
  segment::HeaderView header() const { return header_; }
  std::byte* payload() const { return payload_.data(); }
  std::uint64_t header_bytes() const { return header_map_.size(); }
  std::uint64_t payload_bytes() const { return payload_.size(); }

 private:
  explicit Owner(const OwnerOptions& options, const Clock& clock)
      : options_(options), clock_(clock) {}
  Status MakeFiles();
  void RunJanitor();
  void RunLease();
  void RunPopulate();

  const OwnerOptions options_;
  const Clock& clock_;
  UniqueFd header_fd_;
  UniqueFd payload_fd_;
  Mapping header_map_;
  Mapping payload_;
  segment::HeaderView header_;

  Mutex mutex_;
  std::unique_ptr<Core> core_ KVCOVE_GUARDED_BY(mutex_);
  std::unordered_map<SessionNumber, Mapping> pages_ KVCOVE_GUARDED_BY(mutex_);

  Mutex stop_mutex_;
  CondVar stop_changed_;
  bool stopping_ KVCOVE_GUARDED_BY(stop_mutex_) = true;
  std::thread janitor_;
  std::thread lease_;
  std::thread populate_;
};

// Bytes that this host, and the control group that this process runs in, can still give.
std::uint64_t AvailableMemory();

}  // namespace kvcove::owner
