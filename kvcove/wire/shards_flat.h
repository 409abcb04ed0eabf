// SPDX-License-Identifier: Apache-2.0
// Shard maps and removals within other messages. Private to this module.
#pragma once

#include <memory>

#include "kvcove/wire/cluster_flat.h"
#include "kvcove/wire/shards.h"

namespace kvcove::wire {

// Null: there is none.
flatbuffers::Offset<fb::ShardMap> AddMap(Builder& builder,
                                         const std::shared_ptr<const ShardMap>& map);
Result<std::shared_ptr<const ShardMap>> MapFrom(const fb::ShardMap* root);

flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<fb::Removal>>> AddRemovals(
    Builder& builder, const std::vector<Removal>& removals);
Result<std::vector<Removal>> RemovalsFrom(
    const flatbuffers::Vector<flatbuffers::Offset<fb::Removal>>* list);

}  // namespace kvcove::wire
