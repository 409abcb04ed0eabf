// SPDX-License-Identifier: Apache-2.0
#include "kvcove/kvevents/publisher.h"

#include <fmt/core.h>

#include <array>
#include <cerrno>
#include <iterator>
#include <utility>

namespace kvcove::kvevents {
namespace {

constexpr std::size_t kMostFrames = 4;
constexpr std::int64_t kMostRequestBytes = 1024;  // of a frame from a subscriber
constexpr int kQueuedRequests = 64;               // by subscriber
// Most messages of a kind that one call of Serve reads: peers that send without end must not keep
// its caller.
constexpr int kMostReceived = 256;

std::array<char, 8> BigEndianOf(std::uint64_t number) {
  std::array<char, 8> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(static_cast<unsigned char>(number >> (56 - 8 * i) & 0xFF));
  }
  return bytes;
}

std::uint64_t NumberIn(std::string_view bytes) {
  std::uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

void FreePayload(void* /*data*/, void* hint) {
  delete static_cast<ReplayBuffer::Payload*>(hint);  // NOLINT: the library owns it until now
}

constexpr std::uint64_t kEndOfReplay = ~std::uint64_t{0};

}  // namespace

Result<std::unique_ptr<Publisher>> Publisher::Open(const PublisherOptions& options,
                                                   const Clock& clock) {
  KVCOVE_ASSIGN(const zmq::Functions functions, zmq::Functions::Open());
  std::unique_ptr<Publisher> publisher(new Publisher(options, functions, clock));
  publisher->context_ = functions.ctx_new();
  if (publisher->context_ == nullptr) {
    return Fail(Code::kLimit, fmt::format("no context of ZeroMQ: {}",
                                          functions.error_text(functions.error_number())));
  }
  // A context that blocks would wait at its end for what slow subscribers have not read.
  (void)functions.ctx_set(publisher->context_, zmq::kContextBlocky, 0);
  KVCOVE_ASSIGN(publisher->events_,
                publisher->Bind(zmq::kXpub, options.events, publisher->events_endpoint_));
  if (!options.replay.empty()) {
    KVCOVE_ASSIGN(publisher->replay_,
                  publisher->Bind(zmq::kRouter, options.replay, publisher->replay_endpoint_));
  }
  return publisher;
}

Publisher::~Publisher() {
  for (void* const socket : {events_, replay_}) {
    if (socket != nullptr) (void)zmq_.close(socket);
  }
  // Interrupted by a signal it is to be called again; its sockets do not linger.
  while (context_ != nullptr && zmq_.ctx_term(context_) != 0 && zmq_.error_number() == EINTR) {
  }
}

Status Publisher::Set(void* socket, int option, int value) const {
  if (zmq_.setsockopt(socket, option, &value, sizeof(value)) == 0) return {};
  return Fail(Code::kUnavailable,
              fmt::format("ZeroMQ does not take its socket's option {} ({}); kvcove needs 4.2 or "
                          "later",
                          option, zmq_.error_text(zmq_.error_number())));
}

Result<void*> Publisher::Bind(int type, const std::string& endpoint, std::string& bound) {
  void* const socket = zmq_.socket(context_, type);
  if (socket == nullptr) {
    return Fail(Code::kLimit,
                fmt::format("no socket of ZeroMQ: {}", zmq_.error_text(zmq_.error_number())));
  }
  const auto prepare = [&]() -> Status {
    KVCOVE_TRY(Set(socket, zmq::kLinger, 0));
    KVCOVE_TRY(Set(socket, zmq::kSendHighWater, kQueuedBatches));
    KVCOVE_TRY(Set(socket, zmq::kReceiveHighWater, kQueuedRequests));
    // With it an address of IPv4 is shown as one of IPv6.
    if (endpoint.find('[') != std::string::npos) KVCOVE_TRY(Set(socket, zmq::kIpv6, 1));
    // A frame that is too long closes the connection of its sender.
    if (zmq_.setsockopt(socket, zmq::kMaxMessageBytes, &kMostRequestBytes,
                        sizeof(kMostRequestBytes)) != 0) {
      return Fail(Code::kUnavailable, "ZeroMQ does not take a bound on messages");
    }
    // Shows each connection that subscribes or ends, and not the first and the last of a topic
    // alone.
    if (type == zmq::kXpub) KVCOVE_TRY(Set(socket, zmq::kXpubVerboser, 1));
    // Otherwise frames for a connection that takes no more are dropped without a word.
    if (type == zmq::kRouter) KVCOVE_TRY(Set(socket, zmq::kRouterMandatory, 1));
    if (zmq_.bind(socket, endpoint.c_str()) != 0) {
      const int number = zmq_.error_number();
      return Fail(number == EADDRINUSE ? Code::kUnavailable : Code::kInvalid,
                  fmt::format("KV events at {}: {}", endpoint, zmq_.error_text(number)));
    }
    return {};
  };
  if (const Status prepared = prepare(); !prepared) {
    (void)zmq_.close(socket);
    return std::unexpected(prepared.error());
  }
  std::array<char, 256> text{};
  std::size_t size = text.size();
  if (zmq_.getsockopt(socket, zmq::kLastEndpoint, text.data(), &size) == 0) bound = text.data();
  return socket;
}

bool Publisher::SendPayload(void* socket, const ReplayBuffer::Payload& payload) const {
  // The message shares the batch with the buffer and with other subscribers.
  auto* const hint = new ReplayBuffer::Payload(payload);  // NOLINT: FreePayload deletes it
  zmq::Message message{};
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): the library only reads it
  if (zmq_.msg_init_data(&message, const_cast<char*>(payload->data()), payload->size(), FreePayload,
                         hint) != 0) {
    delete hint;  // NOLINT
    return false;
  }
  if (zmq_.msg_send(&message, socket, zmq::kDontWait) >= 0) return true;
  (void)zmq_.msg_close(&message);
  return false;
}

void Publisher::Publish(std::string batch) {
  auto payload = std::make_shared<const std::string>(std::move(batch));
  const std::uint64_t number = buffer_.Add(payload);
  const auto bytes = BigEndianOf(number);
  // Frames of one message: the library takes all or, after the first, has room for the rest.
  const int begin = zmq::kDontWait | zmq::kMore;
  const bool sent = zmq_.send(events_, options_.topic.data(), options_.topic.size(), begin) >= 0 &&
                    zmq_.send(events_, bytes.data(), bytes.size(), begin) >= 0 &&
                    SendPayload(events_, payload);
  counts_.batches.fetch_add(1, std::memory_order_relaxed);
  counts_.bytes.fetch_add(payload->size(), std::memory_order_relaxed);
  if (!sent) counts_.failed.fetch_add(1, std::memory_order_relaxed);
}

bool Publisher::Receive(void* socket, std::vector<std::string>& frames) const {
  frames.clear();
  for (bool more = true; more;) {
    zmq::Message message{};
    if (zmq_.msg_init(&message) != 0) return false;
    if (zmq_.msg_recv(&message, socket, zmq::kDontWait) < 0) {
      (void)zmq_.msg_close(&message);
      return false;
    }
    more = zmq_.msg_more(&message) != 0;
    if (frames.size() < kMostFrames) {
      frames.emplace_back(static_cast<const char*>(zmq_.msg_data(&message)),
                          zmq_.msg_size(&message));
    }
    (void)zmq_.msg_close(&message);
  }
  return true;
}

// A subscription is a frame that begins with 1, its end one that begins with 0; a connection that
// ends is told as the end of each of its subscriptions.
void Publisher::CountSubscribers() {
  std::vector<std::string> frames;
  for (int i = 0; i < kMostReceived && Receive(events_, frames); ++i) {
    if (frames.size() != 1 || frames[0].empty()) continue;
    if (frames[0][0] == 1) {
      ++subscriptions_;
      counts_.subscribers.fetch_add(1, std::memory_order_relaxed);
    }
    if (frames[0][0] == 0) counts_.subscribers.fetch_sub(1, std::memory_order_relaxed);
  }
}

void Publisher::TakeRequests() {
  std::vector<std::string> frames;
  for (int i = 0; i < kMostReceived && replays_.size() < kReplays && Receive(replay_, frames);
       ++i) {
    // The name of the connection, an empty frame, the first number that is wanted.
    if (frames.size() != 3 || !frames[1].empty() || frames[2].size() != 8) {
      counts_.bad.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    counts_.replays.fetch_add(1, std::memory_order_relaxed);
    // A number that is to come is one of a process before this, whose blocks are not known here.
    const std::uint64_t number = NumberIn(frames[2]);
    replays_.push_back({.subscriber = frames[0],
                        .next = number > buffer_.next() ? 0 : number,
                        .until_ns = clock_.NowNs() + kReplayNs});
  }
}

Publisher::Sent Publisher::SendTo(const std::string& subscriber, std::uint64_t number,
                                  const ReplayBuffer::Payload& payload) {
  const int begin = zmq::kDontWait | zmq::kMore;
  if (zmq_.send(replay_, subscriber.data(), subscriber.size(), begin) < 0) {
    return zmq_.error_number() == EAGAIN ? Sent::kLater : Sent::kNever;
  }
  const auto bytes = BigEndianOf(number);
  const bool sent = zmq_.send(replay_, "", 0, begin) >= 0 &&
                    zmq_.send(replay_, bytes.data(), bytes.size(), begin) >= 0 &&
                    SendPayload(replay_, payload);
  return sent ? Sent::kYes : Sent::kNever;
}

// A snapshot that is older than the batches behind it does no harm: the last event of a block
// decides, and that is among those batches.
const ReplayBuffer::Payload& Publisher::SnapshotFor(const std::function<std::string()>& make) {
  if (snapshot_ == nullptr || snapshot_next_ < buffer_.oldest()) {
    snapshot_ = std::make_shared<const std::string>(make());
    snapshot_next_ = buffer_.next();
  }
  return snapshot_;
}

Publisher::Sent Publisher::Advance(Replay& replay, const std::function<std::string()>& snapshot) {
  while (replay.next < buffer_.next()) {
    if (replay.next < buffer_.oldest()) {
      const Sent sent = SendTo(replay.subscriber, buffer_.oldest() - 1, SnapshotFor(snapshot));
      if (sent != Sent::kYes) return sent;
      counts_.snapshots.fetch_add(1, std::memory_order_relaxed);
      replay.next = buffer_.oldest();
      continue;
    }
    const Sent sent = SendTo(replay.subscriber, replay.next, buffer_.At(replay.next));
    if (sent != Sent::kYes) return sent;
    counts_.replayed.fetch_add(1, std::memory_order_relaxed);
    ++replay.next;
  }
  return SendTo(replay.subscriber, kEndOfReplay, std::make_shared<const std::string>());
}

void Publisher::Continue(const std::function<std::string()>& snapshot) {
  for (auto at = replays_.begin(); at != replays_.end();) {
    Sent sent = Advance(*at, snapshot);
    if (sent == Sent::kLater && clock_.NowNs() > at->until_ns) sent = Sent::kNever;
    if (sent == Sent::kNever) counts_.given_up.fetch_add(1, std::memory_order_relaxed);
    at = sent == Sent::kLater ? std::next(at) : replays_.erase(at);
  }
}

void Publisher::Serve(long wait_ms, const std::function<std::string()>& snapshot) {
  std::array<zmq::PollItem, 2> items{
      {{.socket = events_, .events = zmq::kPollIn}, {.socket = replay_, .events = zmq::kPollIn}}};
  // Requests that wait for others' replays must not end the wait, and a replay that cannot go on is
  // tried again in the next call.
  const bool takes = replay_ != nullptr && replays_.size() < kReplays;
  (void)zmq_.poll(items.data(), takes ? 2 : 1, wait_ms);
  CountSubscribers();
  if (replay_ == nullptr) return;
  TakeRequests();
  Continue(snapshot);
}

}  // namespace kvcove::kvevents
