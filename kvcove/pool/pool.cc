// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/pool.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <thread>

#include "kvcove/base/keys.h"
#include "kvcove/base/log.h"
#include "kvcove/base/size.h"
#include "kvcove/pool/async.h"
#include "kvcove/pool/local_host.h"
#include "kvcove/requester/cluster_session.h"
#include "kvcove/transport/registry.h"
#include "kvcove/transport/tcp/peer.h"
#include "kvcove/requester/remote_host.h"
#include "kvcove/requester/session.h"
#include "kvcove/rpc/address.h"

namespace kvcove {
namespace pool {

// What a pool and its sessions share. In a forked child nothing of it may be touched: it is let go.
class PoolImpl {
 public:
  explicit PoolImpl(std::unique_ptr<requester::Host> opened, std::string_view form)
      : host(std::move(opened)), form(form) {}
  explicit PoolImpl(std::unique_ptr<requester::ClusterHost> opened)
      : cluster(std::move(opened)), form("cluster") {}

  const Clock& clock = SystemClock::Instance();
  const unsigned forks = ForkCount();
  // One of the two.
  std::unique_ptr<requester::Host> host;
  std::unique_ptr<requester::ClusterHost> cluster;
  const std::string_view form;
  Executor executor{clock};
  transport::Registry registry{{&transport::tcp::Sockets()}};
  std::atomic<bool> said_preferred = false;
};

class SessionImpl {
 public:
  SessionImpl(std::shared_ptr<PoolImpl> owner, const SessionOptions& options)
      : pool(std::move(owner)) {
    if (pool->cluster != nullptr) {
      session = std::make_unique<requester::ClusterSession>(*pool->cluster, options, pool->clock);
    } else {
      session = std::make_unique<requester::Session>(*pool->host, options, pool->clock);
    }
  }
  std::shared_ptr<PoolImpl> pool;
  std::unique_ptr<requester::SessionApi> session;
};

namespace {

constexpr std::array<std::string_view, 4> kEmbeddedKeys = {"memory", "policy", "max_objects",
                                                           "populate"};
constexpr std::uint64_t kDefaultMemory = 4 * kGiB;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Result<std::uint64_t> ParseCount(std::string_view key, std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Fail(Code::kInvalid, fmt::format("{}='{}' is not a number", key, text));
  }
  return value;
}

// Calls `take` with each key and value of `a=1&b=2`.
Status ForEachOption(std::string_view query,
                     const std::function<Status(std::string_view, std::string_view)>& take) {
  while (!query.empty()) {
    const std::size_t end = query.find('&');
    const std::string_view pair = query.substr(0, end);
    query = end == std::string_view::npos ? std::string_view() : query.substr(end + 1);
    const std::size_t equals = pair.find('=');
    KVCOVE_TRY(take(pair.substr(0, equals), equals == std::string_view::npos
                                                ? std::string_view()
                                                : pair.substr(equals + 1)));
  }
  return {};
}

Result<LocalHostOptions> ParseEmbedded(std::string_view query) {
  LocalHostOptions options;
  options.owner.memory_bytes = kDefaultMemory;
  KVCOVE_TRY(ForEachOption(query, [&](std::string_view key, std::string_view value) -> Status {
    if (key == "memory") {
      KVCOVE_ASSIGN(options.owner.memory_bytes, ParseSize(value));
    } else if (key == "policy") {
      options.owner.policy = value;
    } else if (key == "max_objects") {
      KVCOVE_ASSIGN(options.owner.max_objects, ParseCount(key, value));
    } else if (key == "populate") {
      KVCOVE_ASSIGN(const std::uint64_t populate, ParseCount(key, value));
      options.owner.populate = populate != 0;
    } else {
      return UnknownKey("key of an embedded pool's address", key, kEmbeddedKeys);
    }
    return {};
  }));
  return options;
}

Result<std::shared_ptr<PoolImpl>> OpenEmbedded(std::string_view query) {
  KVCOVE_ASSIGN(const LocalHostOptions options, ParseEmbedded(query));
  KVCOVE_ASSIGN(auto host, EmbeddedHost::Open(options, SystemClock::Instance()));
  return std::make_shared<PoolImpl>(std::move(host), "embedded");
}

Result<std::shared_ptr<PoolImpl>> OpenSocket(const std::string& path,
                                             std::chrono::milliseconds timeout) {
  const Clock& clock = SystemClock::Instance();
  KVCOVE_ASSIGN(auto host, requester::RemoteHost::Connect(
                               path, clock.NowNs() + timeout.count() * kMillisecond, clock));
  return std::make_shared<PoolImpl>(std::move(host), "process");
}

constexpr std::array<std::string_view, 9> kClusterKeys = {
    "local",         "checksum",        "host",   "owner", "placement", "token",
    "tls_authority", "tls_certificate", "tls_key"};
constexpr std::uint16_t kMasterPort = 7400;

Result<std::shared_ptr<PoolImpl>> OpenCluster(std::string_view address, std::string_view query,
                                              std::chrono::milliseconds timeout) {
  requester::ClusterHostOptions options;
  KVCOVE_ASSIGN(options.master, rpc::ParseAddress(address, kMasterPort));
  std::string token = Environment("KVCOVE_TOKEN");
  rpc::TlsFiles tls{.authority = Environment("KVCOVE_TLS_AUTHORITY"),
                    .certificate = Environment("KVCOVE_TLS_CERTIFICATE"),
                    .key = Environment("KVCOVE_TLS_KEY")};
  KVCOVE_TRY(ForEachOption(query, [&](std::string_view key, std::string_view value) -> Status {
    if (key == "local") {
      KVCOVE_ASSIGN(const std::uint64_t local, ParseCount(key, value));
      options.local = local != 0;
    } else if (key == "checksum") {
      KVCOVE_ASSIGN(const std::uint64_t checksum, ParseCount(key, value));
      options.checksum = checksum != 0;
    } else if (key == "host") {
      options.host = value;
    } else if (key == "owner") {
      options.owner = value;
    } else if (key == "placement") {
      KVCOVE_ASSIGN(options.placement, ParsePlacement(value));
    } else if (key == "token") {
      token = value;
    } else if (key == "tls_authority") {
      tls.authority = value;
    } else if (key == "tls_certificate") {
      tls.certificate = value;
    } else if (key == "tls_key") {
      tls.key = value;
    } else {
      return UnknownKey("key of a cluster's address", key, kClusterKeys);
    }
    return {};
  }));
  KVCOVE_ASSIGN(options.access, rpc::LoadAccess(token, tls));
  const Clock& clock = SystemClock::Instance();
  KVCOVE_ASSIGN(auto host, requester::ClusterHost::Connect(
                               options, clock.NowNs() + timeout.count() * kMillisecond, clock));
  return std::make_shared<PoolImpl>(std::move(host));
}

Result<std::shared_ptr<PoolImpl>> OpenAny(std::string_view address,
                                          std::chrono::milliseconds timeout) {
  const std::size_t mark = address.find('?');
  const std::string_view query =
      mark == std::string_view::npos ? std::string_view() : address.substr(mark + 1);
  const std::string_view scheme = address.substr(0, mark);
  if (scheme == "embedded:" || scheme == "embedded") return OpenEmbedded(query);
  if (address.starts_with("unix:")) return OpenSocket(std::string(address.substr(5)), timeout);
  constexpr std::string_view kCluster = "kvcove://";
  if (scheme.starts_with(kCluster)) {
    return OpenCluster(scheme.substr(kCluster.size()), query, timeout);
  }
  if (scheme == "auto") {
    const char* named = std::getenv("KVCOVE_POOL");
    if (named != nullptr && *named != '\0' && !std::string_view(named).starts_with("auto")) {
      auto opened = OpenAny(named, timeout);
      if (opened) return opened;
      return Fail(opened.error().code, "$KVCOVE_POOL: " + opened.error().detail);
    }
    const std::string path = DefaultSocketPath();
    struct stat status{};
    if (stat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode)) {
      auto opened = OpenSocket(path, timeout);
      // A socket that a dead daemon left behind is as good as none.
      if (opened || opened.error().code != Code::kUnavailable) return opened;
    }
    return OpenEmbedded(query);
  }
  return Fail(Code::kInvalid,
              fmt::format("'{}' is not a pool's address; use embedded:?memory=4GiB, "
                          "unix:/path/of/socket, kvcove://master:7400 or auto",
                          address));
}

// The owner that puts go to, from the options or the environment; empty: none is preferred.
Result<std::string> PreferredSegment(PoolImpl& pool, const std::string& given) {
  std::string segment = given;
  std::string_view source = "preferred_segment";
  for (const char* variable : {"KVCOVE_PREFERRED_SEGMENT", "MOONCAKE_PREFERRED_SEGMENT"}) {
    const char* named = std::getenv(variable);
    if (!segment.empty() || named == nullptr) continue;
    segment = named;
    source = variable;
  }
  if (segment.empty()) return segment;
  if (const auto address = rpc::ParseAddress(segment, 0); !address) {
    return Fail(Code::kInvalid, fmt::format("{}: '{}' is no owner's host:port: {}", source, segment,
                                            address.error().detail));
  }
  if (!pool.said_preferred.exchange(true)) {
    LogInfo("puts go to the owner at {} first (from {})", segment, source);
  }
  return segment;
}

// The last owner of a pool lets it go rather than end it when it finds itself in a forked child.
std::shared_ptr<PoolImpl> Guarded(std::shared_ptr<PoolImpl> impl) {
  PoolImpl* raw = impl.get();
  auto* keeper = new std::shared_ptr<PoolImpl>(std::move(impl));
  return {raw, [keeper](PoolImpl* pool) {
            if (pool->forks == ForkCount()) delete keeper;
          }};
}

}  // namespace
}  // namespace pool

std::string DefaultSocketPath() {
  if (const char* path = std::getenv("KVCOVE_SOCKET"); path != nullptr && *path != '\0') {
    return path;
  }
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR");
      runtime != nullptr && *runtime != '\0') {
    return fmt::format("{}/kvcove/kvcove.sock", runtime);
  }
  return fmt::format("/tmp/kvcove-{}/kvcove.sock", getuid());
}

// ---- Pool
// ---------------------------------------------------------------------------------------------------

Pool::Pool(std::shared_ptr<pool::PoolImpl> impl) : impl_(std::move(impl)) {}
Pool::~Pool() = default;

Result<std::unique_ptr<Pool>> Pool::Open(std::string_view address,
                                         std::chrono::milliseconds timeout) {
  ForkCount();  // from now on forks are counted
  KVCOVE_ASSIGN(auto impl, pool::OpenAny(address, timeout));
  return std::unique_ptr<Pool>(new Pool(pool::Guarded(std::move(impl))));
}

Result<std::unique_ptr<Session>> Pool::OpenSession(const SessionOptions& given) {
  KVCOVE_TRY(CheckName(given.name, "namespace"));
  KVCOVE_TRY(CheckName(given.engine, "engine"));
  SessionOptions options = given;
  if (options.engine.empty()) {
    const Id128 id = RandomId();
    options.engine = "session-" + ToHex(id);
  }
  if (impl_->cluster != nullptr) {
    KVCOVE_ASSIGN(options.preferred_segment,
                  pool::PreferredSegment(*impl_, given.preferred_segment));
  }
  return std::unique_ptr<Session>(new Session(std::make_unique<pool::SessionImpl>(impl_, options)));
}

Result<PoolStat> Pool::Stat(std::chrono::milliseconds timeout) {
  if (impl_->forks != ForkCount()) {
    return Fail(Code::kUnavailable,
                "this process was forked after the pool was opened; open the "
                "pool again in the child");
  }
  if (impl_->cluster != nullptr) {
    KVCOVE_ASSIGN(
        const wire::OwnersReply reply,
        impl_->cluster->master().Owners(impl_->clock.NowNs() + timeout.count() * kMillisecond));
    PoolStat sum;
    for (const wire::OwnerStat& owner : reply.owners) {
      if (!owner.live) continue;
      sum.payload_bytes += owner.capacity_bytes;
      sum.populated_bytes += owner.capacity_bytes;
      sum.free_bytes += owner.free_bytes;
      sum.objects += owner.objects;
    }
    return sum;
  }
  const auto attachment = impl_->host->Current();
  if (attachment == nullptr || !attachment->connected()) {
    return Fail(Code::kUnavailable, "not connected to the pool; connecting again");
  }
  return attachment->service().Stat(impl_->clock.NowNs() + timeout.count() * kMillisecond);
}

std::string_view Pool::form() const { return impl_->form; }

Result<std::shared_ptr<void>> Pool::Register(std::span<std::byte> memory) {
  return impl_->registry.Register(memory);
}

bool Pool::WaitPopulated(std::chrono::milliseconds timeout) {
  const std::int64_t deadline_ns = impl_->clock.NowNs() + timeout.count() * kMillisecond;
  while (impl_->clock.NowNs() < deadline_ns) {
    const auto stat = Stat();
    if (stat && stat->populated_bytes == stat->payload_bytes) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// ---- Session
// ------------------------------------------------------------------------------------------------

Session::Session(std::unique_ptr<pool::SessionImpl> impl) : impl_(std::move(impl)) {}
Session::~Session() {
  // In a forked child neither its threads nor whoever holds its locks came along: it is let go as
  // it is.
  if (impl_->pool->forks != ForkCount()) (void)impl_.release();
}

Result<Token> Session::Capture(std::string_view version, std::chrono::milliseconds timeout) {
  return impl_->session->Capture(version, timeout);
}
Status Session::Put(const Token& token, std::span<const PutItem> items,
                    std::span<ItemResult> results, const CallOptions& options) {
  return impl_->session->Put(token, items, results, options);
}
Status Session::Put(std::span<const PutItem> items, std::span<ItemResult> results,
                    const CallOptions& options) {
  const Result<Token> token = Capture(options.version, options.timeout);
  if (token) return Put(*token, items, results, options);
  for (ItemResult& result : results) result = {.code = token.error().code};
  return std::unexpected(token.error());
}
Status Session::Get(std::span<const GetItem> items, std::span<ItemResult> results,
                    const CallOptions& options) {
  return impl_->session->Get(items, results, options);
}
Status Session::Exists(std::span<const std::string_view> keys, std::span<ItemResult> results,
                       const CallOptions& options) {
  return impl_->session->Exists(keys, results, options);
}
Result<std::size_t> Session::LongestPrefix(std::span<const std::string_view> keys,
                                           const CallOptions& options) {
  return impl_->session->LongestPrefix(keys, options);
}
Status Session::Hold(std::span<const std::string_view> keys, std::chrono::milliseconds duration,
                     std::span<ItemResult> results, const CallOptions& options) {
  return impl_->session->Hold(keys, duration, results, options);
}
Status Session::Pin(std::span<const std::string_view> keys, PinKind kind,
                    std::chrono::milliseconds duration, std::span<ItemResult> results,
                    const CallOptions& options) {
  return impl_->session->Pin(keys, kind, duration, results, options);
}
Status Session::Unpin(std::span<const std::string_view> keys, std::span<ItemResult> results,
                      const CallOptions& options) {
  return impl_->session->Unpin(keys, results, options);
}
Status Session::Remove(std::span<const std::string_view> keys, std::span<ItemResult> results,
                       const CallOptions& options) {
  return impl_->session->Remove(keys, results, options);
}
Result<std::uint64_t> Session::RemoveMatching(std::string_view pattern,
                                              const CallOptions& options) {
  return impl_->session->RemoveMatching(pattern, options);
}
Result<std::vector<std::optional<ObjectStat>>> Session::Stat(std::span<const std::string_view> keys,
                                                             const CallOptions& options) {
  return impl_->session->StatObjects(keys, options);
}
Result<std::vector<StoredObject>> Session::List(std::string_view prefix,
                                                const CallOptions& options) {
  return impl_->session->List(prefix, options);
}

Result<ObjectCount> Session::Count(const CallOptions& options) {
  return impl_->session->Count(options);
}

Result<std::vector<std::vector<std::string>>> Session::Where(std::span<const std::string_view> keys,
                                                             const CallOptions& options) {
  return impl_->session->Where(keys, options);
}

Status Session::Reset(const ResetOptions& options) { return impl_->session->Reset(options); }
Status Session::NameVersions(std::span<const std::string> versions,
                             std::chrono::milliseconds timeout) {
  return impl_->session->NameVersions(versions, timeout);
}
bool Session::closed() const { return impl_->session->closed(); }

Status Session::Start(
    CompletionQueue& queue, std::uint64_t tag, std::chrono::milliseconds timeout,
    std::function<Status(std::chrono::milliseconds left, std::uint64_t& count)> call) {
  if (impl_->pool->forks != ForkCount()) {
    return Fail(Code::kUnavailable,
                "this process was forked after the pool was opened; open the "
                "pool again in the child");
  }
  if (!queue.impl_->Reserve()) {
    return Fail(Code::kLimit, "the completion queue is full; take completions first");
  }
  impl_->pool->executor.Post(
      {.queue = queue.impl_,
       .tag = tag,
       .deadline_ns = impl_->pool->clock.NowNs() + timeout.count() * kMillisecond,
       .call = std::move(call)});
  return {};
}

namespace {

// The options of a call that runs later: what they point to is kept along.
struct KeptOptions {
  explicit KeptOptions(const CallOptions& options)
      : version(options.version), after(options.after), hold(options.hold) {}
  CallOptions With(std::chrono::milliseconds left) const {
    return {.timeout = left, .version = version, .after = after, .hold = hold};
  }
  std::string version;
  std::string after;
  std::chrono::milliseconds hold;
};

}  // namespace

Status Session::PutAsync(CompletionQueue& queue, std::uint64_t tag, const Token& token,
                         std::span<const PutItem> items, std::span<ItemResult> results,
                         const CallOptions& options) {
  return Start(
      queue, tag, options.timeout,
      [=, this, kept = KeptOptions(options)](std::chrono::milliseconds left, std::uint64_t&) {
        return Put(token, items, results, kept.With(left));
      });
}
Status Session::GetAsync(CompletionQueue& queue, std::uint64_t tag, std::span<const GetItem> items,
                         std::span<ItemResult> results, const CallOptions& options) {
  return Start(
      queue, tag, options.timeout,
      [=, this, kept = KeptOptions(options)](std::chrono::milliseconds left, std::uint64_t&) {
        return Get(items, results, kept.With(left));
      });
}
Status Session::ExistsAsync(CompletionQueue& queue, std::uint64_t tag,
                            std::span<const std::string_view> keys, std::span<ItemResult> results,
                            const CallOptions& options) {
  return Start(
      queue, tag, options.timeout,
      [=, this, kept = KeptOptions(options)](std::chrono::milliseconds left, std::uint64_t&) {
        return Exists(keys, results, kept.With(left));
      });
}
Status Session::LongestPrefixAsync(CompletionQueue& queue, std::uint64_t tag,
                                   std::span<const std::string_view> keys,
                                   const CallOptions& options) {
  return Start(queue, tag, options.timeout,
               [=, this, kept = KeptOptions(options)](std::chrono::milliseconds left,
                                                      std::uint64_t& count) -> Status {
                 KVCOVE_ASSIGN(count, LongestPrefix(keys, kept.With(left)));
                 return {};
               });
}
Status Session::HoldAsync(CompletionQueue& queue, std::uint64_t tag,
                          std::span<const std::string_view> keys,
                          std::chrono::milliseconds duration, std::span<ItemResult> results,
                          const CallOptions& options) {
  return Start(
      queue, tag, options.timeout,
      [=, this, kept = KeptOptions(options)](std::chrono::milliseconds left, std::uint64_t&) {
        return Hold(keys, duration, results, kept.With(left));
      });
}
Status Session::PinAsync(CompletionQueue& queue, std::uint64_t tag,
                         std::span<const std::string_view> keys, PinKind kind,
                         std::chrono::milliseconds duration, std::span<ItemResult> results,
                         const CallOptions& options) {
  return Start(
      queue, tag, options.timeout,
      [=, this, kept = KeptOptions(options)](std::chrono::milliseconds left, std::uint64_t&) {
        return Pin(keys, kind, duration, results, kept.With(left));
      });
}
Status Session::UnpinAsync(CompletionQueue& queue, std::uint64_t tag,
                           std::span<const std::string_view> keys, std::span<ItemResult> results,
                           const CallOptions& options) {
  return Start(
      queue, tag, options.timeout,
      [=, this, kept = KeptOptions(options)](std::chrono::milliseconds left, std::uint64_t&) {
        return Unpin(keys, results, kept.With(left));
      });
}
Status Session::RemoveAsync(CompletionQueue& queue, std::uint64_t tag,
                            std::span<const std::string_view> keys, std::span<ItemResult> results,
                            const CallOptions& options) {
  return Start(
      queue, tag, options.timeout,
      [=, this, kept = KeptOptions(options)](std::chrono::milliseconds left, std::uint64_t&) {
        return Remove(keys, results, kept.With(left));
      });
}
Status Session::RemoveMatchingAsync(CompletionQueue& queue, std::uint64_t tag,
                                    std::string_view pattern, const CallOptions& options) {
  return Start(queue, tag, options.timeout,
               [this, text = std::string(pattern), kept = KeptOptions(options)](
                   std::chrono::milliseconds left, std::uint64_t& count) -> Status {
                 KVCOVE_ASSIGN(count, RemoveMatching(text, kept.With(left)));
                 return {};
               });
}
Status Session::StatAsync(CompletionQueue& queue, std::uint64_t tag,
                          std::span<const std::string_view> keys,
                          std::span<std::optional<ObjectStat>> stats, const CallOptions& options) {
  if (stats.size() < keys.size()) return Fail(Code::kInvalid, "less room for answers than keys");
  return Start(queue, tag, options.timeout,
               [=, this, kept = KeptOptions(options)](std::chrono::milliseconds left,
                                                      std::uint64_t&) -> Status {
                 KVCOVE_ASSIGN(const auto answers, Stat(keys, kept.With(left)));
                 std::copy(answers.begin(), answers.end(), stats.begin());
                 return {};
               });
}
Status Session::ResetAsync(CompletionQueue& queue, std::uint64_t tag, const ResetOptions& options) {
  return Start(queue, tag, options.timeout,
               [this, kept = options](std::chrono::milliseconds left, std::uint64_t&) {
                 ResetOptions now = kept;
                 now.timeout = left;
                 return Reset(now);
               });
}

// ---- CompletionQueue
// ----------------------------------------------------------------------------------------

CompletionQueue::CompletionQueue(std::size_t capacity)
    : impl_(std::make_shared<pool::QueueImpl>(capacity)) {}
CompletionQueue::~CompletionQueue() { impl_->WaitForAll(); }
int CompletionQueue::event_fd() const { return impl_->event_fd(); }
std::optional<Completion> CompletionQueue::Next(std::chrono::milliseconds timeout) {
  return impl_->Next(timeout);
}

}  // namespace kvcove
