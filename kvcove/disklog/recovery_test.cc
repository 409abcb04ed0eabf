// SPDX-License-Identifier: Apache-2.0
// A workload whose power is cut at every write and every sync. Whatever the disk keeps of what was
// not synced: what is found afterwards is what was put, nothing that a removal or a reset ended is
// found, and everything synced is.
#include "kvcove/disklog/log_fixture.h"

namespace kvcove::disklog {
namespace {

constexpr std::uint32_t kFoundZones = 10;

// What must hold of a key, as far as the workload came.
struct KeyState {
  std::uint64_t last = 0;           // the newest version that was begun
  std::uint64_t removed_up_to = 0;  // acknowledged: these must never be found
  std::uint64_t synced = 0;         // acknowledged: this or a newer one is there
  std::size_t size = 0;
};

class Workload {
 public:
  Workload(FakeDevice& device, std::uint64_t seed) : device_(device), random_(seed) {}

  // Until the power goes or all is done.
  void Run(int steps, bool room) {
    LogOptions options = SmallLog();
    options.cleaner.worth_moving = [](const LiveObject& object, const MoveFacts&) {
      return Hash64(object.key, 1) % 4 == 0;
    };
    options.cleaner.on_dropped = [this](const LiveObject& object) {
      keys[std::string(object.key)].synced = 0;
    };
    auto opened = Log::Open(device_, std::move(options));
    if (!opened) return;
    log_ = *std::move(opened);
    if (!PollUntil(*log_, device_, [&] { return log_->recovered(); })) return;
    for (int i = 0; i < steps && !device_.off(); ++i) Step(room);
    if (!device_.off()) Stop();
    for (auto& [key, state] : keys) NoteGoing(key, state);
  }

  std::map<std::string, KeyState> keys;

 private:
  void Step(bool room) {
    const std::string key = "k" + std::to_string(random_.Below(room ? 12 : 40));
    KeyState& state = keys[key];
    const std::uint64_t what = random_.Below(20);
    if (what < 12) {
      PutOne(key, state);
    } else if (what < 15) {
      if (Remove(*log_, device_, key)) {
        state.removed_up_to = state.last;
        state.synced = 0;
      } else {
        state.synced = 0;  // begun: it may have happened
      }
    } else if (what < 18) {
      SyncAll();
    } else {
      for (int i = 0; i < 50; ++i) log_->Poll(0);
    }
  }

  // What is left in a zone that is being freed goes with it, or does not, also if it is replaced
  // meanwhile.
  void NoteGoing(const std::string& key, KeyState& state) {
    const auto found = log_->Find(kSlot, kGeneration, key);
    if (!found) return;
    const ZoneState zone = log_->zone(found->place.zone).state;
    if (zone == ZoneState::kCleaning || zone == ZoneState::kFreeing) state.synced = 0;
  }
  void PutOne(const std::string& key, KeyState& state) {
    NoteGoing(key, state);
    const std::uint64_t version = state.last + 1;
    state.size = 1 + random_.Below(9000);
    state.last = version;
    sizes[{key, version}] = state.size;
    const Status put =
        Put(*log_, device_, key, version, state.size, static_cast<std::uint8_t>(random_.Below(2)));
    if (put) {
      written_[key] = version;
    } else {
      state.last = version;
    }
  }

  void SyncAll() {
    const auto written = written_;
    if (!WaitFor(*log_, device_, [&](Done done) { log_->Sync(std::move(done)); })) return;
    for (const auto& [key, version] : written) {
      KeyState& state = keys[key];
      // Evicted or removed meanwhile, or still there.
      const auto found = log_->Find(kSlot, kGeneration, key);
      if (found && version > state.removed_up_to) state.synced = version;
    }
  }

  void Stop() {
    (void)WaitFor(*log_, device_, [&](Done done) { log_->Stop(std::move(done)); });
  }

  FakeDevice& device_;
  Random random_;
  std::unique_ptr<Log> log_;
  std::map<std::string, std::uint64_t> written_;

 public:
  std::map<std::pair<std::string, std::uint64_t>, std::size_t> sizes;
};

// `honest`: syncs were syncs, so what was acknowledged holds.
void CheckAfter(const Workload& workload, std::vector<std::byte> image, bool honest,
                std::uint64_t seed) {
  FakeDevice device(std::move(image), seed);
  std::set<std::string> evicted;  // by this log, to have free zones
  LogOptions options = SmallLog();
  options.cleaner.on_dropped = [&](const LiveObject& object) { evicted.emplace(object.key); };
  auto opened = Log::Open(device, std::move(options));
  if (!opened) {
    EXPECT_FALSE(honest) << opened.error().ToString();
    return;
  }
  Log& log = **opened;
  ASSERT_TRUE(PollUntil(log, device, [&] { return log.recovered(); }));
  SCOPED_TRACE("zones " + std::to_string(log.recovery().zones) + ", scanned " +
               std::to_string(log.recovery().scanned) + ", damaged " +
               std::to_string(log.recovery().damaged) + ", objects " +
               std::to_string(log.recovery().objects) + ", dead " +
               std::to_string(log.recovery().dead_objects));
  for (const auto& [key, state] : workload.keys) {
    const Read read = Get(log, device, key);
    if (read.miss != ReadMiss::kNone) {
      EXPECT_FALSE(honest && state.synced != 0 && !evicted.contains(key))
          << key << " was synced as version " << state.synced
          << " and is a miss: " << ReadMissName(read.miss);
      continue;
    }
    const auto size = workload.sizes.find({key, read.version});
    ASSERT_NE(size, workload.sizes.end()) << key << " has a version that was never put";
    EXPECT_EQ(read.value, ValueOf(key, read.version, size->second));
    if (!honest) continue;
    EXPECT_GT(read.version, state.removed_up_to) << key << " was removed";
    EXPECT_GE(read.version, state.synced) << key;
  }
  // And it works.
  const std::string key = "after";
  Status put = Put(log, device, key, 1, 3000);
  for (int i = 0; i < 100'000 && !put && put.error().code == Code::kNoSpace; ++i) {
    log.Poll(0);
    put = Put(log, device, key, 1, 3000);
  }
  EXPECT_TRUE(put) << put.error().ToString();
  EXPECT_EQ(Get(log, device, key).value, ValueOf(key, 1, 3000));
}

std::uint64_t ChangesOf(std::uint64_t seed, int steps, bool room) {
  const auto device = FormattedDevice(kFoundZones, seed);
  Workload workload(*device, seed);
  workload.Run(steps, room);
  return device->changes();
}

void CutEverywhere(std::uint64_t seed, int steps, bool room) {
  const std::uint64_t changes = ChangesOf(seed, steps, room);
  ASSERT_GT(changes, 50U);
  for (std::uint64_t cut = 5; cut <= changes + 1; ++cut) {  // the format's own are not cut
    SCOPED_TRACE("seed " + std::to_string(seed) + ", cut at change " + std::to_string(cut));
    const auto device = FormattedDevice(kFoundZones, seed);
    device->faults.cut_at = cut;
    Workload workload(*device, seed);
    workload.Run(steps, room);
    CheckAfter(workload, device->CutPower(), true, seed + cut);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(RecoveryTest, ACutAtEveryWriteOfAWorkloadThatFits) {
  for (std::uint64_t seed = 1; seed <= 2; ++seed) CutEverywhere(seed, 60, true);
}

TEST(RecoveryTest, ACutAtEveryWriteOfAWorkloadThatCleansZones) {
  for (std::uint64_t seed = 11; seed <= 12; ++seed) CutEverywhere(seed, 130, false);
}

TEST(RecoveryTest, ADiskThatLiesCostsMissesAndNoWrongByte) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    const auto device = FormattedDevice(kFoundZones, seed);
    const std::uint64_t changes = ChangesOf(seed, 100, false);
    device->faults.lies = true;
    device->faults.cut_at = 5 + (seed * 7919 % changes);
    Workload workload(*device, seed);
    workload.Run(100, false);
    CheckAfter(workload, device->CutPower(), false, seed);
  }
}

TEST(RecoveryTest, AMisdirectedWriteCostsMissesAndNoWrongByte) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    const auto device = FormattedDevice(kFoundZones, seed);
    device->faults.misdirect = 10;
    Workload workload(*device, seed);
    workload.Run(100, false);
    device->faults.misdirect = 0;
    CheckAfter(workload, device->CutPower(), false, seed);
  }
}

// Each byte of each record, one flipped bit at a time, in turn over all eight.
TEST(RecoveryTest, EveryFlippedBitIsSeen) {
  const auto device = FormattedDevice(8, 1);
  std::vector<Place> places;
  {
    const auto log = OpenLog(*device, SmallLog());
    for (const std::size_t size : {1, 100, 700}) {
      const std::string key = "k" + std::to_string(size);
      ASSERT_TRUE(Put(*log, *device, key, 1, size));
      places.push_back(log->Find(kSlot, kGeneration, key)->place);
    }
    ASSERT_TRUE(WaitFor(*log, *device, [&](Done done) { log->Stop(std::move(done)); }));
  }
  const std::vector<std::byte> image = device->CutPower();
  std::uint64_t flips = 0;
  for (const Place& place : places) {
    for (std::uint64_t byte = 0; byte < place.record_bytes; ++byte) {
      FakeDevice damaged(image, 1);
      damaged.FlipBit(
          kZonesStart + (place.zone * kSmallZone) + (place.offset_units * kUnitBytes) + byte,
          static_cast<unsigned>(flips++ % 8));
      const auto log = OpenLog(damaged, SmallLog());
      int hits = 0;
      for (const std::size_t size : {1, 100, 700}) {
        const std::string key = "k" + std::to_string(size);
        const Read read = Get(*log, damaged, key);
        if (read.miss != ReadMiss::kNone) {
          EXPECT_EQ(read.miss, ReadMiss::kCorrupt);
          EXPECT_EQ(Get(*log, damaged, key).miss, ReadMiss::kAbsent);  // forgotten
          continue;
        }
        ++hits;
        EXPECT_EQ(read.value, ValueOf(key, 1, size));
      }
      EXPECT_EQ(hits, 2) << "byte " << byte;
      EXPECT_EQ(log->counters().corrupt, 1U);
    }
  }
}

}  // namespace
}  // namespace kvcove::disklog
