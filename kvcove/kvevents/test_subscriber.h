// SPDX-License-Identifier: Apache-2.0
// For tests: a router's side of the events' sockets, as vLLM's subscribers use them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/base/thread_sanitizer.h"
#include "kvcove/kvevents/zmq.h"

namespace kvcove::kvevents {

// Returns why a test can't use libzmq here; empty: it can.
inline std::string WhyNoZmq() {
  // What libzmq hands from one thread to another looks like a race, for the sanitizer does not see
  // how its threads synchronise.
  if (KVCOVE_THREAD_SANITIZER) return "libzmq is not built with the thread sanitizer";
  return zmq::Functions::Open() ? "" : "libzmq5 is not installed";
}

inline std::string NumberFrame(std::uint64_t number) {
  std::string frame;
  for (int shift = 56; shift >= 0; shift -= 8) {
    frame.push_back(static_cast<char>(static_cast<unsigned char>(number >> shift & 0xFF)));
  }
  return frame;
}

inline std::uint64_t NumberOfFrame(const std::string& frame) {
  std::uint64_t number = 0;
  for (const char byte : frame) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

class TestSubscriber {
 public:
  static constexpr std::uint64_t kEnd = ~std::uint64_t{0};
  using Numbered = std::pair<std::uint64_t, std::string>;

  explicit TestSubscriber(const zmq::Functions& functions)
      : zmq_(functions), context_(functions.ctx_new()) {
    (void)zmq_.ctx_set(context_, zmq::kContextBlocky, 0);
  }
  ~TestSubscriber() {
    for (void* const socket : sockets_) (void)zmq_.close(socket);
    (void)zmq_.ctx_term(context_);
  }
  TestSubscriber(const TestSubscriber&) = delete;
  TestSubscriber& operator=(const TestSubscriber&) = delete;

  // `most_waiting`: messages that the socket keeps while they are not read; 0: ZeroMQ's default.
  void* Subscribe(const std::string& endpoint, const std::string& topic = "",
                  int most_waiting = 0) {
    void* const socket = Connect(zmq::kSub, endpoint, most_waiting);
    EXPECT_EQ(zmq_.setsockopt(socket, zmq::kSubscribe, topic.data(), topic.size()), 0);
    return socket;
  }
  void* Connect(int type, const std::string& endpoint, int most_waiting = 0) {
    void* const socket = zmq_.socket(context_, type);
    sockets_.push_back(socket);
    const int zero = 0;
    EXPECT_EQ(zmq_.setsockopt(socket, zmq::kLinger, &zero, sizeof(zero)), 0);
    if (most_waiting > 0) {
      EXPECT_EQ(zmq_.setsockopt(socket, zmq::kReceiveHighWater, &most_waiting, sizeof(int)), 0);
    }
    EXPECT_EQ(zmq_.connect(socket, endpoint.c_str()), 0);
    return socket;
  }
  // Asks for a replay: a DEALER socket, and the frames that a REQ would send.
  void Ask(void* socket, std::uint64_t from) {
    Send(socket, "", zmq::kMore);
    Send(socket, NumberFrame(from), 0);
  }
  void Send(void* socket, const std::string& frame, int flags) {
    EXPECT_EQ(zmq_.send(socket, frame.data(), frame.size(), flags | zmq::kDontWait),
              static_cast<int>(frame.size()));
  }
  // Returns the frames of the next message; nothing if none comes within `wait_ms`.
  std::optional<std::vector<std::string>> Receive(void* socket, long wait_ms) {
    zmq::PollItem item{.socket = socket, .events = zmq::kPollIn};
    if (zmq_.poll(&item, 1, wait_ms) <= 0) return std::nullopt;
    std::vector<std::string> frames;
    for (bool more = true; more;) {
      zmq::Message message{};
      (void)zmq_.msg_init(&message);
      if (zmq_.msg_recv(&message, socket, zmq::kDontWait) < 0) return std::nullopt;
      more = zmq_.msg_more(&message) != 0;
      frames.emplace_back(static_cast<const char*>(zmq_.msg_data(&message)),
                          zmq_.msg_size(&message));
      (void)zmq_.msg_close(&message);
    }
    return frames;
  }
  // Returns the next batch with its number; of an answer to Ask, kEnd behind the last one.
  std::optional<Numbered> Next(void* socket, long wait_ms) {
    const auto frames = Receive(socket, wait_ms);
    if (!frames) return std::nullopt;
    EXPECT_EQ(frames->size(), 3U);
    if (frames->size() != 3) return std::nullopt;
    return Numbered((*frames)[1].size() == 8 ? NumberOfFrame((*frames)[1]) : kEnd, (*frames)[2]);
  }

 private:
  const zmq::Functions zmq_;
  void* const context_;
  std::vector<void*> sockets_;
};

}  // namespace kvcove::kvevents
