// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/masters.h"

#include <fmt/core.h>

#include <atomic>

namespace kvcove::pool {
namespace {

std::atomic<MastersFinder> masters_finder = nullptr;

}  // namespace

void UseMastersFinder(MastersFinder find) { masters_finder = find; }

Result<rpc::Addresses> FindMasters(std::string_view text, std::int64_t deadline_ns,
                                   const Clock& clock) {
  if (!text.starts_with("etcd://")) return rpc::ParseAddresses(text, kDefaultMasterPort);
  if (const MastersFinder find = masters_finder) return find(text, deadline_ns, clock);
  return Fail(Code::kInvalid,
              fmt::format("'{}': this program has no client of etcd; name the masters themselves "
                          "(HOST:PORT,HOST:PORT), or link kvcove::server and call "
                          "kvcove::server::UseEtcd()",
                          text));
}

}  // namespace kvcove::pool
