// SPDX-License-Identifier: Apache-2.0
#include "tests/multihost/fault_proxy.h"

#include <poll.h>
#include <sys/socket.h>

#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/random.h"

namespace kvcove::multihost {
namespace {

constexpr int kTickMs = 50;

void Pause(std::int64_t ns) { std::this_thread::sleep_for(std::chrono::nanoseconds(ns)); }

bool SendAll(int fd, const char* data, std::size_t size, const std::atomic<bool>& stopping) {
  while (size > 0 && !stopping) {
    pollfd poller{.fd = fd, .events = POLLOUT, .revents = 0};
    if (poll(&poller, 1, kTickMs) <= 0) continue;
    const ssize_t sent = send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN) return false;
    if (sent > 0) {
      data += sent;
      size -= static_cast<std::size_t>(sent);
    }
  }
  return !stopping;
}

}  // namespace

Result<std::unique_ptr<FaultProxy>> FaultProxy::Open(rpc::Address listen, rpc::Address to,
                                                     std::uint64_t seed) {
  std::unique_ptr<FaultProxy> proxy(new FaultProxy(std::move(listen), std::move(to), seed));
  KVCOVE_ASSIGN(UniqueFd listener, rpc::ListenTcp(proxy->listen_));
  KVCOVE_ASSIGN(
      proxy->thread_,
      StartThread("fault-proxy", [raw = proxy.get(), fd = listener.Release()] { raw->Run(fd); }));
  return proxy;
}

FaultProxy::~FaultProxy() {
  stopping_ = true;
  JoinIfStarted(thread_);
  while (passing_ > 0) Pause(kMillisecond);
}

void FaultProxy::Run(int listener) {
  const UniqueFd owned(listener);
  while (!stopping_) {
    pollfd poller{.fd = listener, .events = POLLIN, .revents = 0};
    if (poll(&poller, 1, kTickMs) <= 0) continue;
    const int client = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client < 0) continue;
    ++passing_;
    auto passing = StartThread("fault-pass", [this, client] {
      Pass(client);
      --passing_;
    });
    if (passing) {
      passing->detach();
    } else {
      close(client);
      --passing_;
    }
  }
}

void FaultProxy::Pass(int client) {
  const UniqueFd near(client);
  const auto far = rpc::ConnectTcp(to_, SystemClock::Instance().NowNs() + kSecond);
  if (!far) return;
  Random random(++seed_);
  std::vector<char> buffer(256 << 10);
  const int fds[2] = {near.get(), far->get()};
  while (!stopping_) {
    pollfd pollers[2] = {{.fd = fds[0], .events = POLLIN, .revents = 0},
                         {.fd = fds[1], .events = POLLIN, .revents = 0}};
    if (poll(pollers, 2, kTickMs) <= 0) continue;
    for (int from = 0; from < 2; ++from) {
      if (pollers[from].revents == 0) continue;
      const ssize_t got = recv(fds[from], buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got < 0 && errno == EAGAIN) continue;
      if (got <= 0) return;
      if (random.OneIn(20)) {
        ++delays_;
        Pause(static_cast<std::int64_t>(random.Below(30)) * kMillisecond);
      } else if (random.OneIn(400)) {
        ++stalls_;
        Pause(static_cast<std::int64_t>(200 + random.Below(1500)) * kMillisecond);
      } else if (random.OneIn(1000)) {
        ++breaks_;
        return;
      }
      if (!SendAll(fds[1 - from], buffer.data(), static_cast<std::size_t>(got), stopping_)) return;
    }
  }
}

}  // namespace kvcove::multihost
