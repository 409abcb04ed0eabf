// SPDX-License-Identifier: Apache-2.0
// A store for tests: a map, with faults on demand.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/connector/store.h"

namespace kvcove::connector {

struct TestPool {
  Mutex mutex;
  std::map<std::string, std::string> values;
  Generation generation = 1;
  std::set<std::string> lost;  // found, but not loaded, and why:
  MissReason lost_reason = MissReason::kEvicted;
  std::set<std::string> disk;  // lie on a disk alone
  FakeClock* clock = nullptr;  // goes on with every value that is loaded:
  std::int64_t get_ns = 0;     // from memory
  std::int64_t disk_get_ns = 0;
  std::int64_t exists_ns = 0;   // with every Exists
  std::int64_t reset_ns = 0;    // and with a reset
  std::size_t most_pieces = 0;  // of one value that was asked for
  std::uint64_t asked = 0;      // keys of Exists
  std::uint64_t puts = 0;
  std::map<std::string, Hints> hints;  // of what was put, by key
  std::set<std::string> saves;         // announced
  int announcements = 0;               // calls
  std::function<void()> on_announce;   // called by each of them
  std::atomic<bool> slow{false};       // Exists does not answer in time
  // Called by each such Exists with its timeout.
  std::function<void(std::chrono::milliseconds)> on_slow;
  // Called by each other one; false: it does not answer in time, either.
  std::function<bool(std::chrono::milliseconds)> on_exists;
  std::chrono::milliseconds exists_timeout{0};  // of the last Exists
  std::atomic<bool> deaf{false};                // Capture does not answer in time
  std::atomic<int> captures{0};
  std::atomic<Code> refuses{Code::kOk};     // else Capture fails so
  std::atomic<std::thread::id> named_by{};  // the thread that last told versions
  std::atomic<bool> throws{false};          // Get and Put throw
  std::atomic<bool> call_throws{false};     // Capture, Exists and NameVersions do
  std::atomic<bool> full{false};
  std::atomic<bool> on_disk{false};     // all values: look-ups do not know their sizes
  std::atomic<Code> resets{Code::kOk};  // else they fail so, and the store is closed
};

class TestStore : public Store {
 public:
  // Stores of other spaces do not see each other's values.
  explicit TestStore(TestPool& pool, std::string space = {})
      : pool_(pool), space_(std::move(space)) {}
  Result<Token> Capture(std::string_view, std::chrono::milliseconds) override {
    ++pool_.captures;
    if (pool_.call_throws) throw std::runtime_error("capture");
    if (const Code code = pool_.refuses; code != Code::kOk) return Fail(code, "as told");
    if (pool_.deaf) return Fail(Code::kTimeout, "deaf");
    const MutexLock lock(pool_.mutex);
    return Token{.incarnation = {1, 1}, .generation = pool_.generation, .slot = 0};
  }
  Status Exists(std::span<const std::string_view> keys, std::span<ItemResult> results,
                const CallOptions& options) override {
    if (pool_.call_throws) throw std::runtime_error("exists");
    const MutexLock lock(pool_.mutex);
    pool_.asked += keys.size();
    pool_.exists_timeout = options.timeout;
    if (pool_.clock != nullptr) pool_.clock->AdvanceNs(pool_.exists_ns);
    if (pool_.slow) {
      if (pool_.on_slow) pool_.on_slow(options.timeout);
      return Fail(Code::kTimeout, "slow");
    }
    if (pool_.on_exists && !pool_.on_exists(options.timeout)) {
      return Fail(Code::kTimeout, "slow");
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const bool disk = pool_.on_disk || pool_.disk.contains(Name(keys[i]));
      if (disk && pool_.values.contains(Name(keys[i]))) {
        results[i] = {.code = Code::kOk, .tier = Tier::kDisk};
        continue;
      }
      results[i] = pool_.values.contains(Name(keys[i]))
                       ? ItemResult{.code = Code::kOk,
                                    .bytes = pool_.values[Name(keys[i])].size(),
                                    .tier = Tier::kMemory}
                       : ItemResult{.code = Code::kMiss, .reason = MissReason::kEvicted};
      results[i].under_way =
          options.under_way && !results[i].ok() && pool_.saves.contains(Name(keys[i]));
    }
    return {};
  }
  Status Announce(const Token&, std::span<const std::string_view> keys, SaveNotice notice,
                  const CallOptions&) override {
    if (pool_.call_throws) throw std::runtime_error("announce");
    if (pool_.on_announce) pool_.on_announce();
    const MutexLock lock(pool_.mutex);
    ++pool_.announcements;
    for (const std::string_view key : keys) {
      if (notice == SaveNotice::kBegin) pool_.saves.insert(Name(key));
      if (notice == SaveNotice::kEnd) pool_.saves.erase(Name(key));
    }
    return {};
  }
  Status Put(const Token& token, std::span<const PutItem> items, std::span<ItemResult> results,
             const CallOptions&) override {
    if (pool_.throws) throw std::runtime_error("put");
    const MutexLock lock(pool_.mutex);
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (pool_.values.contains(Name(items[i].key))) {
        results[i] = {.code = Code::kExists};
        continue;
      }
      ++pool_.puts;
      results[i] = {.code = pool_.full                             ? Code::kNoSpace
                            : token.generation == pool_.generation ? Code::kOk
                                                                   : Code::kStale};
      if (!results[i].ok()) continue;
      std::string value;
      for (const ConstBuffer& piece : items[i].value) {
        value.append(static_cast<const char*>(piece.data), piece.size);
      }
      pool_.values[Name(items[i].key)] = std::move(value);
      pool_.hints[Name(items[i].key)] = items[i].hints;
    }
    return {};
  }
  Status Get(std::span<const GetItem> items, std::span<ItemResult> results,
             const CallOptions&) override {
    if (pool_.throws) throw std::runtime_error("get");
    const MutexLock lock(pool_.mutex);
    for (std::size_t i = 0; i < items.size(); ++i) {
      const auto at = pool_.values.find(Name(items[i].key));
      if (at == pool_.values.end() || pool_.lost.contains(at->first)) {
        results[i] = {.code = Code::kMiss, .reason = pool_.lost_reason};
        continue;
      }
      std::size_t room = 0;
      for (const MutableBuffer& piece : items[i].into) room += piece.size;
      pool_.most_pieces = std::max(pool_.most_pieces, items[i].into.size());
      if (at->second.size() > room) {
        results[i] = {.code = Code::kBufferTooSmall, .bytes = at->second.size()};
        continue;
      }
      std::size_t from = 0;
      for (const MutableBuffer& piece : items[i].into) {
        const std::size_t count = std::min(piece.size, at->second.size() - from);
        std::memcpy(piece.data, at->second.data() + from, count);
        from += count;
      }
      const bool disk = pool_.disk.contains(at->first);
      if (pool_.clock != nullptr) pool_.clock->AdvanceNs(disk ? pool_.disk_get_ns : pool_.get_ns);
      results[i] = {.code = Code::kOk,
                    .bytes = at->second.size(),
                    .tier = disk ? Tier::kDisk : Tier::kMemory};
    }
    return {};
  }
  Status Remove(std::span<const std::string_view> keys, std::span<ItemResult> results,
                const CallOptions&) override {
    const MutexLock lock(pool_.mutex);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const bool there = pool_.values.erase(Name(keys[i])) > 0;
      results[i] = {.code = there ? Code::kOk : Code::kMiss};
    }
    return {};
  }
  Status Reset(const ResetOptions&) override {
    if (const Code code = pool_.resets; code != Code::kOk) return Fail(code, "as told");
    const MutexLock lock(pool_.mutex);
    if (pool_.clock != nullptr) pool_.clock->AdvanceNs(pool_.reset_ns);
    ++pool_.generation;
    pool_.values.clear();
    pool_.saves.clear();
    return {};
  }
  Status NameVersions(std::span<const std::string>, std::chrono::milliseconds) override {
    pool_.named_by = std::this_thread::get_id();
    if (pool_.call_throws) throw std::runtime_error("name versions");
    return {};
  }
  bool closed() const override { return pool_.resets != Code::kOk; }

 private:
  std::string Name(std::string_view key) const { return space_ + std::string(key); }

  TestPool& pool_;
  const std::string space_;
};

}  // namespace kvcove::connector
