// SPDX-License-Identifier: Apache-2.0
// A master, with its two event loops, against clients that send what the input says: frames behind
// frames in one packet, calls that move a connection to the other loop, large frames, garbage, on
// four connections at once, closed at any time. When all are closed, the master must have none.
// Fuzzes: kvcove/master kvcove/rpc kvcove/wire
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/master/server/server.h"
#include "kvcove/wire/frame.h"

namespace {

using namespace kvcove;

constexpr std::size_t kClients = 4;
constexpr std::size_t kMaxSent = 2U << 20;  // of one input

master::MasterServer& Master() {
  static const std::unique_ptr<master::MasterServer> master = [] {
    SetLogLevel(LogLevel::kOff);
    master::MasterServerOptions options;
    options.listen.port = 0;
    auto opened = master::MasterServer::Open(options, SystemClock::Instance());
    if (!opened) std::abort();
    return std::move(*opened);
  }();
  return *master;
}

std::string Frame(wire::Method method, std::string_view body) {
  const auto head = wire::EncodeFrameHeader({.method = static_cast<std::uint16_t>(method),
                                             .body_bytes = static_cast<std::uint32_t>(body.size()),
                                             .call = 1});
  std::string frame(reinterpret_cast<const char*>(head.data()), head.size());
  frame += body;
  return frame;
}

class Client {
 public:
  // Gathered, so that one packet has many frames.
  void Add(const std::string& bytes) {
    if (!fd_) Connect();
    out_ += bytes;
  }
  // Sends all, and takes what answers there are.
  void Flush() {
    if (!fd_) return;
    for (int tries = 0; !out_.empty() && tries < 2000; ++tries) {
      const ssize_t sent = send(fd_->get(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno != EAGAIN) return Close();
      if (sent > 0) out_.erase(0, static_cast<std::size_t>(sent));
      Drain(0);
      if (!fd_) return;
    }
  }
  // Waits for an answer, and keeps what those to hellos and renewals say.
  void Drain(int wait_ms) {
    if (!fd_) return;
    pollfd poller{.fd = fd_->get(), .events = POLLIN, .revents = 0};
    if (poll(&poller, 1, wait_ms) <= 0) return;
    std::array<std::byte, 65536> bytes;
    const ssize_t count = recv(fd_->get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EAGAIN)) return Close();
    std::span<const std::byte> left(bytes.data(),
                                    static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    while (left.size() >= wire::kFrameHeaderBytes) {
      const auto header =
          wire::DecodeFrameHeader(left.first<wire::kFrameHeaderBytes>(), wire::kMaxFrameBytes);
      if (!header || left.size() < wire::kFrameHeaderBytes + header->body_bytes) return;
      Learn(header->method, left.subspan(wire::kFrameHeaderBytes, header->body_bytes));
      left = left.subspan(wire::kFrameHeaderBytes + header->body_bytes);
    }
  }
  void Close() {
    fd_.reset();
    out_.clear();
  }
  const wire::OwnerWelcome& welcome() const { return welcome_; }
  std::uint64_t table() const { return table_; }
  std::uint64_t naming() const { return naming_; }

 private:
  static constexpr auto kWelcome =
      static_cast<std::uint16_t>(wire::Method::kOwnerHello) | wire::kReplyBit;
  static constexpr auto kRenewed =
      static_cast<std::uint16_t>(wire::Method::kRenew) | wire::kReplyBit;
  void Connect() {
    auto fd = rpc::ConnectTcp(Master().address(), SystemClock::Instance().NowNs() + 5 * kSecond);
    if (!fd) std::abort();
    fd_ = std::move(*fd);
    out_ = Frame(wire::Method::kHello, "");
  }
  void Learn(std::uint16_t method, std::span<const std::byte> body) {
    const std::vector<std::byte> aligned(body.begin(), body.end());
    if (method == kWelcome) {
      if (const auto welcome = wire::DecodeOwnerWelcome(aligned)) welcome_ = *welcome;
    } else if (method == kRenewed) {
      if (const auto renewed = wire::DecodeRenewReply(aligned)) {
        table_ = renewed->changes.to;
        naming_ = renewed->changes.naming;
      }
    }
  }

  std::optional<UniqueFd> fd_;
  std::string out_;
  wire::OwnerWelcome welcome_;
  std::uint64_t table_ = 0;
  std::uint64_t naming_ = 0;
};

// What is left of the input.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : left_(data, size) {}
  bool empty() const { return left_.empty(); }
  std::uint8_t Byte() {
    if (left_.empty()) return 0;
    const std::uint8_t byte = left_.front();
    left_ = left_.subspan(1);
    return byte;
  }
  std::size_t Number() { return Byte() * std::size_t{256} + Byte(); }
  std::string Bytes(std::size_t count) {
    count = std::min(count, left_.size());
    const std::string bytes(reinterpret_cast<const char*>(left_.data()), count);
    left_ = left_.subspan(count);
    return bytes;
  }

 private:
  std::span<const std::uint8_t> left_;
};

constexpr wire::Method kMethods[] = {wire::Method::kHello,        wire::Method::kProve,
                                     wire::Method::kRegister,     wire::Method::kReset,
                                     wire::Method::kNameVersions, wire::Method::kEndEngine,
                                     wire::Method::kOwnerHello,   wire::Method::kRenew,
                                     wire::Method::kWatch,        wire::Method::kOwnerGoodbye,
                                     wire::Method::kList,         wire::Method::kLookup,
                                     wire::Method::kOwners,       wire::Method::kRemoveEverywhere,
                                     wire::Method::kRemovals,     wire::Method::kPrune};

// What one step of one client sends.
std::string Step(const Client& client, std::uint8_t kind, Input& input) {
  switch (kind) {
    case 0:
      return Frame(kMethods[input.Byte() % std::size(kMethods)], input.Bytes(input.Byte()));
    case 1:  // of any size
      return Frame(kMethods[input.Byte() % std::size(kMethods)],
                   std::string(input.Number() * 16, 'x'));
    case 2:
      return input.Bytes(input.Byte());
    case 3: {  // moves the connection to the other loop
      wire::OwnerHello hello;
      hello.owner = {.high = 1, .low = 1U + input.Byte() % 8};
      hello.address = "127.0.0.1:1";
      hello.host = "h";
      hello.fresh = true;
      return Frame(wire::Method::kOwnerHello, wire::Encode(hello));
    }
    case 4: {  // well-formed, and large
      const std::vector<Id128> hashes(input.Number() % 16384);
      return Frame(wire::Method::kLookup,
                   wire::EncodeLookup({.incarnation = {}, .generation = 1, .slot = 0}, hashes));
    }
    case 5:
      return Frame(wire::Method::kRenew,
                   wire::Encode(wire::RenewRequest{.number = client.welcome().number,
                                                   .epoch = client.welcome().epoch,
                                                   .table = client.table() + input.Byte() % 4,
                                                   .naming = client.naming(),
                                                   .told = true}));
    case 6: {  // held, when the client is up to date
      const std::uint8_t what = input.Byte();
      if (what % 2 == 0) {
        return Frame(wire::Method::kWatch,
                     wire::Encode(wire::WatchRequest{.number = client.welcome().number,
                                                     .epoch = client.welcome().epoch,
                                                     .table = client.table() + what / 2 % 4,
                                                     .naming = client.naming()}));
      }
      return Frame(wire::Method::kRemovals, wire::Encode(wire::RemovalsRequest{
                                                .number = client.welcome().number,
                                                .epoch = client.welcome().epoch,
                                                .after = client.welcome().removals + what / 2 % 4,
                                                .matched = {},
                                                .dropped = what / 8U}));
    }
    default: {
      wire::ListRequest list{.number = client.welcome().number,
                             .epoch = client.welcome().epoch,
                             .sequence = input.Byte() % 4U,
                             .items = {}};
      list.items.resize(input.Byte());
      for (wire::ListItem& item : list.items) {
        item.hash = {.high = input.Byte(), .low = input.Byte()};
        item.gone = input.Byte() % 2 == 0;
      }
      return Frame(wire::Method::kList, wire::Encode(list));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::array<Client, kClients> clients;
  Input input(data, size);
  std::size_t sent = 0;
  while (!input.empty() && sent < kMaxSent) {
    const std::uint8_t what = input.Byte();
    Client& client = clients[what % kClients];
    const auto kind = static_cast<std::uint8_t>(what / kClients % 16);
    if (kind < 8) {
      const std::string bytes = Step(client, kind, input);
      sent += bytes.size();
      client.Add(bytes);
    } else if (kind < 12) {
      client.Flush();
    } else if (kind < 14) {
      client.Drain(20);
    } else {
      client.Close();
    }
  }
  for (Client& client : clients) client.Flush();
  for (Client& client : clients) client.Close();
  const std::int64_t closed_ns = SystemClock::Instance().NowNs();
  while (Master().Stat().connections != 0) {
    if (SystemClock::Instance().NowNs() > closed_ns + 10 * kSecond) std::abort();  // it leaks them
    std::this_thread::yield();
  }
  return 0;
}
