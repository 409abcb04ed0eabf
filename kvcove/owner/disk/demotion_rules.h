// SPDX-License-Identifier: Apache-2.0
// Which evicted values an owner writes to its disk: those that are worth it, at no more than the
// write rate. What is refused is dropped; nothing waits. Needs the owner's lock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/disklog/shares.h"
#include "kvcove/owner/disk/rate_budget.h"
#include "kvcove/policy/write_filter.h"

namespace kvcove::owner {

enum class DiskAdmit : std::uint8_t {
  kPolicy,  // what is worth it (policy/write_filter.h)
  kAll,
  kNever,  // what is on the disk is read, nothing is added
  kKeep,   // all; what the queue has no room for stays in memory, and puts are refused meanwhile
};
// `option` names them in messages. Errors: kInvalid.
Result<DiskAdmit> ParseDiskAdmit(std::string_view option, std::string_view text);
// "200MiB" or "200MiB/s"; "0": any rate.
Result<std::uint64_t> ParseRate(std::string_view option, std::string_view text);

struct DemotionOptions {
  DiskAdmit admit = DiskAdmit::kAll;
  std::uint64_t bytes_per_second = 0;      // 0: any rate
  std::vector<std::uint64_t> share_rates;  // by share, the same
  std::uint64_t disk_bytes = 0;
};

class DemotionRules {
 public:
  DemotionRules(const DemotionOptions& options, std::int64_t now_ns);

  // What memory does, see policy::WriteFilter.
  void OnPut(const policy::PutEvent& event, bool returned) {
    if (admission_) admission_->OnPut(event, returned);
  }
  void OnHit(policy::ObjectId id) {
    if (admission_) admission_->OnHit(id);
  }
  void OnRemove(policy::ObjectId id) {
    if (admission_) admission_->OnRemove(id);
  }
  // It is evicted, and on the disk already.
  void OnKept(policy::ObjectId id, std::uint64_t key) {
    if (admission_) admission_->OnKept(id, key);
  }
  policy::Verdict Judge(policy::ObjectId id, std::uint64_t key);
  // Nothing is to be lost because the disk is slower than puts are.
  bool keeps() const { return admit_ == DiskAdmit::kKeep; }
  bool WithinRate(disklog::ShareNumber share, std::int64_t now_ns) {
    return budget_.MaySpend(now_ns) &&
           (share == disklog::kNoShare || shares_[share].MaySpend(now_ns));
  }
  void OnWritten(disklog::ShareNumber share, std::uint64_t bytes);

  std::int64_t budget_bytes() const { return budget_.left_bytes(); }

 private:
  const DiskAdmit admit_;
  std::optional<policy::WriteFilter> admission_;
  RateBudget budget_;
  std::vector<RateBudget> shares_;
};

}  // namespace kvcove::owner
