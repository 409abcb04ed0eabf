// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/tls.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <future>
#include <optional>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/directory.h"
#include "kvcove/base/interrupt.h"
#include "kvcove/base/log.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/watched_files.h"

namespace kvcove::rpc {
namespace {

namespace asio = boost::asio;
using Protocol = asio::generic::stream_protocol;
using Socket = Protocol::socket;
using boost::system::error_code;

constexpr std::size_t kBufferBytes = 64U << 10;
constexpr std::int64_t kDayS = 24 * 3600;
constexpr std::int64_t kWarnDays = 7;

std::string PeerOf(int fd) {
  asio::ip::tcp::endpoint end;
  socklen_t length = static_cast<socklen_t>(end.capacity());
  if (getpeername(fd, end.data(), &length) != 0) return "an unknown address";
  end.resize(length);
  return fmt::format("{}:{}", end.address().to_string(), end.port());
}

asio::ip::tcp ProtocolOf(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return address.ss_family == AF_INET6 ? asio::ip::tcp::v6() : asio::ip::tcp::v4();
}

using Context = asio::ssl::context;

Result<std::shared_ptr<Context>> LoadContext(const TlsFiles& files) {
  struct stat status{};
  if (stat(files.key.c_str(), &status) == 0 && !IsClosedToOthers(status)) {
    const bool own = status.st_uid == geteuid();
    return Fail(Code::kDenied,
                fmt::format("the TLS key '{}' must be closed to other users; {}", files.key,
                            own ? fmt::format("run: chmod 600 '{}'", files.key)
                                : std::string("name one of this user's")));
  }
  const auto check = [](const error_code& error, const char* what, const std::string& file) {
    return error ? Status(Fail(Code::kInvalid,
                               fmt::format("the TLS {} '{}': {}", what, file, error.message())))
                 : Status();
  };
  auto context = std::make_shared<Context>(Context::tls);
  error_code error;
  (void)context->set_options(Context::default_workarounds, error);
  SSL_CTX_set_min_proto_version(context->native_handle(),
                                files.foreign_server ? TLS1_2_VERSION : TLS1_3_VERSION);
  (void)context->load_verify_file(files.authority, error);
  KVCOVE_TRY(check(error, "authority", files.authority));
  if (!files.certificate.empty()) {
    (void)context->use_certificate_chain_file(files.certificate, error);
    KVCOVE_TRY(check(error, "certificate", files.certificate));
    (void)context->use_private_key_file(files.key, Context::pem, error);
    KVCOVE_TRY(check(error, "key", files.key));
    // Checked, because OpenSSL takes a key of another kind than the certificate's without an error.
    if (SSL_CTX_check_private_key(context->native_handle()) != 1) {
      ERR_clear_error();
      return Fail(Code::kInvalid,
                  fmt::format("the TLS key '{}' is not that of the certificate '{}'; exchange both",
                              files.key, files.certificate));
    }
  }
  (void)context->set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert,
                                 error);
  return context;
}

// Returns the seconds until this process's own certificate expires; nothing without one.
std::optional<std::int64_t> ExpiresIn(const std::shared_ptr<Context>& context) {
  const X509* certificate = SSL_CTX_get0_certificate(context->native_handle());
  if (certificate == nullptr) return std::nullopt;
  int days = 0;
  int seconds = 0;
  if (ASN1_TIME_diff(&days, &seconds, nullptr, X509_get0_notAfter(certificate)) != 1) {
    return std::nullopt;
  }
  return std::int64_t{days} * kDayS + seconds;
}

// The reason for which this side refused the other's certificate, and that certificate's subject.
// The verify callback writes it: OpenSSL keeps neither once the handshake has failed.
struct Distrust {
  std::string reason;  // empty: no certificate was refused
  std::string subject;
  std::string ToString() const {
    if (reason.empty()) return {};
    return fmt::format(": {} (the other side's certificate: {})", reason, subject);
  }
};

// Bounds what a stranger's certificate can write into a log line.
constexpr std::size_t kMaxNamesBytes = 256;

std::string SubjectOf(const X509* certificate) {
  char name[kMaxNamesBytes] = {};
  X509_NAME_oneline(X509_get_subject_name(certificate), name, sizeof(name));
  return name;
}

// Returns the hosts that a certificate is for, such as "DNS:node1, IP Address:10.0.0.1".
std::string HostsOf(const X509* certificate) {
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> names(
      static_cast<GENERAL_NAMES*>(
          X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)),
      &GENERAL_NAMES_free);
  const std::unique_ptr<BIO, decltype(&BIO_free)> text(BIO_new(BIO_s_mem()), &BIO_free);
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    if (i > 0) BIO_puts(text.get(), ", ");
    GENERAL_NAME_print(text.get(), sk_GENERAL_NAME_value(names.get(), i));
  }
  char* data = nullptr;
  const auto size = static_cast<std::size_t>(BIO_get_mem_data(text.get(), &data));
  if (size == 0) return "no host";
  if (size > kMaxNamesBytes) return std::string(data, kMaxNamesBytes) + "...";
  return {data, size};
}

void NoteDistrust(X509_STORE_CTX* verified, std::string reason, Distrust& distrust) {
  const X509* certificate = X509_STORE_CTX_get_current_cert(verified);
  if (certificate == nullptr) certificate = X509_STORE_CTX_get0_cert(verified);
  distrust.reason = std::move(reason);
  distrust.subject = certificate == nullptr ? "none" : SubjectOf(certificate);
}

// Judges one certificate of the other side, as OpenSSL's verify callback, which is called for each
// of them. `trusted`: OpenSSL's own result. A server's certificate must also be for `host`, which
// is empty for a client's.
bool Judge(bool trusted, asio::ssl::verify_context& context, const std::optional<std::string>& host,
           Distrust& distrust) {
  X509_STORE_CTX* verified = context.native_handle();
  if (!trusted) {
    NoteDistrust(verified, X509_verify_cert_error_string(X509_STORE_CTX_get_error(verified)),
                 distrust);
    return false;
  }
  if (!host || asio::ssl::host_name_verification(*host)(trusted, context)) return true;
  NoteDistrust(verified,
               fmt::format("the certificate is not for '{}' but for {}", *host,
                           HostsOf(X509_STORE_CTX_get_current_cert(verified))),
               distrust);
  // The alert to the server would otherwise be "internal error".
  X509_STORE_CTX_set_error(verified, X509_V_ERR_HOSTNAME_MISMATCH);
  return false;
}

}  // namespace

class Tls::Impl {
 public:
  explicit Impl(const TlsFiles& files)
      : files_(files), watched_("the TLS files", {files.authority, files.certificate, files.key}) {}

  Status Start() {
    KVCOVE_TRY(watched_.Open([this] { return Read(); }));
    KVCOVE_ASSIGN(thread_, StartThread("kvcove-tls", [this] { loop_.run(); }));
    return {};
  }

  void Refresh(bool now) {
    // Files that do not fit each other are mostly being replaced one after the other: they change
    // nothing now, and are read again.
    const WatchedFiles::Look look = watched_.Refresh(now, [this] { return Read(); });
    if (look == WatchedFiles::Look::kNotDue) return;
    if (look == WatchedFiles::Look::kRead) {
      LogInfo("read the TLS files '{}', '{}' and '{}' again", files_.authority, files_.certificate,
              files_.key);
    }
    WarnOfExpiry(SystemClock::Instance().NowNs());
  }

  std::optional<std::int64_t> ExpiresInS() { return ExpiresIn(Current()); }
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

  ~Impl() {
    loop_.stop();
    if (thread_.joinable()) thread_.join();
  }

  Result<UniqueFd> Connect(UniqueFd fd, const std::string& host, std::int64_t deadline_ns) {
    auto tunnel = std::make_shared<Tunnel>(loop_, Current(), std::move(fd));
    tunnel->Verify(host);
    SSL_set_tlsext_host_name(tunnel->stream.native_handle(), host.c_str());
    auto promise = std::make_shared<std::promise<Result<UniqueFd>>>();
    std::future<Result<UniqueFd>> future = promise->get_future();
    const std::int64_t left = LeftNs(deadline_ns, SystemClock::Instance());
    asio::co_spawn(loop_,
                   Run(tunnel, asio::ssl::stream_base::client, left,
                       [promise](Result<UniqueFd> plain) { promise->set_value(std::move(plain)); }),
                   asio::detached);
    // Run keeps to the deadline; the rest is for a thread that was not scheduled.
    const std::int64_t until_ns = deadline_ns + kSecond;
    while (true) {
      const std::int64_t rest =
          std::max<std::int64_t>(LeftNs(until_ns, SystemClock::Instance()), 0);
      const std::chrono::nanoseconds turn(Interrupt::TurnNs(rest));
      if (future.wait_for(turn) == std::future_status::ready) return future.get();
      if (rest == 0) break;  // only now: a look may last longer than there is time
      Interrupt::LookIfDue();
    }
    GiveUpLater(tunnel);
    return Fail(Code::kTimeout, "the TLS handshake did not end in time");
  }

  std::function<void()> Accept(UniqueFd fd, std::int64_t handshake_ns,
                               std::function<void(UniqueFd)> done) {
    const std::string peer = PeerOf(fd.get());
    auto tunnel = std::make_shared<Tunnel>(loop_, Current(), std::move(fd));
    tunnel->Verify(std::nullopt);
    asio::co_spawn(loop_,
                   Run(tunnel, asio::ssl::stream_base::server, handshake_ns,
                       [this, peer, done = std::move(done)](Result<UniqueFd> plain) {
                         if (plain) return done(std::move(*plain));
                         NoteRefused(peer, plain.error());
                       }),
                   asio::detached);
    return [this, watched = std::weak_ptr<Tunnel>(tunnel)] { GiveUpLater(watched); };
  }

 private:
  std::shared_ptr<Context> Current() {
    Refresh(/*now=*/false);
    const MutexLock lock(mutex_);
    return context_;
  }

  Status Read() {
    KVCOVE_ASSIGN(std::shared_ptr<Context> read, LoadContext(files_));
    const MutexLock lock(mutex_);
    context_ = std::move(read);
    return {};
  }

  // Logs that the certificate expires soon: once a day, in its last week.
  void WarnOfExpiry(std::int64_t now_ns) {
    std::shared_ptr<Context> context;
    {
      const MutexLock lock(mutex_);
      if (now_ns < warn_ns_) return;
      context = context_;
    }
    const std::optional<std::int64_t> left_s = ExpiresIn(context);
    if (!left_s || *left_s > kWarnDays * kDayS) return;
    {
      const MutexLock lock(mutex_);
      warn_ns_ = now_ns + kDayS * kSecond;
    }
    if (*left_s > 0) {
      LogWarn("the TLS certificate '{}' expires in {} hours: write a new one in its place",
              files_.certificate, *left_s / 3600);
    } else {
      LogError(
          "the TLS certificate '{}' has expired: nobody connects until a new one is in its "
          "place",
          files_.certificate);
    }
  }

  // Counts and logs a refused client. Only an error of TLS itself is a refusal; a connection that
  // has just ended is logged at debug.
  void NoteRefused(const std::string& peer, const Error& error) {
    if (error.code != Code::kDenied) {
      return LogDebug("a TLS client at {} was not let in: {}", peer, error.ToString());
    }
    refused_.fetch_add(1, std::memory_order_relaxed);
    NoteDenied("a client at " + peer, error.detail);
  }
  void NoteDenied(const std::string& peer, const std::string& detail) {
    const std::uint64_t held = denied_.Due(SystemClock::Instance().NowNs());
    if (held == 0) return;
    const std::string more =
        held > 1 ? fmt::format(" ({} more since the last line, of any peers)", held - 1) : "";
    LogWarn("{}: {}{}", peer, detail, more);
  }

  struct Tunnel {
    Tunnel(asio::io_context& loop, std::shared_ptr<Context> from, UniqueFd fd)
        : context(std::move(from)), stream(loop, *context), plain(loop), timer(loop) {
      peer = PeerOf(fd.get());
      const asio::ip::tcp protocol = ProtocolOf(fd.get());
      stream.next_layer().assign(protocol, fd.Release());
    }
    // Sets the check of the other side's certificate. `host`: see Judge.
    void Verify(const std::optional<std::string>& host) {
      // The stream owns the callback and is a member, so `this` outlives it.
      stream.set_verify_callback([this, host](bool trusted, asio::ssl::verify_context& context) {
        return Judge(trusted, context, host, distrust);
      });
    }
    void Close() {
      error_code ignored;
      (void)stream.next_layer().close(ignored);
      (void)plain.close(ignored);
    }
    void GiveUp() {
      if (shaken) return;
      late = true;
      Close();
    }
    std::shared_ptr<Context> context;  // before `stream`, which uses it
    Distrust distrust;                 // the same
    asio::ssl::stream<asio::ip::tcp::socket> stream;
    std::string peer;
    Socket plain;
    asio::steady_timer timer;
    // Both, because the timer's handler may run after the handshake has ended: it must not close a
    // connection that has succeeded.
    bool shaken = false;  // the handshake has ended, with or without success
    bool late = false;    // its time was over, or Accept's function has ended it
  };
  using TunnelPtr = std::shared_ptr<Tunnel>;

  // Gives up a handshake on the loop's thread, which alone touches tunnels.
  void GiveUpLater(std::weak_ptr<Tunnel> watched) {
    asio::post(loop_, [watched = std::move(watched)] {
      if (const TunnelPtr going = watched.lock(); going != nullptr) going->GiveUp();
    });
  }

  asio::awaitable<void> Run(TunnelPtr tunnel, asio::ssl::stream_base::handshake_type side,
                            std::int64_t handshake_ns, std::function<void(Result<UniqueFd>)> done) {
    tunnel->timer.expires_after(std::chrono::nanoseconds(std::max<std::int64_t>(handshake_ns, 1)));
    tunnel->timer.async_wait([tunnel](const error_code& error) {
      if (!error) tunnel->GiveUp();
    });
    error_code error;
    co_await tunnel->stream.async_handshake(side, asio::redirect_error(asio::use_awaitable, error));
    tunnel->shaken = true;
    if (tunnel->late) {
      done(Fail(Code::kTimeout, "the TLS handshake did not end in time"));
      co_return;
    }
    tunnel->timer.cancel();
    int ends[2] = {-1, -1};
    if (!error && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
      error = error_code(errno, boost::system::system_category());
    }
    if (error) {
      // An error of TLS is a refusal. A connection that has ended says nothing about the peer.
      const bool refused = error.category() == asio::error::get_ssl_category();
      done(Fail(refused ? Code::kDenied : Code::kUnavailable,
                fmt::format("TLS: {}{}", error.message(),
                            refused ? tunnel->distrust.ToString() : std::string())));
      co_return;
    }
    tunnel->plain.assign(Protocol(AF_UNIX, 0), ends[0]);
    // One coroutine for each direction. Each holds the tunnel, and the first that ends closes both
    // sockets, which ends the other.
    asio::co_spawn(loop_, Pump(tunnel, tunnel->plain, tunnel->stream), asio::detached);
    asio::co_spawn(loop_, Pump(tunnel, tunnel->stream, tunnel->plain), asio::detached);
    done(UniqueFd(ends[1]));
  }

  template <typename From, typename To>
  asio::awaitable<void> Pump(TunnelPtr tunnel, From& from, To& to) {
    std::vector<std::byte> buffer(kBufferBytes);
    error_code error;
    while (!error) {
      const std::size_t got = co_await from.async_read_some(
          asio::buffer(buffer), asio::redirect_error(asio::use_awaitable, error));
      if (error) break;
      co_await asio::async_write(to, asio::buffer(buffer.data(), got),
                                 asio::redirect_error(asio::use_awaitable, error));
    }
    // With TLS 1.3 a server judges the client's certificate after the client's handshake has ended,
    // so a refusal is an error of the first read here.
    if (error.category() == asio::error::get_ssl_category()) {
      NoteDenied("TLS with " + tunnel->peer, error.message() + tunnel->distrust.ToString());
    }
    tunnel->Close();
  }

  const TlsFiles files_;
  WatchedFiles watched_;
  asio::io_context loop_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{loop_.get_executor()};
  LogLimit denied_{kSecond};
  std::atomic<std::uint64_t> refused_{0};
  Mutex mutex_;
  std::shared_ptr<Context> context_ KVCOVE_GUARDED_BY(mutex_);
  std::int64_t warn_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

Tls::Tls(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tls::~Tls() = default;

Result<std::shared_ptr<Tls>> Tls::Open(const TlsFiles& files) {
  const bool anonymous = files.foreign_server && files.certificate.empty() && files.key.empty();
  if (files.authority.empty() || (!anonymous && (files.certificate.empty() || files.key.empty()))) {
    return Fail(Code::kInvalid,
                "TLS needs three files: the authority's certificate, this process's own "
                "certificate, and its key (--tls-authority, --tls-certificate, --tls-key)");
  }
  auto impl = std::make_unique<Impl>(files);
  KVCOVE_TRY(impl->Start());
  return std::shared_ptr<Tls>(new Tls(std::move(impl)));
}

void Tls::Refresh() { impl_->Refresh(/*now=*/true); }
std::optional<std::int64_t> Tls::ExpiresInS() const { return impl_->ExpiresInS(); }
std::uint64_t Tls::refused() const { return impl_->refused(); }

Result<UniqueFd> Tls::Connect(UniqueFd fd, const std::string& host, std::int64_t deadline_ns) {
  return impl_->Connect(std::move(fd), host, deadline_ns);
}

std::function<void()> Tls::Accept(UniqueFd fd, std::int64_t handshake_ns,
                                  std::function<void(UniqueFd)> done) {
  return impl_->Accept(std::move(fd), handshake_ns, std::move(done));
}

}  // namespace kvcove::rpc
