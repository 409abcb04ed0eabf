// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/clock.h"
#include "kvcove/disklog/log_fixture.h"

namespace kvcove::disklog {
namespace {

std::string Key(int i) { return "key-" + std::to_string(i); }
std::size_t SizeOf(int i) { return 1 + (static_cast<std::size_t>(i) * 977 % 9000); }

class LogTest : public testing::Test {
 protected:
  void Open(std::uint32_t zones = 16, LogOptions options = SmallLog()) {
    device_ = FormattedDevice(zones, 1);
    log_ = OpenLog(*device_, std::move(options));
  }
  // As after a loss of power, or after a kill, when everything was synced.
  void Reopen(LogOptions options = SmallLog()) {
    log_.reset();
    device_ = std::make_unique<FakeDevice>(device_->CutPower(), 2);
    log_ = OpenLog(*device_, std::move(options));
  }
  void PutSome(int count) {
    for (int i = 0; i < count; ++i) ASSERT_TRUE(Put(*log_, *device_, Key(i), 1, SizeOf(i)));
  }
  void ExpectSome(int from, int to) {
    for (int i = from; i < to; ++i) {
      const Read read = Get(*log_, *device_, Key(i));
      EXPECT_EQ(read.miss, ReadMiss::kNone) << i << " " << ReadMissName(read.miss);
      EXPECT_EQ(read.value, ValueOf(Key(i), 1, SizeOf(i))) << i;
    }
  }
  Status Sync() {
    return WaitFor(*log_, *device_, [&](Done done) { log_->Sync(std::move(done)); });
  }
  Status Draw() {
    return WaitFor(*log_, *device_, [&](Done done) { log_->DrawOpening(std::move(done)); });
  }
  Status Confirm(const Id128& noted) {
    return WaitFor(*log_, *device_, [&](Done done) { log_->OpeningNoted(noted, std::move(done)); });
  }
  Status Confirm() { return Confirm(log_->superblock().opening); }

  std::unique_ptr<FakeDevice> device_;
  std::unique_ptr<Log> log_;
};

TEST_F(LogTest, WhatIsPutIsRead) {
  Open();
  PutSome(60);
  ExpectSome(0, 60);
  EXPECT_EQ(Get(*log_, *device_, "never").miss, ReadMiss::kAbsent);
  EXPECT_EQ(log_->counters().put_objects, 60U);
}

TEST_F(LogTest, WhatWasSyncedIsThereAfterALossOfPower) {
  Open();
  PutSome(60);
  ASSERT_TRUE(Sync());
  Reopen();
  ExpectSome(0, 60);
  EXPECT_GT(log_->recovery().scanned, 0U);
}

TEST_F(LogTest, AfterACleanStopNoZoneIsScanned) {
  Open();
  PutSome(60);
  ASSERT_TRUE(WaitFor(*log_, *device_, [&](Done done) { log_->Stop(std::move(done)); }));
  Reopen();
  EXPECT_EQ(log_->recovery().scanned, 0U);
  EXPECT_EQ(log_->recovery().objects, 60U);
  ExpectSome(0, 60);
}

TEST_F(LogTest, AScannedZoneHasASummaryAtTheNextStart) {
  Open();
  PutSome(20);
  ASSERT_TRUE(Sync());
  Reopen();
  ASSERT_TRUE(Sync());
  Reopen();
  EXPECT_EQ(log_->recovery().scanned, 0U);
  ExpectSome(0, 20);
}

TEST_F(LogTest, ARemovalOutlivesTheLossOfPower) {
  Open();
  PutSome(10);
  ASSERT_TRUE(Remove(*log_, *device_, Key(3)));
  EXPECT_EQ(Get(*log_, *device_, Key(3)).miss, ReadMiss::kAbsent);
  Reopen();
  EXPECT_EQ(Get(*log_, *device_, Key(3)).miss, ReadMiss::kAbsent);
  ExpectSome(4, 10);
}

TEST_F(LogTest, ARemovalOfWhatTheDiskNeverHadWritesNothing) {
  Open();
  const std::uint64_t changes = device_->changes();
  ASSERT_TRUE(Remove(*log_, *device_, "nothing"));
  EXPECT_EQ(device_->changes(), changes);
}

TEST_F(LogTest, BytesThatNoObjectNeedsAreCounted) {
  Open();
  EXPECT_EQ(log_->space().dead_bytes, 0U);
  PutSome(8);  // not enough for the cleaner to free a zone, which takes its dead bytes with it
  ASSERT_TRUE(Sync());
  const Space before = log_->space();
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Remove(*log_, *device_, Key(i)));
  const Space after = log_->space();
  ASSERT_LT(after.live_bytes, before.live_bytes);
  const std::uint64_t ended = before.live_bytes - after.live_bytes;
  EXPECT_GT(after.dead_bytes, before.dead_bytes + ended) << "tombstones are needed by no value";
  Reopen();
  EXPECT_EQ(log_->space().live_bytes, after.live_bytes);
  EXPECT_GE(log_->space().dead_bytes, before.dead_bytes + ended) << "recovery counts them again";
  const Space again = log_->space();
  log_->SetGeneration(kSlot, kGeneration + 1);
  EXPECT_EQ(log_->space().dead_bytes, again.dead_bytes + again.live_bytes);
}

TEST_F(LogTest, AResetEndsEverythingAtOnce) {
  Open();
  PutSome(10);
  ASSERT_TRUE(Sync());
  const std::uint64_t changes = device_->changes();
  log_->SetGeneration(kSlot, kGeneration + 1);
  EXPECT_EQ(device_->changes(), changes);
  EXPECT_EQ(Get(*log_, *device_, Key(1)).miss, ReadMiss::kAbsent);
  EXPECT_EQ(Get(*log_, *device_, Key(1), kGeneration + 1).miss, ReadMiss::kAbsent);
  EXPECT_EQ(log_->counters().voided_objects, 10U);
  EXPECT_GT(log_->counters().voided_bytes, 0U);
  EXPECT_EQ(Put(*log_, *device_, "late", 1, 100).error().code, Code::kStale);
  EXPECT_EQ(log_->space().live_bytes, 0U);
  Reopen(SmallLog({{kSlot, kGeneration + 1}}));
  EXPECT_EQ(Get(*log_, *device_, Key(1)).miss, ReadMiss::kAbsent);
  EXPECT_EQ(log_->space().objects, 0U);
}

// A zone keeps the numbers of all generations that it has records of, as long as one object in it
// lives.
TEST_F(LogTest, GenerationsThatHaveEndedLeaveTheirNumbersToOthers) {
  constexpr int kNumbers = 0xFFFF;
  constexpr int kTries = 3000;
  constexpr std::uint64_t kZone = 256 << 10;
  device_ = std::make_unique<FakeDevice>(kZonesStart + (80 * kZone), 1);
  ASSERT_TRUE(Format(*device_, {.pool = kPool, .incarnation = kIncarnation, .zone_bytes = kZone}));
  LogOptions options = SmallLog();
  options.writer.queue_bytes = 1 << 20;
  options.writer.chunk_bytes = 64 << 10;
  log_ = OpenLog(*device_, options);
  const auto put = [&](SlotId slot, const std::string& key) {
    const std::string value = ValueOf(key, 1, 8);
    const std::span<const std::byte> bytes = std::as_bytes(std::span(value));
    Status added;
    for (int tries = 0; tries < kTries; ++tries) {
      added = log_->Put({.slot = slot,
                         .generation = kGeneration,
                         .version = 1,
                         .name = "space",
                         .key = key,
                         .value = std::span(&bytes, 1)},
                        [](const Status&) {});
      if (added || added.error().code != Code::kLimit) break;
      log_->Flush();
      log_->Poll(0);
    }
    return added;
  };
  for (int slot = 0; slot <= kNumbers; ++slot) {
    log_->SetGeneration(static_cast<SlotId>(slot), kGeneration);
  }
  for (int slot = 0; slot < kNumbers; ++slot) {
    ASSERT_TRUE(put(static_cast<SlotId>(slot), Key(slot))) << slot;
    if (slot % 50 == 0) {
      ASSERT_TRUE(put(kSlot, "kept-" + std::to_string(slot)));
    }
  }
  ASSERT_TRUE(Sync());
  for (int slot = 1000; slot < 1200; ++slot) log_->SetGeneration(static_cast<SlotId>(slot), 0);
  ASSERT_TRUE(put(kNumbers, "new"));
  ASSERT_TRUE(Sync());
  EXPECT_TRUE(log_->Find(kNumbers, kGeneration, "new"));
  EXPECT_EQ(log_->counters().zones_freed, 1U);
  // Objects of others beside them give way with their zone.
  for (int slot = 5000; slot < kNumbers; slot += 50) {
    ASSERT_TRUE(log_->Find(static_cast<SlotId>(slot), kGeneration, Key(slot))) << slot;
    ASSERT_TRUE(log_->Find(kSlot, kGeneration, "kept-" + std::to_string(slot))) << slot;
  }
}

TEST_F(LogTest, AResetDuringAReadMakesItAMiss) {
  Open();
  PutSome(1);
  const auto found = log_->Find(kSlot, kGeneration, Key(0));
  ASSERT_TRUE(found);
  AlignedBuffer buffer(found->buffer_bytes);
  std::optional<ReadResult> result;
  log_->Read(*found, {.slot = kSlot, .generation = kGeneration, .key = Key(0)}, buffer.span(),
             [&](const ReadResult& read) { result = read; });
  log_->SetGeneration(kSlot, kGeneration + 1);
  PollUntil(*log_, *device_, [&] { return result.has_value(); });
  EXPECT_EQ(result->miss, ReadMiss::kReset);
}

TEST_F(LogTest, ARemovalDuringAReadMakesItAMiss) {
  Open();
  PutSome(1);
  const auto found = log_->Find(kSlot, kGeneration, Key(0));
  AlignedBuffer buffer(found->buffer_bytes);
  std::optional<ReadResult> result;
  log_->Read(*found, {.slot = kSlot, .generation = kGeneration, .key = Key(0)}, buffer.span(),
             [&](const ReadResult& read) { result = read; });
  ASSERT_TRUE(Remove(*log_, *device_, Key(0)));
  PollUntil(*log_, *device_, [&] { return result.has_value(); });
  EXPECT_EQ(result->miss, ReadMiss::kRaced);
}

TEST_F(LogTest, AResetDuringAPutMakesItStale) {
  Open();
  const std::string value = "value";
  const std::span<const std::byte> bytes = std::as_bytes(std::span(value));
  Status outcome;
  ASSERT_TRUE(log_->Put({.slot = kSlot,
                         .generation = kGeneration,
                         .version = 1,
                         .name = "space",
                         .key = "k",
                         .value = std::span(&bytes, 1)},
                        [&](const Status& status) { outcome = status; }));
  log_->SetGeneration(kSlot, kGeneration + 1);
  log_->Flush();
  PollUntil(*log_, *device_, [&] { return log_->idle() || log_->space().queued_bytes == 0; });
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, Code::kStale);
}

TEST_F(LogTest, WhatNobodyHasNamedIsKeptAndNotFound) {
  Open();
  PutSome(5);
  ASSERT_TRUE(Sync());
  Reopen(SmallLog({}));
  EXPECT_EQ(Get(*log_, *device_, Key(1)).miss, ReadMiss::kAbsent);
  log_->SetGeneration(kSlot, kGeneration);
  ExpectSome(0, 5);
}

TEST_F(LogTest, AnotherVersionIsAMiss) {
  Open();
  PutSome(1);
  const auto found = log_->Find(kSlot, kGeneration, Key(0));
  AlignedBuffer buffer(found->buffer_bytes);
  std::optional<ReadResult> result;
  log_->Read(*found, {.slot = kSlot, .generation = kGeneration, .key = Key(0), .version = 9},
             buffer.span(), [&](const ReadResult& read) { result = read; });
  PollUntil(*log_, *device_, [&] { return result.has_value(); });
  EXPECT_EQ(result->miss, ReadMiss::kOtherVersion);
}

TEST_F(LogTest, TheNewerValueStays) {
  Open();
  ASSERT_TRUE(Put(*log_, *device_, "k", 1, 500));
  ASSERT_TRUE(Put(*log_, *device_, "k", 2, 700));
  EXPECT_EQ(Get(*log_, *device_, "k").version, 2U);
  ASSERT_TRUE(Sync());
  Reopen();
  EXPECT_EQ(Get(*log_, *device_, "k").value, ValueOf("k", 2, 700));
  EXPECT_EQ(log_->space().objects, 1U);
}

TEST_F(LogTest, AFullQueueRefusesAtOnce) {
  Open();
  device_->faults.hangs = true;
  const std::string value(10'000, 'x');
  const std::span<const std::byte> bytes = std::as_bytes(std::span(value));
  Code code = Code::kOk;
  int accepted = 0;
  for (int i = 0; i < 1000 && code == Code::kOk; ++i) {
    const std::string key = Key(i);
    const Status added = log_->Put({.slot = kSlot,
                                    .generation = kGeneration,
                                    .version = 1,
                                    .name = "space",
                                    .key = key,
                                    .value = std::span(&bytes, 1)},
                                   [&](const Status&) {});
    added ? ++accepted : static_cast<int>(code = added.error().code);
  }
  EXPECT_EQ(code, Code::kLimit);
  EXPECT_GT(accepted, 20);
  EXPECT_EQ(log_->counters().refused_full, 1U);
  device_->faults.hangs = false;
  PollUntil(*log_, *device_, [&] { return device_->in_flight() == 0; });
  EXPECT_TRUE(Put(*log_, *device_, "after", 1, 100));
}

TEST_F(LogTest, AFailingWriteIsAnErrorAndNoHit) {
  Open();
  PutSome(5);
  device_->faults.write_error = EIO;
  EXPECT_EQ(Put(*log_, *device_, "bad", 1, 100).error().code, Code::kUnavailable);
  EXPECT_EQ(Get(*log_, *device_, "bad").miss, ReadMiss::kAbsent);
  ExpectSome(0, 5);
  EXPECT_GE(log_->counters().write_errors, 1U);
  Open();
  device_->faults.write_error = ENOSPC;
  EXPECT_EQ(Put(*log_, *device_, "full", 1, 100).error().code, Code::kNoSpace);
}

TEST_F(LogTest, AFailingReadIsAMissThatSaysSo) {
  Open();
  PutSome(1);
  device_->faults.read_error = EIO;
  EXPECT_EQ(Get(*log_, *device_, Key(0)).miss, ReadMiss::kIoError);
  device_->faults.read_error = 0;
  ExpectSome(0, 1);
}

// With nothing else under way nobody would end the wait.
TEST_F(LogTest, NobodyWaitsForTheDeviceWhileBytesThatWereReadAreToBeVerified) {
  auto device = FormattedDevice(8, 1);
  LogOptions options = SmallLog();
  options.verify_slice_bytes = 1000;
  const auto log = OpenLog(*device, std::move(options));
  ASSERT_TRUE(Put(*log, *device, "k", 1, 5000));
  PollUntil(*log, *device, [&] { return log->idle() || device->in_flight() == 0; });
  const auto found = log->Find(kSlot, kGeneration, "k");
  ASSERT_TRUE(found);
  AlignedBuffer buffer(found->buffer_bytes);
  std::optional<ReadResult> result;
  log->Read(*found, {.slot = kSlot, .generation = kGeneration, .key = "k"}, buffer.span(),
            [&](const ReadResult& read) { result = read; });
  log->Poll(kSecond);
  ASSERT_EQ(device->in_flight(), 0U);
  ASSERT_FALSE(result) << "it is verified in slices";
  int polls = 0;
  for (; !result && polls < 100; ++polls) {
    log->Poll(kSecond);
    EXPECT_EQ(device->waits_ns(), 0);
  }
  ASSERT_TRUE(result);
  EXPECT_EQ(result->miss, ReadMiss::kNone);
  EXPECT_GE(polls, 4);
  log->Poll(kSecond);
  EXPECT_EQ(device->waits_ns(), kSecond) << "there is nothing to do";
}

TEST_F(LogTest, WhatCanNeverFitIsRefused) {
  Open();
  EXPECT_EQ(Put(*log_, *device_, "big", 1, kSmallZone).error().code, Code::kInvalid);
  EXPECT_EQ(Put(*log_, *device_, "stream", 1, 10, 2).error().code, Code::kInvalid);
}

TEST_F(LogTest, SpaceComesBackZoneByZoneAndTheDiskNeverFills) {
  Open(12);
  std::vector<std::string> dropped;
  LogOptions options = SmallLog();
  options.cleaner.on_dropped = [&](const LiveObject& object) { dropped.emplace_back(object.key); };
  Reopen(std::move(options));
  for (int i = 0; i < 600; ++i) {
    Status put = Put(*log_, *device_, Key(i), 1, 4000);
    while (!put && put.error().code == Code::kNoSpace) {
      log_->Poll(0);
      put = Put(*log_, *device_, Key(i), 1, 4000);
    }
    ASSERT_TRUE(put) << put.error().ToString();
  }
  EXPECT_GT(log_->counters().zones_freed, 20U);
  EXPECT_EQ(dropped.size() + log_->space().objects, 600U);
  EXPECT_EQ(Get(*log_, *device_, Key(599)).value, ValueOf(Key(599), 1, 4000));
  EXPECT_EQ(Get(*log_, *device_, Key(0)).miss, ReadMiss::kAbsent);
  // Nothing was moved, so only padding, heads and summaries are written beside what was put.
  EXPECT_LT(log_->counters().write_amplification(), 2.3);
}

// A pass that ended without freeing its zone has left objects there; the next zone is another one.
TEST_F(LogTest, WhatAFailedPassHasLeftIsNotDroppedWithAnotherZone) {
  Open(12);
  std::vector<std::string> dropped;
  LogOptions options = SmallLog();
  options.cleaner.on_dropped = [&](const LiveObject& object) { dropped.emplace_back(object.key); };
  Reopen(std::move(options));
  for (int i = 0; log_->counters().zones_freed < 5; ++i) {
    (void)Put(*log_, *device_, Key(i), 1, 4000);
  }
  device_->faults.sync_error = EIO;
  for (int i = 1000; i < 1100; ++i) (void)Put(*log_, *device_, Key(i), 1, 4000);
  for (int i = 0; i < 10'000; ++i) log_->Poll(0);
  const std::size_t before = dropped.size();
  log_->SetGeneration(kSlot, kGeneration + 1);
  for (int i = 0; i < 10'000; ++i) log_->Poll(0);
  device_->faults.sync_error = 0;
  for (int i = 0; i < 100'000; ++i) log_->Poll(0);
  EXPECT_GT(log_->counters().zones_freed_unread, 0U);
  EXPECT_EQ(dropped.size(), before) << "the reset has voided all others";
}

TEST_F(LogTest, DeadZonesAreFreedWithoutReadingThem) {
  Open();
  PutSome(60);
  log_->SetGeneration(kSlot, kGeneration + 1);
  const std::uint64_t reads = device_->reads();
  const std::uint64_t read_before = log_->counters().reads;
  for (int i = 0; i < 100'000; ++i) log_->Poll(0);
  EXPECT_GT(log_->counters().zones_freed_unread, 0U);
  EXPECT_EQ(log_->counters().zones_freed, log_->counters().zones_freed_unread);
  EXPECT_EQ(device_->reads(), reads);
  EXPECT_EQ(log_->counters().reads, read_before);
  EXPECT_EQ(log_->space().objects, 0U);
}

TEST_F(LogTest, WhatIsWorthItIsMoved) {
  Open(12);
  LogOptions options = SmallLog();
  options.cleaner.move_share = 0.5;
  options.cleaner.worth_moving = [](const LiveObject& object, const MoveFacts&) {
    return object.key.starts_with("hot");
  };
  Reopen(std::move(options));
  for (int i = 0; i < 400; ++i) {
    // One in ten is worth keeping, and there are few of them.
    const std::string key = i % 10 == 0 && i < 50 ? "hot-" + std::to_string(i) : Key(i);
    Status put = Put(*log_, *device_, key, 1, 4000);
    while (!put && put.error().code == Code::kNoSpace) {
      log_->Poll(0);
      put = Put(*log_, *device_, key, 1, 4000);
    }
    ASSERT_TRUE(put) << put.error().ToString();
  }
  EXPECT_GT(log_->counters().moved_objects, 0U);
  for (int i = 0; i < 50; i += 10) {
    const std::string key = "hot-" + std::to_string(i);
    EXPECT_EQ(Get(*log_, *device_, key).value, ValueOf(key, 1, 4000)) << i;
  }
  ASSERT_TRUE(Sync());
  Reopen();
  for (int i = 0; i < 50; i += 10) {
    const std::string key = "hot-" + std::to_string(i);
    EXPECT_EQ(Get(*log_, *device_, key).value, ValueOf(key, 1, 4000)) << i;
  }
}

TEST_F(LogTest, ATombstoneOutlivesOlderRecordsWhateverIsFreed) {
  Open(12);
  ASSERT_TRUE(Put(*log_, *device_, "victim", 1, 2000, 1));  // in a zone that stays open
  ASSERT_TRUE(Remove(*log_, *device_, "victim"));
  for (int i = 0; i < 500; ++i) {
    Status put = Put(*log_, *device_, Key(i), 1, 4000);
    while (!put && put.error().code == Code::kNoSpace) {
      log_->Poll(0);
      put = Put(*log_, *device_, Key(i), 1, 4000);
    }
    if (i % 50 == 0) {
      ASSERT_TRUE(Remove(*log_, *device_, Key(i)));
    }
  }
  for (int round = 0; round < 4; ++round) {
    Reopen();
    EXPECT_EQ(Get(*log_, *device_, "victim").miss, ReadMiss::kAbsent);
    EXPECT_EQ(Get(*log_, *device_, Key(450)).miss, ReadMiss::kAbsent);
  }
}

TEST_F(LogTest, AWalkNamesEveryLiveObject) {
  Open();
  PutSome(60);
  ASSERT_TRUE(Remove(*log_, *device_, Key(10)));
  ASSERT_TRUE(Sync());
  std::map<std::string, std::uint64_t> seen;
  for (std::uint32_t zone = 0; zone < log_->space().zones; ++zone) {
    EXPECT_TRUE(WaitFor(*log_, *device_, [&](Done done) {
      log_->Walk(
          zone,
          [&](const LiveObject& object) {
            seen[std::string(object.key)] = object.version;
            EXPECT_EQ(object.name, "space");
          },
          std::move(done));
    }));
  }
  EXPECT_EQ(seen.size(), 59U);
  EXPECT_FALSE(seen.contains(Key(10)));
}

// The header of Superblock lists the crash points.
TEST_F(LogTest, EachOpeningAndCleanEndDrawsANumberBesideTheNotedOne) {
  Open();
  const Id128 first = log_->superblock().opening;
  EXPECT_NE(first, Id128{});
  EXPECT_TRUE(log_->superblock().HasOpening({}));
  ASSERT_TRUE(Confirm());
  LogOptions again = SmallLog();
  again.noted_opening = first;
  Reopen(again);
  const Id128 second = log_->superblock().opening;
  EXPECT_NE(second, first);
  EXPECT_TRUE(log_->superblock().HasOpening(first)) << "it may crash before it is noted";
  // The second one was never noted, so a third opening still knows the first.
  Reopen(again);
  EXPECT_TRUE(log_->superblock().HasOpening(first));
  EXPECT_FALSE(log_->superblock().HasOpening(second));
  ASSERT_TRUE(Confirm());
  EXPECT_FALSE(log_->superblock().HasOpening(first));
  const Id128 noted = log_->superblock().opening;
  ASSERT_TRUE(WaitFor(*log_, *device_, [&](Done done) { log_->Stop(std::move(done)); }));
  const Superblock ended = *Log::ReadSuperblock(*device_);
  EXPECT_NE(ended.opening, noted) << "a copy from before the clean end is another disk";
  EXPECT_TRUE(ended.HasOpening(noted));
  ASSERT_TRUE(Confirm());
  EXPECT_FALSE(Log::ReadSuperblock(*device_)->HasOpening(noted));
  EXPECT_TRUE(Log::ReadSuperblock(*device_)->HasOpening(ended.opening));
}

TEST_F(LogTest, AnOpenLogDrawsAnotherNumberOnceTheLastIsNoted) {
  Open();
  ASSERT_TRUE(Confirm());
  const Id128 noted = log_->superblock().opening;
  ASSERT_TRUE(Draw());
  const Superblock drawn = *Log::ReadSuperblock(*device_);
  EXPECT_NE(drawn.opening, noted);
  EXPECT_TRUE(drawn.HasOpening(noted)) << "it may crash before the number is noted";
  EXPECT_FALSE(drawn.clean);
  ASSERT_TRUE(Draw());
  EXPECT_EQ(log_->superblock().opening, drawn.opening) << "the note may have either of the two";
  ASSERT_TRUE(Confirm());
  ASSERT_TRUE(Draw());
  EXPECT_NE(log_->superblock().opening, drawn.opening);
  EXPECT_FALSE(Log::ReadSuperblock(*device_)->HasOpening(noted));
}

// The note may be written while another number is drawn.
TEST_F(LogTest, ANumberStandsForTheDiskUntilTheNextOneIsNoted) {
  Open();
  ASSERT_TRUE(Confirm());
  const Id128 noted = log_->superblock().opening;
  ASSERT_TRUE(Draw());
  ASSERT_TRUE(Confirm(noted));
  EXPECT_TRUE(Log::ReadSuperblock(*device_)->HasOpening(noted));
  ASSERT_TRUE(Confirm());
  EXPECT_FALSE(Log::ReadSuperblock(*device_)->HasOpening(noted));
}

// A copy that was made meanwhile has the new number, and lacks what is being written.
TEST_F(LogTest, ANumberIsDueOnceAWriteHasEndedSinceTheLastWasDrawn) {
  Open();
  ASSERT_TRUE(Confirm());
  EXPECT_FALSE(log_->OpeningDue()) << "a copy of the disk equals it";
  PutSome(1);
  EXPECT_TRUE(log_->OpeningDue());
  ASSERT_TRUE(Draw());
  EXPECT_TRUE(log_->OpeningDue()) << "it is not noted";
  ASSERT_TRUE(Confirm());
  EXPECT_FALSE(log_->OpeningDue());
  ASSERT_TRUE(Draw());
  ASSERT_TRUE(Confirm());
  EXPECT_FALSE(log_->OpeningDue()) << "the numbers are no change";

  bool written = false;
  const std::string value = ValueOf("later", 2, 100);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(value));
  ASSERT_TRUE(log_->Put({.slot = kSlot,
                         .generation = kGeneration,
                         .version = 2,
                         .name = "space",
                         .key = "later",
                         .value = std::span(&bytes, 1)},
                        [&](const Status&) { written = true; }));
  log_->Flush();
  bool drawn = false;
  log_->DrawOpening([&](const Status&) { drawn = true; });
  while (!written || !drawn) log_->Poll(0);
  ASSERT_TRUE(Confirm());
  EXPECT_TRUE(log_->OpeningDue());
}

TEST_F(LogTest, ALossOfPowerWhileAnOpenLogDrawsANumberLeavesTheDiskKnown) {
  for (std::uint64_t cut = 1; cut <= 5; ++cut) {
    SCOPED_TRACE(cut);
    Open();
    ASSERT_TRUE(Confirm());
    Id128 noted = log_->superblock().opening;
    device_->faults.cut_at = device_->changes() + cut;
    if (Draw()) {
      noted = log_->superblock().opening;
      EXPECT_EQ(Confirm().has_value(), cut > 4);
    }
    FakeDevice after(device_->CutPower(), 1);
    EXPECT_TRUE(Log::ReadSuperblock(after)->HasOpening(noted));
  }
}

TEST_F(LogTest, AnotherPoolIsRefusedAndAnOlderIncarnationStartsEmpty) {
  Open();
  PutSome(5);
  ASSERT_TRUE(Sync());
  log_.reset();
  LogOptions other = SmallLog();
  other.pool.low = 99;
  const auto refused = Log::Open(*device_, other);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kIncompatible);
  other = SmallLog();
  other.incarnation.low = 99;
  Reopen(std::move(other));
  EXPECT_TRUE(log_->started_empty());
  EXPECT_EQ(log_->space().objects, 0U);
  EXPECT_EQ(log_->space().free_zones, log_->space().zones);
}

}  // namespace
}  // namespace kvcove::disklog
