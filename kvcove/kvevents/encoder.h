// SPDX-License-Identifier: Apache-2.0
// Batches of events as vLLM publishes them (vllm/distributed/kv_events.py): msgpack, a KVEventBatch
// as an array of time, events and data-parallel rank. No I/O.
//
// An owner knows no tokens. Its BlockStored has none, a block size of 0 and no parent, as those of
// vLLM's own offloading connector: routers find the block by its hash, which the engine's events
// have named. docs/kv-events.md says which router reads which form.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kvcove/kvevents/events.h"

namespace kvcove::kvevents {

struct EncoderOptions {
  // False: the last eight bytes of a hash as a number, as vLLM's events without
  // VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0.
  bool whole_hashes = false;
  // False: an event is a map of its fields by name. True: an array of its fields in their order, as
  // vLLM encoded them before.
  bool arrays = false;
};

// Immutable.
class Encoder {
 public:
  explicit Encoder(EncoderOptions options) : options_(options) {}
  // Returns the batch. `seconds`: since 1970.
  std::string Batch(double seconds, std::span<const Event> events) const;

 private:
  void AddEvent(const Event& event, std::string& out) const;
  void AddHashes(const Event& event, std::string& out) const;

  EncoderOptions options_;
};

}  // namespace kvcove::kvevents
