// SPDX-License-Identifier: Apache-2.0
// Both tiers of an owner without threads: a core, and a log on the tests' device. The owner's part
// of a promotion is written out here as promotions.cc has it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcove/disklog/fake_device.h"
#include "kvcove/owner/core/core_fixture.h"
#include "kvcove/owner/disk/disk_thread.h"

namespace kvcove::owner {

inline constexpr std::uint64_t kMemory = 64 << 10;
inline constexpr std::uint32_t kValue = 4000;  // so that 15 fit
inline constexpr std::uint64_t kZone = 64 << 10;
inline constexpr SlotId kSlot = 3;
inline const disklog::FormatOptions kFormat{
    .pool = {.high = 5, .low = 6}, .incarnation = kTestIncarnation, .zone_bytes = kZone};

inline std::string ValueOf(std::uint64_t id) {
  Random random(id);
  std::string value(kValue, '\0');
  for (char& byte : value) byte = static_cast<char>(random.Next());
  return value;
}

class Tiers final : public Promoter {
 public:
  explicit Tiers(std::unique_ptr<disklog::FakeDevice> device, Generation generation = kFirst,
                 TieringOptions options = {.queue_bytes = 128 << 10},
                 const DemotionOptions& demotions = {}, std::uint64_t places = 4096)
      : sizes_{.max_objects = 64, .payload_bytes = kMemory, .tier_objects = places},
        header_(segment::HeaderFileBytes(sizes_)),
        payload_(kMemory),
        generation_(generation) {
    EXPECT_TRUE(segment::FormatHeader(header_.data(), sizes_, {.high = 1, .low = 2}, 3));
    view = *segment::HeaderView::Open(header_.data(), header_.size());
    common_.emplace(view.tier(), demotions, options.quotas, clock.NowNs());
    tiering.emplace(options, *common_, view, Payload(), clock);
    core = *Core::Open(
        {.payload_bytes = kMemory, .max_objects = 64, .policy = "lru", .lower = &*tiering}, view,
        payload_.data(), clock);
    core->AddPayloadBelow(kMemory);
    core->RenewLease(clock.NowNs() + 3600 * kSecond);
    session = core->AddSession(nullptr, 1);
    promoter_ = core->AddPromoter();
    Publish();
    OpenDisk(std::move(device), [this] { tiering->use().SetOn(); });
  }

  static std::unique_ptr<disklog::FakeDevice> Formatted(std::uint64_t seed,
                                                        std::uint32_t zones = 40) {
    auto device =
        std::make_unique<disklog::FakeDevice>(disklog::kZonesStart + (zones * kZone), seed);
    EXPECT_TRUE(disklog::Format(*device, kFormat));
    return device;
  }

  void Publish() {
    const std::vector<SlotUpdate> updates = {
        {.slot = kSlot, .generation = generation_, .name = "m"}};
    core->SetSlots(kTestIncarnation, updates);
    tiering->removals().SetSlots(updates);
  }
  void Reset() {
    generation_ += 1ULL << 24;
    Publish();
  }
  Token token() const {
    return {.incarnation = kTestIncarnation, .generation = generation_, .slot = kSlot};
  }
  Generation generation() const { return generation_; }
  DiskShared& common() { return *common_; }

  Code Put(const std::string& key, std::uint64_t id) {
    const std::string value = ValueOf(id);
    const PutItem item{
        .key = key, .size_bytes = kValue, .value = std::as_bytes(std::span(value)), .after = {}};
    return core->Put(session, token(), {&item, 1}).front().code;
  }
  // Puts others until it is in memory no more.
  void Evict(const std::string& key) {
    for (int i = 0; i < 100 && InMemory(key); ++i) Put("other" + std::to_string(others_++), 1);
    ASSERT_FALSE(InMemory(key));
  }
  void Write(std::span<const Extent> extents, std::span<const std::byte> value) const {
    for (const Extent& extent : extents) {
      const std::span<std::byte> room = Payload().At(extent);
      const std::size_t count = std::min(room.size(), value.size());
      std::memcpy(room.data(), value.data(), count);
      value = value.subspan(count);
    }
  }
  Code Finish(SessionNumber of, std::uint64_t reservation) const {
    const FinishItem commit{.reservation = reservation, .commit = true};
    return core->Finish(of, {&commit, 1}).front();
  }
  bool InMemory(const std::string& key) const { return core->StatObject(kSlot, key).has_value(); }
  bool OnDisk(const std::string& key) const { return view.tier().Holds(kSlot, generation_, key); }
  std::string Read(const std::string& key) const {
    const segment::Found found = view.Find(kSlot, {.key = key, .hash = view.HashKey(kSlot, key)});
    if (!found || found.generation != generation_) return "";
    Extent extents[segment::kMaxExtents];
    const std::uint32_t count = view.Extents(found, extents);
    std::string value;
    for (const Extent& extent : std::span(extents, count)) {
      const auto room = Payload().At(extent);
      value.append(reinterpret_cast<const char*>(room.data()), room.size());
    }
    return value.substr(0, found.meta.size_bytes());
  }

  std::shared_ptr<LoadBatch> BeginLoad(const std::string& key,
                                       std::int64_t wait_ns = 10 * kSecond) {
    auto batch = std::make_shared<LoadBatch>();
    batch->deadline_ns = clock.NowNs() + wait_ns;
    batch->session = session;
    batch->hold_until_ns = batch->deadline_ns;
    batch->done = [raw = batch.get()](std::vector<wire::LoadResult> results) {
      raw->results = std::move(results);
    };
    if (core->StatObject(kSlot, key)) {
      batch->results.push_back({.code = Code::kOk});
    } else {
      (void)tiering->loads().Add(
          batch, {.slot = kSlot, .generation = generation_, .key = key, .waiters = {}});
    }
    tiering->loads().Begin(batch);
    return batch;
  }
  // What a get gives: from memory, else from the disk.
  std::string Get(const std::string& key, MissReason* reason = nullptr) {
    if (InMemory(key)) return Read(key);
    const auto batch = BeginLoad(key);
    EXPECT_TRUE(Until([&] { return batch->answered; }));
    if (reason != nullptr) *reason = batch->results[0].reason;
    return batch->results[0].code == Code::kOk ? Read(key) : "";
  }

  std::shared_ptr<TierRemoval> BeginRemove(const std::string& key) {
    auto removal = std::make_shared<TierRemoval>();
    const std::string_view view_of = key;
    (void)core->Remove(kSlot, key);
    tiering->removals().Remove(kSlot, generation_, {&view_of, 1}, removal);
    return removal;
  }
  Status Proven(const TierRemoval& removal) {
    return tiering->removals().Await(removal, clock.NowNs());
  }
  Status Remove(const std::string& key) {
    const auto removal = BeginRemove(key);
    Until([&] { return Proven(*removal) || tiering->use().state().aside(); });
    return Proven(*removal);
  }
  std::shared_ptr<TierRemoval> BeginRemoveMatching(const std::string& pattern,
                                                   std::uint64_t* of_memory = nullptr) {
    tiering->removals().BeginMatching(kSlot, pattern);
    Core::Walk walk;
    std::uint64_t removed = 0;
    while (!walk.done) removed += core->RemoveMatching(kSlot, pattern, walk);
    if (of_memory != nullptr) *of_memory = removed;
    auto removal = std::make_shared<TierRemoval>();
    tiering->removals().RemoveMatching(kSlot, generation_, pattern, removal);
    return removal;
  }
  Result<std::uint64_t> RemoveMatching(const std::string& pattern) {
    std::uint64_t removed = 0;
    const auto removal = BeginRemoveMatching(pattern, &removed);
    Until([&] { return Proven(*removal) || tiering->use().state().aside(); });
    KVCOVE_TRY(Proven(*removal));
    return removed + removal->removed;
  }

  void Step() {
    disk->Step(0);
    clock.AdvanceNs(kMillisecond);
    tiering->use().Tick(clock.NowNs());
    core->CheckInvariants();
  }
  template <typename Done>
  bool Until(Done&& done) {
    for (int i = 0; i < 20'000; ++i) {
      if (done()) return true;
      if (device->off()) return false;
      Step();
    }
    return false;
  }
  bool Settle() {
    return Until([&] { return tiering->Idle() && disk->idle(); });
  }
  // It is set aside, and its device is replaced by one that works and holds the same.
  void Fail(std::uint64_t seed) {
    tiering->use().SetAside("a test");
    tiering->use().Struck();
    const std::span<const std::byte> bytes = device->bytes();
    image_ = std::make_unique<disklog::FakeDevice>(
        std::vector<std::byte>(bytes.begin(), bytes.end()), seed);
    disk.reset();
  }
  // As DiskThread does it: its content is used where it is `known` to have missed nothing. Whether
  // it is.
  bool UseAgain(bool known = true) {
    const bool reuse = known && tiering->use().MayReuse();
    if (!reuse) {
      disklog::FormatOptions format = kFormat;
      format.hash_seed = common_->tags.seed();
      EXPECT_TRUE(disklog::Format(*image_, format));
      EXPECT_TRUE(tiering->use().BeginNoteEmpty());
    }
    (void)tiering->removals().TakeOrders();
    OpenDisk(std::move(image_), [&] { EXPECT_TRUE(tiering->use().SetOnAgain(!reuse)); });
    return reuse;
  }
  // Of a disk that is set aside.
  std::unique_ptr<disklog::FakeDevice> TakeImage() { return std::move(image_); }
  // The device when the process is killed: what was in flight may be written yet.
  std::unique_ptr<disklog::FakeDevice> Killed(std::uint64_t seed) const {
    return std::make_unique<disklog::FakeDevice>(device->Abandon(), seed);
  }
  // The device without power, and nothing else.
  std::unique_ptr<disklog::FakeDevice> Cut(std::uint64_t seed) {
    return std::make_unique<disklog::FakeDevice>(device->CutPower(), seed);
  }

  FakeClock clock;
  segment::HeaderView view;
  std::optional<Tiering> tiering;
  std::unique_ptr<Core> core;
  disklog::FakeDevice* device = nullptr;
  std::unique_ptr<DiskWorker> disk;
  SessionNumber session = 0;
  std::function<void()> before_promotion = [] {};
  std::function<void()> during_promotion;  // if any: between its reservation and its commit

 private:
  segment::Payload Payload() const { return {.data = payload_.data(), .granule = view.granule()}; }
  void OpenDisk(std::unique_ptr<disklog::FakeDevice> made, const std::function<void()>& set_on) {
    device = made.get();
    const auto super = disklog::Log::ReadSuperblock(*made);
    ASSERT_TRUE(super);
    if (common_->tags.seed() == 0) common_->tags.Begin(super->hash_seed);
    tiering->log().Attach();
    disklog::LogOptions options{.pool = kFormat.pool,
                                .incarnation = kTestIncarnation,
                                .generations = tiering->removals().Generations(),
                                .presence = &tiering->log()};
    options.writer = {
        .queue_bytes = 64 << 10, .chunk_bytes = 16 << 10, .streams = 2, .reserved_zones = 2};
    // Small values in blocks of 4 KiB: the bound of an owner would leave nothing for moves.
    options.cleaner.write_amplification = 100;
    options.cleaner.worth_moving = [this](const disklog::LiveObject& object,
                                          const disklog::MoveFacts& facts) {
      return tiering->log().WorthMoving(object, facts);
    };
    auto watched = std::make_unique<WatchedDevice>(std::move(made), tiering->use().ages());
    auto log = disklog::Log::Open(*watched, options);
    ASSERT_TRUE(log) << log.error().ToString();
    for (int i = 0; i < 100'000 && !(*log)->recovered(); ++i) (*log)->Poll(0);
    ASSERT_TRUE((*log)->recovered());
    disk = std::make_unique<DiskWorker>(*tiering, std::move(watched), *std::move(log), *this, clock,
                                        TierDiskOptions{.read_bytes = 64 << 10, .streams = 2});
    set_on();
  }
  wire::LoadResult Promote(const Load& load, std::span<const std::byte> value) override {
    before_promotion();
    if (!tiering->loads().Wanted(load)) return {.code = Code::kMiss, .reason = MissReason::kRaced};
    const Token token{
        .incarnation = core->incarnation(), .generation = load.generation, .slot = load.slot};
    const bool whole = !during_promotion;
    const PutItem item{.key = load.key,
                       .size_bytes = static_cast<std::uint32_t>(value.size()),
                       .value = whole ? value : std::span<const std::byte>(),
                       .after = {}};
    const PutResult put = core->Put(promoter_, token, {&item, 1}).front();
    Code code = put.code;
    if (code == Code::kOk && !whole) {
      Write(put.extents, value);
      during_promotion();
      code = Finish(promoter_, put.reservation);
    }
    for (const auto& [holder, until_ns] : tiering->loads().HoldersOf(load)) {
      core->HoldKey(holder, load.slot, load.key, until_ns);
    }
    const bool there = code == Code::kOk || code == Code::kExists;
    return {.code = there ? Code::kOk : Code::kMiss, .reason = MissReason::kRaced};
  }

  Puts PutsUnderWay() override { return {.next = core->next_put(), .oldest = core->oldest_put()}; }

  const segment::HeaderSizes sizes_;
  const ZeroedMemory header_;
  const ZeroedMemory payload_;
  std::optional<DiskShared> common_;
  Generation generation_;
  std::unique_ptr<disklog::FakeDevice> image_;
  SessionNumber promoter_ = 0;
  int others_ = 0;
};

}  // namespace kvcove::owner
