// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/data_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <map>
#include <thread>

#include "kvcove/base/descriptors.h"
#include "kvcove/base/log.h"
#include "kvcove/base/size.h"
#include "kvcove/owner/copier.h"
#include "kvcove/owner/pieces.h"
#include "kvcove/rpc/gate.h"
#include "kvcove/rpc/unproven.h"
#include "kvcove/rpc/workers.h"
#include "kvcove/wire/cluster.h"
#include "kvcove/wire/frame.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::owner {
namespace {

namespace asio = boost::asio;
using Protocol = asio::generic::stream_protocol;
using Socket = Protocol::socket;
using boost::system::error_code;

constexpr std::int64_t kSpinNs = 50 * kMicrosecond;
constexpr std::size_t kDiscard = 64 * kKiB;
constexpr std::uint64_t kMaxBatchBytes = 512 * kMiB;
// How often a put that waits for the master looks whether that is still there.
constexpr std::int64_t kListedTurnNs = 50 * kMillisecond;
constexpr auto kSweep = std::chrono::milliseconds(250);

// Pins and statistics of one caller's objects, for who holds no mapping.
class ObjectService final : public wire::ObjectService {
 public:
  ObjectService(Owner& owner, const rpc::Caller& caller) : owner_(owner), caller_(caller) {}
  Result<std::vector<Code>> Pin(const Token& token, std::span<const std::string_view> keys,
                                std::optional<PinKind> kind, std::int64_t duration_ns,
                                std::int64_t /*deadline_ns*/) override {
    // Owners pin what they have copied.
    if (!(caller_.Has(rpc::Scope::kWrite) || caller_.IsOwner()) ||
        !caller_.MayTouch(owner_.TenantOfSlot(token.slot))) {
      return Denied();
    }
    return owner_.Pin(token, keys, kind, duration_ns);
  }
  Result<std::vector<std::optional<ObjectStat>>> StatObjects(
      const Token& token, std::span<const std::string_view> keys,
      std::int64_t /*deadline_ns*/) override {
    if (!caller_.Has(rpc::Scope::kRead) || !caller_.MayTouch(owner_.TenantOfSlot(token.slot))) {
      return Denied();
    }
    return owner_.StatObjects(token, keys);
  }
  Result<wire::InventoryReply> Page(const wire::InventoryRequest& request,
                                    std::int64_t /*deadline_ns*/) override {
    if (!caller_.Has(rpc::Scope::kRead) || !caller_.MayTouch(owner_.TenantOfSlot(*request.slot))) {
      return Denied();
    }
    return owner_.Page(request);
  }
  // Of all tenants.
  Result<PoolStat> Stat(std::int64_t /*deadline_ns*/) override {
    if (!caller_.Has(rpc::Scope::kAdmin) && !caller_.Has(rpc::Scope::kOwner)) return Denied();
    return owner_.Stat();
  }

 private:
  static std::unexpected<Error> Denied() {
    return Fail(Code::kDenied, "this credential may not do that");
  }
  Owner& owner_;
  const rpc::Caller& caller_;
};

// Buffers over the bytes of an object, in its order.
template <typename Buffer, typename Out>
void AddPieces(std::byte* payload, std::span<const Extent> extents, std::uint64_t size, Out& out) {
  ForEachPiece(payload, extents, size,
               [&](std::byte* data, std::uint64_t bytes) { out.push_back(Buffer(data, bytes)); });
}

}  // namespace

class DataServer::Impl {
 public:
  Impl(Owner& owner, const DataServerOptions& options, const Clock& clock)
      : owner_(owner),
        options_(options),
        clock_(clock),
        gate_(options.credentials),
        limit_(std::make_shared<ConnectionLimit>(
            "the owner's data server",
            // The owner listens on a Unix socket, too.
            ConnectionsWithin(options.max_connections, options.tls == nullptr ? 2 : 6))),
        unproven_(rpc::UnprovenOf("the owner's data server", limit_->max())),
        own_tag_(TenantTag(options.tenant)),
        copier_(owner, options.access, options.credentials, options.checksum, clock) {
    for (std::size_t i = 0; i < std::max<std::size_t>(options.loops, 1); ++i) {
      loops_.push_back(std::make_unique<Loop>());
    }
  }

  Status Open() {
    KVCOVE_ASSIGN(UniqueFd listener, rpc::ListenTcp(options_.listen));
    accept_again_.emplace(loops_[0]->context);
    acceptor_.emplace(loops_[0]->context, Protocol(AF_INET, 0), listener.Release());
    Accept();
    for (const auto& loop : loops_) {
      Sweep(*loop);
      loop->thread = StartThread("kvcove-data", [this, raw = loop.get()] { Run(*raw); });
    }
    return {};
  }

  ~Impl() {
    stopping_.store(true);
    {
      const MutexLock lock(open_->mutex);
      open_->closed = true;
    }
    for (const auto& loop : loops_) {
      if (!loop->thread.joinable()) continue;
      asio::post(loop->context, [this, raw = loop.get()] {
        if (raw == loops_[0].get()) {
          acceptor_->close();
          accept_again_->cancel();
        }
        for (const auto& [id, connection] : raw->connections) connection->socket.close();
        raw->sweeper.cancel();
        raw->work.reset();
      });
    }
    for (const auto& loop : loops_) {
      if (loop->thread.joinable()) loop->thread.join();
    }
    // A task that still runs posts its answer to a loop: it goes nowhere, but the loop must exist.
    copier_.Stop();
    workers_.reset();
  }

  const rpc::Address& address() const { return options_.listen; }

  void Collect(http::Metrics& metrics) const {
    const auto number = [](const auto& value) { return static_cast<double>(value.load()); };
    metrics.Gauge("kvcove_owner_data_connections", "open connections of other hosts",
                  static_cast<double>(limit_->open()));
    metrics.Gauge("kvcove_owner_data_connections_max", "beyond, new ones are closed at once",
                  static_cast<double>(limit_->max()));
    metrics.Counter("kvcove_owner_data_connections_refused_total",
                    "connections that were closed at once or could not be accepted",
                    static_cast<double>(limit_->refused()));
    metrics.Gauge("kvcove_owner_data_connections_unproven",
                  "of them, those that have proven nothing",
                  static_cast<double>(unproven_->open()));
    metrics.Counter("kvcove_owner_data_connections_displaced_total",
                    "connections that had proven nothing and gave way to newer ones",
                    static_cast<double>(unproven_->displaced()));
    metrics.Counter("kvcove_owner_sent_bytes_total", "values that were sent", number(sent_bytes_));
    metrics.Counter("kvcove_owner_received_bytes_total", "values that were received",
                    number(received_bytes_));
    metrics.Counter("kvcove_owner_corrupt_values_total",
                    "values that did not arrive with their checksum", number(corrupt_));
    metrics.Counter("kvcove_owner_refused_connections_total",
                    "connections without a credential that is known",
                    static_cast<double>(gate_.refused()));
    metrics.Histogram("kvcove_owner_call_seconds", "how long exchanges of batches took", get_time_,
                      {{"call", "get"}});
    metrics.Histogram("kvcove_owner_call_seconds", "how long exchanges of batches took", put_time_,
                      {{"call", "put"}});
    for (std::size_t i = 1; i < kMissReasons; ++i) {
      metrics.Counter("kvcove_owner_remote_misses_total", "keys that other hosts missed here",
                      number(misses_[i]),
                      {{"reason", std::string(MissReasonName(static_cast<MissReason>(i)))}});
    }
  }

 private:
  // As long as a connection lasts.
  struct Held {
    std::shared_ptr<void> counted;                  // of the ConnectionLimit
    std::shared_ptr<rpc::Unproven::Ticket> ticket;  // until it is let in
  };
  struct Connection {
    Connection(Socket accepted, Held taken) : socket(std::move(accepted)), held(std::move(taken)) {}
    Socket socket;
    Held held;
    SessionNumber session = 0;  // with its first put
    std::int64_t ends_ns = 0;   // when it is closed for being silent; 0: not
    bool let_in() const { return guest.caller != nullptr; }
    std::vector<std::byte> body;
    std::vector<std::byte> discard;
    rpc::Gate::Guest guest;
  };
  struct Loop {
    asio::io_context context{1};
    asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
    asio::steady_timer sweeper{context};
    std::map<std::uint64_t, std::shared_ptr<Connection>> connections;
    std::thread thread;
  };
  using Task = asio::awaitable<void>;
  template <typename T>
  using Awaitable = asio::awaitable<T>;

  // Looks for the next byte for a moment before it sleeps: a wake-up costs more than most requests.
  void Run(Loop& loop) {
    std::int64_t busy_until = 0;
    while (!loop.context.stopped()) {
      std::size_t ran = loop.context.poll();
      if (ran == 0 && clock_.NowNs() >= busy_until) ran = loop.context.run_one();
      if (ran > 0) {
        busy_until = clock_.NowNs() + kSpinNs;
      } else {
        sched_yield();
      }
    }
  }

  void Accept() {
    acceptor_->async_accept([this](const error_code& error, Socket socket) {
      if (!acceptor_->is_open() || stopping_) return;
      if (error) {
        // No descriptor is free, most likely: trying at once would only keep the loop busy.
        limit_->AcceptFailed(error.value());
        accept_again_->expires_after(std::chrono::milliseconds(20));
        accept_again_->async_wait([this](const error_code& stopped) {
          if (!stopped && acceptor_->is_open()) Accept();
        });
        return;
      }
      if (std::shared_ptr<void> counted = limit_->Take(); counted != nullptr) {
        UniqueFd fd(socket.release());
        const int on = 1;
        setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        Admit(std::move(fd), std::move(counted));
      }
      Accept();
    });
  }

  void Admit(UniqueFd fd, std::shared_ptr<void> counted) {
    Loop& loop = *loops_[next_id_ % loops_.size()];
    const std::uint64_t id = next_id_++;
    const bool plain = options_.tls == nullptr;
    std::shared_ptr<rpc::Unproven::Ticket> ticket =
        unproven_->Enter(rpc::SourceOf(fd.get()), plain ? fd.get() : -1, DisplaceLater(loop, id));
    if (plain) {
      return Begin(loop, id, Protocol(AF_INET, 0), std::move(fd),
                   {.counted = std::move(counted), .ticket = std::move(ticket)});
    }
    // The handshake may outlive this.
    auto cancel = options_.tls->Accept(
        std::move(fd), options_.hello_ns,
        [this, open = open_, &loop, id, counted = std::move(counted), ticket](UniqueFd inner) {
          const MutexLock lock(open->mutex);
          if (open->closed) return;
          Begin(loop, id, Protocol(AF_UNIX, 0), std::move(inner),
                {.counted = counted, .ticket = ticket});
        });
    ticket->Replace(-1, [cancel = std::move(cancel), later = DisplaceLater(loop, id)] {
      cancel();
      later();
    });
  }

  // Ends a connection that must give way, if it has not been let in meanwhile.
  std::function<void()> DisplaceLater(Loop& loop, std::uint64_t id) {
    return [&loop, id] {
      asio::post(loop.context, [&loop, id] {
        const auto at = loop.connections.find(id);
        if (at == loop.connections.end() || at->second->held.ticket == nullptr) return;
        at->second->socket.close();
      });
    };
  }

  void Begin(Loop& loop, std::uint64_t id, Protocol protocol, UniqueFd fd, Held held) {
    asio::post(loop.context, [this, &loop, id, protocol, held = std::move(held),
                              shared = std::make_shared<UniqueFd>(std::move(fd))] {
      auto connection =
          std::make_shared<Connection>(Socket(loop.context, protocol, shared->Release()), held);
      connection->ends_ns = clock_.NowNs() + options_.hello_ns;
      loop.connections.emplace(id, connection);
      asio::co_spawn(loop.context, Serve(loop, id, connection), asio::detached);
    });
  }

  // Ends what was silent for too long.
  void Sweep(Loop& loop) {
    loop.sweeper.expires_after(kSweep);
    loop.sweeper.async_wait([this, &loop](const error_code& error) {
      if (error || stopping_) return;
      const std::int64_t now = clock_.NowNs();
      for (const auto& [id, connection] : loop.connections) {
        if (connection->ends_ns != 0 && connection->ends_ns < now) connection->socket.close();
      }
      Sweep(loop);
    });
  }

  Task Serve(Loop& loop, std::uint64_t id, std::shared_ptr<Connection> connection) {
    try {
      while (co_await ServeOne(*connection)) {
      }
    } catch (const std::exception& error) {
      LogDebug("a data connection ended: {}", error.what());
    }
    if (connection->session != 0) owner_.EndSession(connection->session);
    loop.connections.erase(id);
  }

  Awaitable<bool> Read(Connection& connection, std::byte* data, std::size_t size) {
    error_code error;
    co_await asio::async_read(connection.socket, asio::buffer(data, size),
                              asio::redirect_error(asio::use_awaitable, error));
    co_return !error;
  }

  // False: the connection ends.
  Awaitable<bool> ServeOne(Connection& connection) {
    std::array<std::byte, wire::kFrameHeaderBytes> head;
    if (connection.let_in()) connection.ends_ns = 0;  // between calls it may be silent
    if (!co_await Read(connection, head.data(), head.size())) co_return false;
    if (connection.let_in()) connection.ends_ns = clock_.NowNs() + options_.stall_ns;
    if (connection.held.ticket != nullptr) connection.held.ticket->Heard();
    const auto header = wire::DecodeFrameHeader(
        head, connection.let_in() ? wire::kMaxFrameBytes : wire::kMaxFirstFrameBytes);
    if (!header || (header->method & wire::kReplyBit) != 0) co_return false;
    connection.body.resize(header->body_bytes);
    if (!co_await Read(connection, connection.body.data(), connection.body.size())) {
      co_return false;
    }
    const auto method = static_cast<wire::Method>(header->method);
    if (rpc::Gate::IsGreeting(method)) co_return co_await Greet(connection, *header);
    if (!gate_.Admitted(connection.guest)) co_return false;
    const rpc::Caller& caller = *connection.guest.caller;
    switch (method) {
      case wire::Method::kDataGet:
      case wire::Method::kDataPut: {
        const bool get = method == wire::Method::kDataGet;
        const std::int64_t began_ns = clock_.NowNs();
        const bool more =
            get ? co_await Get(connection, *header) : co_await Put(connection, *header);
        (get ? get_time_ : put_time_).Add(clock_.NowNs() - began_ns);
        co_return more;
      }
      case wire::Method::kPin:
      case wire::Method::kStatObjects:
      case wire::Method::kStat: {
        ObjectService objects(owner_, caller);
        co_return co_await Answer(
            connection, *header,
            wire::ServeObjects(objects, method, connection.body, clock_.NowNs() + kSecond));
      }
      case wire::Method::kInventory:
      case wire::Method::kCopy: {
        if (caller.MayOwn(own_tag_)) co_return co_await Work(connection, *header);
        if (method == wire::Method::kCopy) co_return false;
        ObjectService objects(owner_, caller);
        co_return co_await Answer(
            connection, *header,
            wire::ServeObjects(objects, method, connection.body, clock_.NowNs() + kSecond));
      }
      default:
        co_return false;
    }
  }

  Awaitable<bool> Greet(Connection& connection, const wire::FrameHeader& header) {
    const rpc::Reply reply =
        gate_.Greet(connection.guest, static_cast<wire::Method>(header.method), connection.body);
    if (connection.let_in()) connection.held.ticket.reset();
    const bool sent = co_await Answer(connection, header, reply.code, reply.body);
    co_return sent && !reply.close;
  }

  // What takes long runs on a worker's thread.
  Awaitable<bool> Work(Connection& connection, const wire::FrameHeader& header) {
    struct Wait {
      Result<std::string> answer = Fail(Code::kLimit, "too many tasks are waiting");
      bool done = false;
    };
    const auto wait = std::make_shared<Wait>();
    const auto executor = connection.socket.get_executor();
    const auto timer = std::make_shared<asio::steady_timer>(executor);
    timer->expires_after(std::chrono::seconds(90));
    connection.ends_ns = clock_.NowNs() + 100 * kSecond;
    const bool posted = workers_->Post([this, wait, timer, executor, method = header.method,
                                        body = connection.body] {
      Result<std::string> answer =
          static_cast<wire::Method>(method) == wire::Method::kCopy ? Copy(body) : Inventory(body);
      asio::post(executor, [wait, timer, answer = std::move(answer)] {
        wait->answer = answer;
        wait->done = true;
        timer->cancel();
      });
    });
    error_code error;
    if (posted && !wait->done) {
      co_await timer->async_wait(asio::redirect_error(asio::use_awaitable, error));
    }
    connection.ends_ns = clock_.NowNs() + options_.stall_ns;
    co_return co_await Answer(connection, header, wait->answer);
  }

  Result<std::string> Copy(std::span<const std::byte> body) {
    KVCOVE_ASSIGN(const wire::CopyRequest request, wire::DecodeCopy(body));
    KVCOVE_ASSIGN(const std::vector<Code> codes, copier_.Copy(request));
    return wire::Encode(std::span<const Code>(codes));
  }

  Result<std::string> Inventory(std::span<const std::byte> body) {
    KVCOVE_ASSIGN(wire::InventoryRequest request, wire::DecodeInventory(body));
    request.at_most = std::clamp<std::uint32_t>(request.at_most, 1, wire::kMaxPage);
    return wire::Encode(owner_.Page(request));
  }

  Awaitable<bool> Answer(Connection& connection, const wire::FrameHeader& request,
                         const Result<std::string>& answer) {
    if (answer) co_return co_await Answer(connection, request, Code::kOk, *answer);
    if (answer.error().code == Code::kCorrupt) co_return false;
    co_return co_await Answer(connection, request, answer.error().code, answer.error().detail);
  }

  Awaitable<bool> Answer(Connection& connection, const wire::FrameHeader& request, Code code,
                         std::string_view body, std::span<const asio::const_buffer> values = {}) {
    const auto head = wire::EncodeFrameHeader(
        {.method = static_cast<std::uint16_t>(request.method | wire::kReplyBit),
         .body_bytes = static_cast<std::uint32_t>(body.size()),
         .code = code,
         .call = request.call});
    std::vector<asio::const_buffer> parts = {asio::buffer(head), asio::buffer(body)};
    parts.insert(parts.end(), values.begin(), values.end());
    co_return co_await Transfer<asio::const_buffer>(connection, parts);
  }

  // Sends const buffers, receives into mutable ones; piece by piece, so that progress moves the
  // deadline.
  template <typename Buffer>
  Awaitable<bool> Transfer(Connection& connection, std::span<const Buffer> parts) {
    while (!parts.empty()) {
      std::size_t bytes = 0;
      std::size_t count = 0;
      while (count < parts.size() && count < 64 && bytes < 4 * kMiB) bytes += parts[count++].size();
      const std::vector<Buffer> some(parts.begin(),
                                     parts.begin() + static_cast<std::ptrdiff_t>(count));
      error_code error;
      if constexpr (std::is_same_v<Buffer, asio::const_buffer>) {
        co_await asio::async_write(connection.socket, some,
                                   asio::redirect_error(asio::use_awaitable, error));
      } else {
        co_await asio::async_read(connection.socket, some,
                                  asio::redirect_error(asio::use_awaitable, error));
      }
      if (error) co_return false;
      parts = parts.subspan(count);
      // Whoever is not let in yet has no more time for being busy.
      if (connection.let_in()) connection.ends_ns = clock_.NowNs() + options_.stall_ns;
    }
    co_return true;
  }

  // May this caller store or find there? The slot's tenant is what the master says.
  bool May(const Connection& connection, SlotId slot, rpc::Scope scope) const {
    const rpc::Caller& caller = *connection.guest.caller;
    const std::uint64_t tenant = owner_.TenantOfSlot(slot);
    return caller.MayTouch(tenant) && (own_tag_ == 0 || own_tag_ == tenant) &&
           (caller.Has(scope) || caller.IsOwner());
  }

  bool LeaseHolds() const { return owner_.LeaseUntilNs() > clock_.NowNs(); }

  Awaitable<bool> Get(Connection& connection, const wire::FrameHeader& header) {
    const Result<wire::DataGet> request = wire::DecodeDataGet(connection.body);
    if (!request) co_return false;
    std::vector<wire::DataValue> values(request->keys.size());
    std::vector<Loan> loans;
    if (!May(connection, request->token.slot, rpc::Scope::kRead)) {
      for (wire::DataValue& value : values) value.reason = MissReason::kDenied;
    } else if (LeaseHolds()) {
      loans = owner_.Lend(request->token, request->keys);
    } else {
      for (wire::DataValue& value : values) value.reason = MissReason::kLease;
    }
    struct Returner {
      Owner& owner;
      std::vector<Loan>& loans;
      ~Returner() {
        if (!loans.empty()) owner.Return(loans);
      }
    } returner{owner_, loans};
    std::vector<asio::const_buffer> parts;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < loans.size(); ++i) {
      Loan& loan = loans[i];
      wire::DataValue& value = values[i];
      value = {.code = loan.code, .reason = loan.reason, .size_bytes = loan.size_bytes};
      if (loan.code != Code::kOk) continue;
      if (loan.size_bytes > request->room[i]) {
        value.code = Code::kBufferTooSmall;
        continue;
      }
      bytes += loan.size_bytes;
      if (i > 0 && bytes > kMaxBatchBytes) {
        value.code = Code::kLimit;
        continue;
      }
      if (options_.checksum && !request->no_checksum) {
        if (!loan.has_checksum) {
          // Stored from this host: computed once, when it first leaves.
          loan.checksum = ChecksumOf(owner_.payload(), loan.extents, loan.size_bytes);
          owner_.SetChecksum(loan, loan.checksum);
        }
        value.checksum = loan.checksum;
      }
      AddPieces<asio::const_buffer>(owner_.payload(), loan.extents, loan.size_bytes, parts);
    }
    // The lease once more, now that the memory is protected: deadline last.
    if (!LeaseHolds()) {
      for (wire::DataValue& value : values) value = {.reason = MissReason::kLease};
      parts.clear();
    }
    for (const wire::DataValue& value : values) {
      if (value.code == Code::kMiss) {
        misses_[static_cast<std::size_t>(value.reason)].fetch_add(1, std::memory_order_relaxed);
      }
    }
    sent_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    const std::string body = wire::Encode(std::span<const wire::DataValue>(values));
    co_return co_await Answer(connection, header, Code::kOk, body, parts);
  }

  Awaitable<bool> Put(Connection& connection, const wire::FrameHeader& header) {
    const Result<wire::DataPut> request = wire::DecodeDataPut(connection.body);
    if (!request) co_return false;
    std::uint64_t bytes = 0;
    std::vector<PutItem> items;
    items.reserve(request->items.size());
    for (const wire::DataPutItem& item : request->items) {
      bytes += item.size_bytes;
      items.push_back(
          {.key = item.key, .size_bytes = item.size_bytes, .value = {}, .after = item.after});
    }
    if (bytes > kMaxBatchBytes) co_return false;
    std::vector<PutResult> places(items.size(), PutResult{.code = Code::kDenied, .extents = {}});
    // Only another owner may say that what it brings is a copy.
    const bool copy = connection.guest.caller->IsOwner() && request->copied_at != 0;
    if (May(connection, request->token.slot, rpc::Scope::kWrite)) {
      if (!HasSession(connection)) co_return false;
      places =
          owner_.Reserve(connection.session, request->token, items, /*evict=*/!request->no_evict);
    }
    std::vector<asio::mutable_buffer> parts;
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (places[i].code == Code::kOk) {
        AddPieces<asio::mutable_buffer>(owner_.payload(), places[i].extents, items[i].size_bytes,
                                        parts);
        continue;
      }
      // What is not taken must still be read.
      connection.discard.resize(kDiscard);
      for (std::uint64_t left = items[i].size_bytes; left > 0;) {
        const std::uint64_t piece = std::min<std::uint64_t>(left, kDiscard);
        parts.emplace_back(connection.discard.data(), piece);
        left -= piece;
      }
    }
    // A connection that ends here ends its session, and with it the reservations.
    if (!co_await Transfer<asio::mutable_buffer>(connection, parts)) co_return false;
    received_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    std::vector<FinishItem> finishes;
    std::vector<std::size_t> which;
    std::vector<Code> codes(places.size());
    for (std::size_t i = 0; i < places.size(); ++i) {
      codes[i] = places[i].code;
      if (codes[i] != Code::kOk) continue;
      FinishItem finish{.reservation = places[i].reservation,
                        .commit = true,
                        .checksum = request->items[i].checksum,
                        .has_checksum = !request->no_checksum,
                        .group = request->items[i].group,
                        .copies = request->copies,
                        .copied_at = copy ? request->copied_at : 0};
      if (options_.checksum && !request->no_checksum &&
          ChecksumOf(owner_.payload(), places[i].extents, items[i].size_bytes) != finish.checksum) {
        finish.commit = false;
        codes[i] = Code::kCorrupt;
        corrupt_.fetch_add(1, std::memory_order_relaxed);
      }
      finishes.push_back(finish);
      which.push_back(i);
    }
    const std::vector<Code> finished =
        co_await Finish(connection, std::move(finishes), request->budget_ms);
    for (std::size_t k = 0; k < which.size(); ++k) {
      if (codes[which[k]] == Code::kOk) codes[which[k]] = finished[k];
    }
    const std::string body = wire::Encode(std::span<const Code>(codes));
    co_return co_await Answer(connection, header, Code::kOk, body);
  }

  // Only connections that put have one.
  bool HasSession(Connection& connection) {
    if (connection.session == 0) connection.session = owner_.AddRemoteSession();
    return true;
  }

  // Waits for the master without holding the loop, and not for one that is away.
  Awaitable<std::vector<Code>> Finish(Connection& connection, std::vector<FinishItem> items,
                                      std::uint32_t budget_ms) {
    struct Wait {
      std::vector<Code> codes;
      bool done = false;
    };
    const auto wait = std::make_shared<Wait>();
    const auto executor = connection.socket.get_executor();
    const auto timer = std::make_shared<asio::steady_timer>(executor);
    const std::int64_t until_ns =
        clock_.NowNs() + std::clamp<std::uint32_t>(budget_ms, 1, 60000) * kMillisecond;
    owner_.FinishThen(connection.session, items, [wait, timer, executor](std::vector<Code> codes) {
      asio::post(executor, [wait, timer, codes = std::move(codes)] {
        wait->codes = codes;
        wait->done = true;
        timer->cancel();
      });
    });
    error_code error;
    while (!wait->done && owner_.MasterReachable()) {
      const std::int64_t left = until_ns - clock_.NowNs();
      if (left <= 0) break;
      timer->expires_after(std::chrono::nanoseconds(std::min(left, kListedTurnNs)));
      co_await timer->async_wait(asio::redirect_error(asio::use_awaitable, error));
    }
    connection.ends_ns = clock_.NowNs() + options_.stall_ns;
    if (wait->done) co_return wait->codes;
    co_return std::vector<Code>(items.size(), Code::kNotListed);
  }

  Owner& owner_;
  DataServerOptions options_;
  const Clock& clock_;
  rpc::Gate gate_;
  const std::shared_ptr<ConnectionLimit> limit_;
  const std::shared_ptr<rpc::Unproven> unproven_;
  const std::uint64_t own_tag_;
  Copier copier_;
  std::unique_ptr<rpc::Workers> workers_ = std::make_unique<rpc::Workers>(2);
  http::Histogram get_time_;
  http::Histogram put_time_;
  std::atomic<std::uint64_t> sent_bytes_{0};
  std::atomic<std::uint64_t> received_bytes_{0};
  std::atomic<std::uint64_t> corrupt_{0};
  std::array<std::atomic<std::uint64_t>, kMissReasons> misses_{};
  std::atomic<bool> stopping_{false};
  struct Door {
    Mutex mutex;
    bool closed KVCOVE_GUARDED_BY(mutex) = false;
  };
  const std::shared_ptr<Door> open_ = std::make_shared<Door>();
  std::uint64_t next_id_ = 1;  // loop 0's thread
  std::vector<std::unique_ptr<Loop>> loops_;
  std::optional<asio::basic_socket_acceptor<Protocol>> acceptor_;
  std::optional<asio::steady_timer> accept_again_;
};

DataServer::DataServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DataServer::~DataServer() = default;
const rpc::Address& DataServer::address() const { return impl_->address(); }
void DataServer::Collect(http::Metrics& metrics) const { impl_->Collect(metrics); }

Result<std::unique_ptr<DataServer>> DataServer::Open(Owner& owner, const DataServerOptions& options,
                                                     const Clock& clock) {
  auto impl = std::make_unique<Impl>(owner, options, clock);
  KVCOVE_TRY(impl->Open());
  return std::unique_ptr<DataServer>(new DataServer(std::move(impl)));
}

}  // namespace kvcove::owner
