// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/policy.h"

#include <fmt/core.h>

#include "kvcove/policy/lru.h"
#include "kvcove/policy/s3fifo.h"
#include "kvcove/policy/segments.h"

namespace kvcove::policy {

std::vector<std::string_view> PolicyNames() { return {"default", "lru", "s3fifo"}; }

Result<std::unique_ptr<EvictionPolicy>> MakePolicy(std::string_view name,
                                                   std::uint64_t capacity_bytes) {
  if (name == "default") return std::make_unique<SegmentPolicy>();
  if (name == "lru") return std::make_unique<Lru>();
  if (name == "s3fifo") return std::make_unique<S3Fifo>(capacity_bytes);
  return Fail(Code::kInvalid,
              fmt::format("'{}' is not an eviction policy; use default, lru or s3fifo", name));
}

}  // namespace kvcove::policy
