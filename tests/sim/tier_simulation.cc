// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/tier_simulation.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "kvcove/owner/disk/disk_fixture.h"
#include "tests/random_bytes.h"

namespace kvcove::sim {
namespace {

using owner::LoadBatch;
using owner::Tiers;

constexpr std::uint64_t kKeys = 40;
constexpr std::uint32_t kZones = 14;  // of 64 KiB: zones are used again and again
constexpr std::uint32_t kMostBytes = 9000;
constexpr std::size_t kLateWriters = 4;

// A value says which put wrote it; all else of it follows from that.
struct Written {
  std::uint64_t key = 0;
  std::uint64_t epoch = 0;  // resets before its token was captured
  std::uint32_t bytes = 0;
  std::uint64_t stored = 0;  // its place among all that were acknowledged; 0: it was not
};

std::string ValueOf(std::uint64_t serial, std::uint32_t bytes) {
  std::string value = RandomBytes(serial, bytes);
  std::memcpy(value.data(), &serial, sizeof(serial));
  return value;
}

class TierWorld {
 public:
  explicit TierWorld(const TierSimOptions& options)
      : options_(options),
        random_(options.seed),
        flips_(options.seed % 4 == 0),
        blinks_(options.seed % 4 == 1),
        lies_(options.seed % 8 == 2),
        by_place_(options.seed / 4 % 2 == 0),
        fills_(options.seed / 8 % 2 == 0) {
    Start(Tiers::Formatted(random_.Next(), kZones));
  }

  TierReport Run() {
    for (step_ = 0; step_ < options_.steps && report_.violation.empty(); ++step_) Step();
    if (report_.violation.empty()) LeaveAlone();
    return report_;
  }

 private:
  struct Late {  // a put whose bytes are still being written
    std::uint64_t serial = 0;
    std::uint64_t reservation = 0;
    bool aside = false;  // the disk was set aside when it began
  };
  struct Up {  // a get that waits for the disk
    std::uint64_t key = 0;
    std::shared_ptr<LoadBatch> batch;
  };
  struct Removal {
    std::vector<std::uint64_t> keys;
    std::uint64_t before = 0;  // what was acknowledged by then is removed
    std::shared_ptr<owner::TierRemoval> on_disk;
  };

  static std::string KeyOf(std::uint64_t key) { return fmt::format("{}/{}", key % 4, key); }

  void Fail(const std::string& what) {
    if (!report_.violation.empty()) return;
    report_.violation = fmt::format("seed {}, step {}: {}", options_.seed, step_, what);
  }

  void Step() {
    const std::uint64_t dice = random_.Below(1000);
    if (dice < 500) {
      StepDisk();
    } else if (dice < 700) {
      Get(random_.Below(kKeys));
    } else if (dice < 900) {
      Put();
    } else if (dice < 930) {
      EndLate();
    } else if (dice < 960) {
      Remove();
    } else if (dice < 964) {
      RemoveMatching();
    } else if (dice < 968) {
      if (!fills_ || random_.OneIn(12)) Reset();
    } else if (dice < 980) {
      Disturb();
    } else if (dice < 983) {
      Restart();
    }
    Answer();
    Prove();
  }

  // ---- the owner's process

  void Start(std::unique_ptr<disklog::FakeDevice> disk) {
    life_ = std::make_unique<Tiers>(std::move(disk), generation_,
                                    owner::TieringOptions{.queue_bytes = 48 << 10});
    life_->during_promotion = [this] { Meanwhile(); };
    NoteOpening();
  }
  // Notes the number of the opening beside the disk, as its owner does.
  void NoteOpening() {
    noted_ = life_->disk->log().superblock().opening;
    life_->disk->log().OpeningNoted(noted_, [](const Status&) {});
  }

  // What other threads do between the two ends of a promotion.
  void Meanwhile() {
    const std::uint64_t dice = random_.Below(30);
    if (dice == 0 && !fills_) Reset();
    if (dice == 1) Remove();
    if (dice < 6) Put();
  }

  void StepDisk() {
    if (resting_) {
      life_->clock.AdvanceNs(kMillisecond);
      life_->tiering->use().Tick(life_->clock.NowNs());
      if (random_.OneIn(20)) UseAgain();
      return;
    }
    life_->Step();
    if (life_->tiering->use().state().aside()) Rest();
  }

  void Rest() {
    ++report_.asides;
    Count();
    life_->Fail(random_.Next());
    resting_ = true;
  }
  void Count() { report_.damaged += life_->disk->log().counters().corrupt; }
  void UseAgain() {
    if (life_->UseAgain(!missed_)) ++report_.reused;
    missed_ = false;
    resting_ = false;
    NoteOpening();
  }

  // In order, by a kill, or after a loss of power.
  void Restart() {
    ++report_.restarts;
    const std::uint64_t how = random_.Below(3);
    std::unique_ptr<disklog::FakeDevice> disk;
    if (resting_) {
      disk = life_->TakeImage();
    } else {
      Count();
      life_->device->faults = {};
      if (how == 0) StopInOrder();
      disk = how == 2 ? life_->Cut(random_.Next()) : life_->Killed(random_.Next());
    }
    const bool lied = std::exchange(lied_, false);
    if (lied && how == 2) ++report_.lies;
    late_.clear();
    ups_.clear();
    // Nobody hears of their end: what they were to remove is there again, or is not.
    for (const Removal& removal : removals_) {
      for (const std::uint64_t key : removal.keys) last_[key] = 0;
    }
    removals_.clear();
    // Nor is what they replaced gone for good before the disk has heard of it.
    for (const std::uint64_t key : put_aside_) last_[key] = 0;
    put_aside_.clear();
    resting_ = false;
    life_.reset();
    const bool missed = std::exchange(missed_, false) && options_.rules.note;
    if (!IsKnown(disk, lied) || missed) disk = Tiers::Formatted(random_.Next(), kZones);
    if (random_.OneIn(3)) BadPlace(disk->faults);
    Start(std::move(disk));
  }
  // Perhaps puts a copy of an earlier time back. Returns whether the note knows the disk by its
  // last opening: else it may have missed removals, and starts empty.
  bool IsKnown(std::unique_ptr<disklog::FakeDevice>& disk, bool lied) {
    // The process has started since the copy was made, and so drawn another number.
    const bool puts_back = copy_ && copy_->life + 1 < report_.restarts && random_.OneIn(4);
    if (puts_back) {
      disk = std::make_unique<disklog::FakeDevice>(std::move(copy_->image), random_.Next());
      copy_.reset();
    }
    const auto super = disklog::Log::ReadSuperblock(*disk);
    const bool known = super && (!options_.rules.openings || super->HasOpening(noted_));
    if (!known && puts_back) ++report_.copies;
    // A device that lies may lose both superblocks.
    if (!known && !puts_back && !lied) Fail("the disk is taken for another one");
    return known;
  }
  void StopInOrder() {
    life_->tiering->demotions().Close();
    const auto aside = [&] { return life_->tiering->use().state().aside(); };
    life_->Until([&] { return aside() || life_->tiering->Idle(); });
    if (aside()) return;
    life_->disk->Stop();
    life_->Until([&] { return aside() || (life_->disk->stopped() && life_->disk->idle()); });
  }

  void Disturb() {
    if (resting_) return;
    if (!copy_ && random_.OneIn(4)) {
      const std::span<const std::byte> bytes = life_->device->bytes();
      copy_ = {.image = {bytes.begin(), bytes.end()}, .life = report_.restarts};
    }
    disklog::FakeDevice::Faults& faults = life_->device->faults;
    // In half of the runs only places fail, so that the disk stays on for long.
    switch (by_place_ ? 6 + random_.Below(3) : random_.Below(11)) {
      case 0:
        faults.write_error = EIO;
        return;
      case 1:
        faults.read_error = EIO;
        return;
      case 2:
        faults.hangs = true;
        return;
      case 3: {
        if (blinks_) Blink();
        if (!flips_) return;
        const std::uint64_t zones = life_->device->size_bytes() - disklog::kZonesStart;
        for (int i = 0; i < 40; ++i) {
          life_->device->FlipBit(disklog::kZonesStart + random_.Below(zones),
                                 static_cast<unsigned>(random_.Below(8)));
        }
        return;
      }
      case 4:
        faults.sync_error = EIO;
        return;
      case 5:
        faults.writes_hang = true;
        return;
      case 6:
        BadPlace(faults);
        faults.bad_writes = !by_place_ && random_.OneIn(2);
        return;
      case 7:  // of each zone; those with few records, such as of tombstones, cannot be read at all
        faults.bad_reads = true;
        faults.bad_in_each = owner::kZone;
        faults.bad_from = 0;
        faults.bad_to = owner::kZone / 4;
        return;
      case 8:
        if (lies_ && !faults.lies) {
          faults.lies = lied_ = true;
          return;
        }
        [[fallthrough]];
      default:
        faults = {};
    }
  }
  // Header, trailer, records, or all of one zone cannot be read.
  void BadPlace(disklog::FakeDevice::Faults& faults) {
    const std::uint64_t zone = disklog::kZonesStart + (random_.Below(kZones) * owner::kZone);
    const std::uint64_t from = random_.Below(4);
    faults.bad_reads = true;
    faults.bad_from = zone + (from == 1 ? owner::kZone - disklog::kBlockBytes : 0) +
                      (from == 2 ? random_.Below(owner::kZone) : 0);
    faults.bad_to = from == 3 ? zone + owner::kZone : faults.bad_from + disklog::kBlockBytes;
  }

  // One bit flips, once in a run, and perhaps flips back later: nothing may come back with it.
  void Blink() {
    disklog::FakeDevice& device = *life_->device;
    if (!blink_) {
      const std::uint64_t byte =
          disklog::kZonesStart + random_.Below(device.size_bytes() - disklog::kZonesStart);
      const auto bit = static_cast<unsigned>(random_.Below(8));
      device.FlipBit(byte, bit);
      blink_ = {.byte = byte, .bit = bit, .value = device.bytes()[byte]};
    } else if (!std::exchange(blink_->over, true) &&
               device.bytes()[blink_->byte] == blink_->value) {
      device.FlipBit(blink_->byte, blink_->bit);
    }
  }

  // Without calls the disk comes to rest, whatever has happened to it: an idle disk is not written.
  void LeaveAlone() {
    constexpr int kMost = 20'000;
    constexpr int kStill = 500;
    if (resting_) return;
    life_->device->faults = {};
    std::uint64_t changes = life_->device->changes();
    int still = 0;
    for (int i = 0; i < kMost && still < kStill; ++i) {
      life_->disk->Step(0);
      life_->clock.AdvanceNs(kMillisecond);
      life_->tiering->use().Tick(life_->clock.NowNs());
      if (life_->tiering->use().state().aside()) return;
      const std::uint64_t now = life_->device->changes();
      still = now == changes ? still + 1 : 0;
      changes = now;
    }
    if (still < kStill) Fail("the disk is left alone, and is written again and again");
  }

  // ---- calls

  void Put() {
    const std::uint64_t serial = ++serial_;
    const std::uint64_t key = random_.Below(kKeys);
    const auto bytes = static_cast<std::uint32_t>(8 + random_.Below(kMostBytes));
    const std::string value = ValueOf(serial, bytes);
    written_[serial] = {.key = key, .epoch = epoch_, .bytes = bytes};
    const bool late = late_.size() < kLateWriters && random_.OneIn(3);
    const std::string name = KeyOf(key);
    const owner::PutItem item{
        .key = name,
        .size_bytes = bytes,
        .value = late ? std::span<const std::byte>() : std::as_bytes(std::span(value)),
        .after = {}};
    const owner::PutResult put =
        life_->core->Put(life_->session, life_->token(), {&item, 1}).front();
    if (put.code != Code::kOk) return;
    if (!late) return Stored(serial, resting_);
    life_->Write(put.extents, std::as_bytes(std::span(value)));
    late_.push_back({.serial = serial, .reservation = put.reservation, .aside = resting_});
  }
  void EndLate() {
    if (late_.empty()) return;
    const std::size_t index = random_.Below(late_.size());
    const Late late = late_[index];
    late_.erase(late_.begin() + static_cast<std::ptrdiff_t>(index));
    const Code code = life_->Finish(life_->session, late.reservation);
    if (code == Code::kOk) Stored(late.serial, late.aside || resting_);
    if (code == Code::kStale) ++report_.stale_commits;
  }
  // `aside`: the disk may have an older value, which is removed from it behind the answer.
  void Stored(std::uint64_t serial, bool aside) {
    ++report_.commits;
    Written& written = written_[serial];
    written.stored = ++stored_;
    last_[written.key] = stored_;
    if (aside) put_aside_.insert(written.key);
  }

  void Get(std::uint64_t key) {
    const std::string name = KeyOf(key);
    if (life_->InMemory(name)) return Verify(key, life_->Read(name), report_.reads);
    if (resting_ || !life_->OnDisk(name)) return;
    const auto wait_ns = static_cast<std::int64_t>(random_.Below(kSecond));
    ups_.push_back({.key = key, .batch = life_->BeginLoad(name, wait_ns)});
  }
  void Answer() {
    for (auto up = ups_.begin(); up != ups_.end();) {
      if (!up->batch->answered) {
        ++up;
        continue;
      }
      const std::string name = KeyOf(up->key);
      if (up->batch->results[0].code == Code::kOk && life_->InMemory(name)) {
        Verify(up->key, life_->Read(name), report_.disk_reads);
      }
      up = ups_.erase(up);
    }
  }

  void Verify(std::uint64_t key, const std::string& value, std::uint64_t& count) {
    if (value.empty()) return;  // of another generation
    ++count;
    std::uint64_t serial = 0;
    std::memcpy(&serial, value.data(), std::min(sizeof(serial), value.size()));
    const auto found = written_.find(serial);
    if (found == written_.end() || found->second.key != key ||
        value != ValueOf(serial, found->second.bytes)) {
      return Fail(fmt::format("key {} has bytes that nobody put there", key));
    }
    const Written& written = found->second;
    if (written.epoch < epoch_) {
      Fail(fmt::format("key {}: put {} was begun {} resets ago", key, serial,
                       epoch_ - written.epoch));
    }
    if (flips_ || lies_) return;
    if (written.stored == 0) Fail(fmt::format("key {}: put {} was never stored", key, serial));
    if (written.stored <= removed_[key]) {
      Fail(fmt::format("key {}: put {} was removed", key, serial));
    }
    if (written.stored < last_[key]) {
      Fail(fmt::format("key {}: put {} gave way to another and came back", key, serial));
    }
  }

  void Remove() {
    const std::uint64_t key = random_.Below(kKeys);
    Removal removal{.keys = {key}, .before = stored_, .on_disk = {}};
    if (options_.rules.removals) {
      removal.on_disk = life_->BeginRemove(KeyOf(key));
    } else {
      removal.on_disk = std::make_shared<owner::TierRemoval>();
      (void)life_->core->Remove(owner::kSlot, KeyOf(key));
    }
    removals_.push_back(std::move(removal));
  }
  void RemoveMatching() {
    const std::uint64_t group = random_.Below(4);
    Removal removal{.keys = {}, .before = stored_, .on_disk = {}};
    for (std::uint64_t key = group; key < kKeys; key += 4) removal.keys.push_back(key);
    removal.on_disk = life_->BeginRemoveMatching(fmt::format("{}/*", group));
    removals_.push_back(std::move(removal));
  }
  void Prove() {
    for (auto removal = removals_.begin(); removal != removals_.end();) {
      const Status proven = life_->Proven(*removal->on_disk);
      const bool missed = !proven && proven.error().code == Code::kUnavailable;
      if (!proven && !missed) {
        ++removal;
        continue;
      }
      missed_ |= missed;  // durably, before the removal is answered
      ++report_.removals;
      for (const std::uint64_t key : removal->keys) {
        removed_[key] = std::max(removed_[key], removal->before);
      }
      removal = removals_.erase(removal);
    }
  }

  void Reset() {
    life_->Reset();
    if (options_.rules.generations) generation_ = life_->generation();
    ++epoch_;
    ++report_.resets;
  }

  const TierSimOptions options_;
  Random random_;
  // The disk flips many bits at once. A tombstone of which both copies are damaged removes nothing
  // any more, so that only bytes and generations hold.
  const bool flips_;
  const bool blinks_;  // one bit: everything holds
  // Syncs that end without an error sync nothing, so that a loss of power takes tombstones, too:
  // only bytes and generations hold.
  const bool lies_;
  const bool by_place_;
  const bool fills_;  // resets are so rare that zones with live objects must be freed
  struct Blinked {
    std::uint64_t byte = 0;
    unsigned bit = 0;
    std::byte value{};
    bool over = false;
  };
  std::optional<Blinked> blink_;
  bool lied_ = false;  // in this life
  struct Copy {
    std::vector<std::byte> image;
    std::uint64_t life = 0;  // TierReport::restarts when it was made
  };
  std::optional<Copy> copy_;
  TierReport report_;
  std::uint64_t step_ = 0;
  // Durable: the pool's generation, that the disk has missed a removal, and its last opening.
  Generation generation_ = owner::kFirst;
  bool missed_ = false;
  Id128 noted_;
  std::unique_ptr<Tiers> life_;
  bool resting_ = false;               // the disk is set aside
  std::set<std::uint64_t> put_aside_;  // keys whose put began or ended meanwhile
  std::vector<Late> late_;
  std::list<Up> ups_;
  std::list<Removal> removals_;
  // What was put, and what may be read.
  std::uint64_t serial_ = 0;
  std::uint64_t stored_ = 0;
  std::uint64_t epoch_ = 0;
  std::map<std::uint64_t, Written> written_;        // by serial
  std::map<std::uint64_t, std::uint64_t> last_;     // by key: Written::stored of the last one
  std::map<std::uint64_t, std::uint64_t> removed_;  // by key: up to which Written::stored
};

}  // namespace

TierReport SimulateTiers(const TierSimOptions& options) { return TierWorld(options).Run(); }

}  // namespace kvcove::sim
