// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/local/socket_owner.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/rpc/client.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::requester {
namespace {

constexpr std::size_t kMaxIdle = 16;
constexpr std::size_t kFds = 3;  // header, payload, session page; in a cluster the lineage
constexpr std::int64_t kRetryMs = 20;
constexpr std::int64_t kRefusedRetryMs = 200;
constexpr std::int64_t kConnectNs = kSecond;
constexpr int kFlushMs = 200;  // between reports of abandoned reservations

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

// A pool of connections that are joined to one session; each carries one call at a time.
class SocketChannel final : public wire::Channel {
 public:
  SocketChannel(std::string path, const wire::Welcome& welcome)
      : path_(std::move(path)), welcome_(welcome) {}

  Result<std::string> Call(wire::Method method, std::span<const std::byte> body,
                           std::int64_t deadline_ns) override {
    KVCOVE_ASSIGN(rpc::Client client, Take(deadline_ns));
    Result<std::string> reply = client.Call(method, body, deadline_ns);
    if (client.usable()) {
      const MutexLock lock(mutex_);
      if (idle_.size() < kMaxIdle) idle_.push_back(std::move(client));
    }
    return reply;
  }

 private:
  Result<rpc::Client> Take(std::int64_t deadline_ns) {
    {
      const MutexLock lock(mutex_);
      if (!idle_.empty()) {
        rpc::Client client = std::move(idle_.back());
        idle_.pop_back();
        return client;
      }
    }
    KVCOVE_ASSIGN(rpc::Client client, rpc::Client::Connect(path_, deadline_ns));
    const auto joined =
        client.Call(wire::Method::kJoin, Bytes(wire::EncodeJoin(welcome_)), deadline_ns);
    if (joined) return client;
    // Another daemon listens at this path now, and the monitor has not noticed yet. That is no
    // refusal of the call: as kDenied, a reset would not be tried again (ResetKeeper).
    const Code code = joined.error().code;
    return Fail(code == Code::kDenied ? Code::kUnavailable : code, joined.error().detail);
  }

  const std::string path_;
  const wire::Welcome welcome_;
  Mutex mutex_;
  std::vector<rpc::Client> idle_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace

class SocketOwner::SocketAttachment final : public Attachment {
 public:
  struct Parts {
    // File of the owner's lineage (owner/link/lineage.h). First, so that it is closed last, after
    // everything is unmapped.
    UniqueFd lineage;
    rpc::Client primary;  // sends hello and goodbye; its end is the daemon's end
    wire::Welcome welcome;
    UniqueFd header_fd;  // header_fd and payload_fd: the warmer looks up which pages have memory
    UniqueFd payload_fd;
    Mapping header;
    Mapping payload;
    Mapping page;
  };

  SocketAttachment(const std::string& path, segment::HeaderView view, Parts parts)
      : Attachment(view, parts.payload.data(),
                   reinterpret_cast<segment::SessionPage*>(parts.page.data()),
                   segment::StagingOf(parts.page.data(), parts.page.size()), parts.welcome.node),
        parts_(std::move(parts)),
        channel_(path, parts_.welcome),
        stub_(wire::MakeHostStub(channel_)) {}

  wire::HostService& service() override { return *stub_; }
  SessionNumber session() const override { return parts_.welcome.session; }
  int primary_fd() const { return parts_.primary.fd(); }
  void Goodbye(std::int64_t deadline_ns) {
    (void)parts_.primary.Call(wire::Method::kGoodbye, {}, deadline_ns);
  }

  // Starts to map pages ahead of their first read. Call it once; StopWarming may be called again.
  void StartWarming(const WarmOptions& options) {
    const auto file = [](const UniqueFd& fd, const Mapping& mapping) {
      return WarmWalk::File{.fd = fd.get(), .memory = {mapping.data(), mapping.size()}};
    };
    warmer_.Start({file(parts_.header_fd, parts_.header), file(parts_.payload_fd, parts_.payload)},
                  options);
  }
  // Called by the monitor, so that the thread that drops the last reference need not wait.
  void StopWarming() { warmer_.Stop(); }

  // Refuses files that may shrink: a read beyond their end would kill this process with SIGBUS.
  static Status CheckSealed(int fd) {
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0) return {};
    return Fail(Code::kCorrupt, "a file of the segment is not sealed against shrinking");
  }

  // Checks that both processes have the same clock. A lease's deadline is a time of the owner's
  // clock, which this process compares with its own. In another time namespace these differ, and a
  // lease could seem to hold after its end.
  static Status CheckClock(std::int64_t owner_ns, std::int64_t asked_ns, std::int64_t now_ns) {
    if (owner_ns + kMillisecond >= asked_ns && owner_ns - kMillisecond <= now_ns) return {};
    return Fail(Code::kIncompatible,
                "the owner's clock (CLOCK_BOOTTIME) is not this process's: one of them runs in "
                "another time namespace, so its memory cannot be mapped; use the same time "
                "namespace, or reach the owner over TCP");
  }

  static Result<std::shared_ptr<SocketAttachment>> Open(const std::string& path,
                                                        const Accept& accept,
                                                        std::int64_t deadline_ns) {
    KVCOVE_ASSIGN(rpc::Client primary, rpc::Client::Connect(path, deadline_ns));
    std::vector<UniqueFd> fds;
    const std::int64_t asked_ns = SystemClock::Instance().NowNs();
    KVCOVE_ASSIGN(
        const std::string reply,
        primary.Call(
            wire::Method::kHello,
            Bytes(wire::EncodeHello({.name = "requester", .layout = segment::kLayoutVersion})),
            deadline_ns, &fds));
    KVCOVE_ASSIGN(const wire::Welcome welcome, wire::DecodeWelcome(Bytes(reply)));
    KVCOVE_TRY(segment::CheckLayout(welcome.layout, segment::kLayoutVersion));
    KVCOVE_TRY(CheckClock(welcome.now_ns, asked_ns, SystemClock::Instance().NowNs()));
    if (accept) KVCOVE_TRY(accept(welcome.authority));
    if (fds.size() != kFds && fds.size() != kFds + 1)
      return Fail(Code::kCorrupt, "the daemon sent no segment");
    for (std::size_t i = 0; i < kFds; ++i) KVCOVE_TRY(CheckSealed(fds[i].get()));
    const auto size_of = [](const UniqueFd& fd) {
      return static_cast<std::size_t>(lseek(fd.get(), 0, SEEK_END));
    };
    KVCOVE_ASSIGN(Mapping header,
                  Mapping::Map(fds[0].get(), size_of(fds[0]), Mapping::Access::kReadOnly));
    KVCOVE_ASSIGN(const segment::HeaderView view,
                  segment::HeaderView::Open(header.data(), header.size()));
    KVCOVE_ASSIGN(Mapping payload,
                  Mapping::Map(fds[1].get(), size_of(fds[1]), Mapping::Access::kReadWrite));
    KVCOVE_ASSIGN(Mapping page,
                  Mapping::Map(fds[2].get(), size_of(fds[2]), Mapping::Access::kReadWrite));
    // The file may be larger: one of huge pages is rounded up to whole pages.
    if (payload.size() < view.header().payload_bytes) {
      return Fail(Code::kCorrupt, "the segment's payload is smaller than its header says");
    }
    KVCOVE_TRY(segment::OpenSessionPage(page.data(), page.size()));
    return std::make_shared<SocketAttachment>(
        path, view,
        Parts{.lineage = fds.size() > kFds ? std::move(fds[kFds]) : UniqueFd(),
              .primary = std::move(primary),
              .welcome = welcome,
              .header_fd = std::move(fds[0]),
              .payload_fd = std::move(fds[1]),
              .header = std::move(header),
              .payload = std::move(payload),
              .page = std::move(page)});
  }

 private:
  Parts parts_;
  SocketChannel channel_;
  std::unique_ptr<wire::HostService> stub_;
  Warmer warmer_;  // last: ends before anything is unmapped
};

SocketOwner::SocketOwner(std::string socket_path, const Clock& clock, const WarmOptions& warm,
                         Accept accept)
    : socket_path_(std::move(socket_path)),
      accept_(std::move(accept)),
      clock_(clock),
      warm_(warm),
      wake_(eventfd(0, EFD_CLOEXEC)) {}

Result<std::unique_ptr<SocketOwner>> SocketOwner::Connect(const std::string& socket_path,
                                                          std::int64_t deadline_ns,
                                                          const Clock& clock,
                                                          const WarmOptions& warm, Accept accept) {
  KVCOVE_ASSIGN(auto attachment, SocketAttachment::Open(socket_path, accept, deadline_ns));
  std::unique_ptr<SocketOwner> host(new SocketOwner(socket_path, clock, warm, std::move(accept)));
  if (!host->wake_.valid()) return FailErrno(Code::kLimit, "eventfd");
  attachment->StartWarming(warm);
  host->Replace(std::move(attachment));
  KVCOVE_ASSIGN(host->monitor_,
                StartThread("kvcove-monitor", [raw = host.get()] { raw->Monitor(); }));
  return host;
}

SocketOwner::~SocketOwner() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  const std::uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
  JoinIfStarted(monitor_);
  std::shared_ptr<SocketAttachment> last;
  {
    const MutexLock lock(mutex_);
    last.swap(current_);
  }
  if (last == nullptr) return;
  // Loans and ranges keep this object, so nothing reads or writes the segment at this point, and
  // the owner may reuse the memory that this session protects.
  last->StopWarming();
  if (last->connected()) last->Goodbye(clock_.NowNs() + 200 * kMillisecond);
}

std::shared_ptr<Attachment> SocketOwner::Current() {
  const MutexLock lock(mutex_);
  return current_;
}

void SocketOwner::Replace(std::shared_ptr<SocketAttachment> attachment) {
  const MutexLock lock(mutex_);
  current_.swap(attachment);  // the old one ends after the lock, as parameters outlive locals
}

void SocketOwner::Monitor() {
  while (true) {
    std::shared_ptr<SocketAttachment> attachment;
    {
      const MutexLock lock(mutex_);
      attachment = current_;
    }
    if (attachment != nullptr) {
      // The daemon sends nothing unasked on this connection, so any event is the daemon's end.
      pollfd waits[2] = {
          {.fd = attachment->primary_fd(), .events = POLLIN | POLLRDHUP, .revents = 0},
          {.fd = wake_.get(), .events = POLLIN, .revents = 0}};
      poll(waits, 2, kFlushMs);
      if (waits[1].revents != 0) return;
      if (waits[0].revents == 0) {
        attachment->FlushAbandoned(clock_.NowNs() + 100 * kMillisecond);
        continue;
      }
      // Disconnected first: from now on OwnerClient::Enter refuses it, and its loans are misses.
      attachment->Disconnect();
      attachment->StopWarming();
      Replace(nullptr);
      LogWarn("the daemon at '{}' is gone; everything is a miss until it is back", socket_path_);
    }
    auto fresh = SocketAttachment::Open(socket_path_, accept_, clock_.NowNs() + kConnectNs);
    if (fresh) {
      LogWarn("the daemon at '{}' is back", socket_path_);
      refused_.store(false, std::memory_order_release);
      (*fresh)->StartWarming(warm_);
      Replace(std::move(*fresh));
      continue;
    }
    // Asked again also after a refusal, as the next daemon may have this build's layout.
    const bool refused = fresh.error().code == Code::kIncompatible;
    if (refused && !refused_.exchange(true, std::memory_order_acq_rel)) {
      LogWarn("the memory of the daemon at '{}' cannot be mapped: {}", socket_path_,
              fresh.error().detail);
    }
    const MutexLock lock(mutex_);
    if (!stopping_) {
      changed_.WaitFor(mutex_, std::chrono::milliseconds(refused ? kRefusedRetryMs : kRetryMs));
    }
    if (stopping_) return;
  }
}

}  // namespace kvcove::requester
