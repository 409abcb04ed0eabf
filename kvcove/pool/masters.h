// SPDX-License-Identifier: Apache-2.0
// How a client finds the masters of its cluster: one address, a list, or a store in which the
// leader has written who it is.
#pragma once

#include <cstdint>
#include <string_view>

#include "kvcove/base/clock.h"
#include "kvcove/rpc/leader.h"

namespace kvcove::pool {

inline constexpr std::uint16_t kDefaultMasterPort = 7400;

// `text`: HOST:PORT (7400), several with commas, or what UseMastersFinder is for.
// Errors: kInvalid; those of the finder.
Result<rpc::Addresses> FindMasters(std::string_view text, std::int64_t deadline_ns,
                                   const Clock& clock);

using MastersFinder = Result<rpc::Addresses> (*)(std::string_view text, std::int64_t deadline_ns,
                                                 const Clock& clock);
// Lets FindMasters ask `find` about etcd://..., from now on. An engine's library has no client of
// etcd; server/etcd_masters.h has one. Thread-safe.
void UseMastersFinder(MastersFinder find);

}  // namespace kvcove::pool
