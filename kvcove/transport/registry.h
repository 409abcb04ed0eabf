// SPDX-License-Identifier: Apache-2.0
// Memory that callers keep for transfers, registered with every transport of a pool at once.
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

  // With the end of what this returns, no transport knows the memory any more; it may outlive the
  // registry. Errors: kInvalid for no memory, kLimit for too many registrations, and those of
  // Transport::Register: then no transport has it.
  Result<std::shared_ptr<void>> Register(std::span<std::byte> memory);
  std::size_t count() const { return count_.use_count() - 1; }

 private:
  const std::vector<Transport*> transports_;
  const std::shared_ptr<int> count_ = std::make_shared<int>(0);  // shared by each registration
};

}  // namespace kvcove::transport
