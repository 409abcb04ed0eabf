// SPDX-License-Identifier: Apache-2.0
// A batch of puts to other hosts' owners, as exchanges for transport::Run(). Copies of one value to
// several owners are several batches with the same results, which count the replicas. No sockets,
// and no lock: one thread runs the batch.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kvcove/requester/types.h"
#include "kvcove/transport/endpoint.h"
#include "kvcove/wire/cluster.h"

namespace kvcove::requester {

// Facts that hold for all items of a put.
struct RemoteWriteOptions {
  Token token;
  bool checksum = true;     // sends checksums
  std::uint8_t copies = 1;  // replicas that each value is to have
  std::string_view after;   // key of the chunk before the first item
  std::int64_t deadline_ns = 0;
};

// Belongs to one thread.
class RemoteWrite {
 public:
  // `groups`: for each item the number that makes its copies replicas of one value in the
  // directory. All spans outlive this object.
  RemoteWrite(const RemoteWriteOptions& options, std::span<const PutItem> items,
              std::span<const std::uint32_t> groups, std::span<ItemResult> results)
      : options_(options), items_(items), groups_(groups), results_(results) {}
  RemoteWrite(const RemoteWrite&) = delete;
  RemoteWrite& operator=(const RemoteWrite&) = delete;

  // Adds an exchange that puts the items at `which` to this owner, which outlives this object. The
  // owner gets nine tenths of the time from `now_ns` to the deadline, 60 s at most.
  void Add(std::span<const std::size_t> which, transport::Endpoint& owner, std::int64_t now_ns);
  std::span<transport::Exchange> Exchanges() { return exchanges_; }
  // Completes `results` after the exchanges have ended. An item that an owner has stored gets one
  // more replica, and is kOk whatever other owners answered, but for kBufferBusy: an owner may
  // still read the caller's memory.
  void Finish();
  // Returns, after Finish, the milliseconds after which a busy owner may be asked again; 0: none is
  // busy.
  std::uint32_t retry_after_ms() const { return retry_after_ms_; }

 private:
  struct Part {
    std::vector<std::size_t> which;
    std::vector<Code> codes;  // the owner's answer, in the order of `which`
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
