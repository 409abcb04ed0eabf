// SPDX-License-Identifier: Apache-2.0
// A model of one inference engine: a cache of its own in front, the pool behind it, weights with a
// version. Belongs to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcove/policy/lru.h"
#include "kvcove/pool/pool.h"
#include "kvcove/replay/trace.h"

namespace kvcove::replay {

struct EngineOptions {
  std::string engine = "engine-0";
  std::uint64_t own_blocks = 1000;  // 0: none
  std::uint64_t block_bytes = 65536;
  // Keep the stores of the last request before an update until after it, as a slow saver would.
  bool late_stores = false;
};

// What one request did. A plain record: engines in other processes send it through a pipe.
struct Served {
  std::uint32_t request = 0;
  std::uint32_t blocks = 0;
  std::uint32_t own_hits = 0;
  std::uint32_t pool_hits = 0;
  std::uint32_t stored = 0;
  std::uint32_t failed = 0;  // puts and gets that ended with an error
  std::uint32_t wrong_blocks = 0;
  std::uint32_t stale_blocks = 0;
  std::uint32_t late_rejected = 0;  // stores that came after a reset and were refused
  std::uint32_t late_accepted = 0;
  std::uint64_t lookup_ns = 0;  // 0: no call was made
  std::uint64_t load_ns = 0;
  std::uint64_t store_ns = 0;
  std::uint64_t load_bytes = 0;
  std::uint64_t store_bytes = 0;
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> Open(const EngineOptions& options,
                                              std::unique_ptr<Pool> pool);

  Served Serve(std::uint32_t number, const Request& request);
  // New weights: the own cache is emptied, the pool is reset, then what was still to be stored is
  // sent. Counts are added to `served`.
  Status UpdateWeights(Served& served);

 private:
  Engine(const EngineOptions& options, std::unique_ptr<Pool> pool)
      : options_(options), pool_(std::move(pool)) {
    ClearOwnCache();
  }
  struct Stores {
    Token token;
    std::uint32_t version = 0;
    std::vector<std::uint64_t> hashes;
    std::string after;
  };
  void ClearOwnCache();
  void Load(const std::vector<std::string>& keys, const std::vector<std::uint64_t>& hashes,
            std::size_t first, std::size_t count, Served& served);
  void Store(const Stores& stores, Served& served, bool late);

  const EngineOptions options_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Session> session_;
  std::optional<policy::CacheSimulator> own_;
  std::uint32_t version_ = 0;
  std::vector<std::byte> buffer_;
  std::optional<Stores> late_;
};

}  // namespace kvcove::replay
