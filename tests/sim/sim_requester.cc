// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_requester.h"

#include <algorithm>
#include <cstring>

#include "kvcove/requester/cluster/remote_read.h"
#include "kvcove/requester/cluster/remote_write.h"

namespace kvcove::sim {
namespace {

constexpr std::int64_t kCallNs = 500 * kMillisecond;
constexpr std::int64_t kPutNs = kSecond;
constexpr std::int64_t kRefreshNs = 400 * kMillisecond;
constexpr std::int64_t kResetNs = 2500 * kMillisecond;
constexpr std::size_t kHints = 64;

// Keeps the call that a stub makes, so that it can be sent without waiting for the answer.
struct Capture final : wire::Channel {
  Result<std::string> Call(wire::Method of, std::span<const std::byte> bytes,
                           std::int64_t /*deadline_ns*/) override {
    method = of;
    body.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return Fail(Code::kUnavailable, "sent later");
  }
  wire::Method method = wire::Method::kLookup;
  std::string body;
};

}  // namespace

SimRequester::SimRequester(World& world, SimMaster& master, Oracle& oracle, Place place,
                           const Options& options, OwnerAt owner_at)
    : world_(world),
      master_(master),
      oracle_(oracle),
      place_(place),
      options_(options),
      owner_at_(std::move(owner_at)),
      process_{world.random().Next(), world.random().Next()},
      stub_(*this, process_, world.clock(place)) {
  for (Place owner = 0; owner < options.owners; ++owner) {
    endpoints_[owner] = std::make_unique<SimEndpoint>(world, place, owner, [this, owner] {
      SimOwner* there = owner_at_(owner);
      return there == nullptr ? nullptr : &there->server();
    });
  }
  for (const Space& space : oracle.spaces()) {
    if (space.tenant != options.tenant || locators_.contains(space.family)) continue;
    SessionOptions session;
    session.name = space.name;
    session.engine = "engine-" + std::to_string(place);
    session.follow_always = true;
    locators_[space.family] =
        std::make_unique<requester::Locator>(*this, session, world.clock(place), kHints);
  }
}

SimRequester::~SimRequester() = default;

void SimRequester::Start() {
  Attach();
  world_.In(place_, 0, [this] { RefreshEvery(); });
}

void SimRequester::Attach() {
  if (options_.local < 0) return;
  if (SimOwner* owner = owner_at_(options_.local); owner != nullptr) mapped_ = owner->segment();
}

// ---- calls to the master

SimConnection& SimRequester::Borrow() {
  if (idle_.empty()) {
    connections_.push_back(
        std::make_unique<SimConnection>(world_, master_, place_, options_.tenant));
    return *connections_.back();
  }
  SimConnection& connection = *idle_.back();
  idle_.pop_back();
  return connection;
}

Result<std::string> SimRequester::Call(wire::Method method, std::span<const std::byte> body,
                                       std::int64_t deadline_ns) {
  if (!world_.MayAwait()) return Fail(Code::kUnavailable, "too many calls wait");
  struct Wait {
    bool done = false;
    Result<std::string> answer = Fail(Code::kUnavailable, "the run has ended");
  };
  const auto wait = std::make_shared<Wait>();
  SimConnection& connection = Borrow();
  const std::int64_t timeout =
      std::max<std::int64_t>(0, deadline_ns - world_.clock(place_).NowNs());
  connection.Call(method, std::string(reinterpret_cast<const char*>(body.data()), body.size()),
                  timeout, [wait](Result<std::string> answer) {
                    wait->done = true;
                    wait->answer = std::move(answer);
                  });
  (void)world_.Await(wait->done, world_.NowNs() + 3600 * kSecond);
  if (wait->done) idle_.push_back(&connection);
  return std::move(wait->answer);
}

void SimRequester::Async(wire::Method /*method*/,
                         const std::function<void(wire::MasterStub&, std::int64_t)>& make,
                         std::int64_t timeout_ns, SimMaster::Done done) {
  Capture capture;
  wire::MasterStub stub(capture, process_, world_.clock(place_));
  make(stub, world_.NowOf(place_) + timeout_ns);
  SimConnection& connection = Borrow();
  connection.Call(capture.method, capture.body, timeout_ns,
                  [this, &connection, done = std::move(done)](Result<std::string> answer) {
                    idle_.push_back(&connection);
                    done(std::move(answer));
                  });
}

Result<wire::Registration> SimRequester::Register(const wire::RegisterRequest& request,
                                                  std::int64_t deadline_ns) {
  const Oracle::Registering registering =
      oracle_.BeginRegistering(options_.tenant, request.name, request.version);
  auto registration = stub_.Register(request, deadline_ns);
  if (registration) oracle_.Registered(registering);
  return registration;
}

Result<std::vector<wire::Place>> SimRequester::Lookup(const Token& token,
                                                      std::span<const Id128> hashes,
                                                      std::int64_t deadline_ns) {
  return stub_.Lookup(token, hashes, deadline_ns);
}

void SimRequester::RefreshEvery() {
  Refresh();
  world_.In(place_, kRefreshNs, [this] { RefreshEvery(); });
}

void SimRequester::Refresh() {
  Async(
      wire::Method::kOwners,
      [this](wire::MasterStub& stub, std::int64_t deadline_ns) {
        (void)stub.Owners(deadline_ns, {.broken = {}, .recent = {}, .holder = process_});
      },
      200 * kMillisecond,
      [this](const Result<std::string>& answer) {
        if (!answer) return;
        const auto owners = wire::DecodeOwners(
            {reinterpret_cast<const std::byte*>(answer->data()), answer->size()});
        if (!owners) return oracle_.Fail("the list of owners cannot be read");
        addresses_.clear();
        for (const wire::OwnerStat& owner : owners->owners) {
          addresses_[owner.number] = owner.address;
        }
      });
}

std::optional<Place> SimRequester::PlaceOf(wire::OwnerNumber number) const {
  const auto at = addresses_.find(number);
  if (at == addresses_.end()) return std::nullopt;
  for (Place place = 0; place < options_.owners; ++place) {
    if (SimOwner::AddressOf(place) == at->second) return place;
  }
  return std::nullopt;
}

// ---- puts

void SimRequester::Put(int space, const std::string& key, std::size_t words, Place owner,
                       std::int64_t delay_ns, const StoredDone& done) {
  const auto binding =
      locator(space).Bind(Version(space), /*fresh=*/true, world_.NowOf(place_) + kCallNs);
  if (!binding || !binding->open) {
    return done({.code = binding ? Code::kClosed : binding.error().code, .token = {}});
  }
  struct Putting {
    Stored stored;
    std::string key;
    std::vector<std::uint64_t> words;
    ConstBuffer piece;
    PutItem item;
    std::uint32_t group = 0;
    ItemResult result{.code = Code::kUnavailable, .replicas = 0};
    std::unique_ptr<requester::RemoteWrite> write;
  };
  const auto put = std::make_shared<Putting>();
  put->stored = {.serial = oracle_.BeginPut(space, key, words, oracle_.Called(space)),
                 .owner = owner,
                 .token = binding->token};
  put->key = key;
  put->words.assign(words, put->stored.serial);
  put->piece = {.data = put->words.data(), .size = words * 8};
  put->item = {.key = put->key, .value = {&put->piece, 1}, .after = {}};
  world_.In(place_, delay_ns, [this, owner, put, done] {
    const std::int64_t now_ns = world_.NowOf(place_);
    put->write = std::make_unique<requester::RemoteWrite>(
        requester::RemoteWriteOptions{.token = put->stored.token,
                                      .checksum = world_.random().OneIn(2),
                                      .deadline_ns = now_ns + kPutNs},
        std::span(&put->item, 1), std::span(&put->group, 1), std::span(&put->result, 1));
    const std::size_t which[] = {0};
    put->write->Add(which, *endpoints_.at(owner), now_ns);
    Exchange(
        owner, put->write->Exchanges()[0], kPutNs,
        [this, owner, put] {
          put->stored.life = world_.life(owner);
          if (owner_at_(owner)->reserved()) oracle_.Reserved(put->stored.serial);
        },
        [put, done] {
          put->write->Finish();
          // A value that is not listed yet may still be refused.
          put->stored.code =
              put->result.ok() && !put->result.listed ? Code::kNotListed : put->result.code;
          done(put->stored);
        });
  });
}

void SimRequester::Exchange(Place owner, transport::Exchange& exchange, std::int64_t timeout_ns,
                            const std::function<void()>& begun, std::function<void()> done) {
  const rpc::Caller caller{.tenant = options_.tenant,
                           .tag = TenantTag(options_.tenant),
                           .scopes = static_cast<rpc::Scopes>(rpc::Scope::kRead) |
                                     static_cast<rpc::Scopes>(rpc::Scope::kWrite)};
  endpoints_.at(owner)->Run(exchange, caller, timeout_ns, begun, std::move(done));
}

// ---- gets

std::int64_t SimRequester::ShortPause() {
  return world_.faults() && world_.random().OneIn(40) ? world_.Some(2 * kSecond)
                                                      : world_.Some(500 * kMicrosecond);
}

std::vector<std::uint64_t> SimRequester::WordsOf(const Segment& segment,
                                                 std::span<const Extent> extents,
                                                 std::uint64_t size) {
  std::vector<std::uint64_t> words(size / 8);
  std::size_t at = 0;
  for (const Extent& extent : extents) {
    const segment::Payload payload{.data = segment.payload.get(),
                                   .granule = segment.view.granule()};
    const std::span<const std::byte> room = payload.At(extent);
    const std::size_t count = std::min(room.size() / 8, words.size() - at);
    std::memcpy(words.data() + at, room.data(), count * 8);
    at += count;
  }
  return words;
}

// Out of the memory that this process maps, whatever became of its owner.
void SimRequester::GetLocal(int space, const std::string& key, const ReadDone& done) {
  const std::shared_ptr<Segment> segment = mapped_;
  if (segment == nullptr) return done(0);
  const Oracle::Reading reading = oracle_.BeginRead(space, key);
  auto binding =
      locator(space).Bind(Version(space), /*fresh=*/false, world_.NowOf(place_) + kCallNs);
  // As a session does that sees another generation in the table.
  if (binding && segment->view.generation(binding->token.slot) != binding->token.generation) {
    binding = locator(space).Bind(Version(space), /*fresh=*/true, world_.NowOf(place_) + kCallNs);
  }
  if (!binding || !binding->open) return done(0);
  const SlotId slot = binding->token.slot;
  const segment::ReadScope scope{.slot = slot, .generation = binding->token.generation};
  const segment::Found found =
      segment->view.Find(slot, {.key = key, .hash = segment->view.HashKey(slot, key)});
  if (!found) return done(0);
  const auto lane = std::ranges::find(segment->shared().lanes, 0U,
                                      [](const segment::Lane& of) { return of.used.load(); });
  if (lane == std::end(segment->shared().lanes)) return done(0);
  const auto window = std::make_shared<segment::ReadWindow>(segment->view, *lane);
  if (options_.rules.reader.second_look) window->Announce(found);
  world_.In(place_, ShortPause(), [this, segment, reading, scope, found, window, done] {
    window->Fence();
    const std::int64_t now = options_.rules.lease ? world_.NowOf(place_) : 0;
    if (Confirm(options_.rules.reader, segment->view, found, scope, now) != MissReason::kNone) {
      return done(0);
    }
    world_.In(place_, ShortPause(), [this, segment, reading, found, window, done] {
      Extent extents[segment::kMaxExtents];
      const std::uint32_t count = segment->view.Extents(found, extents);
      const Oracle::Serial serial =
          oracle_.Verify(reading, WordsOf(*segment, {extents, count}, found.meta.size_bytes()));
      window->Clear();
      done(serial);
    });
  });
}

void SimRequester::GetRemote(int space, const std::string& key, const ReadDone& done) {
  const Oracle::Reading reading = oracle_.BeginRead(space, key);
  const std::string_view view = reading.key;
  ItemResult result;
  std::vector<std::size_t> which = {0};
  const auto hinted = locator(space).Recall({&view, 1}, which, {&result, 1}, Version(space));
  const auto look_up = [this, space, reading, done] {
    const std::string_view key = reading.key;
    ItemResult result;
    const auto found = locator(space).Locate({&key, 1}, {0}, {&result, 1}, Version(space),
                                             world_.NowOf(place_) + kCallNs);
    Fetch(found, /*second=*/false, reading, done);
  };
  if (hinted.which.empty()) return look_up();
  Fetch(hinted, /*second=*/false, reading, [done, look_up](Oracle::Serial serial) {
    if (serial != 0) return done(serial);
    look_up();
  });
}

void SimRequester::Fetch(const requester::Locator::Found& found, bool second,
                         const Oracle::Reading& reading, const ReadDone& done) {
  if (found.which.empty()) return done(0);
  const wire::Place& place = found.places[0];
  const auto owner = PlaceOf(second ? place.second : place.owner);
  const auto next = [this, found, second, reading, done](Oracle::Serial serial) {
    if (serial != 0 || second || found.places[0].second == wire::kNoOwner) return done(serial);
    Fetch(found, /*second=*/true, reading, done);
  };
  if (!owner) {
    Refresh();
    return next(0);
  }
  FetchFrom(*owner, found.token, reading, next);
}

void SimRequester::FetchFrom(Place owner, const Token& token, const Oracle::Reading& reading,
                             const ReadDone& done) {
  struct Getting {
    Oracle::Reading reading;
    std::vector<std::uint64_t> words = std::vector<std::uint64_t>(512);
    MutableBuffer piece;
    GetItem item;
    ItemResult result;
    std::unique_ptr<requester::RemoteRead> read;
  };
  const auto get = std::make_shared<Getting>();
  get->reading = reading;
  get->piece = {.data = get->words.data(), .size = get->words.size() * 8};
  get->item = {.key = get->reading.key, .into = {&get->piece, 1}};
  // Without checksums, what the owner's memory became is seen; with them, it must be what was put.
  const bool checksum = world_.random().OneIn(2);
  get->read = std::make_unique<requester::RemoteRead>(token, checksum, std::span(&get->item, 1),
                                                      std::span(&get->result, 1));
  get->read->Add(0, *endpoints_.at(owner), "an owner");
  Exchange(
      owner, get->read->Exchanges()[0], kCallNs, [] {},
      [this, get, done] {
        get->read->Finish();
        if (get->result.code == Code::kCorrupt) oracle_.Fail("a value lost its checksum");
        if (!get->result.ok()) return done(0);
        get->words.resize(get->result.bytes / 8);
        done(oracle_.Verify(get->reading, get->words));
      });
}

// ---- removals, resets, names, pins

void SimRequester::RemoveUnder(int /*space*/, const Token& token,
                               const std::vector<std::string>& keys, const std::string& prefix,
                               const std::function<void(Result<std::string>)>& done) {
  Async(
      wire::Method::kRemoveEverywhere,
      [&](wire::MasterStub& stub, std::int64_t deadline_ns) {
        if (keys.empty()) {
          (void)stub.RemoveMatching(token, prefix + "*", deadline_ns);
          return;
        }
        const std::vector<std::string_view> views(keys.begin(), keys.end());
        (void)stub.Remove(token, views, deadline_ns);
      },
      kResetNs, done);
}

void SimRequester::Remove(int space, const std::vector<std::string>& keys,
                          const std::string& prefix, const std::function<void(bool)>& done) {
  const auto known =
      locator(space).Bind(Version(space), /*fresh=*/false, world_.NowOf(place_) + kCallNs);
  if (!known) return done(false);
  RemoveUnder(space, known->token, keys, prefix,
              [this, space, keys, prefix, done](const Result<std::string>& answer) {
                if (answer || answer.error().code != Code::kStale) return done(answer.has_value());
                const auto fresh = locator(space).Bind(Version(space), /*fresh=*/true,
                                                       world_.NowOf(place_) + kCallNs);
                if (!fresh) return done(false);
                RemoveUnder(space, fresh->token, keys, prefix,
                            [done](const Result<std::string>& last) { done(last.has_value()); });
              });
}

void SimRequester::Reset(int family, std::optional<int> space, bool by_engine,
                         const std::function<void(bool)>& done) {
  const auto of = std::ranges::find(oracle_.spaces(), family, &Space::family);
  wire::ResetRequest request{.name = of->name,
                             .engine = {},
                             .version = {},
                             .id = {world_.random().Next(), world_.random().Next()}};
  if (by_engine) request.engine = "engine-" + std::to_string(place_);
  if (space) request.version = Version(*space);
  Async(
      wire::Method::kReset,
      [&](wire::MasterStub& stub, std::int64_t deadline_ns) {
        (void)stub.Reset(request, deadline_ns);
      },
      kResetNs,
      [this, family, done](const Result<std::string>& answer) {
        if (answer) {
          const auto outcome = wire::DecodeResetOutcome(std::as_bytes(std::span(*answer)));
          if (!outcome) return oracle_.Fail("the answer to a reset cannot be read");
          locators_.at(family)->CloseAll(*outcome);
        }
        done(answer.has_value());
      });
}

void SimRequester::Prune(int space, const std::function<void(bool)>& done) {
  const std::string& name = oracle_.spaces()[space].name;
  Async(
      wire::Method::kPrune,
      [&](wire::MasterStub& stub, std::int64_t deadline_ns) {
        (void)stub.Prune({.name = name, .before = Version(space)}, deadline_ns);
      },
      kResetNs, [done](const Result<std::string>& answer) { done(answer.has_value()); });
}

void SimRequester::NameVersions(int family, const std::vector<std::string>& versions) {
  const auto of = std::ranges::find(oracle_.spaces(), family, &Space::family);
  Async(
      wire::Method::kNameVersions,
      [&](wire::MasterStub& stub, std::int64_t deadline_ns) {
        (void)stub.NameVersions(of->name, "engine-" + std::to_string(place_), versions,
                                deadline_ns);
      },
      kCallNs, [](const Result<std::string>&) {});
}

void SimRequester::EndEngine(int family) {
  const auto of = std::ranges::find(oracle_.spaces(), family, &Space::family);
  Async(
      wire::Method::kEndEngine,
      [&](wire::MasterStub& stub, std::int64_t deadline_ns) {
        (void)stub.EndEngine(of->name, "engine-" + std::to_string(place_), deadline_ns);
      },
      kCallNs, [](const Result<std::string>&) {});
}

void SimRequester::Pin(int space, const std::string& key, wire::PinKind kind) {
  const auto binding =
      locator(space).Bind(Version(space), /*fresh=*/false, world_.NowOf(place_) + kCallNs);
  if (!binding) return;
  const auto owner = static_cast<Place>(world_.random().Below(options_.owners));
  const bool unpin = world_.random().OneIn(2);
  world_.Send(place_, owner, [this, owner, token = binding->token, key, kind, unpin] {
    owner::Core& core = owner_at_(owner)->core();
    if (core.CheckToken(token) != Code::kOk) return;
    (void)(unpin ? core.Unpin(token.slot, key) : core.Pin(token.slot, key, kind, kSecond));
  });
}

}  // namespace kvcove::sim
