// SPDX-License-Identifier: Apache-2.0
// The calls that the roles make to a pool: one session, narrowed to these, so that tests and
// simulations can replace the pool.
#pragma once

#include <memory>

#include "kvcove/pool/pool.h"

namespace kvcove::connector {

// Thread-safe. Every call ends by its timeout, and is made without a lock. Contracts and errors are
// those of Session.
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
  // The default is that of a store whose saves nobody waits for.
  virtual Status Announce(const Token& /*token*/, std::span<const std::string_view> /*keys*/,
                          SaveNotice /*notice*/, const CallOptions& /*options*/) {
    return {};
  }
  // Lend and reserve memory of the pool in place (requester/borrow.h), for a device. The defaults
  // are those of a store that has no memory on this host: kUnavailable, and no segments.
  virtual Result<Borrowed> Borrow(std::span<const std::string_view> keys,
                                  const CallOptions& options);
  virtual Result<Reserved> Reserve(const Token& token, std::span<const ReserveItem> items,
                                   const CallOptions& options);
  virtual Result<std::vector<SegmentRange>> Segments(const CallOptions& options);
  // Registers memory that Get and Put will name, as Pool::Register, until this store ends. The
  // default is that of a store whose calls move no bytes by a device.
  virtual Status Register(std::span<std::byte> /*memory*/) { return {}; }
  virtual Status Reset(const ResetOptions& options) = 0;
  virtual Status NameVersions(std::span<const std::string> versions,
                              std::chrono::milliseconds timeout) = 0;
  virtual bool closed() const = 0;
};

// Returns the store of a pool's session, and keeps both. `pool`: registers memory; null: none is.
std::unique_ptr<Store> StoreOf(std::shared_ptr<Session> session,
                               std::shared_ptr<Pool> pool = nullptr);

}  // namespace kvcove::connector
