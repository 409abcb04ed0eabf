// SPDX-License-Identifier: Apache-2.0
// What more or less memory, or another disk, would bring, as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "kvcove/model/stats.h"

namespace kvcove::server {

// {asked, distinct, hit_ratio: {memory: {half, same, double, quadruple, any}, disk: {half, ...}}};
// null for a ratio while nothing was asked for; `disk` is empty without a disk.
nlohmann::json ExpectedJson(const PoolStat& stat);

}  // namespace kvcove::server
