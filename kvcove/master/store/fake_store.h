// SPDX-License-Identifier: Apache-2.0
// For tests: a control store that answers when the test says so, or refuses.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "kvcove/master/store/control_store.h"

namespace kvcove::master {

class FakeStore final : public ControlStore {
 public:
  void Commit(std::vector<FactChange> changes, Done done) override {
    ++commits;
    if (failures > 0) {
      --failures;
      return done(Fail(Code::kUnavailable, "the disk refuses"));
    }
    held_.push_back({.changes = std::move(changes), .done = std::move(done)});
    if (!hangs && !releasing_) Release();
  }
  // What was committed up to now becomes durable, in order.
  void Release() {
    releasing_ = true;
    while (!held_.empty()) ReleaseOne();
    releasing_ = false;
  }
  void ReleaseOne() {
    Held next = std::move(held_.front());
    held_.pop_front();
    ApplyTransaction(std::move(next.changes), ++revision, facts);
    next.done(revision);
  }
  // The oldest commit that waits is refused.
  void RefuseOne() {
    Held next = std::move(held_.front());
    held_.pop_front();
    next.done(Fail(Code::kUnavailable, "the disk refuses"));
  }
  std::size_t held() const { return held_.size(); }

  bool hangs = false;
  int failures = 0;  // so many commits from now on are refused at once
  std::size_t commits = 0;
  Facts facts;
  std::uint64_t revision = 0;

 private:
  struct Held {
    std::vector<FactChange> changes;
    Done done;
  };
  bool releasing_ = false;
  std::deque<Held> held_;
};

}  // namespace kvcove::master
