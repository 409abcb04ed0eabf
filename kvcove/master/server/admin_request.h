// SPDX-License-Identifier: Apache-2.0
// What a request to an admin endpoint names: numbers, times, namespaces and their weight versions.
// Nothing that a request names is ignored: a misspelt name would mean another answer, or change.
// Pure functions, but for the pool that is asked for its namespaces.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/http/server.h"
#include "kvcove/master/server/admin_pool.h"

namespace kvcove::master {

// Returns an error with the name that is meant, if another one is near. An engine calls its
// namespace by the name within its tenant. `known`: qualified names. `with`: what else was asked
// for, as " with version 'v1'".
std::unexpected<Error> NoSuchName(const std::string& name, const std::vector<std::string>& known,
                                  const std::string& with = {});

// Checks that the qualified names, which read the same, are of one namespace: 'a:b' may be that of
// the tenant a, and one without a tenant. Errors: kInvalid.
Status CheckOne(const std::set<std::string>& names);

using JsonAnswer = std::function<Result<nlohmann::json>(const http::Request&)>;
// Returns `answer` for requests that have no parameter but these. Errors of others: kInvalid, with
// the nearest name.
JsonAnswer Taking(std::vector<std::string_view> parameters, JsonAnswer answer);

// Returns how long a change waits for its proof, in nanoseconds. Errors: kInvalid.
Result<std::int64_t> ProofTimeIn(const http::Request& request);

// Returns a number of the request, or `otherwise` when it is missing. Errors: kInvalid.
Result<std::uint64_t> NumberIn(const http::Request& request, const std::string& name,
                               std::uint64_t otherwise);

// Returns whether the request says "true", and not "false" or nothing. Errors: kInvalid.
Result<bool> IsTrue(const http::Request& request, const std::string& name);

// Returns text of the request, empty when it is missing. Errors: kInvalid when it is given and
// empty, most likely by an unset variable of a script, or longer than a key may be.
Result<std::string> TextIn(const http::Request& request, const std::string& name);

// Returns all weight versions of the request's `namespace`, or its `version` if it names one;
// without a namespace those of all. Errors: kMiss if that leaves none; kInvalid if two tenants'
// namespaces are called so, or the name is empty.
Result<std::vector<SlotDescription>> SlotsIn(const AdminPool& pool, const http::Request& request);

}  // namespace kvcove::master
