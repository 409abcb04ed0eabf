// SPDX-License-Identifier: Apache-2.0
// Decides whether a rank may load and save now, by its weights, its LoRA adapters and the pool.
//
// Loads and saves are refused from a change of the weights until the scheduler has asked for their
// fingerprint and the rank has answered: the scheduler asks only after it has voided all that
// depends on the weights of before. An order whose adapter has changed since the plan's digest of
// it was made is refused for the same reason.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kvcove/connector/plan.h"

namespace kvcove::connector {

// Does no I/O. Needs its owner's lock.
class Gate {
 public:
  // `number`: the rank's in the engine's world. `fingerprints`: a change of the weights closes the
  // gate.
  Gate(std::uint32_t number, bool fingerprints) : number_(number), fingerprints_(fingerprints) {}

  // Takes the plan's question for the fingerprint and its state of the adapters.
  void TakePlan(const Plan& plan);
  // Notes a change. True: the gate is closed, and loads that wait or run are void.
  bool WeightsChanging();
  bool FingerprintWanted() const { return wanted_ != 0; }
  // Answers the question and opens the gate. `fingerprint` must be made after the last change that
  // the rank has seen: it is reported as such.
  void SetFingerprint(std::string fingerprint);
  void SetAdapters(const std::vector<AdapterPrint>& adapters);
  // Closes the gate for good: there will be no pool.
  void DoWithout() { without_pool_ = news_.without_pool = true; }
  // Refuses saves until then: the pool had no room.
  void SetPressure(std::int64_t until_ns) { pressure_until_ns_ = until_ns; }

  bool Loads(const AdapterPrint& adapter) const;
  bool Saves(const AdapterPrint& adapter, std::int64_t now_ns) const;

  // Begins the rank's report with the changes since the last one.
  Report TakeReport();

 private:
  struct Adapter {
    std::string digest;
    std::uint64_t since = 0;  // `adapters_number_` of the change that brought it
  };

  const std::uint32_t number_;
  const bool fingerprints_;
  bool closed_ = false;
  bool without_pool_ = false;
  std::uint64_t changes_ = 0;  // changes of the weights so far
  std::uint64_t wanted_ = 0;   // number of the scheduler's question; 0: none
  std::int64_t pressure_until_ns_ = 0;
  std::map<AdapterId, Adapter> adapters_;
  std::uint64_t adapters_number_ = 0;  // changes of the adapters so far
  std::uint64_t adapters_known_ = 0;   // the last change that the step's plan knows
  Report news_;
};

}  // namespace kvcove::connector
