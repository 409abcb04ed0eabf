// SPDX-License-Identifier: Apache-2.0
// For tests: a leader, shards of its directory, owners and a reader in virtual time. Messages are
// late and get lost; shards are cut off and drained; owners go away, are barred and overtaken, and
// come back; keys are removed. An oracle says what must not be seen. shards_sim_test.cc has its
// rules.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kvcove/base/random.h"
#include "kvcove/master/master.h"
#include "kvcove/master/shards/shard_replica.h"
#include "kvcove/master/store/fake_store.h"

namespace kvcove::master {

// Rules that a simulation switches off, to show that the oracle notices.
struct ShardRules {
  bool lease = true;      // a shard lists and finds nothing behind its lease
  bool freeze = true;     // the giver of a slice lists nothing while it moves
  bool removals = true;   // a shard has applied the removals that it acknowledges
  bool ask = true;        // the leader alone says that a value gives way
  bool retell = true;     // owners tell slices again that begin anew
  bool drop_away = true;  // an owner that missed what gave way at a lost shard drops the slot
};

class ShardsSim {
 public:
  explicit ShardsSim(std::uint64_t seed, const ShardRules& rules = {});
  ~ShardsSim();

  void Run(int steps);
  // Faults end; then all must be found that is held, and nothing else.
  void Settle();

  const std::vector<std::string>& wrong() const { return wrong_; }
  // What happened, so that a test sees that enough did.
  struct Counts {
    int puts = 0;
    int removals = 0;
    int reads = 0;
    int overtaken = 0;   // values that gave way to another owner's
    int returns = 0;     // owners that came back
    int lost = 0;        // shards
    int moves = 0;       // revisions of the map
    int moved_back = 0;  // slices that the leader got from a shard that was not lost
    std::size_t held = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  static constexpr std::uint64_t kOwners = 3;
  static constexpr std::size_t kShards = 3;
  static constexpr int kKeys = 60;
  static constexpr std::int64_t kStepNs = 2 * kMillisecond;

  struct Follower {
    std::unique_ptr<ShardReplica> replica;
    std::string address;
    bool cut = false;   // from the leader
    bool dead = false;  // nobody reaches it
    bool asked = false;
    std::uint64_t call = 0;  // answers to earlier ones are lost
    std::uint64_t taken = 0;
    std::uint64_t taken_for = 0;
    bool loading = false;
  };
  // A value, as its owner has it.
  struct Value {
    std::uint32_t group = 0;
    bool acknowledged = false;
    std::uint64_t removals = 0;  // applied when it was put
    // It is dropped only where its owner was away since, or when it was put had not told all since,
    // or hid the slot.
    bool safe = false;
  };
  struct Op {
    wire::ListItem item;
    std::string key;
    bool operator==(const Op& other) const {
      return key == other.key && item.group == other.item.group && item.gone == other.item.gone &&
             item.inventory == other.item.inventory;
    }
  };
  struct Lane {
    std::uint64_t revision = 0;
    std::uint32_t epoch = 0;
    std::uint64_t sequence = 0;
    std::optional<Op> unanswered;
  };
  struct Owner {
    std::uint64_t id = 0;
    wire::OwnerWelcome welcome;
    bool joined = false;
    bool says_hello = true;
    bool new_epoch = false;  // what it has listed is not known there
    bool away = false;
    bool recovered = false;  // all is told since it was away
    std::int64_t lease_until_ns = 0;
    std::uint64_t applied = 0;
    std::uint64_t dropped = 0;
    bool asks_removals = false;
    std::uint64_t call = 0;
    std::shared_ptr<const wire::ShardMap> map;
    std::uint64_t told_map = 0;
    bool told = false;
    bool hidden = false;
    std::int64_t next_renewal_ns = 0;
    std::map<std::string, Value> held;
    std::set<std::string> to_tell;
    std::deque<Op> ops;
    std::map<wire::ShardNumber, Lane> lanes;
  };
  // What the oracle knows of a key.
  struct Known {
    std::map<std::uint32_t, std::uint64_t> acknowledged;  // group -> when, counted
    std::map<std::uint32_t, std::uint64_t> listed;        // group -> when last
    std::set<std::uint32_t> removed;                      // proven
    std::uint64_t removal = 0;                            // the last one's number
    std::deque<std::string> events;                       // the last ones
  };

  void Step();
  void Pass(std::int64_t ns);
  void After(std::int64_t ns, std::function<void()> run);
  std::int64_t Delay() { return static_cast<std::int64_t>(random_.Below(6)) * kMillisecond; }
  void Act();
  // `key`: whose last events are told with it; empty: none.
  void Wrong(const std::string& what, const std::string& key = {});
  void Note(const std::string& key, const std::string& what);

  // ---- shards
  void AddFollower();
  void Follow(Follower& one);
  void Take(Follower& one);
  void TakePage(Follower& one, const wire::ShardMove& move, std::uint32_t cursor);
  void TakeBack();
  void TakeBackPage(const wire::ShardMove& move, std::uint32_t cursor);
  Result<wire::ShardPage> PageOf(const wire::ShardMove& move, std::uint32_t cursor);
  Follower* Serving(const wire::ShardMap* map, wire::ShardNumber shard);

  // ---- owners
  void Hello(Owner& owner);
  void Renew(Owner& owner);
  void GetMap(Owner& owner, std::shared_ptr<const wire::ShardMap> map);
  void AskRemovals(Owner& owner);
  void Apply(Owner& owner, const wire::RemovalsPage& page);
  void Drop(Owner& owner, const std::string& key, bool tells);
  // It may be read: here, and where nothing lies between the value and the directory.
  bool Shows(const Owner& owner, const std::string& key) const;
  bool Told(const Owner& owner, const std::string& key) const;
  void Live(Owner& owner);
  void Tell(Owner& owner);
  void SendAll(Owner& owner);
  // Nothing: no answer has come.
  std::optional<Code> Send(Owner& owner, wire::ShardNumber shard, const Op& op);
  void Answered(Owner& owner, const Op& op, Code code);
  Op OpOf(const Owner& owner, const std::string& key, std::uint32_t group) const;
  void Put(Owner& owner, const std::string& key);
  void Acknowledge(Owner& owner, const std::string& key, Value& value, bool inventory);
  // Of the last value that was acknowledged first.
  static std::uint64_t Latest(const Known& known);

  // ---- requesters
  void Remove(const std::string& key);
  void Read(const std::string& key);
  wire::Place Find(const std::string& key);
  Id128 HashOf(const std::string& key) const { return DirectoryHash(slot_, key); }

  const ShardRules rules_;
  Random random_;
  FakeClock clock_;
  FakeStore store_;
  std::unique_ptr<Master> master_;
  std::vector<std::unique_ptr<Follower>> followers_;
  std::map<std::uint64_t, Owner> owners_;
  std::multimap<std::int64_t, std::function<void()>> events_;
  SlotId slot_ = 0;
  Token token_;
  std::shared_ptr<const wire::ShardMap> reader_map_;
  std::uint64_t taken_back_ = 0;
  std::shared_ptr<const wire::ShardMap> seen_map_;
  std::uint32_t next_group_ = 0;
  std::uint64_t next_count_ = 0;
  std::map<std::string, Known> known_;
  std::vector<std::string> wrong_;
  Counts counts_;
};

}  // namespace kvcove::master
