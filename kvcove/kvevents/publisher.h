// SPDX-License-Identifier: Apache-2.0
// Publishes batches of events as vLLM's ZmqEventPublisher does, so that its subscribers need no
// change: a PUB socket with the frames topic, number (8 bytes, big-endian) and batch, and a ROUTER
// socket that answers `["", number]` with the batches from that number on, each as
// `["", number, batch]`, and `["", -1, ""]` at the end.
//
// vLLM answers with what it still has. Here a subscriber that asks for batches that are gone first
// gets a snapshot: one batch, under the last number that is gone, that clears its index and names
// each block. So any subscriber can begin at any time. One that asks for a number that is still to
// come has heard a process before this one, and gets all as if it began.
//
// No call waits for a subscriber. A subscriber that is slow loses batches once kQueuedBatches wait
// for it, sees the gap in the numbers, and asks for a replay. A replay that cannot go on is
// continued by later calls of Serve, and dropped after kReplayNs.
//
// Belongs to one thread, but for `counts`, which any thread may read.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/kvevents/replay_buffer.h"
#include "kvcove/kvevents/zmq.h"

namespace kvcove::kvevents {

struct PublisherOptions {
  std::string events;  // endpoint of ZeroMQ, such as tcp://127.0.0.1:5557
  std::string replay;  // the same; empty: no replay
  std::string topic;
  std::size_t kept_batches = 10'000;
  std::size_t kept_bytes = 64 << 20;
};

class Publisher {
 public:
  static constexpr int kQueuedBatches = 1000;  // by subscriber
  static constexpr std::size_t kReplays = 8;   // at a time; further requests wait
  static constexpr std::int64_t kReplayNs = 10 * kSecond;

  struct Counts {
    std::atomic<std::uint64_t> batches{0};
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> failed{0};  // batches that the library did not take
    std::atomic<std::uint64_t> replays{0};
    std::atomic<std::uint64_t> replayed{0};  // batches
    std::atomic<std::uint64_t> snapshots{0};
    std::atomic<std::uint64_t> given_up{0};  // replays whose subscriber did not read, or was gone
    std::atomic<std::uint64_t> bad{0};       // requests of another form
    std::atomic<std::int64_t> subscribers{0};
  };

  // Binds the sockets. Errors: kUnavailable without the library, or for an address in use;
  // kInvalid.
  static Result<std::unique_ptr<Publisher>> Open(const PublisherOptions& options,
                                                 const Clock& clock);
  ~Publisher();
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  // Publishes a batch under the next number.
  void Publish(std::string batch);
  // Answers requests for replays for `wait_ms`, and returns early after some. `snapshot` makes the
  // batch that stands for all earlier ones; what it contains has been published.
  void Serve(long wait_ms, const std::function<std::string()>& snapshot);

  // Return the endpoints, with the port that the kernel chose for port 0.
  const std::string& events_endpoint() const { return events_endpoint_; }
  const std::string& replay_endpoint() const { return replay_endpoint_; }
  const ReplayBuffer& buffer() const { return buffer_; }
  // Returns how many subscriptions have come since the start.
  std::uint64_t subscriptions() const { return subscriptions_; }
  const Counts& counts() const { return counts_; }

 private:
  struct Replay {
    std::string subscriber;  // ROUTER's name of its connection
    std::uint64_t next = 0;
    std::int64_t until_ns = 0;
  };
  enum class Sent : std::uint8_t { kYes, kLater, kNever };

  Publisher(const PublisherOptions& options, const zmq::Functions& functions, const Clock& clock)
      : options_(options),
        zmq_(functions),
        clock_(clock),
        buffer_(options.kept_batches, options.kept_bytes) {}
  Result<void*> Bind(int type, const std::string& endpoint, std::string& bound);
  Status Set(void* socket, int option, int value) const;
  // Reads all frames of a message, up to kMostFrames. False: there is none.
  bool Receive(void* socket, std::vector<std::string>& frames) const;
  bool SendPayload(void* socket, const ReplayBuffer::Payload& payload) const;
  void CountSubscribers();
  void TakeRequests();
  void Continue(const std::function<std::string()>& snapshot);
  // Sends as much of the replay as its connection takes.
  Sent Advance(Replay& replay, const std::function<std::string()>& snapshot);
  Sent SendTo(const std::string& subscriber, std::uint64_t number,
              const ReplayBuffer::Payload& payload);
  // Returns the snapshot that a replay from the oldest batch on may follow.
  const ReplayBuffer::Payload& SnapshotFor(const std::function<std::string()>& make);

  const PublisherOptions options_;
  const zmq::Functions zmq_;
  const Clock& clock_;
  void* context_ = nullptr;
  void* events_ = nullptr;
  void* replay_ = nullptr;
  std::string events_endpoint_;
  std::string replay_endpoint_;
  ReplayBuffer buffer_;
  std::list<Replay> replays_;
  // The last snapshot, and the number of the batch after it. It is made again only when the buffer
  // has lost batches that came after it, so that requests cannot make many.
  ReplayBuffer::Payload snapshot_;
  std::uint64_t snapshot_next_ = 0;
  std::uint64_t subscriptions_ = 0;
  Counts counts_;
};

}  // namespace kvcove::kvevents
