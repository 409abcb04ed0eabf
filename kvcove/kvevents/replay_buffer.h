// SPDX-License-Identifier: Apache-2.0
// The batches that were published last, for subscribers that ask for them. No I/O. Belongs to one
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

namespace kvcove::kvevents {

class ReplayBuffer {
 public:
  using Payload = std::shared_ptr<const std::string>;
  // Keeps at most so many batches and bytes, and always the last batch.
  ReplayBuffer(std::size_t most_batches, std::size_t most_bytes)
      : most_batches_(most_batches), most_bytes_(most_bytes) {}

  // Adds the next batch. Returns its number; the first one is 0.
  std::uint64_t Add(Payload payload) {
    bytes_ += payload->size();
    batches_.push_back(std::move(payload));
    while (batches_.size() > 1 && (batches_.size() > most_batches_ || bytes_ > most_bytes_)) {
      bytes_ -= batches_.front()->size();
      batches_.pop_front();
      ++oldest_;
    }
    return next() - 1;
  }
  // Returns the number of the oldest batch that is kept, and of the next one.
  std::uint64_t oldest() const { return oldest_; }
  std::uint64_t next() const { return oldest_ + batches_.size(); }
  // oldest() <= number < next().
  const Payload& At(std::uint64_t number) const { return batches_[number - oldest_]; }
  std::size_t bytes() const { return bytes_; }

 private:
  const std::size_t most_batches_;
  const std::size_t most_bytes_;
  std::deque<Payload> batches_;
  std::size_t bytes_ = 0;
  std::uint64_t oldest_ = 0;
};

}  // namespace kvcove::kvevents
