// SPDX-License-Identifier: Apache-2.0
// For tests: a store over a fake disk, and what its callers know of it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kvcove/base/log.h"
#include "kvcove/master/store/file_store.h"
#include "tests/sim/fake_disk.h"

namespace kvcove::master {

using Changes = std::vector<FactChange>;

class FileStoreFixture : public testing::Test {
 protected:
  FileStoreFixture() {
    SetLogLevel(LogLevel::kOff);
    options.clock = &clock;
  }

  // A machine that was never used.
  void NewDisk(std::uint64_t seed) {
    store.reset();
    disk = std::make_unique<sim::FakeDisk>(seed);
    outcomes.clear();
    order.clear();
  }
  // A process starts: the one before is gone.
  Status Open() {
    store.reset();
    auto made = FileStore::Open(disk->Attach(), options, opened);
    if (!made) return std::unexpected<Error>(made.error());
    store = std::move(*made);
    return {};
  }
  // Its outcome is in `outcomes`, at the place that is returned.
  std::size_t Commit(Changes changes) {
    const std::size_t place = outcomes.size();
    outcomes.emplace_back();
    store->Commit(std::move(changes), [this, place](Result<std::uint64_t> revision) {
      EXPECT_FALSE(outcomes[place]) << "done twice";
      outcomes[place] = std::move(revision);
      order.push_back(place);
    });
    return place;
  }
  void Work() {
    while (store->Work()) {
    }
  }
  // Commits and works: the revision, or 0 when it failed.
  std::uint64_t Must(Changes changes) {
    const std::size_t place = Commit(std::move(changes));
    Work();
    const auto& outcome = outcomes[place];
    return outcome && *outcome ? **outcome : 0;
  }
  bool Failed(std::size_t place) const {
    return outcomes[place] && !*outcomes[place] &&
           outcomes[place]->error().code == Code::kUnavailable;
  }

  std::unique_ptr<sim::FakeDisk> disk = std::make_unique<sim::FakeDisk>(1);
  FakeClock clock;
  FileStoreOptions options;
  Opened opened;
  std::vector<std::optional<Result<std::uint64_t>>> outcomes;
  std::vector<std::size_t> order;  // in which they came
  std::unique_ptr<FileStore> store;
};

}  // namespace kvcove::master
