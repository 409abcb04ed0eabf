// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/tls.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

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
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"

namespace kvcove::rpc {
namespace {

namespace asio = boost::asio;
using Protocol = asio::generic::stream_protocol;
using Socket = Protocol::socket;
using boost::system::error_code;

constexpr std::size_t kBufferBytes = 64U << 10;

asio::ip::tcp ProtocolOf(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return address.ss_family == AF_INET6 ? asio::ip::tcp::v6() : asio::ip::tcp::v4();
}

}  // namespace

class Tls::Impl {
 public:
  Status Load(const TlsFiles& files) {
    struct stat status{};
    if (stat(files.key.c_str(), &status) == 0 && (status.st_mode & 0077) != 0) {
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
    error_code error;
    (void)context_.set_options(asio::ssl::context::default_workarounds, error);
    SSL_CTX_set_min_proto_version(context_.native_handle(),
                                  files.foreign_server ? TLS1_2_VERSION : TLS1_3_VERSION);
    (void)context_.load_verify_file(files.authority, error);
    KVCOVE_TRY(check(error, "authority", files.authority));
    if (!files.certificate.empty()) {
      (void)context_.use_certificate_chain_file(files.certificate, error);
      KVCOVE_TRY(check(error, "certificate", files.certificate));
      (void)context_.use_private_key_file(files.key, asio::ssl::context::pem, error);
      KVCOVE_TRY(check(error, "key", files.key));
    }
    (void)context_.set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert,
                                   error);
    KVCOVE_ASSIGN(thread_, StartThread("kvcove-tls", [this] { loop_.run(); }));
    return {};
  }

  ~Impl() {
    loop_.stop();
    if (thread_.joinable()) thread_.join();
  }

  Result<UniqueFd> Connect(UniqueFd fd, const std::string& host, std::int64_t deadline_ns) {
    auto tunnel = std::make_shared<Tunnel>(loop_, context_, std::move(fd));
    tunnel->stream.set_verify_callback(asio::ssl::host_name_verification(host));
    SSL_set_tlsext_host_name(tunnel->stream.native_handle(), host.c_str());
    auto promise = std::make_shared<std::promise<Result<UniqueFd>>>();
    std::future<Result<UniqueFd>> future = promise->get_future();
    const std::int64_t left = deadline_ns - SystemClock::Instance().NowNs();
    asio::co_spawn(loop_,
                   Run(tunnel, asio::ssl::stream_base::client, left,
                       [promise](Result<UniqueFd> plain) { promise->set_value(std::move(plain)); }),
                   asio::detached);
    // Run keeps to the deadline; the rest is for a thread that was not scheduled.
    if (future.wait_for(std::chrono::nanoseconds(std::max<std::int64_t>(left, 0) + kSecond)) !=
        std::future_status::ready) {
      return Fail(Code::kTimeout, "the TLS handshake did not end in time");
    }
    return future.get();
  }

  std::function<void()> Accept(UniqueFd fd, std::int64_t handshake_ns,
                               std::function<void(UniqueFd)> done) {
    auto tunnel = std::make_shared<Tunnel>(loop_, context_, std::move(fd));
    asio::co_spawn(loop_,
                   Run(tunnel, asio::ssl::stream_base::server, handshake_ns,
                       [done = std::move(done)](Result<UniqueFd> plain) {
                         if (plain) return done(std::move(*plain));
                         LogDebug("a TLS client was not let in: {}", plain.error().ToString());
                       }),
                   asio::detached);
    return [this, watched = std::weak_ptr<Tunnel>(tunnel)] {
      asio::post(loop_, [watched] {
        if (const TunnelPtr going = watched.lock(); going != nullptr) going->GiveUp();
      });
    };
  }

 private:
  struct Tunnel {
    Tunnel(asio::io_context& loop, asio::ssl::context& context, UniqueFd fd)
        : stream(loop, context), plain(loop), timer(loop) {
      const asio::ip::tcp protocol = ProtocolOf(fd.get());
      stream.next_layer().assign(protocol, fd.Release());
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
    asio::ssl::stream<asio::ip::tcp::socket> stream;
    Socket plain;
    asio::steady_timer timer;
    // The timer's handler may run after the coroutine that set it has ended.
    bool shaken = false;  // the handshake has ended, one way or the other
    bool late = false;    // because its time was up, or somebody ended it
  };
  using TunnelPtr = std::shared_ptr<Tunnel>;

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
      // Only TLS itself refuses somebody. A connection that ended says nothing about the peer.
      const bool refused = error.category() == asio::error::get_ssl_category();
      done(Fail(refused ? Code::kDenied : Code::kUnavailable,
                fmt::format("TLS: {}", error.message())));
      co_return;
    }
    tunnel->plain.assign(Protocol(AF_UNIX, 0), ends[0]);
    asio::co_spawn(loop_, Pump(tunnel, tunnel->plain, tunnel->stream), asio::detached);
    asio::co_spawn(loop_, Pump(tunnel, tunnel->stream, tunnel->plain), asio::detached);
    done(UniqueFd(ends[1]));
  }

  template <typename From, typename To>
  static asio::awaitable<void> Pump(TunnelPtr tunnel, From& from, To& to) {
    std::vector<std::byte> buffer(kBufferBytes);
    error_code error;
    while (!error) {
      const std::size_t got = co_await from.async_read_some(
          asio::buffer(buffer), asio::redirect_error(asio::use_awaitable, error));
      if (error) break;
      co_await asio::async_write(to, asio::buffer(buffer.data(), got),
                                 asio::redirect_error(asio::use_awaitable, error));
    }
    tunnel->Close();
  }

  asio::io_context loop_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{loop_.get_executor()};
  asio::ssl::context context_{asio::ssl::context::tls};
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
  auto impl = std::make_unique<Impl>();
  KVCOVE_TRY(impl->Load(files));
  return std::shared_ptr<Tls>(new Tls(std::move(impl)));
}

Result<UniqueFd> Tls::Connect(UniqueFd fd, const std::string& host, std::int64_t deadline_ns) {
  return impl_->Connect(std::move(fd), host, deadline_ns);
}

std::function<void()> Tls::Accept(UniqueFd fd, std::int64_t handshake_ns,
                                  std::function<void(UniqueFd)> done) {
  return impl_->Accept(std::move(fd), handshake_ns, std::move(done));
}

}  // namespace kvcove::rpc
