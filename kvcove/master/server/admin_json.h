// SPDX-License-Identifier: Apache-2.0
// What an admin endpoint's answers are made of, in JSON: owners, keys, values, tasks. docs/json.md
// has the fields. Pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "kvcove/master/server/admin_pool.h"

namespace kvcove::master {

// JSON can only show a key that is UTF-8: in "key", U+FFFD replaces the other bytes. This adds the
// whole key, encoded as in a URL, so that a caller can ask for it again.
void AddPercent(std::string_view key, nlohmann::json& object);

nlohmann::json OwnerJson(const wire::OwnerStat& owner);

// Describes a key. `own`: the leader's own answer about the same key. Misses that requesters report
// are remembered by the leader, and by a shard for the keys that it is asked for, so the later one
// of the two is shown.
nlohmann::json KeyJson(const wire::HeldKey& key, const wire::HeldKey& own,
                       const AdminPool::Found& found_in,
                       const std::vector<wire::OwnerStat>& owners);

// Describes a value that an owner has.
nlohmann::json HeldJson(const wire::HeldObject& object, const SlotDescription& slot,
                        const wire::OwnerStat& owner);

nlohmann::json TaskJson(const TaskStat& task);

}  // namespace kvcove::master
