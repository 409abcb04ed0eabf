// SPDX-License-Identifier: Apache-2.0
// The rules by which an owner writes evicted values to its disks: values that the policy finds
// worth a write, and no more bytes than the write rate allows. Other values are dropped; none
// waits. Needs the owner's lock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/disklog/shares.h"
#include "kvcove/owner/tier/rate_budget.h"
#include "kvcove/policy/write_filter.h"

namespace kvcove::owner {

enum class DiskAdmit : std::uint8_t {
  kPolicy,  // values that are worth a write (policy/write_filter.h)
  kAll,     // every value
  kNever,   // no value; those on the disk are still read
  kKeep,    // every value; while the queue is full, values stay in memory and puts are refused
};
// Parses an admission rule. `option` names the option in messages. Errors: kInvalid.
Result<DiskAdmit> ParseDiskAdmit(std::string_view option, std::string_view text);
// Parses a rate in bytes per second, such as "200MiB" or "200MiB/s"; "0" is any rate. Errors:
// kInvalid.
Result<std::uint64_t> ParseRate(std::string_view option, std::string_view text);

struct DemotionOptions {
  DiskAdmit admit = DiskAdmit::kAll;
  std::uint64_t bytes_per_second = 0;      // 0: any rate
  std::vector<std::uint64_t> share_rates;  // by share, in the same unit
  std::uint64_t disk_bytes = 0;
};

class DemotionRules {
 public:
  DemotionRules(const DemotionOptions& options, std::int64_t now_ns);

  // OnPut, OnHit and OnRemove report memory's events to policy::WriteFilter.
  void OnPut(const policy::PutEvent& event, bool returned) {
    if (admission_) admission_->OnPut(event, returned);
  }
  void OnHit(policy::ObjectId id) {
    if (admission_) admission_->OnHit(id);
  }
  void OnRemove(policy::ObjectId id) {
    if (admission_) admission_->OnRemove(id);
  }
  // Reports an evicted value that its disk has already.
  void OnKept(policy::ObjectId id, std::uint64_t key) {
    if (admission_) admission_->OnKept(id, key);
  }
  // Judges an evicted value. With kAll and kKeep every value is worth a write.
  policy::Verdict Judge(policy::ObjectId id, std::uint64_t key);
  // Returns true if no value may be lost because the disk is slower than puts.
  bool keeps() const { return admit_ == DiskAdmit::kKeep; }
  // Returns true if the owner's and the share's write rates let a value be written now.
  bool WithinRate(disklog::ShareNumber share, std::int64_t now_ns) {
    return budget_.MaySpend(now_ns) &&
           (share == disklog::kNoShare || shares_[share].MaySpend(now_ns));
  }
  // Charges a queued value to the rates.
  void OnWritten(disklog::ShareNumber share, std::uint64_t bytes);

  std::int64_t budget_bytes() const { return budget_.left_bytes(); }

 private:
  const DiskAdmit admit_;
  std::optional<policy::WriteFilter> admission_;
  RateBudget budget_;
  std::vector<RateBudget> shares_;
};

}  // namespace kvcove::owner
