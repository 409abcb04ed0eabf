// SPDX-License-Identifier: Apache-2.0
// Generations decided in this process, for a pool of one host: each call waits for its answer.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/master/control/generation_keeper.h"

namespace kvcove::master {

class FileStore;

// The one owner of such a pool: what is published to it is acknowledged.
class OwnerSink {
 public:
  virtual ~OwnerSink() = default;
  // In the order of the calls.
  virtual void Publish(const Id128& incarnation, const std::vector<SlotUpdate>& updates) = 0;
};

// Thread-safe.
class BlockingGenerations final : public wire::GenerationService {
 public:
  struct Options {
    std::string data_directory;  // empty: everything is forgotten with the process
    std::int64_t lease_ns = 0;   // the longest lease that the owner is given
    bool log_resets = false;    // GenerationKeeper::Options
  };
  // Errors: those of the store.
  static Result<std::unique_ptr<BlockingGenerations>> Open(const Options& options, OwnerSink& sink,
                                                           const Clock& clock);
  ~BlockingGenerations() override;

  Result<Registration> Register(const RegisterRequest& request, std::int64_t deadline_ns) override;
  Result<ResetOutcome> Reset(const ResetRequest& request, std::int64_t deadline_ns) override;
  Status NameVersions(std::string_view name, std::string_view engine,
                      std::span<const std::string> versions, std::int64_t deadline_ns) override;
  Status EndEngine(std::string_view name, std::string_view engine,
                   std::int64_t deadline_ns) override;
  PoolFact pool() const;
  // Ends cleanly: the next start need not wait for leases. Call it when no lease is running any
  // more.
  Status Close();
  // Calls that wait now end with kUnavailable within milliseconds; their outcome is unknown.
  void EndWaits() { ++ended_; }

 private:
  class Sink;
  BlockingGenerations(const std::string& data_directory, OwnerSink& sink, const Clock& clock);
  template <typename T>
  Result<T> Wait(std::int64_t deadline_ns, const std::function<void(Reply<T>)>& call);

  const Clock& clock_;
  const std::string late_;                // what a call says that the store did not answer in time
  std::atomic<std::uint64_t> ended_ = 0;  // how often the waits of then were ended
  std::unique_ptr<Sink> sink_;
  std::unique_ptr<ControlStore> store_;
  std::unique_ptr<OrderedCommits> commits_;
  std::unique_ptr<GenerationKeeper> keeper_;
};

}  // namespace kvcove::master
