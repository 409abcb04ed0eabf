// SPDX-License-Identifier: Apache-2.0
#include "simulation.h"

#include <fmt/core.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/random.h"
#include "kvcove/master/control/generations.h"
#include "kvcove/owner/core/core.h"
#include "kvcove/requester/local/reader_slots.h"
#include "tests/sim/memory.h"

namespace kvcove::sim {
namespace {

constexpr std::uint64_t kPayload = 32 << 10;
constexpr std::uint64_t kKeys = 24;
constexpr int kSessions = 3;
constexpr int kActors = 3;  // of each kind, a session
constexpr std::size_t kChunk = 256;

using wire::Registration;

// What a put wrote: its serial number in every word.
struct Written {
  std::string key;
  std::uint64_t epoch = 0;  // resets that had been proven when its token was captured
  std::uint32_t size = 0;
};

class World {
 public:
  explicit World(const SimOptions& options) : options_(options), random_(options.seed) {
    const segment::HeaderSizes sizes{.max_objects = 128, .payload_bytes = kPayload};
    const std::size_t bytes = segment::HeaderFileBytes(sizes);
    header_ = Zeroed(bytes);
    payload_ = Zeroed(kPayload);
    if (!segment::FormatHeader(header_.get(), sizes, {1, 2}, options.seed)) std::abort();
    view_ = *segment::HeaderView::Open(header_.get(), bytes);
    const char* policies[] = {"default", "lru"};
    core_ = *owner::Core::Open(
        {.payload_bytes = kPayload, .max_objects = 128, .policy = policies[options.seed % 2]},
        view_, payload_.get(), clock_);
    core_->AddPayloadBelow(kPayload);
    core_->RenewLease(clock_.NowNs() + kSecond);
    for (int i = 0; i < kSessions; ++i) StartSession();
  }

  SimReport Run() {
    for (step_ = 0; step_ < options_.steps && report_.violation.empty(); ++step_) Step();
    if (report_.violation.empty()) core_->CheckInvariants();
    report_.evictions = core_->Stat().evictions;
    return report_;
  }

 private:
  struct Writer {
    enum class At { kIdle, kCaptured, kReserved } at = At::kIdle;
    Token token;
    std::uint64_t epoch = 0;
    std::uint64_t serial = 0;
    std::uint64_t reservation = 0;
    std::vector<Extent> extents;
    std::uint32_t size = 0;
    std::uint32_t written = 0;
    std::int64_t paused_until = 0;
    std::int64_t late_ns = 0;  // from when on its key may go to another writer
    bool taken_from = false;   // its range was freed while it writes there
  };
  struct Reader {
    enum class At { kIdle, kFound, kAnnounced, kCopying } at = At::kIdle;
    std::string key;
    std::uint64_t epoch = 0;
    segment::ReadScope scope;
    segment::Found found;
    std::vector<Extent> extents;
    std::vector<std::byte> copied;
    std::unique_ptr<segment::ReadWindow> window;  // of a get
    std::int64_t paused_until = 0;
  };
  // A reader whose slot is of a lane that loans share; it looks once more when it ends.
  struct Borrower : Reader {
    std::optional<requester::ReaderSlots::LoanSlot> slot;
  };
  struct Session {
    wire::SessionNumber number = 0;
    Memory page;
    bool dead = false;  // killed; the owner has not proven it yet
    std::vector<Writer> writers = std::vector<Writer>(kActors);
    std::vector<Reader> readers = std::vector<Reader>(kActors);
    std::vector<Borrower> borrowers = std::vector<Borrower>(kActors);
    std::unique_ptr<requester::ReaderSlots> slots;
    std::string engine;
    segment::SessionPage& shared() { return *reinterpret_cast<segment::SessionPage*>(page.get()); }
  };

  void StartSession() {
    auto session = std::make_unique<Session>();
    session->page = Zeroed(sizeof(segment::SessionPage));
    segment::FormatSessionPage(session->page.get());
    session->slots = std::make_unique<requester::ReaderSlots>(&session->shared(), kPayload);
    for (int lane = 0; lane < kActors; ++lane) (void)session->slots->AcquireLane(0, clock_);
    session->number = core_->AddSession(&session->shared(), static_cast<int>(next_engine_));
    session->engine = fmt::format("engine-{}", next_engine_++);
    sessions_.push_back(std::move(session));
  }

  void Fail(const std::string& what) {
    report_.violation = fmt::format("seed {}, step {}: {}", options_.seed, step_, what);
  }

  void Step() {
    clock_.AdvanceNs(static_cast<std::int64_t>(random_.Below(2 * kMillisecond)));
    const std::uint64_t dice = random_.Below(1000);
    if (dice < 3) return Reset();
    if (dice < 5) return Kill();
    if (dice < 20) return ProveDeaths();
    if (dice < 60) return Tick();
    if (dice < 80) return Lease();
    if (dice < 90) return (void)core_->Remove(0, RandomKey());
    Session& session = *sessions_[random_.Below(sessions_.size())];
    if (session.dead) return;
    const std::size_t actor = random_.Below(kActors);
    switch (random_.Below(4)) {
      case 0:
        return StepReader(session, actor, session.readers[actor]);
      case 1:
        return StepBorrower(session, session.borrowers[actor]);
      default:
        return StepWriter(session, session.writers[actor]);
    }
  }

  std::string RandomKey() { return fmt::format("key-{}", random_.Below(kKeys)); }

  // A process stops between any two of its steps, sometimes for longer than every deadline.
  bool Paused(std::int64_t& until) {
    if (clock_.NowNs() < until) return true;
    if (random_.OneIn(60)) {
      until = clock_.NowNs() + static_cast<std::int64_t>(random_.Below(
                                   random_.OneIn(4) ? 3 * kSecond : 50 * kMillisecond));
      return true;
    }
    return false;
  }

  wire::RegisterRequest RegisterOf(const Session& session) {
    return {.name = "model", .version = {}, .engine = session.engine, .follow_always = true};
  }

  Registration Register(const Session& session) {
    const wire::RegisterRequest request = RegisterOf(session);
    const master::Generations::Plan plan = *generations_.PlanRegister(request, clock_.NowNs());
    const Registration registration =
        generations_.Register(request, plan, ++revision_, clock_.NowNs());
    if (!plan.slots.empty()) Publish();
    return registration;
  }

  void Publish() {
    std::vector<SlotUpdate> updates;
    for (const auto& published : generations_.All()) updates.push_back(published.update);
    core_->SetSlots(generations_.incarnation(), updates);
  }

  void Reset() {
    const wire::ResetRequest request{
        .name = "model", .engine = "", .version = {}, .id = {options_.seed, ++resets_}};
    const master::Generations::Plan plan = generations_.PlanReset({request}, clock_.NowNs());
    generations_.Reset({request}, plan, ++revision_, clock_.NowNs());
    Publish();
    ++epoch_;  // proven: nothing begun before may be found by what begins now
    ++report_.resets;
  }

  void Kill() {
    if (sessions_.size() < 2) return;
    Session& victim = *sessions_[random_.Below(sessions_.size())];
    victim.dead = true;
    ++report_.deaths;
  }

  // The owner learns of deaths late, and only then ends the session.
  void ProveDeaths() {
    for (auto at = sessions_.begin(); at != sessions_.end();) {
      if (!(*at)->dead) {
        ++at;
        continue;
      }
      core_->EndSession((*at)->number);
      at = sessions_.erase(at);
    }
    while (sessions_.size() < kSessions) StartSession();
  }

  void Tick() {
    core_->Tick();
    if (!options_.rules.reservation) FreeLateReservations();
  }

  // What an owner would do to which the deadline of a key is that of its range.
  void FreeLateReservations() {
    for (const auto& session : sessions_) {
      for (Writer& writer : session->writers) {
        if (writer.at != Writer::At::kReserved || writer.taken_from) continue;
        if (writer.late_ns > clock_.NowNs()) continue;
        writer.taken_from = true;
        const wire::FinishItem item{.reservation = writer.reservation, .commit = false};
        core_->Finish(session->number, {&item, 1});
      }
    }
  }

  void Lease() {
    if (!random_.OneIn(10)) core_->RenewLease(clock_.NowNs() + kSecond);
  }

  void StepWriter(Session& session, Writer& writer) {
    if (Paused(writer.paused_until)) return;
    switch (writer.at) {
      case Writer::At::kIdle: {
        const Registration registration = Register(session);
        writer.token = {.incarnation = registration.incarnation,
                        .generation = registration.generation,
                        .slot = registration.slot};
        writer.epoch = epoch_;
        writer.at = Writer::At::kCaptured;
        return;
      }
      case Writer::At::kCaptured:
        return BeginPut(session, writer);
      case Writer::At::kReserved:
        break;
    }
    if (writer.written < writer.size && !random_.OneIn(100)) {
      WriteChunk(writer);
      return;
    }
    if (writer.taken_from) {
      writer = {};
      return;
    }
    const bool commit = writer.written == writer.size;
    const wire::FinishItem item{.reservation = writer.reservation, .commit = commit};
    const Code code = core_->Finish(session.number, {&item, 1})[0];
    if (commit) ++(code == Code::kStale ? report_.stale_commits : report_.commits);
    // A repeat answers the same.
    if (core_->Finish(session.number, {&item, 1})[0] != code)
      Fail("a repeated commit answers another code");
    writer = {};
  }

  void BeginPut(Session& session, Writer& writer) {
    writer.serial = ++serial_;
    writer.size =
        static_cast<std::uint32_t>(8 * (1 + random_.Below(random_.OneIn(4) ? 1000 : 100)));
    const std::string key = RandomKey();
    written_[writer.serial] = {.key = key, .epoch = writer.epoch, .size = writer.size};
    wire::PutItem item{.key = key, .size_bytes = writer.size, .value = {}, .after = {}};
    std::vector<std::uint64_t> value;
    if (random_.OneIn(3)) {
      value.assign(writer.size / 8, writer.serial);
      item.value = std::as_bytes(std::span(value));
    }
    const wire::PutResult result = core_->Put(session.number, writer.token, {&item, 1})[0];
    if (result.code == Code::kOk && value.empty()) {
      writer.reservation = result.reservation;
      writer.extents = result.extents;
      writer.written = 0;
      writer.late_ns = clock_.NowNs() + owner::CoreOptions().key_deadline_ns;
      writer.at = Writer::At::kReserved;
    } else {
      if (result.code == Code::kStale) ++report_.stale_commits;
      if (result.code == Code::kOk) ++report_.commits;
      writer = {};
    }
  }

  // The bytes of the value that lie at `at`, up to `count` of them within one extent.
  template <typename Copy>
  static void ForRange(const std::vector<Extent>& extents, std::uint64_t at, std::uint64_t count,
                       const Copy& copy) {
    std::uint64_t start = 0;
    for (const Extent& extent : extents) {
      const std::uint64_t bytes = segment::Granule().BytesOf(extent.count);
      while (count > 0 && at >= start && at < start + bytes) {
        const std::uint64_t part = std::min(count, start + bytes - at);
        copy(segment::Granule().BytesOf(extent.start) + (at - start), part);
        at += part;
        count -= part;
      }
      start += bytes;
    }
  }

  void WriteChunk(Writer& writer) {
    const std::uint64_t count = std::min<std::uint64_t>(kChunk, writer.size - writer.written);
    ForRange(writer.extents, writer.written, count, [&](std::uint64_t at, std::uint64_t part) {
      for (std::uint64_t i = 0; i < part; i += 8) {
        std::memcpy(payload_.get() + at + i, &writer.serial, 8);
      }
    });
    writer.written += static_cast<std::uint32_t>(count);
  }

  void StepReader(Session& session, std::size_t lane, Reader& reader) {
    if (Paused(reader.paused_until)) return;
    switch (reader.at) {
      case Reader::At::kIdle:
        return BeginRead(session, reader);
      case Reader::At::kFound:
        reader.window = std::make_unique<segment::ReadWindow>(view_, session.shared().lanes[lane]);
        reader.window->Announce(reader.found);
        reader.at = Reader::At::kAnnounced;
        return;
      case Reader::At::kAnnounced: {
        reader.window->Fence();
        if (!ConfirmRead(reader)) {
          reader.window.reset();
          reader = {};
        }
        return;
      }
      case Reader::At::kCopying:
        break;
    }
    if (!CopySome(reader)) return;
    Verify(reader);
    if (random_.OneIn(2)) {
      segment::PushEvent(session.shared(), {.kind = random_.OneIn(5) ? segment::EventKind::kHold
                                                                     : segment::EventKind::kHit,
                                            .hold_until_ms = clock_.NowNs() / kMillisecond + 100,
                                            .place = reader.found.place,
                                            .version = reader.found.version});
    }
    reader.window.reset();
    reader = {};
  }

  // False: it is a miss.
  bool ConfirmRead(Reader& reader) {
    if (Confirm(options_.rules.reader, view_, reader.found, reader.scope, clock_.NowNs()) !=
        MissReason::kNone) {
      ++report_.misses;
      return false;
    }
    Extent extents[segment::kMaxExtents];
    const std::uint32_t count = view_.Extents(reader.found, extents);
    reader.extents.assign(extents, extents + count);
    reader.at = Reader::At::kCopying;
    return true;
  }

  // True: all of it.
  bool CopySome(Reader& reader) {
    const std::uint64_t size = reader.found.meta.size_bytes();
    const std::uint64_t at = reader.copied.size();
    const std::uint64_t count = std::min<std::uint64_t>(kChunk, size - at);
    reader.copied.resize(at + count);
    std::uint64_t to = at;
    ForRange(reader.extents, at, count, [&](std::uint64_t from, std::uint64_t part) {
      std::memcpy(reader.copied.data() + to, payload_.get() + from, part);
      to += part;
    });
    return reader.copied.size() == size;
  }

  // As requester::Loan does it, step by step: a device copies, so its end comes late.
  void StepBorrower(Session& session, Borrower& borrower) {
    if (Paused(borrower.paused_until)) return;
    requester::ReaderSlots& slots = *session.slots;
    const auto end = [&] {
      segment::ClearSlot(slots.At(*borrower.slot));
      slots.GiveBack({&*borrower.slot, 1});
      borrower = {};
    };
    switch (borrower.at) {
      case Reader::At::kIdle:
        return BeginRead(session, borrower);
      case Reader::At::kFound: {
        requester::ReaderSlots::LoanSlot slot = 0;
        if (slots.TakeSlots({&slot, 1}, 0, clock_) == 0) return Fail("no slot is free for a loan");
        borrower.slot = slot;
        segment::Announce(slots.At(slot), borrower.found);
        borrower.at = Reader::At::kAnnounced;
        return;
      }
      case Reader::At::kAnnounced:
        segment::FullFence();
        if (!ConfirmRead(borrower)) end();
        return;
      case Reader::At::kCopying:
        break;
    }
    if (!CopySome(borrower)) return;
    const bool valid = CheckScope(view_, borrower.scope, borrower.scope.generation,
                                  clock_.NowNs()) == MissReason::kNone;
    if (valid || !options_.rules.reader.revalidation) {
      // Nothing that a reset had voided by now, however long it took.
      borrower.epoch = epoch_;
      ++report_.verified_loans;
    } else {
      ++report_.voided_loans;  // its bytes are still one value
    }
    Verify(borrower);
    end();
  }

  void BeginRead(Session& session, Reader& reader) {
    const Registration registration = Register(session);
    reader.key = RandomKey();
    reader.epoch = epoch_;
    reader.scope = {.slot = registration.slot, .generation = registration.generation};
    reader.found =
        view_.Find(registration.slot,
                   {.key = reader.key, .hash = view_.HashKey(registration.slot, reader.key)});
    if (reader.found) {
      reader.at = Reader::At::kFound;
    } else {
      ++report_.misses;
    }
  }

  void Verify(const Reader& reader) {
    ++report_.verified_reads;
    std::uint64_t serial = 0;
    std::memcpy(&serial, reader.copied.data(), 8);
    for (std::size_t at = 0; at < reader.copied.size(); at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, reader.copied.data() + at, 8);
      if (word != serial) {
        return Fail(
            fmt::format("torn value of {}: puts {} and {} mixed", reader.key, serial, word));
      }
    }
    const auto put = written_.find(serial);
    if (put == written_.end() || put->second.key != reader.key ||
        put->second.size != reader.copied.size()) {
      return Fail(fmt::format("the value of {} is another's (put {})", reader.key, serial));
    }
    if (put->second.epoch < reader.epoch) {
      Fail(fmt::format("stale: {} was begun before reset {}, read after reset {}", reader.key,
                       put->second.epoch + 1, reader.epoch));
    }
  }

  const SimOptions options_;
  Random random_;
  FakeClock clock_;
  Memory header_;
  Memory payload_;
  segment::HeaderView view_;
  std::unique_ptr<owner::Core> core_;
  master::Generations generations_{{}, Id128{9, 9}, 0};
  std::uint64_t revision_ = 0;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::uint64_t next_engine_ = 1;
  std::uint64_t serial_ = 0;
  std::uint64_t resets_ = 0;
  std::uint64_t epoch_ = 0;
  std::map<std::uint64_t, Written> written_;
  std::uint64_t step_ = 0;
  SimReport report_;
};

}  // namespace

SimReport Simulate(const SimOptions& options) { return World(options).Run(); }

}  // namespace kvcove::sim
