// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/data_side.h"

#include <unistd.h>

namespace kvcove::owner {

SessionNumber DataSide::AddRemoteSession() {
  const MutexLock lock(memory_.mutex);
  return memory_.core().AddSession(nullptr, getpid());
}

std::vector<PutResult> DataSide::Reserve(SessionNumber session, const Token& token,
                                         std::span<const PutItem> items, bool evict) {
  if (link_.draining()) {
    return std::vector<PutResult>(items.size(), PutResult{.code = Code::kNoSpace, .extents = {}});
  }
  // No EnsurePopulated: this process itself receives the bytes, so its page faults are charged to
  // its own control group.
  const MutexLock lock(memory_.mutex);
  std::vector<PutResult> results = memory_.core().Put(session, token, items, evict);
  memory_.PublishRoom();
  return results;
}

bool DataSide::Awaits(const Token& token) {
  const MutexLock lock(memory_.mutex);
  return memory_.core().Awaits(token);
}

std::vector<Loan> DataSide::Lend(const Token& token, std::span<const std::string_view> keys) {
  const MutexLock lock(memory_.mutex);
  return memory_.core().Lend(token, keys);
}

void DataSide::Return(std::span<const Loan> loans) {
  const MutexLock lock(memory_.mutex);
  memory_.core().Return(loans);
}

void DataSide::SetChecksum(const Loan& loan, std::uint64_t checksum) {
  const MutexLock lock(memory_.mutex);
  memory_.core().SetChecksum(loan, checksum);
}

std::vector<std::optional<CopyLoan>> DataSide::LendForCopy(
    std::span<const wire::CopyRequest::Item> items) {
  std::vector<std::optional<CopyLoan>> loans;
  const MutexLock lock(memory_.mutex);
  for (const auto& item : items) {
    loans.push_back(item.key.empty()
                        ? memory_.core().LendForCopy(item.id, item.version)
                        : memory_.core().LendForCopy(item.slot, item.generation, item.key));
  }
  return loans;
}

Token DataSide::TokenOf(SlotId slot, Generation generation) {
  const MutexLock lock(memory_.mutex);
  return {.incarnation = memory_.core().incarnation(), .generation = generation, .slot = slot};
}

}  // namespace kvcove::owner
