// SPDX-License-Identifier: Apache-2.0
// The state of a pool at one moment, as its endpoints answer it: plain values. Pure: the input is
// the text of the answers.
//
// A section that no endpoint has is not set, so that a view leaves it out: an owner knows no tasks,
// and a master of an earlier build no engines. Counters are those since the start of the process
// that counts.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/result.h"

namespace kvcove::top {

// Durations of calls, as a histogram of /metrics has them.
struct Times {
  // Upper bounds in seconds, ascending, and the calls up to each; the last bound is infinite.
  std::map<double, std::uint64_t> up_to;

  std::uint64_t count() const { return up_to.empty() ? 0 : up_to.rbegin()->second; }
  // Returns the time that a part of the calls did not exceed, `part` between 0 and 1; interpolated
  // within a bucket, and the largest finite bound for those beyond it. Nothing: there were no
  // calls.
  std::optional<double> Quantile(double part) const;
  // Add and subtract the calls of another one. A difference below zero counts as none.
  void Add(const Times& other);
  Times Since(const Times& before) const;
};

struct Owner {
  std::string address;
  std::string host;
  std::string tenant;
  std::string state;  // "live", "draining", "gone"
  std::uint64_t capacity_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t objects = 0;
  std::uint64_t disk_capacity_bytes = 0;
  std::uint64_t disk_bytes = 0;
  std::uint64_t disks = 0;
  std::uint64_t disks_aside = 0;
  std::optional<double> lease_age_s;   // since it renewed its lease, as the master sees it
  std::optional<double> lease_left_s;  // as the owner itself sees it
  // Counters; not set where nobody counts them.
  std::optional<std::uint64_t> hits;
  std::optional<std::uint64_t> hit_bytes;
  std::optional<std::uint64_t> put_bytes;
  std::optional<std::uint64_t> evictions;
  std::optional<std::uint64_t> disk_hits;
  std::optional<std::uint64_t> disk_hit_bytes;
};

struct Namespace {
  std::string name;
  std::string version;
  std::optional<std::uint64_t> bytes;  // not set where nobody counts them
  std::optional<bool> dead;            // pruned
};

struct Engine {
  std::string name;
  std::string space;  // its namespace
  std::string version;
  std::string state;  // "open", "must reset", or of a session the bytes that it holds
};

struct Task {
  std::uint64_t id = 0;
  std::string kind;
  std::string state;
  std::string from;
  std::string to;
  std::uint64_t copied = 0;
  std::uint64_t copied_bytes = 0;
  std::uint64_t left = 0;
  double seconds = 0;
  bool unfinished() const { return state == "queued" || state == "running"; }
};

// How many values owners would have found with more or less memory, or a larger or smaller disk
// below it, as they estimate: sums over owners, since the start of each.
struct Expected {
  std::uint64_t asked = 0;
  std::uint64_t distinct = 0;  // different values asked for; 0 where nobody estimates
  // Hits by size ("half", "same", "double", "quadruple").
  std::map<std::string, std::uint64_t> memory;
  std::map<std::string, std::uint64_t> disk;  // together with memory

  // Returns the part of what was asked for, by size, with "any" for memory of any size; empty where
  // nobody estimates.
  std::map<std::string, double> OfMemory() const;
  std::map<std::string, double> OfDisk() const;
};

struct Sample {
  std::string role;  // as the endpoint calls itself: "leader", "standby"; "owner" where none does
  std::uint64_t term = 0;
  // The endpoints whose counters are in the sums below; sums of other ones cannot be compared.
  std::vector<std::string> summed;
  std::optional<std::vector<Owner>> owners;
  std::optional<std::vector<Namespace>> namespaces;
  std::optional<std::vector<Engine>> engines;
  std::optional<std::uint64_t> registered;  // all engines, also those that are not listed
  std::optional<std::vector<Task>> tasks;
  std::map<std::string, std::uint64_t> misses;    // keys, by reason
  std::map<std::string, Times> calls;             // by name
  std::map<std::string, std::uint64_t> counters;  // "resets", "resets not proven", ...
  Expected expected;
};

// The bodies of one endpoint's answers, by path; paths that it does not know are missing.
struct Answers {
  std::string endpoint;
  std::map<std::string, std::string> bodies;
};
// The paths that a sample is made of.
inline constexpr const char* kPaths[] = {"/v1/status",  "/v1/segments", "/v1/namespaces",
                                         "/v1/engines", "/v1/tasks",    "/v1/stat",
                                         "/metrics"};

// Makes one sample of the answers of several endpoints: a master that leads, and owners beside it.
// Among masters the one that leads counts, else the first. A master's figures of owners replace the
// owners' own; their latencies are added. A host that has the master's paths for its
// own owner may count more in its metrics. Without a master, the resets are those that an
// owner has followed. Errors: kCorrupt for an answer in a form that is not the paths'.
Result<Sample> MakeSample(const std::vector<Answers>& endpoints);

}  // namespace kvcove::top
