// SPDX-License-Identifier: Apache-2.0
// Forgetting is a removal: whatever ends an object, it does not come back at a later start, and a
// key counts as present until that is certain. And removals cost others nothing.
#include <set>

#include "kvcove/disklog/log_fixture.h"

namespace kvcove::disklog {
namespace {

constexpr std::uint32_t kZonesHere = 24;

std::string Name(int i) { return "key-" + std::to_string(i); }

// A table with places for a few objects.
class SmallTable final : public Presence {
 public:
  explicit SmallTable(std::size_t places) : places_(places) {}
  bool Add(const Id128& hash, Generation /*generation*/) override {
    if (there.size() >= places_ && !there.contains({hash.high, hash.low})) return false;
    there.insert({hash.high, hash.low});
    return true;
  }
  void Remove(const Id128& hash, Generation /*generation*/) override {
    there.erase({hash.high, hash.low});
  }
  bool Has(const Log& log, const std::string& key) const {
    const Id128 hash = Hash128(key, Mix64(log.superblock().hash_seed ^ kSlot));
    return there.contains({hash.high, hash.low});
  }
  std::set<std::pair<std::uint64_t, std::uint64_t>> there;

 private:
  const std::size_t places_;
};

class ForgettingTest : public testing::Test {
 protected:
  LogOptions With(SmallTable* table) {
    LogOptions options = SmallLog();
    options.presence = table;
    return options;
  }
  void Open(LogOptions options = SmallLog(), std::uint32_t zones = kZonesHere) {
    device_ = FormattedDevice(zones, 1);
    log_ = OpenLog(*device_, std::move(options));
  }
  // After a loss of power.
  void Reopen(LogOptions options = SmallLog()) {
    OpenImage(device_->CutPower(), std::move(options));
  }
  void OpenImage(std::vector<std::byte> image, LogOptions options = SmallLog()) {
    log_.reset();
    device_ = std::make_unique<FakeDevice>(std::move(image), 2);
    log_ = OpenLog(*device_, std::move(options));
  }
  void PutSome(int from, int to, std::size_t size = 2000) {
    for (int i = from; i < to; ++i) {
      Status put = Put(*log_, *device_, Name(i), 1, size);
      for (int tries = 0; tries < 100'000 && !put && put.error().code == Code::kNoSpace; ++tries) {
        log_->Poll(0);
        put = Put(*log_, *device_, Name(i), 1, size);
      }
      ASSERT_TRUE(put) << i << " " << put.error().ToString();
    }
  }
  Status RemoveAll(int from, int to, int step = 1) {
    std::vector<std::string> keys;
    for (int i = from; i < to; i += step) keys.push_back(Name(i));
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    Status removed = Fail(Code::kLimit, "");
    for (int tries = 0; tries < 100'000; ++tries) {
      removed = WaitFor(*log_, *device_, [&](const Done& done) {
        const Status begun = log_->Remove(
            {.slot = kSlot, .generation = kGeneration, .name = "space", .keys = views}, done);
        if (!begun) done(begun);
      });
      if (removed ||
          (removed.error().code != Code::kLimit && removed.error().code != Code::kNoSpace)) {
        break;
      }
      log_->Flush();
      log_->Poll(0);
    }
    return removed;
  }
  Status Sync() {
    return WaitFor(*log_, *device_, [&](Done done) { log_->Sync(std::move(done)); });
  }
  Status Stop() {
    return WaitFor(*log_, *device_, [&](Done done) { log_->Stop(std::move(done)); });
  }
  // A disk as a kill in the middle of a move leaves it behind: two records of "key", and no
  // tombstone. The zone of the older one has so many other objects.
  void OpenUncovered(int objects) {
    Open();
    ASSERT_TRUE(Put(*log_, *device_, "key", 1, 500));
    PutSome(0, objects);
    ASSERT_TRUE(Put(*log_, *device_, "key", 2, 500, 1));
    ASSERT_TRUE(Stop());
    Reopen();
  }
  // Writes hang from now on, and the write queue has this number of free chunks.
  void FillQueue(std::uint64_t chunks) {
    device_->faults.writes_hang = true;
    const WriterOptions options = SmallLog().writer;
    const std::string value(3000, 'x');
    const std::span<const std::byte> bytes = std::as_bytes(std::span(value));
    for (int i = 0;
         log_->space().queued_bytes + (chunks * options.chunk_bytes) < options.queue_bytes; ++i) {
      ASSERT_TRUE(log_->Put({.slot = kSlot,
                             .generation = kGeneration,
                             .version = 1,
                             .name = "space",
                             .key = "queued-" + std::to_string(i),
                             .value = std::span(&bytes, 1)},
                            [](const Status&) {}));
    }
  }
  bool Finds(const std::string& key) { return Get(*log_, *device_, key).miss == ReadMiss::kNone; }
  void Settle() {
    for (int i = 0; i < 20'000; ++i) log_->Poll(0);
    EXPECT_EQ(device_->in_flight(), 0U);
  }
  std::uint64_t ByteOf(const Place& place) const {
    return kZonesStart + (place.zone * kSmallZone) + (place.offset_units * kUnitBytes);
  }
  std::set<std::string> Walked() {
    std::set<std::string> keys;
    for (std::uint32_t zone = 0; zone < log_->space().zones; ++zone) {
      Status walked = Fail(Code::kInProgress, "");
      while (!walked && walked.error().code == Code::kInProgress) {
        std::set<std::string> found;
        walked = WaitFor(*log_, *device_, [&](Done done) {
          log_->Walk(
              zone, [&](const LiveObject& object) { found.emplace(object.key); }, std::move(done));
        });
        if (walked) keys.merge(found);
        log_->Poll(0);
      }
      EXPECT_TRUE(walked) << walked.error().ToString();
    }
    return keys;
  }

  std::unique_ptr<FakeDevice> device_;
  std::unique_ptr<Log> log_;
};

// ---- forgetting

TEST_F(ForgettingTest, ARecordThatWasReadDamagedDoesNotComeBack) {
  SmallTable table(1000);
  Open(With(&table));
  PutSome(0, 3);
  ASSERT_TRUE(Sync());
  const std::uint64_t byte = ByteOf(log_->Find(kSlot, kGeneration, Name(1))->place) + 500;
  device_->FlipBit(byte, 3);
  EXPECT_EQ(Get(*log_, *device_, Name(1)).miss, ReadMiss::kCorrupt);
  EXPECT_TRUE(table.Has(*log_, Name(1))) << "its key must not be stored again yet";
  EXPECT_FALSE(log_->Find(kSlot, kGeneration, Name(1)));
  ASSERT_TRUE(PollUntil(*log_, *device_, [&] { return !table.Has(*log_, Name(1)); }));
  device_->FlipBit(byte, 3);  // a cable that was loose
  Reopen();
  EXPECT_FALSE(Finds(Name(1)));
  EXPECT_TRUE(Finds(Name(0)) && Finds(Name(2)));
}

TEST_F(ForgettingTest, WhatIsStoredAgainWhileItIsForgottenIsFound) {
  Open();
  PutSome(0, 2);
  const std::uint64_t byte = ByteOf(log_->Find(kSlot, kGeneration, Name(1))->place) + 500;
  device_->FlipBit(byte, 3);
  EXPECT_EQ(Get(*log_, *device_, Name(1)).miss, ReadMiss::kCorrupt);
  ASSERT_TRUE(Put(*log_, *device_, Name(1), 2, 900));
  Settle();
  EXPECT_EQ(Get(*log_, *device_, Name(1)).value, ValueOf(Name(1), 2, 900));
  ASSERT_TRUE(Sync());
  Reopen();
  EXPECT_EQ(Get(*log_, *device_, Name(1)).value, ValueOf(Name(1), 2, 900));
}

TEST_F(ForgettingTest, WhatHasNoPlaceInTheTableDoesNotComeBack) {
  SmallTable table(5);
  Open(With(&table));
  PutSome(0, 5);
  EXPECT_EQ(Put(*log_, *device_, Name(5), 1, 100).error().code, Code::kLimit);
  EXPECT_FALSE(Finds(Name(5)));
  Reopen();
  EXPECT_FALSE(Finds(Name(5)));
  EXPECT_TRUE(Finds(Name(4)));
}

TEST_F(ForgettingTest, WhatHadNoPlaceAtAStartDoesNotComeBackAtTheNext) {
  Open();
  PutSome(0, 60);
  ASSERT_TRUE(Stop());
  SmallTable table(40);
  Reopen(With(&table));
  std::set<int> there;
  for (int i = 0; i < 60; ++i) {
    if (Finds(Name(i))) there.insert(i);
  }
  EXPECT_LE(there.size(), 40U);
  EXPECT_GT(there.size(), 0U);
  Reopen();
  for (int i = 0; i < 60; ++i) EXPECT_EQ(Finds(Name(i)), there.contains(i)) << i;
}

// The device reports an error, and the bytes are there all the same.
TEST_F(ForgettingTest, APutThatFailedDoesNotComeBack) {
  Open();
  PutSome(0, 3);
  device_->faults.write_error = EIO;
  device_->faults.lands = true;
  Status outcome;
  bool done = false;
  const std::string value = ValueOf("bad", 1, 100);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(value));
  ASSERT_TRUE(log_->Put({.slot = kSlot,
                         .generation = kGeneration,
                         .version = 1,
                         .name = "space",
                         .key = "bad",
                         .value = std::span(&bytes, 1)},
                        [&](const Status& status) {
                          outcome = status;
                          done = true;
                        }));
  log_->Flush();
  const std::uint64_t errors = log_->counters().write_errors;
  ASSERT_TRUE(PollUntil(*log_, *device_, [&] { return log_->counters().write_errors > errors; }));
  device_->faults.write_error = 0;
  EXPECT_FALSE(done) << "its record may come back until the tombstone is durable";
  ASSERT_TRUE(PollUntil(*log_, *device_, [&] { return done; }));
  EXPECT_EQ(outcome.error().code, Code::kUnavailable);
  Reopen();
  EXPECT_FALSE(Finds("bad"));
  EXPECT_TRUE(Finds(Name(2)));
}

TEST_F(ForgettingTest, ADiskThatCannotForgetProvesNothingMore) {
  Open();
  PutSome(0, 3);
  device_->faults.write_error = EIO;
  EXPECT_EQ(Put(*log_, *device_, "bad", 1, 100).error().code, Code::kUnavailable);
  EXPECT_TRUE(log_->unproven());
  device_->faults.write_error = 0;
  EXPECT_EQ(Remove(*log_, *device_, Name(1)).error().code, Code::kUnavailable);
  EXPECT_FALSE(Sync());
}

// A tombstone that failed is not taken for one that was not needed.
TEST_F(ForgettingTest, ARemovalThatFailedIsNotProvenWhenItIsRepeated) {
  Open();
  PutSome(0, 3);
  ASSERT_TRUE(Sync());
  device_->faults.sync_error = EIO;
  EXPECT_FALSE(Remove(*log_, *device_, Name(1)));
  device_->faults.sync_error = 0;
  EXPECT_FALSE(Remove(*log_, *device_, Name(1)));
}

// The kernel reports a lost write to one sync only. A removal by pattern whose keys an earlier one
// has taken is proven by a sync of its own.
TEST_F(ForgettingTest, NoSyncThatWasUnderWayWhenAnotherFailedProvesARemoval) {
  Open();
  PutSome(0, 3);
  ASSERT_TRUE(Sync());
  const std::string key = Name(1);
  const std::string_view view = key;
  int proven = 0;
  int ended = 0;
  const auto end = [&](const Status& status) {
    ++ended;
    if (status) ++proven;
  };
  ASSERT_TRUE(log_->Remove(
      {.slot = kSlot, .generation = kGeneration, .name = "space", .keys = {&view, 1}}, end));
  log_->Sync(end);
  log_->Sync(end);
  const std::uint64_t syncs = log_->counters().syncs;
  ASSERT_TRUE(PollUntil(*log_, *device_, [&] { return log_->counters().syncs == syncs + 3; }));
  ASSERT_EQ(ended, 0) << "all three are under way";
  device_->faults.sync_error = EIO;
  ASSERT_TRUE(PollUntil(*log_, *device_, [&] { return ended > 0; }));
  device_->faults.sync_error = 0;
  ASSERT_TRUE(PollUntil(*log_, *device_, [&] { return ended == 3; }));
  EXPECT_EQ(proven, 0);
}

// ---- removals

TEST_F(ForgettingTest, RemovalsOfAbsentKeysWriteNothing) {
  Open();
  PutSome(0, 50);
  ASSERT_TRUE(Remove(*log_, *device_, Name(7)));
  Settle();
  const std::uint64_t changes = device_->changes();
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(RemoveAll(100'000 + (i * 1000), 101'000 + (i * 1000)));
  ASSERT_TRUE(Remove(*log_, *device_, Name(7))) << "it is removed already";
  EXPECT_EQ(device_->changes(), changes);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(Finds(Name(i)), i != 7) << i;
}

TEST_F(ForgettingTest, ARepeatedRemovalWaitsForTheFirst) {
  Open();
  PutSome(0, 3);
  ASSERT_TRUE(Sync());
  int ended = 0;
  const std::string key = Name(1);
  const std::string_view view = key;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(log_->Remove(
        {.slot = kSlot, .generation = kGeneration, .name = "space", .keys = std::span(&view, 1)},
        [&](const Status& status) { ended += status ? 1 : 0; }));
    EXPECT_EQ(ended, 0);
  }
  EXPECT_EQ(log_->counters().tombstones, 1U);
  ASSERT_TRUE(PollUntil(*log_, *device_, [&] { return ended == 2; }));
  Reopen();
  EXPECT_FALSE(Finds(key));
}

TEST_F(ForgettingTest, AnUncoveredZoneDoesNotMakeRemovalsOfAbsentKeysCostlyForEver) {
  ASSERT_NO_FATAL_FAILURE(OpenUncovered(40));
  for (int round = 0; round < 100; ++round) ASSERT_TRUE(RemoveAll(10'000, 10'020)) << round;
  Settle();
  EXPECT_LE(log_->counters().tombstones, 400U);
  const std::uint64_t written = log_->counters().written_bytes;
  ASSERT_TRUE(RemoveAll(10'000, 12'000));
  EXPECT_EQ(log_->counters().written_bytes, written);
  EXPECT_EQ(Get(*log_, *device_, "key").version, 2U);
  EXPECT_EQ(log_->space().tombstone_bytes, 0U);
}

// A walk holds moves up: all of the zone's objects would be dropped.
TEST_F(ForgettingTest, AnUncoveredZoneWaitsForAWalk) {
  ASSERT_NO_FATAL_FAILURE(OpenUncovered(20));
  log_->HoldMoves();
  for (int round = 0; round < 20; ++round) ASSERT_TRUE(RemoveAll(10'000, 10'020)) << round;
  Settle();
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(Finds(Name(i))) << i;
  log_->ReleaseMoves();
}

// Each attempt of a removal that finds room for one copy only would leave that one behind.
TEST_F(ForgettingTest, ARemovalThatIsRefusedWritesNeitherCopy) {
  Open();
  PutSome(0, 1);
  FillQueue(1);
  const std::uint32_t free_zones = log_->space().free_zones;
  const std::string key = Name(0);
  const std::string_view view = key;
  const Status removed = log_->Remove(
      {.slot = kSlot, .generation = kGeneration, .name = "space", .keys = std::span(&view, 1)},
      [](const Status&) {});
  ASSERT_FALSE(removed);
  EXPECT_EQ(removed.error().code, Code::kLimit);
  EXPECT_EQ(log_->space().free_zones, free_zones) << "a zone was opened for one copy";
  device_->faults.writes_hang = false;
  ASSERT_TRUE(RemoveAll(0, 1));
}

// A removal by pattern walks the zones. It must not be proven before the tombstone of a match that
// the walk does not list any more.
TEST_F(ForgettingTest, AWalkWaitsForTombstonesThatFindNoRoom) {
  Open();
  PutSome(0, 3);
  ASSERT_TRUE(Stop());
  Reopen();
  const Place place = log_->Find(kSlot, kGeneration, Name(1))->place;
  FillQueue(0);
  device_->FlipBit(ByteOf(place) + 500, 3);
  EXPECT_EQ(Get(*log_, *device_, Name(1)).miss, ReadMiss::kCorrupt);
  const Status walked = WaitFor(*log_, *device_, [&](Done done) {
    log_->Walk(place.zone, [](const LiveObject&) {}, std::move(done));
  });
  ASSERT_FALSE(walked);
  EXPECT_EQ(walked.error().code, Code::kInProgress);
  device_->faults.writes_hang = false;
  EXPECT_FALSE(Walked().contains(Name(1)));
  EXPECT_TRUE(Walked().contains(Name(2)));
}

// A place of the medium that cannot be read would fail each get of its key, which nobody could
// store again; eight in a row have an owner set the disk aside.
TEST_F(ForgettingTest, ARecordThatCannotBeReadTwiceIsForgotten) {
  SmallTable table(1000);
  Open(With(&table));
  PutSome(0, 10);
  const Place place = log_->Find(kSlot, kGeneration, Name(3))->place;
  device_->faults.bad_from = ByteOf(place);
  device_->faults.bad_to = ByteOf(place) + 1;
  device_->faults.bad_reads = true;
  EXPECT_EQ(Get(*log_, *device_, Name(3)).miss, ReadMiss::kIoError);
  Settle();
  EXPECT_TRUE(table.Has(*log_, Name(3))) << "the device may have failed for a moment";
  EXPECT_EQ(Get(*log_, *device_, Name(3)).miss, ReadMiss::kIoError);
  Settle();
  EXPECT_FALSE(table.Has(*log_, Name(3)));
  ASSERT_TRUE(Put(*log_, *device_, Name(3), 2, 2000));
  EXPECT_EQ(Get(*log_, *device_, Name(3)).version, 2U);
  ASSERT_TRUE(Sync());
  Reopen();
  EXPECT_EQ(Get(*log_, *device_, Name(3)).version, 2U);
}

TEST_F(ForgettingTest, AReadThatSucceedsClearsTheFailureBefore) {
  Open();
  PutSome(0, 1);
  for (int i = 0; i < 3; ++i) {
    device_->faults.read_error = EIO;
    EXPECT_EQ(Get(*log_, *device_, Name(0)).miss, ReadMiss::kIoError);
    device_->faults.read_error = 0;
    EXPECT_TRUE(Finds(Name(0)));
  }
}

// One object that stays for ever, and others that come and go around it.
TEST_F(ForgettingTest, TombstonesGoWithTheRecordsThatTheyCover) {
  Open();
  PutSome(0, 1);
  for (int round = 1; round <= 60; ++round) {
    PutSome(round * 10, (round * 10) + 10, 3000);
    ASSERT_TRUE(RemoveAll(round * 10, (round * 10) + 10)) << round;
  }
  Settle();
  EXPECT_TRUE(Finds(Name(0))) << "nobody has removed it";
  EXPECT_EQ(log_->counters().dropped_objects, 0U);
  EXPECT_GE(log_->space().free_zones, 8U);
  const std::uint64_t written = log_->counters().written_bytes;
  Settle();
  EXPECT_EQ(log_->counters().written_bytes, written) << "an idle disk writes nothing";
}

// The worst case: tombstones are as large as what they cover, and the disk is small.
TEST_F(ForgettingTest, SmallValuesThatComeAndGoNeverFillTheDisk) {
  for (const std::uint32_t zones : {kMinZones, 16U}) {
    SCOPED_TRACE(zones);
    Open(SmallLog(), zones);
    for (int round = 0; round < 60; ++round) {
      PutSome(round * 200, (round * 200) + 200, 1);
      if (testing::Test::HasFatalFailure()) return;
      const Status removed = RemoveAll(round * 200, (round * 200) + 190);
      ASSERT_TRUE(removed) << round << " " << removed.error().ToString();
    }
    Settle();
    const std::uint64_t written = log_->counters().written_bytes;
    Settle();
    EXPECT_EQ(log_->counters().written_bytes, written);
    Reopen();
    for (int i = 0; i < 60 * 200; ++i) {
      if (i % 200 < 190) {
        ASSERT_FALSE(log_->Find(kSlot, kGeneration, Name(i))) << i;
      }
    }
  }
}

// A zone may have two records of a key, and a tombstone of the first one only.
TEST_F(ForgettingTest, ATombstoneOfAnEarlierRecordCoversNoLaterOneOfItsZone) {
  Open();
  ASSERT_TRUE(Put(*log_, *device_, "key", 1, 500));
  ASSERT_TRUE(Remove(*log_, *device_, "key"));
  ASSERT_TRUE(Put(*log_, *device_, "key", 2, 500));
  const std::uint32_t first = log_->Find(kSlot, kGeneration, "key")->place.zone;
  ASSERT_TRUE(Put(*log_, *device_, "key", 3, 500, 1));  // as a copy would lie in another zone
  ASSERT_NE(log_->Find(kSlot, kGeneration, "key")->place.zone, first);
  PutSome(0, 3);  // keeps the first zone from being dead
  ASSERT_TRUE(Sync());
  Reopen();
  ASSERT_TRUE(Remove(*log_, *device_, "key"));
  Settle();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Stop());
    Reopen();
    Settle();
    EXPECT_FALSE(Finds("key")) << i;
  }
}

// ---- damage

// A disk on which half of the objects were removed.
class DamageTest : public ForgettingTest {
 protected:
  static constexpr int kObjects = 120;

  void Make(bool stopped) {
    Open();
    PutSome(0, kObjects);
    ASSERT_TRUE(RemoveAll(0, kObjects, 2));
    ASSERT_TRUE(Sync());
    if (stopped) {
      ASSERT_TRUE(Stop());
    }
    zone_of_.clear();
    for (int i = 1; i < kObjects; i += 2) {
      const auto found = log_->Find(kSlot, kGeneration, Name(i));
      ASSERT_TRUE(found) << i << ", " << log_->space().free_zones << " free";
      zone_of_[i] = found->place.zone;
    }
    image_ = device_->CutPower();
    log_.reset();
  }
  std::span<std::byte> ZoneOf(std::vector<std::byte>& image, std::uint32_t zone) {
    return std::span(image).subspan(kZonesStart + (zone * kSmallZone), kSmallZone);
  }
  // The zones with tombstones of one of both streams.
  std::set<std::uint32_t> TombstoneZones(bool second) {
    std::set<std::uint32_t> zones;
    const std::uint8_t stream = SmallLog().writer.streams + (second ? 3 : 2);
    for (std::uint32_t i = 0; i < kZonesHere; ++i) {
      const Zone& zone = log_->zone(i);
      if (zone.state != ZoneState::kFree && zone.stream == stream) zones.insert(i);
    }
    return zones;
  }
  // Nothing removed is found, and nothing is lost but what lies in `zone`.
  void Check(std::uint32_t zone) {
    ASSERT_NE(log_, nullptr);
    for (int i = 0; i < kObjects; ++i) {
      const bool found = Finds(Name(i));
      if (i % 2 == 0) {
        EXPECT_FALSE(found) << i << " was removed";
      } else if (zone_of_[i] != zone) {
        EXPECT_TRUE(found) << i;
      }
    }
  }

  std::map<int, std::uint32_t> zone_of_;
  std::vector<std::byte> image_;
};

TEST_F(DamageTest, NoDamageOfAZoneBringsRemovedObjectsBackOrTakesOthers) {
  using Harm = std::function<void(std::span<std::byte>)>;
  const std::map<std::string, Harm> harms = {
      {"a bit of the header", [](auto zone) { zone[20] ^= std::byte{4}; }},
      {"the header's magic", [](auto zone) { zone[0] ^= std::byte{1}; }},
      {"a header of zeros",
       [](auto zone) { std::ranges::fill(zone.first(kBlockBytes), std::byte{0}); }},
      {"a bit of the trailer",
       [](auto zone) { zone[kSmallZone - kBlockBytes + 9] ^= std::byte{1}; }},
      {"no trailer", [](auto zone) { std::ranges::fill(zone.last(kBlockBytes), std::byte{0}); }},
      {"the first record", [](auto zone) { zone[kBlockBytes + 70] ^= std::byte{1}; }},
      {"a block of records",
       [](auto zone) {
         std::ranges::fill(zone.subspan(2 * kBlockBytes, kBlockBytes), std::byte{7});
       }},
      {"all of it", [](auto zone) { std::ranges::fill(zone, std::byte{0}); }},
      {"all of it, and noise", [](auto zone) { std::ranges::fill(zone, std::byte{0x5A}); }},
  };
  for (const bool stopped : {true, false}) {
    Make(stopped);
    for (const auto& [what, harm] : harms) {
      for (std::uint32_t zone = 0; zone < kZonesHere; ++zone) {
        SCOPED_TRACE(what + " of zone " + std::to_string(zone) + (stopped ? ", stopped" : ""));
        std::vector<std::byte> image = image_;
        harm(ZoneOf(image, zone));
        OpenImage(std::move(image));
        Check(zone);
        Reopen();
        Check(zone);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(DamageTest, ASummaryWithAFlippedBitCostsNothing) {
  Make(true);
  const std::set<std::string> all = [&] {
    OpenImage(image_);
    return Walked();
  }();
  EXPECT_EQ(all.size(), kObjects / 2U);
  for (std::uint32_t zone = 0; zone < kZonesHere; ++zone) {
    SCOPED_TRACE(zone);
    const auto trailer = ParseZoneTrailer(
        std::string_view(
            reinterpret_cast<const char*>(ZoneOf(image_, zone).last(kBlockBytes).data()),
            kBlockBytes),
        kSmallZone);
    if (!trailer) continue;
    const std::uint64_t table = trailer->summary_offset + (trailer->table_bytes / 2);
    const std::uint64_t keys = trailer->summary_offset +
                               AlignUp(trailer->table_bytes, kBlockBytes) +
                               (trailer->keys_bytes / 2);
    for (const std::uint64_t at : {table, keys}) {
      std::vector<std::byte> image = image_;
      ZoneOf(image, zone)[at] ^= std::byte{1};
      OpenImage(image);
      Check(kZonesHere);
      EXPECT_EQ(Walked(), all);
      ASSERT_TRUE(Stop());
      Reopen();
      EXPECT_EQ(log_->recovery().scanned, 0U) << "the walk has written it anew";
      Check(kZonesHere);
    }
  }
}

// Its record would be found again when the bit has flipped back, though a removal by pattern that
// walked the zone could not see it.
TEST_F(DamageTest, AZoneOfWhichAWalkCannotListEverythingIsFreed) {
  Make(true);
  OpenImage(image_);
  const Place place = log_->Find(kSlot, kGeneration, Name(1))->place;
  const auto trailer = ParseZoneTrailer(
      std::string_view(
          reinterpret_cast<const char*>(ZoneOf(image_, place.zone).last(kBlockBytes).data()),
          kBlockBytes),
      kSmallZone);
  ASSERT_TRUE(trailer);
  device_->FlipBit(ByteOf(place) + 500, 1);
  device_->FlipBit(kZonesStart + (place.zone * kSmallZone) + trailer->summary_offset +
                       AlignUp(trailer->table_bytes, kBlockBytes),
                   1);
  EXPECT_FALSE(WaitFor(*log_, *device_, [&](Done done) {
    log_->Walk(place.zone, [](const LiveObject&) {}, std::move(done));
  }));
  std::set<std::string> rest;
  for (const auto& [i, zone] : zone_of_) {
    if (zone != place.zone) rest.insert(Name(i));
    if (zone == place.zone) {
      EXPECT_FALSE(log_->Find(kSlot, kGeneration, Name(i))) << "read, it would keep the zone";
    }
  }
  EXPECT_EQ(Walked(), rest);
  device_->FlipBit(ByteOf(place) + 500, 1);
  Reopen();
  EXPECT_FALSE(Finds(Name(1)));
  Check(place.zone);
}

TEST_F(DamageTest, OneFlippedBitAnywhereCostsAtMostItsRecordOrZone) {
  Make(true);
  Random random(5);
  for (int round = 0; round < 400; ++round) {
    const std::uint64_t byte = random.Below(image_.size());
    const auto bit = static_cast<unsigned>(random.Below(8));
    SCOPED_TRACE("byte " + std::to_string(byte));
    const auto zone = static_cast<std::uint32_t>(
        byte < kZonesStart ? kZonesHere : (byte - kZonesStart) / kSmallZone);
    std::vector<std::byte> image = image_;
    image[byte] ^= std::byte{1} << bit;
    OpenImage(std::move(image));
    Check(zone);
    const std::set<std::string> walked = Walked();
    for (int i = 0; i < kObjects; i += 2) EXPECT_FALSE(walked.contains(Name(i)));
    if (HasFailure()) return;
  }
}

TEST_F(DamageTest, AZoneThatCannotBeReadIsFreed) {
  for (const bool stopped : {true, false}) {
    Make(stopped);
    for (std::uint32_t zone = 0; zone < kZonesHere; ++zone) {
      SCOPED_TRACE(zone);
      log_.reset();
      device_ = std::make_unique<FakeDevice>(image_, 3);
      device_->faults.bad_from = kZonesStart + (zone * kSmallZone);
      device_->faults.bad_to = device_->faults.bad_from + kSmallZone;
      device_->faults.bad_reads = true;
      log_ = OpenLog(*device_, SmallLog());
      Check(zone);
      std::set<int> lost;
      for (const auto& [i, its] : zone_of_) {
        if (!Finds(Name(i))) lost.insert(i);
      }
      Reopen();  // where it can be read again
      for (const int i : lost) EXPECT_FALSE(Finds(Name(i))) << i << " has come back";
      Check(zone);
      EXPECT_EQ(log_->space().lost_zones, 0U);
      if (HasFailure()) return;
    }
  }
}

// Each tombstone lies in two zones, of which one is lost at each start.
TEST_F(DamageTest, TombstonesAreWrittenTwiceAgainWhenAZoneOfThemIsLost) {
  Make(true);
  OpenImage(image_);
  for (int start = 0; start < 4; ++start) {
    for (const bool second : {false, true}) {
      const std::set<std::uint32_t> zones = TombstoneZones(second);
      ASSERT_FALSE(zones.empty()) << start;
      std::vector<std::byte> image = device_->CutPower();
      for (const std::uint32_t zone : zones) ZoneOf(image, zone)[20] ^= std::byte{4};
      OpenImage(std::move(image));
      Check(kZonesHere);
      Settle();
    }
  }
  const std::uint64_t written = log_->counters().written_bytes;
  Settle();
  EXPECT_EQ(log_->counters().written_bytes, written);
}

TEST_F(DamageTest, ADiskOfWhichTombstonesAreLostStartsEmpty) {
  Make(true);
  OpenImage(image_);
  std::vector<std::byte> image = image_;
  for (const bool second : {false, true}) {
    for (const std::uint32_t zone : TombstoneZones(second)) ZoneOf(image, zone)[20] ^= std::byte{4};
  }
  OpenImage(image);
  EXPECT_TRUE(log_->started_empty());
  EXPECT_EQ(log_->space().objects, 0U);
  EXPECT_EQ(log_->space().free_zones, kZonesHere);
  PutSome(0, 5);
  ASSERT_TRUE(Sync());
  image = device_->CutPower();
  OpenImage(image);
  EXPECT_FALSE(log_->started_empty()) << "nor is what is stored from here on lost";
  for (int i = 0; i < kObjects; ++i) EXPECT_EQ(Finds(Name(i)), i < 5) << i;
}

// The other superblock has the former number, and the damaged bits flip back.
TEST_F(DamageTest, ADiskThatWasEmptiedStaysSoWithOneSuperblock) {
  Make(true);
  OpenImage(image_);
  std::vector<std::byte> damaged = image_;
  std::set<std::uint32_t> zones = TombstoneZones(false);
  zones.merge(TombstoneZones(true));
  for (const std::uint32_t zone : zones) ZoneOf(damaged, zone)[20] ^= std::byte{4};
  OpenImage(damaged);
  ASSERT_TRUE(log_->started_empty());
  std::vector<std::byte> image = device_->CutPower();
  for (const std::uint32_t zone : zones) {
    const auto header = [&](std::vector<std::byte>& of) {
      return ZoneOf(of, zone).first(kBlockBytes);
    };
    std::ranges::copy(header(image_), header(image).begin());
  }
  image[(log_->superblock().sequence % 2 * kSuperblockBytes) + 30] ^= std::byte{1};
  OpenImage(std::move(image));
  for (int i = 0; i < kObjects; ++i) EXPECT_FALSE(Finds(Name(i))) << i;
}

// Were zones freed one by one, the next start would find some of them sound, and not know that
// tombstones had been lost.
TEST_F(DamageTest, ALossOfPowerWhileADiskIsEmptiedBringsNothingBack) {
  Make(true);
  OpenImage(image_);
  std::vector<std::byte> damaged = image_;
  for (const bool second : {false, true}) {
    for (const std::uint32_t zone : TombstoneZones(second)) {
      ZoneOf(damaged, zone)[20] ^= std::byte{4};
    }
  }
  for (std::uint64_t cut = 1;; ++cut) {
    SCOPED_TRACE(cut);
    log_.reset();
    device_ = std::make_unique<FakeDevice>(damaged, cut);
    auto log = Log::Open(*device_, SmallLog());
    ASSERT_TRUE(log);
    device_->faults.cut_at = device_->changes() + cut;
    for (int i = 0; i < 3000 && !device_->off(); ++i) (*log)->Poll(0);
    const bool over = !device_->off();
    std::vector<std::byte> image = device_->CutPower();
    log->reset();
    OpenImage(std::move(image));
    for (int i = 0; i < kObjects; i += 2) ASSERT_FALSE(Finds(Name(i))) << i;
    if (over) break;
    ASSERT_LT(cut, 200U);
  }
}

// The cleaner, which is short of space, chooses the zones of tombstones first.
TEST_F(DamageTest, TombstonesOutliveADeviceThatReadsNothingForAWhile) {
  Open();
  PutSome(0, kObjects);
  ASSERT_TRUE(RemoveAll(0, 4));
  ASSERT_TRUE(Stop());
  Reopen();
  device_->faults.read_error = EIO;
  for (int i = 1000; log_->counters().read_errors < 4 && i < 2000; ++i) PutSome(i, i + 1);
  Settle();
  device_->faults.read_error = 0;
  Reopen();
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(Finds(Name(i))) << i;
}

TEST_F(DamageTest, ATrailerThatCannotBeReadCostsAScan) {
  Make(true);
  const std::uint32_t zone = zone_of_.begin()->second;
  log_.reset();
  device_ = std::make_unique<FakeDevice>(image_, 3);
  device_->faults.bad_to = kZonesStart + ((zone + 1) * kSmallZone);
  device_->faults.bad_from = device_->faults.bad_to - kBlockBytes;
  device_->faults.bad_reads = true;
  log_ = OpenLog(*device_, SmallLog());
  EXPECT_EQ(log_->recovery().scanned, 1U);
  Check(kZonesHere);
}

TEST_F(DamageTest, AHeaderThatCannotBeReadForAMomentCostsNothing) {
  Make(true);
  log_.reset();
  device_ = std::make_unique<FakeDevice>(image_, 3);
  auto opened = Log::Open(*device_, SmallLog());
  ASSERT_TRUE(opened);
  log_ = *std::move(opened);
  device_->faults.bad_from = kZonesStart + (zone_of_.begin()->second * kSmallZone);
  device_->faults.bad_to = device_->faults.bad_from + kBlockBytes;
  device_->faults.bad_reads = true;
  const std::uint64_t reads = device_->reads();
  for (int i = 0; i < 10'000 && device_->reads() == reads; ++i) log_->Poll(0);
  device_->faults.bad_reads = false;
  ASSERT_TRUE(PollUntil(*log_, *device_, [&] { return log_->recovered(); }));
  Check(kZonesHere);
}

TEST_F(DamageTest, AZoneThatCanBeNeitherReadNorWrittenIsVoid) {
  Make(true);
  const std::uint32_t zone = zone_of_.begin()->second;
  log_.reset();
  device_ = std::make_unique<FakeDevice>(image_, 3);
  device_->faults.bad_from = kZonesStart + (zone * kSmallZone);
  device_->faults.bad_to = device_->faults.bad_from + kSmallZone;
  device_->faults.bad_reads = device_->faults.bad_writes = true;
  log_ = OpenLog(*device_, SmallLog());
  EXPECT_EQ(log_->space().lost_zones, 1U);
  Check(zone);
  PutSome(1000, 1020);
  EXPECT_EQ(log_->counters().write_errors, 2U) << "nothing else is written there";
  Reopen();  // where it can be read again
  EXPECT_EQ(log_->superblock().lost_zones, std::vector<std::uint32_t>{zone});
  for (const auto& [i, its] : zone_of_) EXPECT_FALSE(its == zone && Finds(Name(i))) << i;
  Check(zone);
  // Nor by damage of the last superblock.
  std::vector<std::byte> image = device_->CutPower();
  image[(log_->superblock().sequence % 2 * kSuperblockBytes) + 30] ^= std::byte{1};
  OpenImage(std::move(image));
  EXPECT_EQ(log_->space().lost_zones, 1U);
  for (const auto& [i, its] : zone_of_) EXPECT_FALSE(its == zone && Finds(Name(i))) << i;
}

// Its zone would be chosen again and again, and no other one.
TEST_F(DamageTest, AZoneWhoseHeaderCannotBeWrittenIsVoidAndTheOthersGoOn) {
  Make(true);
  OpenImage(image_);
  const std::uint32_t zone = zone_of_.begin()->second;
  device_->faults.bad_from = kZonesStart + (zone * kSmallZone);
  device_->faults.bad_to = device_->faults.bad_from + kBlockBytes;
  device_->faults.bad_writes = true;
  std::vector<std::string> keys;
  for (const auto& [i, its] : zone_of_) {
    if (its == zone) keys.push_back(Name(i));
  }
  for (const std::string& key : keys) ASSERT_TRUE(Remove(*log_, *device_, key));
  Settle();
  EXPECT_EQ(log_->space().lost_zones, 1U);
  EXPECT_FALSE(log_->unproven());
  Check(zone);
  ASSERT_TRUE(Remove(*log_, *device_, Name(kObjects - 1)));
  PutSome(1000, 1020);
  Reopen();
  for (const std::string& key : keys) EXPECT_FALSE(Finds(key)) << key;
  EXPECT_FALSE(Finds(Name(kObjects - 1)));
  EXPECT_TRUE(Finds(Name(1010)));
}

// If the superblocks cannot say so either, nothing on the disk is used.
TEST_F(DamageTest, AZoneThatCannotBeVoidedKeepsTheLogFromBeingUsed) {
  Make(true);
  log_.reset();
  device_ = std::make_unique<FakeDevice>(image_, 3);
  auto opened = Log::Open(*device_, SmallLog());
  ASSERT_TRUE(opened);
  log_ = *std::move(opened);
  device_->faults.bad_to = kZonesStart + kSmallZone;  // superblocks and the first zone
  device_->faults.bad_reads = device_->faults.bad_writes = true;
  ASSERT_TRUE(PollUntil(*log_, *device_, [&] { return log_->unproven(); }));
  for (int i = 0; i < 10'000; ++i) log_->Poll(0);
  EXPECT_FALSE(log_->recovered());
  EXPECT_EQ(Remove(*log_, *device_, Name(1)).error().code, Code::kUnavailable);
}

TEST_F(DamageTest, ASuperblockThatCannotBeReadCostsNothing) {
  Make(true);
  for (const std::uint64_t which : {0, 1}) {
    SCOPED_TRACE(which);
    log_.reset();
    device_ = std::make_unique<FakeDevice>(image_, 3);
    device_->faults.bad_from = which * kSuperblockBytes;
    device_->faults.bad_to = device_->faults.bad_from + kBlockBytes;
    device_->faults.bad_reads = true;
    log_ = OpenLog(*device_, SmallLog());
    Check(kZonesHere);
  }
  log_.reset();
  device_->faults.bad_from = 0;
  device_->faults.bad_to = 2 * kSuperblockBytes;
  EXPECT_EQ(Log::Open(*device_, SmallLog()).error().code, Code::kUnavailable);
}

// A disk that was emptied: the other superblock has the former number.
TEST_F(DamageTest, ADiskThatStartedEmptyStaysSoWithOneSuperblock) {
  Make(true);
  LogOptions other = SmallLog();
  other.incarnation.low = 99;
  for (int which = 0; which < 2; ++which) {
    OpenImage(image_, other);
    ASSERT_TRUE(log_->started_empty());
    std::vector<std::byte> image = device_->CutPower();
    image[(static_cast<std::uint64_t>(which) * kSuperblockBytes) + 30] ^= std::byte{1};
    OpenImage(std::move(image), other);
    EXPECT_EQ(log_->space().objects, 0U);
    EXPECT_EQ(log_->superblock().incarnation, other.incarnation);
  }
}

}  // namespace
}  // namespace kvcove::disklog
