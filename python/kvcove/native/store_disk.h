// SPDX-License-Identifier: Apache-2.0
// What the calls of mooncake.store do about values on a disk. A look-up on the owner's host says
// that the disk has a key, not how large its value is; and one that holds starts to read it, which
// that API's look-ups do not.
#pragma once

#include <span>
#include <string_view>

#include "kvcove/requester/session.h"

namespace kvcove::python {

// Like Session::Exists, which holds what is in memory alone: nothing comes up from a disk.
Status LookUpOnly(Session& session, std::span<const std::string_view> keys,
                  std::span<ItemResult> results, const CallOptions& options);

// Like Session::Get. What memory has evicted, and its disk has not taken from the queue yet, is a
// miss for a moment, though the master lists it: it is asked for again for up to `patience_ns`.
Status GetPatiently(Session& session, std::span<const GetItem> items, std::span<ItemResult> results,
                    const CallOptions& options, std::int64_t patience_ns);

// Of what LookUpOnly or Session::Exists found. Values of unknown size are brought into memory,
// where a get finds them; those that do not come are misses then.
void BringUp(Session& session, std::span<const std::string_view> keys,
             std::span<ItemResult> results, const CallOptions& options, std::int64_t patience_ns);

// The same without reading them, where the master knows their sizes.
void FindSizes(Session& session, std::span<const std::string_view> keys,
               std::span<ItemResult> results, const CallOptions& options);

}  // namespace kvcove::python
