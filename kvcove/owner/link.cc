// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link.h"

#include <sys/socket.h>

#include <optional>

#include "kvcove/base/log.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::owner {
namespace {

constexpr std::int64_t kCallNs = 500 * kMillisecond;
constexpr std::int64_t kWatchNs = 5 * kSecond;
constexpr std::int64_t kRetryNs = 50 * kMillisecond;
constexpr std::int64_t kListWaitNs = 20 * kMillisecond;
constexpr std::int64_t kUnlistNs = 200 * kMillisecond;  // well below a lease
constexpr std::size_t kListItems = 4096;
constexpr std::size_t kGoneItems = 65536;
constexpr int kMaxCatchUp = 100;  // changes in a row before a renewal gives up

std::span<const std::byte> Bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace

Link::Link(Owner& owner, const LinkOptions& options, const Clock& clock)
    : owner_(owner), options_(options), clock_(clock), follower_(RandomId()) {}

Link::~Link() { Stop(); }

void Link::Start() {
  lease_ = StartThread("kvcove-lease", [this] { RunLease(); });
  watch_ = StartThread("kvcove-watch", [this] { RunWatch(); });
  list_ = StartThread("kvcove-list", [this] { RunList(); });
}

void Link::Stop() {
  {
    const MutexLock lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    if (watch_fd_ >= 0) shutdown(watch_fd_, SHUT_RDWR);
    changed_.NotifyAll();
  }
  owner_.WakeOutbox();
  for (std::thread* thread : {&lease_, &watch_, &list_}) {
    if (thread->joinable()) thread->join();
  }
  owner_.SetLease(0);  // nobody reads on: only now may the master be told
  const Standing now = standing();
  if (now.epoch == 0) return;
  const std::int64_t deadline_ns = clock_.NowNs() + kCallNs;
  auto client = rpc::Client::Connect(options_.master, options_.access, deadline_ns);
  if (!client) return;
  (void)client->Call(wire::Method::kOwnerGoodbye, Bytes(wire::Encode(Report())), deadline_ns);
}

Link::Standing Link::standing() const {
  const MutexLock lock(mutex_);
  return follower_.standing();
}

bool Link::Sleep(std::int64_t duration_ns) {
  const MutexLock lock(mutex_);
  if (!stopping_) changed_.WaitFor(mutex_, std::chrono::nanoseconds(duration_ns));
  return !stopping_;
}

wire::RenewRequest Link::Report() const {
  const MutexLock lock(mutex_);
  return follower_.Report();
}

wire::RenewRequest Link::ReportRemoved() {
  const MutexLock lock(mutex_);
  wire::RenewRequest request = follower_.Report();
  request.removed = std::exchange(matched_, 0);
  return request;
}

// ---- lease
// --------------------------------------------------------------------------------------------------

Status Link::Hello(rpc::Client& client) {
  // Until all is told again others may store other values of the same keys.
  owner_.SetLease(0);
  wire::OwnerHello hello;
  {
    const MutexLock lock(mutex_);
    hello = follower_.Hello();
    hello_again_ = false;
  }
  hello.address = options_.address;
  hello.socket = options_.socket;
  hello.host = options_.host;
  hello.tenant = options_.tenant;
  hello.capacity_bytes = owner_.payload_bytes();
  KVCOVE_ASSIGN(
      const std::string reply,
      client.Call(wire::Method::kOwnerHello, Bytes(wire::Encode(hello)), clock_.NowNs() + kCallNs));
  KVCOVE_ASSIGN(const wire::OwnerWelcome welcome, wire::DecodeOwnerWelcome(Bytes(reply)));
  {
    // Not while changes of the last epoch are being applied.
    const MutexLock apply_lock(apply_mutex_);
    const MutexLock lock(mutex_);
    follower_.Welcomed(welcome);
    changed_.NotifyAll();
  }
  LogInfo("the master at {} knows this owner as number {}, epoch {}", options_.master.ToString(),
          welcome.number, welcome.epoch);
  owner_.WakeOutbox();
  return {};
}

// One lease, or an error when hello must be said again.
Status Link::Renew(rpc::Client& client) {
  const PoolStat stat = owner_.Stat();
  for (int i = 0; i < kMaxCatchUp; ++i) {
    const Standing now = standing();
    wire::RenewRequest request = ReportRemoved();
    request.free_bytes = stat.free_bytes;
    request.objects = stat.objects;
    request.hits = stat.hits;
    request.evictions = stat.evictions;
    request.stale_puts = stat.stale_puts;
    request.puts = stat.puts;
    const std::int64_t sent_ns = clock_.NowNs();
    KVCOVE_ASSIGN(
        const std::string body,
        client.Call(wire::Method::kRenew, Bytes(wire::Encode(request)), sent_ns + kCallNs));
    KVCOVE_ASSIGN(const wire::RenewReply reply, wire::DecodeRenewReply(Bytes(body)));
    if (reply.granted) {
      // Counted from when it was asked for: whatever the answer took, the master counts from later.
      owner_.SetLease(sent_ns + reply.lease_ns);
      owner_.SetMasterReachable(true);
      owner_.SetDraining(reply.draining);
      return {};
    }
    if (reply.changes.version != request.applied) Apply(reply.changes, now);
    const MutexLock lock(mutex_);
    if (stopping_) return {};
    if (!follower_.told()) {
      changed_.WaitFor(mutex_, std::chrono::nanoseconds(kListWaitNs));
    }
  }
  return {};
}

void Link::RunLease() {
  std::optional<rpc::Client> client;
  bool said_away = false;
  bool said_stale = false;
  while (true) {
    Status done;
    if (!client) {
      auto connected =
          rpc::Client::Connect(options_.master, options_.access, clock_.NowNs() + kCallNs);
      if (connected) {
        client.emplace(std::move(*connected));
        done = Hello(*client);
      } else {
        done = std::unexpected(connected.error());
      }
    } else if (HelloWanted()) {
      done = Hello(*client);
    }
    if (done) done = Renew(*client);
    if (done) {
      if (said_away) LogInfo("the master at {} is back", options_.master.ToString());
      said_away = false;
      said_stale = false;
      if (!Sleep(owner_.lease_renewal_ns())) return;
      continue;
    }
    if (done.error().code == Code::kStale && client && client->usable()) {
      if (!std::exchange(said_stale, true)) {
        LogWarn("the master at {} does not renew the lease: {}", options_.master.ToString(),
                done.error().detail);
      }
      const MutexLock lock(mutex_);
      hello_again_ = true;
    } else {
      client.reset();
      owner_.SetMasterReachable(false);
      if (!said_away) {
        LogWarn("the master at {} cannot be reached ({}); when the lease runs out all is a miss",
                options_.master.ToString(), done.error().ToString());
      }
      said_away = true;
    }
    if (!Sleep(kRetryNs)) return;
  }
}

bool Link::HelloWanted() const {
  const MutexLock lock(mutex_);
  return hello_again_;
}

// ---- changes
// ------------------------------------------------------------------------------------------------

void Link::Apply(const wire::Changes& changes, const Standing& from) {
  const MutexLock apply_lock(apply_mutex_);
  std::optional<Follower::Todo> todo;
  {
    const MutexLock lock(mutex_);
    todo = follower_.Take(changes, from.epoch);
  }
  if (!todo) return;
  // Generations first: from here on nothing older is found or stored.
  owner_.Publish(todo->incarnation, todo->updates);
  const std::uint64_t matched = owner_.ApplyRemovals(todo->removals);
  // The master forgets the removed objects before it hears that they are gone.
  if (matched > 0) AwaitRounds();
  const MutexLock lock(mutex_);
  follower_.Applied(*todo);
  owner_.SetApplied(changes.version);
  matched_ += matched;
}

void Link::AwaitRounds() {
  const MutexLock lock(rounds_mutex_);
  const std::uint64_t until = rounds_ + 2;
  owner_.WakeOutbox();
  const std::int64_t deadline_ns = clock_.NowNs() + kUnlistNs;
  while (rounds_ < until && clock_.NowNs() < deadline_ns) {
    rounds_changed_.WaitFor(rounds_mutex_, std::chrono::milliseconds(5));
    owner_.WakeOutbox();
  }
}

void Link::RunWatch() {
  std::optional<rpc::Client> client;
  while (true) {
    const Standing now = standing();
    Status done = Fail(Code::kUnavailable, "");
    if (now.epoch != 0) {
      if (!client || !client->usable()) {
        client.reset();
        const std::int64_t deadline_ns = clock_.NowNs() + kCallNs;
        auto connected = rpc::Client::Connect(options_.master, options_.access, deadline_ns);
        if (connected) client.emplace(std::move(*connected));
      }
      if (client) {
        const wire::RenewRequest request = ReportRemoved();
        {
          const MutexLock lock(mutex_);
          if (stopping_) return;
          watch_fd_ = client->fd();
        }
        auto reply = client->Call(wire::Method::kWatch, Bytes(wire::Encode(request)),
                                  clock_.NowNs() + kWatchNs);
        {
          const MutexLock lock(mutex_);
          watch_fd_ = -1;
        }
        if (reply) {
          const auto changes = wire::DecodeChanges(Bytes(*reply));
          if (changes) {
            Apply(*changes, now);
            done = {};
          }
        } else if (reply.error().code == Code::kTimeout) {
          done = {};  // no news; ask again over a new connection
        }
      }
    }
    {
      const MutexLock lock(mutex_);
      if (stopping_) return;
    }
    if (!done && !Sleep(kListWaitNs)) return;
  }
}

// ---- listing
// ------------------------------------------------------------------------------------------------

Result<std::vector<Code>> Link::SendList(rpc::Client& client, const Standing& standing,
                                         std::vector<wire::ListItem> items) {
  const std::size_t count = items.size();
  wire::ListRequest request{.number = standing.number,
                            .epoch = standing.epoch,
                            .applied = Report().applied,
                            .items = std::move(items)};
  KVCOVE_ASSIGN(
      const std::string reply,
      client.Call(wire::Method::kList, Bytes(wire::Encode(request)), clock_.NowNs() + kCallNs));
  return wire::DecodeCodes(Bytes(reply), count);
}

Status Link::TellInventory(rpc::Client& client, const Standing& now) {
  const std::int64_t started_ns = clock_.NowNs();
  ObjectId cursor = 0;
  std::size_t objects = 0;
  std::size_t dropped = 0;
  while (cursor != Core::kWalkDone) {
    const std::vector<InventoryItem> batch = owner_.Inventory(cursor, kListItems);
    std::vector<wire::ListItem> items;
    items.reserve(batch.size());
    for (const InventoryItem& item : batch) items.push_back(item.item);
    KVCOVE_ASSIGN(const std::vector<Code> codes, SendList(client, now, std::move(items)));
    std::vector<InventoryItem> second;  // somebody else has another value of the key
    for (std::size_t i = 0; i < codes.size(); ++i) {
      if (codes[i] == Code::kExists) second.push_back(batch[i]);
    }
    owner_.DropObjects(second);
    objects += batch.size();
    dropped += second.size();
    if (standing().epoch != now.epoch) return Fail(Code::kStale, "hello was said again");
  }
  const MutexLock lock(mutex_);
  follower_.Told(now.epoch);
  changed_.NotifyAll();
  if (objects > 0) {
    LogInfo("told the master of {} objects in {} ms, {} dropped", objects,
            (clock_.NowNs() - started_ns) / kMillisecond, dropped);
  }
  return {};
}

Status Link::TellNews(rpc::Client& client, const Standing& now) {
  // In this order: what went was taken after what came, and goes first, so that a key that was
  // evicted and stored again stays listed.
  std::vector<Listing> listings = owner_.TakeListings(kListItems);
  std::vector<wire::ListItem> items = owner_.TakeGone(kGoneItems);
  while (items.size() == kGoneItems) {
    if (const auto codes = SendList(client, now, std::move(items)); !codes) {
      owner_.ReturnListings(std::move(listings));
      return std::unexpected(codes.error());
    }
    items = owner_.TakeGone(kGoneItems);
  }
  const std::size_t gone = items.size();
  for (const Listing& listing : listings) {
    for (const Pending& pending : listing.pending) items.push_back(pending.item);
  }
  if (items.empty()) return {};
  const auto codes = SendList(client, now, std::move(items));
  if (!codes) {
    owner_.ReturnListings(std::move(listings));
    return std::unexpected(codes.error());
  }
  std::span<const Code> rest(*codes);
  rest = rest.subspan(gone);
  for (Listing& listing : listings) {
    const std::size_t count = listing.pending.size();
    owner_.CompleteListing(std::move(listing), rest.first(count));
    rest = rest.subspan(count);
  }
  return {};
}

void Link::RunList() {
  std::optional<rpc::Client> client;
  while (true) {
    const Standing now = standing();
    bool told = false;
    {
      const MutexLock lock(mutex_);
      if (stopping_) return;
      told = follower_.told();
    }
    Status done;
    if (now.epoch == 0) {
      owner_.WaitOutbox(kListWaitNs);
      continue;
    }
    if (!client || !client->usable()) {
      client.reset();
      const std::int64_t deadline_ns = clock_.NowNs() + kCallNs;
      auto connected = rpc::Client::Connect(options_.master, options_.access, deadline_ns);
      if (connected) {
        client.emplace(std::move(*connected));
      } else {
        done = std::unexpected(connected.error());
      }
    }
    if (done && owner_.TakeGoneOverflow()) done = Fail(Code::kLimit, "too much went at once");
    if (done) done = told ? TellNews(*client, now) : TellInventory(*client, now);
    if (!done) {
      LogDebug("telling the master failed: {}", done.error().ToString());
      // What went may not have reached the master: all is told again, under another epoch.
      if (told) {
        const MutexLock lock(mutex_);
        if (follower_.standing().epoch == now.epoch) hello_again_ = true;
      }
      if (!Sleep(kListWaitNs)) return;
      continue;
    }
    {
      const MutexLock lock(rounds_mutex_);
      ++rounds_;
      rounds_changed_.NotifyAll();
    }
    if (told) owner_.WaitOutbox(kListWaitNs);
  }
}

}  // namespace kvcove::owner
