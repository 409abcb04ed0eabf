// SPDX-License-Identifier: Apache-2.0
// A pool of many hosts: asynchronous calls, values on two owners, and what a router asks.
//
//   cluster kvcove://MASTER:7400
//
// It needs a master and two owners (docs/operating.md, "A cluster from nothing"); an engine's host
// needs none of its own.
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/pool/pool.h"

namespace {

constexpr std::size_t kChunkBytes = 64 * 1024;
constexpr std::size_t kChunks = 4;
constexpr std::array<std::string_view, kChunks> kKeys = {"chunk-1", "chunk-2", "chunk-3",
                                                         "chunk-4"};
using Chunks = std::array<std::vector<std::byte>, kChunks>;
using Results = std::array<kvcove::ItemResult, kChunks>;
enum Tag : std::uint64_t { kPut = 1, kGet = 2 };

int Fail(std::string_view what, const kvcove::Error& error) {
  std::fprintf(stderr, "%.*s: %s\n", static_cast<int>(what.size()), what.data(),
               error.ToString().c_str());
  return 1;
}

// Waits until the buffers of the call are the caller's again, and returns the call's outcome. An
// engine takes completions in its loop, when event_fd() is readable, instead of waiting here.
kvcove::Status Wait(kvcove::CompletionQueue& queue, Tag tag) {
  while (true) {
    const auto completion = queue.Next(std::chrono::seconds(10));
    if (!completion) return kvcove::Fail(kvcove::Code::kTimeout, "no completion");
    // Not final: the deadline has passed, and a transfer may still land in the buffers.
    if (completion->tag == tag && completion->final) return completion->status;
  }
}

std::size_t CountOk(const Results& results) {
  std::size_t count = 0;
  for (const kvcove::ItemResult& result : results) count += result.ok() ? 1 : 0;
  return count;
}

kvcove::Status Put(kvcove::Session& session, kvcove::CompletionQueue& queue, const Chunks& chunks,
                   Results& results) {
  KVCOVE_ASSIGN(const kvcove::Token token, session.Capture({}));
  // All of these stay valid until the completion: the call reads them from another thread.
  std::array<kvcove::ConstBuffer, kChunks> pieces;
  std::array<kvcove::PutItem, kChunks> items;
  for (std::size_t i = 0; i < kChunks; ++i) {
    pieces[i] = {chunks[i].data(), chunks[i].size()};
    items[i] = {.key = kKeys[i], .value = {&pieces[i], 1}};
  }
  KVCOVE_TRY(session.PutAsync(queue, kPut, token, items, results));
  return Wait(queue, kPut);  // the engine would compute the next chunks meanwhile
}

kvcove::Status Get(kvcove::Session& session, kvcove::CompletionQueue& queue, Chunks& into,
                   Results& results) {
  std::array<kvcove::MutableBuffer, kChunks> pieces;
  std::array<kvcove::GetItem, kChunks> items;
  for (std::size_t i = 0; i < kChunks; ++i) {
    into[i].resize(kChunkBytes);
    pieces[i] = {into[i].data(), into[i].size()};
    items[i] = {.key = kKeys[i], .into = {&pieces[i], 1}};
  }
  KVCOVE_TRY(session.GetAsync(queue, kGet, items, results));
  return Wait(queue, kGet);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: cluster kvcove://MASTER:7400\n");
    return 2;
  }
  const auto pool = kvcove::Pool::Open(argv[1]);
  if (!pool) return Fail("open", pool.error());
  const auto session =
      (*pool)->OpenSession({.name = "example/model@1/fp8", .engine = "engine-0", .replicas = 2});
  if (!session) return Fail("session", session.error());
  // Nothing says which weights the KV is of that others have left in this namespace.
  if (const auto done = (*session)->Reset({}); !done) return Fail("first reset", done.error());
  kvcove::CompletionQueue queue;

  Chunks chunks;
  for (std::size_t i = 0; i < kChunks; ++i) {
    chunks[i].assign(kChunkBytes, static_cast<std::byte>(i + 1));
  }
  Results results;
  if (const auto done = Put(**session, queue, chunks, results); !done) {
    return Fail("put", done.error());
  }
  const std::size_t stored = CountOk(results);
  std::printf("%zu of %zu chunks are stored, the first on %u owners\n", stored, kChunks,
              results[0].replicas);

  // To which host should a router send a request that begins with these chunks?
  const auto located = (*session)->Locate(kKeys, {});
  if (!located) return Fail("locate", located.error());
  std::printf("%zu owners have a part of %zu chunks\n", located->owners.size(), located->keys);
  for (const kvcove::OwnerPrefix& owner : located->owners) {
    std::printf("  one has the first %zu\n", owner.prefix);
  }

  Chunks into;
  if (const auto done = Get(**session, queue, into, results); !done) {
    return Fail("get", done.error());
  }
  const bool same = CountOk(results) == kChunks && into == chunks;
  std::printf("%zu chunks came back, %s\n", CountOk(results), same ? "as they were put" : "wrong");

  // After a weight update. Every owner has acknowledged it, or nobody may read from it any more:
  // no host finds anything from before.
  if (const auto done = (*session)->Reset({}); !done) return Fail("reset", done.error());
  if (const auto done = (*session)->Exists(kKeys, results, {}); !done) {
    return Fail("look up", done.error());
  }
  const std::string why(kvcove::MissReasonName(results[0].reason));
  std::printf("after the reset: %zu chunks (%s)\n", CountOk(results), why.c_str());
  return stored == kChunks && same && CountOk(results) == 0 ? 0 : 1;
}
