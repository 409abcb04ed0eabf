// SPDX-License-Identifier: Apache-2.0
// A batch of puts to other hosts' owners, as exchanges for transport::Run(). No sockets.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kvcove/requester/types.h"
#include "kvcove/transport/endpoint.h"
#include "kvcove/wire/cluster.h"

namespace kvcove::requester {

// What all items of one put have in common.
struct RemoteWriteOptions {
  Token token;
  bool checksum = true;
  std::uint8_t copies = 1;  // on how many owners each is meant to be
  std::string_view after;   // the chunk before the first item
  std::int64_t deadline_ns = 0;
};

// Belongs to one thread.
class RemoteWrite {
 public:
  // `groups`: by item, which put a copy belongs to.
  RemoteWrite(const RemoteWriteOptions& options, std::span<const PutItem> items,
              std::span<const std::uint32_t> groups, std::span<ItemResult> results)
      : options_(options), items_(items), groups_(groups), results_(results) {}
  RemoteWrite(const RemoteWrite&) = delete;
  RemoteWrite& operator=(const RemoteWrite&) = delete;

  // The items at `which` go to this owner in one exchange, now (`now_ns`).
  void Add(std::span<const std::size_t> which, transport::Endpoint& owner, std::int64_t now_ns);
  std::span<transport::Exchange> Exchanges() { return exchanges_; }
  // After the exchanges have ended. A value that an owner has adds to `replicas`.
  void Finish();
  // After Finish: before an owner that is busy may be asked again. 0: none is.
  std::uint32_t retry_after_ms() const { return retry_after_ms_; }

 private:
  struct Part {
    std::vector<std::size_t> which;
    std::vector<Code> codes;
  };
  const RemoteWriteOptions options_;
  const std::span<const PutItem> items_;
  const std::span<const std::uint32_t> groups_;
  const std::span<ItemResult> results_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::vector<transport::Exchange> exchanges_;
  std::uint32_t retry_after_ms_ = 0;
};

}  // namespace kvcove::requester
