// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/demotion_rules.h"

#include <fmt/core.h>

#include "kvcove/base/size.h"

namespace kvcove::owner {
namespace {

constexpr std::int64_t kBurstSeconds = 10;  // of the rate, which an idle disk may take at once

}  // namespace

Result<DiskAdmit> ParseDiskAdmit(std::string_view option, std::string_view text) {
  if (text == "policy") return DiskAdmit::kPolicy;
  if (text == "all") return DiskAdmit::kAll;
  if (text == "never") return DiskAdmit::kNever;
  if (text == "keep") return DiskAdmit::kKeep;
  return Fail(Code::kInvalid,
              fmt::format("{}: '{}' is none of policy, all, keep and never", option, text));
}

Result<std::uint64_t> ParseRate(std::string_view option, std::string_view text) {
  const std::string_view size = text.ends_with("/s") ? text.substr(0, text.size() - 2) : text;
  const auto bytes = ParseSize(size);
  if (bytes) return *bytes;
  return Fail(Code::kInvalid,
              fmt::format("{}: '{}' is no rate, such as 200MiB/s (0: any rate)", option, text));
}

DemotionRules::DemotionRules(const DemotionOptions& options, std::int64_t now_ns)
    : admit_(options.admit), budget_(options.bytes_per_second, kBurstSeconds, now_ns) {
  for (const std::uint64_t rate : options.share_rates) {
    shares_.emplace_back(rate, kBurstSeconds, now_ns);
  }
  // kAll and kKeep need the filter, too: it finds values that are worth little (Verdict::brief).
  if (admit_ != DiskAdmit::kNever) {
    admission_.emplace(policy::WriteFilterOptions{.tier_bytes = options.disk_bytes});
  }
}

policy::Verdict DemotionRules::Judge(policy::ObjectId id, std::uint64_t key) {
  if (!admission_) return {.worth = false};
  policy::Verdict verdict = admission_->Judge(id, key);
  if (admit_ != DiskAdmit::kPolicy) verdict.worth = true;
  return verdict;
}

void DemotionRules::OnWritten(disklog::ShareNumber share, std::uint64_t bytes) {
  budget_.Spend(bytes);
  if (share != disklog::kNoShare) shares_[share].Spend(bytes);
  if (admission_) admission_->OnWritten(bytes);
}

}  // namespace kvcove::owner
