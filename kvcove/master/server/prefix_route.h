// SPDX-License-Identifier: Apache-2.0
// POST /v1/prefix: which owners have how much of a prefix, for routers that are no process of the
// pool. docs/operating.md has the fields.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "kvcove/http/server.h"
#include "kvcove/master/server/admin_pool.h"

namespace kvcove::master {

inline constexpr const char* kPrefixPath = "/v1/prefix";
inline constexpr std::size_t kMaxPrefixBody = 8U << 20;  // kMaxBatch keys of some 100 bytes

// Answers one request. Of several weight versions of the namespace it takes the one that the
// request names, else of those that engines use the one with the longest prefix. Errors: kInvalid
// for the body; those of SlotsIn.
Result<nlohmann::json> AnswerPrefix(const AdminPool& pool, const http::Request& request);

}  // namespace kvcove::master
