// SPDX-License-Identifier: Apache-2.0
// Finds how much of a request's prefix the pool has. A look-up is a small state machine that can be
// suspended and resumed: the scheduler gives it a few milliseconds at a time.
//
// 1. Full-attention groups: chunk after chunk, all shards of all ranks, in windows that grow; it
//    stops at the first miss.
// 2. The other groups (sliding window, state) pull the end back until all have the chunks that a
// hit
//    that ends there needs: one joint length.
//
// A chunk that is missing while its save is under way (Session::Announce) ends neither: the look-up
// asks for it again some milliseconds later. When its question's time for that is over, it ends
// with what it has found, also while the pool has not answered its last question.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/connector/shape.h"
#include "kvcove/connector/store.h"

namespace kvcove::connector {

// Hashes in one string, so that a copy of the list is cheap.
class HashList {
 public:
  void Add(std::string_view hash) {
    bytes_ += hash;
    ends_.push_back(static_cast<std::uint32_t>(bytes_.size()));
  }
  std::size_t size() const { return ends_.size(); }
  std::string_view operator[](std::size_t i) const {
    const std::uint32_t from = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(bytes_).substr(from, ends_[i] - from);
  }

 private:
  std::string bytes_;
  std::vector<std::uint32_t> ends_;
};

// Belongs to one thread at a time.
class Lookup {
 public:
  struct Question {
    HashList hashes;                 // of the request's blocks, shape.hash_tokens each
    std::uint64_t from_tokens = 0;   // the engine's own cache has these
    std::uint64_t limit_tokens = 0;  // no hit ends beyond
    std::uint64_t drop_tokens = 0;   // a hit ends so much before the end of the found KV
    std::string version;
    std::string adapter;  // digest of the adapter; empty: none
    // Until then it waits for saves under way, by the clock of Step; 0: it waits for none.
    std::int64_t wait_until_ns = 0;
  };
  Lookup(const EngineShape& shape, const Keys& keys, Question question);

  // Continues until it is done (true) or `deadline_ns` has passed. Asks the pool to hold found
  // values for `hold`.
  bool Step(Store& store, const Clock& clock, std::int64_t deadline_ns,
            std::chrono::milliseconds hold);

  bool done() const { return done_; }
  // Returns true once it has waited for a save.
  bool waits() const { return waits_from_ns_ != 0; }
  // Returns when it asks again for a chunk that is being saved; 0: it does not wait. A Step before
  // that does nothing.
  std::int64_t again_ns() const { return again_ns_; }
  // The wait for saves, once it is done.
  struct Waited {
    std::int64_t ns = 0;       // 0: it has not waited
    std::uint64_t tokens = 0;  // found by then, and not before
  };
  Waited waited() const;
  // A multiple of the shape's stride, at least from_tokens when nothing more was found.
  std::uint64_t hit_tokens() const { return hit_; }
  std::uint64_t from_tokens() const { return question_.from_tokens; }
  std::uint64_t limit_tokens() const { return question_.limit_tokens; }
  // Returns the number of found keys, by Tier.
  const std::array<std::uint64_t, kTiers>& tiers() const { return tiers_; }
  // Returns the reason of the first key that was missing; kNone: none was.
  MissReason missed() const { return missed_; }
  // Returns the number of keys asked for so far.
  std::uint64_t asked() const { return asked_; }
  // Where the pool had the chunks that were asked for, by the slowest of their keys; without those
  // of which that is not known, as their owner did not answer. In the order of the questions.
  enum class Where : std::uint8_t { kNowhere, kMemory, kDisk };
  struct Seen {
    std::uint32_t group = 0;
    std::uint64_t chunk = 0;
    Where where = Where::kNowhere;
    Tier tier = Tier::kUnknown;  // where it is: the slowest of its keys'
  };
  const std::vector<Seen>& seen() const { return seen_; }

 private:
  using ChunkId = std::pair<std::uint32_t, std::uint64_t>;  // group, chunk
  // Into scratch_, all shards of each chunk.
  void WriteKeys(const std::vector<ChunkId>& chunks);
  struct Answer {
    bool present = false;
    bool comes = false;  // what is missing of it is being saved
  };
  // Asks for chunks; answers[i] is that of chunks[i]. False: the pool did not answer in time.
  bool Ask(Store& store, const Clock& clock, std::int64_t deadline_ns,
           std::chrono::milliseconds hold, const std::vector<ChunkId>& chunks,
           std::vector<Answer>& answers);
  // Counts the answer to the i-th chunk of the last question, and notes where it was seen.
  void Count(std::size_t i, const ChunkId& chunk, bool present);
  // Lets the look-up ask again later for a chunk that is being saved; `tokens` are found so far.
  // False: no further question would be answered in time.
  bool Wait(const Clock& clock, std::uint64_t tokens);
  // Lets a look-up that waits ask again, because the pool has not answered in time.
  void WaitUnanswered(const Clock& clock, std::uint64_t tokens);
  // Returns when a question that begins now must be answered, beside the caller's own limit.
  std::int64_t QuestionEnds(const Clock& clock) const;
  // Ends a look-up whose wait is over while a question has no answer, with what it has found.
  void EndWait();
  bool MayWait(const Clock& clock) const {
    return !wait_over_ && clock.NowNs() < question_.wait_until_ns;
  }
  bool TryStep(Store& store, const Clock& clock, std::int64_t deadline_ns,
               std::chrono::milliseconds hold);
  bool StepFull(Store& store, const Clock& clock, std::int64_t deadline_ns,
                std::chrono::milliseconds hold);
  bool StepOthers(Store& store, const Clock& clock, std::int64_t deadline_ns,
                  std::chrono::milliseconds hold);
  void End(std::uint64_t tokens);
  void Shorten();

  const EngineShape& shape_;
  const Keys& keys_;
  const Question question_;
  std::uint64_t cursor_;      // the full groups' KV is found up to this token
  std::uint64_t window_ = 0;  // strides asked for at once
  std::uint64_t candidate_ = 0;
  bool full_done_ = false;
  bool done_ = false;
  std::uint64_t hit_ = 0;
  std::map<ChunkId, bool> known_;  // of the other groups
  std::int64_t again_ns_ = 0;
  std::int64_t pause_ns_ = 0;       // before it asks again
  std::int64_t ask_ns_ = 0;         // that the last question took
  bool wait_over_ = false;          // no further question would be answered in time
  bool unanswered_ = false;         // this step's last question
  std::int64_t waits_from_ns_ = 0;  // 0: it has not waited
  std::int64_t ended_ns_ = 0;
  std::uint64_t waits_from_tokens_ = 0;
  std::array<std::uint64_t, kTiers> tiers_{};
  std::uint64_t asked_ = 0;
  MissReason missed_ = MissReason::kNone;
  std::vector<Seen> seen_;
  // Buffers of one question, kept for the next one of a long look-up.
  struct Scratch {
    std::string text;
    std::vector<std::string_view> keys;  // in it
    std::vector<ItemResult> results;
    std::vector<std::size_t> first;  // of each chunk, in `results`
    bool answered = false;           // the call succeeded
  };
  Scratch scratch_;
};

// Runs look-ups for a scheduler that may not wait.
class LookupRunner {
 public:
  virtual ~LookupRunner() = default;
  // Runs a look-up for about `budget`. True: it has ended, done or given up. False: it may still
  // run, so only another Run may touch it.
  virtual bool Run(const std::shared_ptr<Lookup>& lookup, std::chrono::milliseconds budget) = 0;
};

// Returns a runner in the caller's thread: for pools that answer from memory, and for simulations.
// `store` and `clock` outlive it.
std::unique_ptr<LookupRunner> RunHere(Store& store, const Clock& clock,
                                      std::chrono::milliseconds hold);
// Returns a runner with a thread of its own, which continues when the budget is spent: for pools
// that are asked over a network. Each look-up ends by `timeout`. Errors: as StartThread.
Result<std::unique_ptr<LookupRunner>> RunInThread(Store& store, const Clock& clock,
                                                  std::chrono::milliseconds hold,
                                                  std::chrono::milliseconds timeout);

}  // namespace kvcove::connector
