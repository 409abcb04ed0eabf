// SPDX-License-Identifier: Apache-2.0
#include "cluster_simulation.h"

#include <fmt/core.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/random.h"
#include "kvcove/master/control_log.h"
#include "kvcove/master/directory.h"
#include "kvcove/master/generations.h"
#include "kvcove/master/membership.h"
#include "kvcove/owner/core.h"
#include "kvcove/owner/follower.h"

namespace kvcove::sim {
namespace {

constexpr std::uint64_t kPayload = 16 << 10;
constexpr std::uint64_t kKeys = 12;
constexpr int kOwners = 3;
constexpr int kMaster = kOwners;  // as a place
constexpr int kElsewhere = kOwners + 1;
constexpr int kPlaces = kOwners + 2;
constexpr std::int64_t kLeaseNs = kSecond;
constexpr std::int64_t kCallNs = 500 * kMillisecond;
constexpr SlotId kSlot = 0;

struct Freer {
  void operator()(std::byte* data) const { std::free(data); }
};
using Memory = std::unique_ptr<std::byte, Freer>;

Memory Zeroed(std::size_t size) {
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(4096, (size + 4095) / 4096 * 4096)));
  std::memset(memory.get(), 0, size);
  return memory;
}

// A host's clock: it drifts, within what leases allow for.
class HostClock final : public Clock {
 public:
  HostClock(const FakeClock& truth, double rate) : truth_(truth), rate_(rate) {}
  std::int64_t NowNs() const override {
    return static_cast<std::int64_t>(static_cast<double>(truth_.NowNs()) * rate_);
  }

 private:
  const FakeClock& truth_;
  const double rate_;
};

struct Written {
  std::string key;
  std::uint64_t resets_called = 0;  // when its token had been captured
  std::uint32_t size = 0;
  std::int64_t removed_ns = 0;  // a removal that began after its put ended was proven then
};

// One life of an owner's process. Its memory outlives it while somebody still maps it.
struct Owner {
  Memory header;
  Memory payload;
  Memory page;
  segment::HeaderView view;
  std::unique_ptr<owner::Core> core;
  owner::Follower follower{{}};
  wire::SessionNumber session = 0;
  bool hello_wanted = true;
  std::uint64_t list_number = 0;  // of the call under way
  std::int64_t list_sent_ns = 0;  // 0: none
  std::vector<owner::Pending> listing;
  std::vector<owner::Pending> outbox;
  std::map<std::uint64_t, std::function<void(Code)>> outcomes;  // by reservation
  segment::SessionPage& shared() { return *reinterpret_cast<segment::SessionPage*>(page.get()); }
};

// One life of the master's process.
struct Master {
  Master(std::uint32_t epoch, std::uint64_t version, Id128 incarnation, Generation first, bool used)
      : generations(incarnation, first, used),
        members(kLeaseNs, epoch),
        first_version(version),
        log(version) {}
  master::Generations generations;
  master::Membership members;
  const std::uint64_t first_version;
  master::ControlLog log;
  std::unique_ptr<master::Directory> directory;
  std::map<std::uint64_t, std::uint64_t> removed_at;  // hash -> version
  std::int64_t proven_from_ns = 0;
  struct Proof {
    std::uint64_t version = 0;
    bool removal = false;
    std::function<void()> proven;
  };
  std::vector<Proof> proofs;
};

class World {
 public:
  explicit World(const ClusterSimOptions& options) : options_(options), random_(options.seed) {
    for (int place = 0; place < kPlaces; ++place) {
      clocks_.emplace_back(truth_, 1.0 + (static_cast<double>(random_.Below(9)) - 4) / 1000);
    }
    StartMaster(/*file_lost=*/false);
    for (int i = 0; i < kOwners; ++i) StartOwner(i);
    After(0, [this] { Act(); });
    After(10 * kMillisecond, [this] { Disturb(); });
  }

  ClusterSimReport Run() {
    const std::int64_t end = truth_.NowNs() + options_.seconds * kSecond;
    while (!events_.empty() && report_.violation.empty() && truth_.NowNs() < end) {
      std::ranges::pop_heap(events_, Event::Later);
      const Event event = std::move(events_.back());
      events_.pop_back();
      truth_.AdvanceNs(std::max<std::int64_t>(0, event.at_ns - truth_.NowNs()));
      event.run();
    }
    for (int i = 0; i < kOwners; ++i) {
      if (owners_[i] != nullptr && report_.violation.empty()) owners_[i]->core->CheckInvariants();
    }
    return report_;
  }

 private:
  struct Event {
    std::int64_t at_ns = 0;
    std::uint64_t number = 0;
    std::function<void()> run;
    static bool Later(const Event& a, const Event& b) {
      return std::tie(a.at_ns, a.number) > std::tie(b.at_ns, b.number);
    }
  };

  // ---- time, network, processes

  void After(std::int64_t delay_ns, std::function<void()> run) {
    events_.push_back({truth_.NowNs() + delay_ns, next_event_++, std::move(run)});
    std::ranges::push_heap(events_, Event::Later);
  }
  // Runs in the process at `place`, in this life of it, when it is not paused.
  void In(int place, std::int64_t delay_ns, std::function<void()> run) {
    const std::uint64_t life = life_[place];
    After(delay_ns, [this, place, life, run = std::move(run)] { Resume(place, life, run); });
  }
  void Resume(int place, std::uint64_t life, const std::function<void()>& run) {
    if (life_[place] != life || (place < kOwners && owners_[place] == nullptr)) return;
    if (paused_until_[place] > truth_.NowNs()) {
      After(paused_until_[place] - truth_.NowNs(),
            [this, place, life, run] { Resume(place, life, run); });
      return;
    }
    run();
  }
  // Delivered, late, or not at all.
  void Send(int from, int to, std::function<void()> deliver) {
    if (cut_[from][to] || random_.OneIn(200)) return;
    const std::int64_t delay = random_.OneIn(50)
                                   ? static_cast<std::int64_t>(random_.Below(1500)) * kMillisecond
                                   : static_cast<std::int64_t>(random_.Below(8000)) * kMicrosecond;
    In(to, delay, std::move(deliver));
  }
  std::int64_t NowOf(int place) const { return clocks_[place].NowNs(); }
  void Fail(const std::string& what) {
    if (report_.violation.empty()) {
      report_.violation =
          fmt::format("seed {}, {} ms: {}", options_.seed, truth_.NowNs() / kMillisecond, what);
    }
  }

  void Disturb() {
    After(static_cast<std::int64_t>(20 + random_.Below(400)) * kMillisecond, [this] { Disturb(); });
    const int place = static_cast<int>(random_.Below(kOwners + 1));
    switch (random_.Below(8)) {
      case 0:
      case 1:
      case 2:
        ++report_.pauses;
        paused_until_[place] =
            truth_.NowNs() +
            static_cast<std::int64_t>(random_.OneIn(3) ? random_.Below(4000) : random_.Below(300)) *
                kMillisecond;
        return;
      case 3: {
        ++report_.partitions;
        const int other = static_cast<int>(random_.Below(kPlaces));
        const bool one_way = random_.OneIn(3);
        cut_[place][other] = true;
        if (!one_way) cut_[other][place] = true;
        After(static_cast<std::int64_t>(random_.Below(4000)) * kMillisecond, [this, place, other] {
          cut_[place][other] = false;
          cut_[other][place] = false;
        });
        return;
      }
      case 4:
        if (place == kMaster) {
          if (!random_.OneIn(3)) return;
          ++report_.master_deaths;
          ++life_[kMaster];
          master_.reset();
          After(static_cast<std::int64_t>(random_.Below(2500)) * kMillisecond,
                [this] { StartMaster(random_.OneIn(8)); });
        } else if (owners_[place] != nullptr && random_.OneIn(2)) {
          ++report_.owner_deaths;
          ++life_[place];
          owners_[place].reset();  // readers of its memory keep it
          After(static_cast<std::int64_t>(random_.Below(2500)) * kMillisecond,
                [this, place] { StartOwner(place); });
        }
        return;
      default:
        return;
    }
  }

  // ---- master

  void StartMaster(bool file_lost) {
    if (file_lost) {
      disk_.clear();
      incarnation_ = {random_.Next(), random_.Next()};
    }
    master_ = std::make_shared<Master>(
        static_cast<std::uint32_t>(random_.Next()), random_.Next() >> 8, incarnation_,
        disk_.empty() ? random_.Next() >> 8 : 0, options_.checks.used);
    Master* raw = master_.get();
    raw->directory = std::make_unique<master::Directory>(master::Directory::Rules{
        .current_owner = [raw](auto number,
                               auto epoch) { return raw->members.Current(number, epoch); },
        .live_owner = [this,
                       raw](auto number) { return raw->members.Live(number, NowOf(kMaster)); },
        .present_owner =
            [this, raw](auto number) {
              return raw->members.StandingOf(number).present_until_ns > NowOf(kMaster);
            },
        .may_list_again =
            [raw](auto number, auto epoch) {
              return raw->members.StandingOf(number).MayListAgain(epoch);
            },
        .current_generation =
            [this, raw](SlotId slot, Generation generation) {
              return !options_.checks.generation ||
                     raw->generations.UpdateOf(slot).generation == generation;
            }});
    for (const master::Record& record : disk_) raw->generations.Restore(record);
    const master::Record start = raw->generations.StartRecord();
    raw->generations.Restore(start);
    disk_.push_back(start);
    raw->proven_from_ns = NowOf(kMaster) + kLeaseNs / 100 * 101;
    raw->log.SetMissed(raw->generations.missed_removals());
    std::vector<SlotUpdate> updates;
    for (const SlotId slot : raw->generations.Slots()) {
      updates.push_back(raw->generations.UpdateOf(slot));
    }
    raw->log.Append(incarnation_, updates);
    In(kMaster, 10 * kMillisecond, [this] { MasterTick(); });
  }

  void MasterTick() {
    CheckProofs();
    In(kMaster, 10 * kMillisecond, [this] { MasterTick(); });
  }

  void CheckProofs() {
    const std::int64_t now = NowOf(kMaster);
    std::erase_if(master_->proofs, [&](const Master::Proof& proof) {
      if (options_.checks.wait) {
        if (now < master_->proven_from_ns) return false;
        if (master_->members.AwaitedUntil(proof.version, now)) return false;
      }
      if (proof.removal && master_->members.Missed(proof.version)) {
        const master::Record missed{
            .kind = master::Record::Kind::kMissed, .slot = kSlot, .name = {}, .version = {}};
        disk_.push_back(missed);
        master_->generations.Restore(missed);
        master_->log.SetMissed({kSlot});
      }
      Send(kMaster, kElsewhere, proof.proven);
      return true;
    });
  }

  // To every owner, as the answer to its watch.
  void Push() {
    for (int i = 0; i < kOwners; ++i) PushTo(i);
  }
  void PushTo(int i) {
    if (owners_[i] == nullptr) return;
    const std::uint32_t epoch = owners_[i]->follower.standing().epoch;
    const wire::Changes changes = master_->log.Since(owners_[i]->follower.applied());
    Send(kMaster, i, [this, i, epoch, changes] { Apply(i, changes, epoch); });
  }

  wire::Registration Register() {
    const wire::RegisterRequest request{.name = "m", .engine = "e", .follow_always = true};
    std::vector<master::Record> records;
    (void)master_->generations.PrepareRegister(request, records);
    disk_.insert(disk_.end(), records.begin(), records.end());
    const auto registration = master_->generations.FinishRegister(request, records);
    const std::uint64_t before = master_->log.version();
    master_->log.Append(incarnation_, {master_->generations.UpdateOf(registration.slot)});
    if (master_->log.version() != before) Push();
    return registration;
  }

  // ---- owners

  void StartOwner(int i) {
    auto owner = std::make_shared<Owner>();
    const segment::HeaderSizes sizes{.max_objects = 64, .payload_bytes = kPayload};
    const std::size_t bytes = segment::HeaderFileBytes(sizes);
    owner->header = Zeroed(bytes);
    owner->payload = Zeroed(kPayload);
    owner->page = Zeroed(sizeof(segment::SessionPage));
    segment::FormatHeader(owner->header.get(), sizes, {1, 2}, random_.Next());
    owner->view = *segment::HeaderView::Open(owner->header.get(), bytes);
    owner->core = *owner::Core::Open({.payload_bytes = kPayload,
                                      .max_objects = 64,
                                      .listed = true,
                                      .checks = {.generation = options_.checks.generation,
                                                 .second_look = options_.checks.protection}},
                                     owner->view, owner->payload.get(), clocks_[i]);
    owner->core->AddPayloadUpTo(kPayload / segment::kGranule);
    segment::FormatSessionPage(owner->page.get());
    owner->session = owner->core->AddSession(&owner->shared(), i);
    owner->follower = owner::Follower({random_.Next(), random_.Next()});
    owners_[i] = std::move(owner);
    In(i, 0, [this, i] { RenewTick(i); });
    In(i, 0, [this, i] { ListTick(i); });
  }

  bool MasterThere() const { return master_ != nullptr; }

  void RenewTick(int i) {
    Owner& owner = *owners_[i];
    In(i, 250 * kMillisecond, [this, i] { RenewTick(i); });
    if (!owner.hello_wanted) return Renew(i);
    owner.core->RenewLease(0);
    const wire::OwnerHello hello = owner.follower.Hello();
    const std::uint64_t life = life_[i];
    Send(i, kMaster, [this, i, hello, life] {
      if (!MasterThere()) return;
      if (hello.incarnation == incarnation_ && hello.term > master_->generations.term()) return;
      auto welcome = master_->members.Hello(hello, NowOf(kMaster));
      if (!welcome) return;
      welcome->term = master_->generations.term();
      welcome->incarnation = incarnation_;
      Send(kMaster, i, [this, i, welcome = *welcome, life] {
        if (life_[i] != life) return;
        Owner& owner = *owners_[i];
        if (!owner.hello_wanted) return;  // the answer to an earlier one
        owner.hello_wanted = false;
        owner.follower.Welcomed(welcome);
        // What was under way is told with the rest.
        owner.outbox.insert(owner.outbox.begin(), owner.listing.begin(), owner.listing.end());
        owner.listing.clear();
        owner.list_sent_ns = 0;
        Tell(i);
      });
    });
  }

  void Tell(int i) {
    Owner& owner = *owners_[i];
    owner::ObjectId cursor = 0;
    const auto inventory = owner.core->Inventory(cursor, 1000);
    std::vector<wire::ListItem> items;
    for (const auto& item : inventory) items.push_back(item.item);
    const auto standing = owner.follower.standing();
    const std::uint64_t applied = owner.follower.applied();
    Send(i, kMaster, [this, i, standing, applied, items, inventory] {
      if (!MasterThere()) return;
      const auto codes = List(standing, applied, items);
      if (!codes) return;
      Send(kMaster, i, [this, i, standing, inventory, codes] {
        Owner& owner = *owners_[i];
        if (owner.follower.standing().epoch != standing.epoch) return;
        for (std::size_t k = 0; k < codes->size(); ++k) {
          if ((*codes)[k] == Code::kExists) {
            owner.core->DropObject(inventory[k].id, inventory[k].version);
          }
        }
        owner.follower.Told(standing.epoch);
      });
    });
  }

  void Renew(int i) {
    Owner& owner = *owners_[i];
    if (!owner.follower.told() && random_.OneIn(4)) Tell(i);  // its answer may have been lost
    const wire::RenewRequest request = owner.follower.Report();
    const std::int64_t sent_ns = NowOf(i);
    Send(i, kMaster, [this, i, request, sent_ns] {
      if (!MasterThere()) return;
      const auto granted = master_->members.Renew(request, master_->log.version(),
                                                  master_->log.slots_version(), NowOf(kMaster));
      CheckProofs();
      const wire::Changes changes =
          granted && !*granted ? master_->log.Since(request.applied) : wire::Changes{};
      Send(kMaster, i, [this, i, request, sent_ns, granted, changes] {
        Owner& owner = *owners_[i];
        if (owner.follower.standing().epoch != request.epoch || owner.hello_wanted) return;
        if (!granted) {
          owner.hello_wanted = true;
          owner.core->RenewLease(0);
        } else if (*granted) {
          owner.core->RenewLease(
              std::max(sent_ns + kLeaseNs, owner.view.header().lease_deadline_ns.load()));
        } else if (changes.version != request.applied) {
          Apply(i, changes, request.epoch);
          Renew(i);
        }
      });
    });
  }

  void Apply(int i, const wire::Changes& changes, std::uint32_t epoch) {
    Owner& owner = *owners_[i];
    const auto todo = owner.follower.Take(changes, epoch);
    if (!todo) return;
    owner.core->SetSlots(todo->incarnation, todo->updates);
    for (const wire::Removal& removal : todo->removals) {
      if (removal.drop_all) owner.core->DropSlot(removal.slot);
      for (const std::string& key : removal.keys) (void)owner.core->Remove(removal.slot, key);
    }
    owner.follower.Applied(*todo);
    const auto report = owner.follower.Report();
    Send(i, kMaster, [this, i, report] {
      if (!MasterThere()) return;
      master_->members.Acknowledge(report.number, report.epoch, report.applied);
      CheckProofs();
      if (report.applied != master_->log.version()) PushTo(i);
    });
  }

  std::optional<std::vector<Code>> List(const owner::Follower::Standing& who, std::uint64_t applied,
                                        const std::vector<wire::ListItem>& items) {
    if (!master_->members.Current(who.number, who.epoch)) return std::nullopt;
    std::vector<Code> codes;
    for (const wire::ListItem& item : items) {
      if (item.gone) {
        master_->directory->Unlist(item.slot, item.hash, who.number);
        codes.push_back(Code::kOk);
        continue;
      }
      const auto removed = master_->removed_at.find(item.hash.low);
      const auto removed_since = [&](std::uint64_t version) {
        return removed != master_->removed_at.end() && removed->second > version;
      };
      const bool late = removed_since(applied) || (options_.checks.copies && item.copied_at != 0 &&
                                                   (item.copied_at < master_->first_version ||
                                                    item.copied_at > master_->log.version() ||
                                                    removed_since(item.copied_at)));
      codes.push_back(late ? Code::kStale : master_->directory->List(item, who.number, who.epoch));
    }
    return codes;
  }

  void ListTick(int i) {
    Owner& owner = *owners_[i];
    In(i, 2 * kMillisecond, [this, i] { ListTick(i); });
    owner.core->Tick();
    if (owner.list_sent_ns != 0) {
      if (NowOf(i) - owner.list_sent_ns < kCallNs) return;
      owner.outbox.insert(owner.outbox.begin(), owner.listing.begin(), owner.listing.end());
      owner.listing.clear();
      owner.list_sent_ns = 0;
      owner.hello_wanted = true;  // what went may not have reached the master
      owner.core->RenewLease(0);
    }
    if (owner.hello_wanted || !owner.follower.told()) return;
    owner.listing = std::exchange(owner.outbox, {});
    std::vector<wire::ListItem> items = owner.core->TakeGone(1000);
    const std::size_t gone = items.size();
    for (const owner::Pending& pending : owner.listing) items.push_back(pending.item);
    if (items.empty()) return;
    owner.list_sent_ns = NowOf(i);
    const std::uint64_t number = ++owner.list_number;
    const auto standing = owner.follower.standing();
    const std::uint64_t applied = owner.follower.applied();
    Send(i, kMaster, [this, i, standing, applied, items, gone, number] {
      if (!MasterThere()) return;
      const auto codes = List(standing, applied, items);
      Send(kMaster, i, [this, i, codes, gone, number] {
        Owner& owner = *owners_[i];
        if (owner.list_number != number || owner.list_sent_ns == 0) return;
        if (!codes) return;  // as a timeout
        owner.list_sent_ns = 0;
        const std::vector<owner::Pending> done = std::exchange(owner.listing, {});
        for (std::size_t k = 0; k < done.size(); ++k) {
          const Code code = owner.core->FinishListing(done[k], (*codes)[gone + k]);
          const auto outcome = owner.outcomes.find(done[k].reservation);
          if (outcome == owner.outcomes.end()) continue;
          outcome->second(code);
          owner.outcomes.erase(outcome);
        }
      });
    });
  }

  // ---- requesters

  void Act() {
    After(static_cast<std::int64_t>(random_.Below(4000)) * kMicrosecond, [this] { Act(); });
    const std::uint64_t dice = random_.Below(1000);
    if (dice < 5) return Reset();
    if (dice < 20) return Remove();
    if (dice < 24) return EndEngine();
    if (dice < 75) return Copy();
    if (dice < 350) return BeginPut();
    if (dice < 700) return ReadLocal();
    ReadRemote();
  }

  std::string RandomKey() { return fmt::format("key-{}", random_.Below(kKeys)); }

  void Reset() {
    const std::uint64_t number = ++resets_called_;
    const Id128 id{random_.Next(), number};
    Send(kElsewhere, kMaster, [this, number, id] {
      if (!MasterThere()) return;
      const wire::ResetRequest request{.name = "m", .engine = "", .version = {}, .id = id};
      std::vector<master::Record> records;
      master_->generations.PrepareReset({request}, records);
      disk_.insert(disk_.end(), records.begin(), records.end());
      std::vector<SlotUpdate> updates;
      for (const SlotId slot : master_->generations.FinishReset({request}, records)) {
        updates.push_back(master_->generations.UpdateOf(slot));
      }
      master_->log.Append(incarnation_, updates);
      Push();
      master_->proofs.push_back({.version = master_->log.version(), .proven = [this, number] {
                                   ++report_.resets_proven;
                                   highest_proven_ = std::max(highest_proven_, number);
                                 }});
      CheckProofs();
    });
  }

  // The last session of the engine ends; its puts may still be under way.
  void EndEngine() {
    Send(kElsewhere, kMaster, [this] {
      if (MasterThere()) master_->generations.EndEngine("m", "e");
    });
  }

  void Remove() {
    const std::string key = RandomKey();
    const auto doomed = std::make_shared<std::vector<std::uint64_t>>(acknowledged_[key]);
    Send(kElsewhere, kMaster, [this, key, doomed] {
      if (!MasterThere()) return;
      const Id128 hash = DirectoryHash(kSlot, key);
      master_->directory->Remove(kSlot, hash);
      master_->log.Append({.slot = kSlot, .keys = {key}, .pattern = {}});
      master_->removed_at[hash.low] = master_->log.version();
      Push();
      master_->proofs.push_back(
          {.version = master_->log.version(), .removal = true, .proven = [this, doomed] {
             ++report_.removals_proven;
             for (const std::uint64_t serial : *doomed) {
               written_[serial].removed_ns = truth_.NowNs();
             }
           }});
      CheckProofs();
    });
  }

  void BeginPut() {
    Send(kElsewhere, kMaster, [this] {
      if (!MasterThere()) return;
      const wire::Registration registration = Register();
      Send(kMaster, kElsewhere, [this, registration] {
        // Captured now; stored now, or much later.
        const Token token{.incarnation = registration.incarnation,
                          .generation = registration.generation,
                          .slot = registration.slot};
        const std::uint64_t serial = ++serial_;
        const auto size =
            static_cast<std::uint32_t>(8 * (1 + random_.Below(random_.OneIn(4) ? 250 : 30)));
        written_[serial] = {.key = RandomKey(), .resets_called = resets_called_, .size = size};
        const int i = static_cast<int>(random_.Below(kOwners));
        const std::int64_t delay =
            random_.OneIn(5) ? static_cast<std::int64_t>(random_.Below(3000)) * kMillisecond : 0;
        After(delay, [this, i, token, serial, size] {
          Send(kElsewhere, i, [this, i, token, serial, size] { Put(i, token, serial, size); });
        });
      });
    });
  }

  void Put(int i, const Token& token, std::uint64_t serial, std::uint32_t size) {
    Owner& owner = *owners_[i];
    if (owner.view.generation(kSlot) == 0) return;  // it has not heard of the namespace
    const std::vector<std::uint64_t> value(size / 8, serial);
    const wire::PutItem item{.key = written_[serial].key,
                             .size_bytes = size,
                             .value = std::as_bytes(std::span(value)),
                             .after = {}};
    const auto result = owner.core->Put(owner.session, token, {&item, 1})[0];
    if (result.code == Code::kStale) ++report_.stale_puts;
    for (owner::Pending& pending : owner.core->TakePending()) {
      owner.outcomes[pending.reservation] = [this, serial](Code code) {
        if (code == Code::kStale) ++report_.stale_puts;
        if (code != Code::kOk) return;
        ++report_.puts;
        acknowledged_[written_[serial].key].push_back(serial);
      };
      owner.outbox.push_back(pending);
    }
  }

  // An owner sends one of its objects to another one, which holds it as well, or instead.
  void Copy() {
    const int i = static_cast<int>(random_.Below(kOwners));
    const int j = static_cast<int>((i + 1 + random_.Below(kOwners - 1)) % kOwners);
    const bool move = random_.OneIn(2);
    const auto cursor = static_cast<std::uint32_t>(random_.Below(64));
    In(i, 0, [this, i, j, move, cursor] {
      const std::shared_ptr<Owner> owner = owners_[i];
      const std::uint64_t copied_at = owner->follower.applied();
      if (copied_at == 0) return;  // it has heard nothing of this master yet
      const auto page = owner->core->Page({.cursor = cursor, .at_most = 1});
      if (page.objects.empty()) return;
      const wire::HeldObject object = page.objects[0];
      const auto copy = owner->core->LendForCopy(object.id, object.version);
      if (!copy) return;
      std::vector<std::byte> value;
      for (const Extent& extent : copy->loan.extents) {
        const std::byte* at = owner->payload.get() + extent.start * segment::kGranule;
        value.insert(value.end(), at, at + extent.count * segment::kGranule);
      }
      value.resize(copy->loan.size_bytes);
      owner->core->Return({&copy->loan, 1});
      Send(i, j, [this, i, j, move, object, copy, value, copied_at] {
        Hold(j, *copy, value, copied_at, [this, i, j, move, object] {
          ++report_.copies;
          if (!move) return;
          Send(j, i,
               [this, i, object] { owners_[i]->core->DropObject(object.id, object.version); });
        });
      });
    });
  }

  void Hold(int j, const owner::CopyLoan& copy, const std::vector<std::byte>& value,
            std::uint64_t copied_at, std::function<void()> held) {
    Owner& owner = *owners_[j];
    if (owner.view.generation(kSlot) == 0) return;  // it has not heard of the namespace
    const wire::PutItem item{.key = copy.key,
                             .size_bytes = static_cast<std::uint32_t>(value.size()),
                             .value = {},
                             .after = {}};
    const auto place = owner.core->Put(owner.session, copy.token, {&item, 1}, /*evict=*/false)[0];
    if (place.code != Code::kOk) return;
    std::size_t at = 0;
    for (const Extent& extent : place.extents) {
      const std::size_t bytes =
          std::min<std::size_t>(extent.count * segment::kGranule, value.size() - at);
      std::memcpy(owner.payload.get() + extent.start * segment::kGranule, value.data() + at, bytes);
      at += bytes;
    }
    const wire::FinishItem finish{.reservation = place.reservation,
                                  .commit = true,
                                  .group = copy.group,
                                  .copied_at = copied_at};
    (void)owner.core->Finish(owner.session, {&finish, 1});
    for (owner::Pending& pending : owner.core->TakePending()) {
      owner.outcomes[pending.reservation] = [held](Code code) {
        if (code == Code::kOk) held();
      };
      owner.outbox.push_back(pending);
    }
  }

  struct Reading {
    std::string key;
    std::uint64_t proven = 0;  // resets, when it began
    std::int64_t began_ns = 0;
  };

  Reading BeginRead() {
    return {.key = RandomKey(), .proven = highest_proven_, .began_ns = truth_.NowNs()};
  }

  // By a process on an owner's host, out of its memory, whatever became of the owner.
  void ReadLocal() {
    const int i = static_cast<int>(random_.Below(kOwners));
    const std::shared_ptr<Owner> owner = owners_[i];
    if (owner == nullptr) return;
    const Reading reading = BeginRead();
    const segment::ReadScope scope{.slot = kSlot,
                                   .generation = owner->view.generation(kSlot),
                                   .checks = {.generation = options_.checks.generation,
                                              .second_look = options_.checks.protection}};
    const segment::Found found = owner->view.Find(
        kSlot, {.key = reading.key, .hash = owner->view.HashKey(kSlot, reading.key)});
    if (!found) return;
    const auto lane = std::ranges::find(owner->shared().lanes, 0U,
                                        [](const segment::Lane& lane) { return lane.used.load(); });
    if (lane == std::end(owner->shared().lanes)) return;
    auto window = std::make_shared<segment::ReadWindow>(owner->view, *lane);
    if (options_.checks.protection) window->Announce(found);
    After(ShortPause(), [this, i, owner, reading, scope, found, window] {
      window->Fence();
      const std::int64_t now = options_.checks.lease ? NowOf(i) : 0;
      if (window->Confirm(found, scope, now) != MissReason::kNone) return;
      After(ShortPause(), [this, owner, reading, found, window] {
        Extent extents[segment::kMaxExtents];
        const std::uint32_t count = owner->view.Extents(found, extents);
        Verify(reading, *owner, {extents, count}, found.meta.size_bytes());
        window->Clear();
      });
    });
  }

  std::int64_t ShortPause() {
    return random_.OneIn(40) ? static_cast<std::int64_t>(random_.Below(2000)) * kMillisecond
                             : static_cast<std::int64_t>(random_.Below(500)) * kMicrosecond;
  }

  void ReadRemote() {
    const Reading reading = BeginRead();
    Send(kElsewhere, kMaster, [this, reading] {
      if (!MasterThere()) return;
      const Generation generation = master_->generations.UpdateOf(kSlot).generation;
      const Token token{.incarnation = incarnation_, .generation = generation, .slot = kSlot};
      const wire::Place place = master_->directory->Find(kSlot, DirectoryHash(kSlot, reading.key));
      if (place.owner == wire::kNoOwner) return;
      // Which process that number is: as its address says.
      for (int i = 0; i < kOwners; ++i) {
        if (owners_[i] == nullptr || owners_[i]->follower.standing().number != place.owner)
          continue;
        Send(kMaster, kElsewhere, [this, i, token, reading] {
          Send(kElsewhere, i, [this, i, token, reading] { Get(i, token, reading); });
        });
        return;
      }
    });
  }

  void Get(int i, const Token& token, const Reading& reading) {
    const std::shared_ptr<Owner> owner = owners_[i];
    const bool holds = owner->view.header().lease_deadline_ns.load() > NowOf(i);
    if (options_.checks.lease && !holds) return;
    const std::string_view key = reading.key;
    const auto loans =
        std::make_shared<std::vector<owner::Loan>>(owner->core->Lend(token, {&key, 1}));
    const owner::Loan& loan = loans->front();
    if (loan.code != Code::kOk) return;
    if (!options_.checks.protection) owner->core->Return(*loans);
    // The transfer takes its time; a pause of the owner makes it longer.
    In(i, ShortPause(), [this, owner, reading, loans] {
      const owner::Loan& loan = loans->front();
      Verify(reading, *owner, loan.extents, loan.size_bytes);
      if (options_.checks.protection) owner->core->Return(*loans);
    });
  }

  void Verify(const Reading& reading, const Owner& owner, std::span<const Extent> extents,
              std::uint64_t size) {
    ++report_.verified_reads;
    std::vector<std::uint64_t> words;
    for (const Extent& extent : extents) {
      for (std::uint64_t at = 0; at < extent.count * segment::kGranule && words.size() * 8 < size;
           at += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, owner.payload.get() + extent.start * segment::kGranule + at, 8);
        words.push_back(word);
      }
    }
    const std::uint64_t serial = words.empty() ? 0 : words[0];
    for (const std::uint64_t word : words) {
      if (word != serial) {
        return Fail(fmt::format("torn value of {}: puts {} and {}", reading.key, serial, word));
      }
    }
    const auto put = written_.find(serial);
    if (put == written_.end() || put->second.key != reading.key || put->second.size != size) {
      return Fail(fmt::format("the value of {} is another's (put {})", reading.key, serial));
    }
    if (reading.proven > put->second.resets_called) {
      return Fail(fmt::format("stale: {} was begun before reset {}, which had been proven",
                              reading.key, reading.proven));
    }
    if (put->second.removed_ns != 0 && put->second.removed_ns < reading.began_ns) {
      Fail(fmt::format("{} is back after its removal had been proven", reading.key));
    }
  }

  const ClusterSimOptions options_;
  Random random_;
  FakeClock truth_;
  std::vector<HostClock> clocks_;
  std::vector<Event> events_;  // a heap, the soonest on top
  std::uint64_t next_event_ = 0;
  std::uint64_t life_[kPlaces] = {};
  std::int64_t paused_until_[kPlaces] = {};
  bool cut_[kPlaces][kPlaces] = {};

  std::vector<master::Record> disk_;  // synced
  Id128 incarnation_{9, 9};
  std::shared_ptr<Master> master_;
  std::shared_ptr<Owner> owners_[kOwners];

  std::uint64_t serial_ = 0;
  std::map<std::uint64_t, Written> written_;
  std::map<std::string, std::vector<std::uint64_t>> acknowledged_;  // puts, by key
  std::uint64_t resets_called_ = 0;
  std::uint64_t highest_proven_ = 0;
  ClusterSimReport report_;
};

}  // namespace

ClusterSimReport SimulateCluster(const ClusterSimOptions& options) {
  // Memory that comes and goes in large pieces is kept: the kernel would clear it each time.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  return World(options).Run();
}

}  // namespace kvcove::sim
