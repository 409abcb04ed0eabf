// SPDX-License-Identifier: Apache-2.0
// What the roles ask of a pool: one session, narrowed to the calls that they make, so that a
// simulation can stand in for it.
#pragma once

#include <memory>

#include "kvcove/pool/pool.h"

namespace kvcove::connector {

// Thread-safe. Every call ends by its timeout.
class Store {
 public:
  virtual ~Store() = default;
  virtual Result<Token> Capture(std::string_view version, std::chrono::milliseconds timeout) = 0;
  virtual Status Exists(std::span<const std::string_view> keys, std::span<ItemResult> results,
                        const CallOptions& options) = 0;
  virtual Status Put(const Token& token, std::span<const PutItem> items,
                     std::span<ItemResult> results, const CallOptions& options) = 0;
  virtual Status Get(std::span<const GetItem> items, std::span<ItemResult> results,
                     const CallOptions& options) = 0;
  virtual Status Remove(std::span<const std::string_view> keys, std::span<ItemResult> results,
                        const CallOptions& options) = 0;
  // In place (requester/borrow.h), for a device. A store without memory of this host lends none.
  virtual Result<Borrowed> Borrow(std::span<const std::string_view> keys,
                                  const CallOptions& options);
  virtual Result<Reserved> Reserve(const Token& token, std::span<const ReserveItem> items,
                                   const CallOptions& options);
  virtual Result<std::vector<SegmentRange>> Segments(const CallOptions& options);
  virtual Status Reset(const ResetOptions& options) = 0;
  virtual Status NameVersions(std::span<const std::string> versions,
                              std::chrono::milliseconds timeout) = 0;
  virtual bool closed() const = 0;
};

// A session of a pool. Keeps it.
std::unique_ptr<Store> StoreOf(std::shared_ptr<Session> session);

}  // namespace kvcove::connector
