// SPDX-License-Identifier: Apache-2.0
// A model of an engine whose KV lies as in SGLang with HiCache, on the connector's same two roles:
//
//   device   one slot a token, in any order, layer after layer; a table says which token has which
//   host     a pool of pages, page first: all layers of a page's tokens together
//
// The pool's blocks are the host's pages, so nothing of the roles knows about slots. A load brings
// pages to the host, which then go to slots; a page that is full goes from its slots to the host in
// the step that filled it (write through), and is saved from there. The pages' bytes are those of
// ModelEngine's blocks, so engines of both kinds share.
//
// Requests are served one after the other; what it is about is where KV lies. Belongs to one
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/replay/model.h"

namespace kvcove::lab {

struct HostPoolOptions {
  ModelShape shape;           // blocks: of the host's pool
  std::uint32_t slots = 256;  // of the device
};

struct HostPoolCounts {
  std::uint64_t loaded_pages = 0;
  std::uint64_t failed_pages = 0;
  std::uint64_t computed_tokens = 0;
  std::uint64_t wrong_tokens = 0;  // of what was loaded, as found in the device's slots
};

class HostPoolEngine {
 public:
  // `move` runs the movers of the connector's workers, where they have no threads.
  HostPoolEngine(const HostPoolOptions& options, ModelConnector connector,
                 std::function<void()> move);
  // The ranks register their host pools. Errors: kInvalid.
  Status Start(Weights weights);
  void ChangeWeights(Weights weights);

  // Computes a prompt, or loads what is there; returns the last token's state. Errors: kNoSpace:
  // slots or pages are lacking; kTimeout: the pool gives no answer.
  Result<std::uint64_t> Serve(const std::string& id, const std::vector<std::uint32_t>& tokens);

  const HostPoolCounts& counts() const { return counts_; }
  // Pages that something keeps although no request is left.
  std::size_t pages_in_use() const { return pages_.in_use(); }

 private:
  using Slot = std::uint32_t;
  struct Request {
    std::string id;
    std::vector<std::uint32_t> tokens;
    std::vector<std::string> hashes;
    std::vector<Slot> table;      // of its tokens
    std::vector<BlockId> backed;  // host pages, in order; 0: not there
    std::uint64_t computed = 0;
  };

  connector::RequestView ViewOf(const Request& request) const;
  // Takes slots for all tokens; not in order, as after other requests.
  Status TakeSlots(Request& request);
  Status Load(Request& request);
  // Of the pages [0, count): those before the first that failed are in the device's slots.
  void ToDevice(Request& request, std::uint64_t count, const std::vector<BlockId>& failed);
  void Verify(const Request& request);
  void Compute(Request& request);
  void ToHost(const Request& request, std::uint64_t first_page);
  // One step of the roles; `request` computes in it. What the ranks have ended goes to `ended`.
  void Step(Request* request, connector::Ended& ended);
  void Free(Request& request);

  std::uint64_t& At(std::uint32_t rank, Slot slot) { return device_[rank][slot]; }

  const HostPoolOptions options_;
  const ModelConnector connector_;
  const std::function<void()> move_;
  std::vector<RankMemory> host_;                    // by rank
  std::vector<std::vector<std::uint64_t>> device_;  // by rank: states, by slot
  BlockPool pages_;
  std::vector<Slot> free_slots_;
  Weights weights_ = 0;
  HostPoolCounts counts_;
};

}  // namespace kvcove::lab
