// SPDX-License-Identifier: Apache-2.0
// Whether a rank may load and save now: its weights, its LoRA adapters, the pool.
//
// Loads and saves are refused from a change of the weights until the scheduler has asked for their
// fingerprint and has it: by then it has voided whatever depends on the weights of before. An order
// whose adapter has changed since the plan's digest of it was made is refused for the same reason.
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
  // `number`: of the rank in the engine's world. `fingerprints`: a change of the weights closes the
  // gate.
  Gate(std::uint32_t number, bool fingerprints) : number_(number), fingerprints_(fingerprints) {}

  // Takes what the step's plan says and asks.
  void TakePlan(const Plan& plan);
  // True: loads that wait or run are void.
  bool WeightsChanging();
  bool FingerprintWanted() const { return wanted_ != 0; }
  void SetFingerprint(std::string fingerprint);
  void SetAdapters(const std::vector<AdapterPrint>& adapters);
  // There will be no pool: nothing is loaded or saved any more.
  void DoWithout() { without_pool_ = news_.without_pool = true; }
  // The pool had no room: nothing is saved until then.
  void SetPressure(std::int64_t until_ns) { pressure_until_ns_ = until_ns; }

  bool Loads(const AdapterPrint& adapter) const;
  bool Saves(const AdapterPrint& adapter, std::int64_t now_ns) const;

  // Begins the rank's report: what has changed since the last one.
  Report TakeReport();

 private:
  struct Adapter {
    std::string digest;
    std::uint64_t since = 0;  // the number that it came with
  };

  const std::uint32_t number_;
  const bool fingerprints_;
  bool closed_ = false;
  bool without_pool_ = false;
  std::uint64_t changes_ = 0;  // of the weights
  std::uint64_t wanted_ = 0;   // number of the scheduler's question; 0: none
  std::int64_t pressure_until_ns_ = 0;
  std::map<AdapterId, Adapter> adapters_;
  std::uint64_t adapters_number_ = 0;  // of changes so far
  std::uint64_t adapters_known_ = 0;   // by the step's plan
  Report news_;
};

}  // namespace kvcove::connector
