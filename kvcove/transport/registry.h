// SPDX-License-Identifier: Apache-2.0
// Registers memory that callers keep for transfers with every transport of a pool at once, and
// bounds the number of registrations.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kvcove/base/result.h"
#include "kvcove/transport/endpoint.h"

namespace kvcove::transport {

// Thread-safe.
class Registry {
 public:
  static constexpr std::size_t kMaxRegistrations = 4096;

  // The transports outlive the registry and all that it has registered.
  explicit Registry(std::vector<Transport*> transports) : transports_(std::move(transports)) {}

  // Registers `memory` until the returned object is destroyed, which may be after the registry.
  // Errors: kInvalid for no memory, kLimit for too many registrations, and those of
  // Transport::Register: then no transport has the memory.
  Result<std::shared_ptr<void>> Register(std::span<std::byte> memory);
  std::size_t count() const { return count_.use_count() - 1; }

 private:
  const std::vector<Transport*> transports_;
  // Its use count is the count: each registration has a copy, and may outlive the registry.
  const std::shared_ptr<int> count_ = std::make_shared<int>(0);
};

}  // namespace kvcove::transport
