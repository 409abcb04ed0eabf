// SPDX-License-Identifier: Apache-2.0
// A fake for tests: a source that names the leader that the test sets. Thread-safe.
#pragma once

#include <vector>

#include "kvcove/rpc/leader.h"

namespace kvcove::rpc {

class FakeLeaderSource final : public LeaderSource {
 public:
  explicit FakeLeaderSource(Address leader) : current_(std::move(leader)) {}
  Address Current() const override {
    const MutexLock lock(mutex_);
    return current_;
  }
  void Doubt(const Address& asked) override {
    const MutexLock lock(mutex_);
    doubted_.push_back(asked);
  }
  std::string ToString() const override { return "a source"; }
  void Name(const Address& leader) {
    const MutexLock lock(mutex_);
    current_ = leader;
  }
  std::vector<Address> doubted() const {
    const MutexLock lock(mutex_);
    return doubted_;
  }

 private:
  mutable Mutex mutex_;
  Address current_ KVCOVE_GUARDED_BY(mutex_);
  std::vector<Address> doubted_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::rpc
