// SPDX-License-Identifier: Apache-2.0
#include "kvcove/server/expected.h"

#include <nlohmann/json.hpp>

namespace kvcove::server {

using nlohmann::json;

json ExpectedJson(const PoolStat& stat) {
  const auto of = [](const std::optional<double>& ratio) { return ratio ? json(*ratio) : json(); };
  json memory = json::object();
  json disk = json::object();
  for (const ExpectedSize& size : kExpectedSizes) {
    memory[size.name] = of(stat.expected_ratio(size.hits));
    if (stat.disk_capacity_bytes == 0) continue;
    disk[size.name] = of(stat.expected_ratio(size.hits_with_disk));
  }
  memory["any"] = of(stat.most_ratio());
  return {{"asked", stat.asked},
          {"distinct", stat.distinct},
          {"hit_ratio", {{"memory", std::move(memory)}, {"disk", std::move(disk)}}}};
}

}  // namespace kvcove::server
