// SPDX-License-Identifier: Apache-2.0
// A pool inside this process: put two chunks, get them back, reset, and see that they are gone.
//
//   embedded [ADDRESS]     another pool: "auto", "unix:/path/of/socket", "kvcove://host:7400"
//
// All of the API is in kvcove/pool/pool.h and in the headers that it names.
#include <array>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/pool/pool.h"
#include "kvcove/version.h"

namespace {

// Stands for the KV blocks of one chunk of tokens.
constexpr std::size_t kChunkBytes = 64 * 1024;
using Chunk = std::vector<std::byte>;

int Fail(std::string_view what, const kvcove::Error& error) {
  std::fprintf(stderr, "%.*s: %s\n", static_cast<int>(what.size()), what.data(),
               error.ToString().c_str());
  return 1;
}

// Stores both chunks in one call. `token` says under which weights they were computed.
bool PutBoth(kvcove::Session& session, const kvcove::Token& token,
             const std::array<Chunk, 2>& chunks) {
  // A value may lie in several pieces, here one: the library reads them where they are.
  const kvcove::ConstBuffer first{chunks[0].data(), chunks[0].size()};
  const kvcove::ConstBuffer second{chunks[1].data(), chunks[1].size()};
  const std::array<kvcove::PutItem, 2> items = {{
      {.key = "chunk-1", .value = {&first, 1}},
      {.key = "chunk-2", .value = {&second, 1}},
  }};
  std::array<kvcove::ItemResult, 2> results;
  // The status is about the call as a whole, a result about its item.
  const kvcove::Status status = session.Put(token, items, results, {});
  if (!status) Fail("put", status.error());
  for (const kvcove::ItemResult& result : results) {
    if (status && !result.ok()) Fail("put", {.code = result.code, .detail = "a chunk"});
  }
  return status && results[0].ok() && results[1].ok();
}

// Reads one chunk. A miss is no error: the engine computes the chunk then.
kvcove::ItemResult GetOne(kvcove::Session& session, std::string_view key, Chunk& into) {
  const kvcove::MutableBuffer buffer{into.data(), into.size()};
  const kvcove::GetItem item{.key = key, .into = {&buffer, 1}};
  kvcove::ItemResult result;
  const kvcove::Status status = session.Get({&item, 1}, {&result, 1}, {});
  if (!status) Fail("get", status.error());
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view version = kvcove::Version();
  std::printf("kvcove %.*s\n", static_cast<int>(version.size()), version.data());

  // One pool a process. It comes with its threads and its memory, and nothing has to run beside it.
  const auto pool = kvcove::Pool::Open(argc > 1 ? argv[1] : "embedded:?memory=64MiB");
  if (!pool) return Fail("open", pool.error());

  // A session sees one namespace: name it after the tenant and all that KV depends on, so that
  // engines whose KV differs never meet. All processes of one engine give the same `engine`.
  const auto session = (*pool)->OpenSession({.name = "example/model@1/fp8", .engine = "engine-0"});
  if (!session) return Fail("session", session.error());
  // On a pool that others have used, nothing says which weights their KV is of: begin without it.
  // An engine that names its weights (CallOptions::version) finds it again instead.
  if (const kvcove::Status reset = (*session)->Reset({}); !reset) {
    return Fail("first reset", reset.error());
  }

  // Capture before the KV is computed, and give the token to the put: if a reset comes in between,
  // the put is refused with kStale, and no engine ever reads what old weights computed.
  const auto token = (*session)->Capture({});
  if (!token) return Fail("capture", token.error());
  const std::array<Chunk, 2> chunks = {Chunk(kChunkBytes, std::byte{1}),
                                       Chunk(kChunkBytes, std::byte{2})};
  if (!PutBoth(**session, *token, chunks)) return 1;

  // How many chunks of a prompt need not be computed?
  const std::array<std::string_view, 3> prompt = {"chunk-1", "chunk-2", "chunk-3"};
  const auto prefix = (*session)->LongestPrefix(prompt, {});
  if (!prefix) return Fail("longest prefix", prefix.error());
  std::printf("%zu of %zu chunks are there\n", *prefix, prompt.size());

  Chunk into(kChunkBytes);
  const kvcove::ItemResult hit = GetOne(**session, "chunk-2", into);
  const bool same = hit.ok() && into == chunks[1];
  std::printf("chunk-2: %llu bytes, %s\n", static_cast<unsigned long long>(hit.bytes),
              same ? "as they were put" : "not as they were put");

  // After a weight update. When it has returned ok, nothing from before is found anywhere.
  if (const kvcove::Status reset = (*session)->Reset({}); !reset) {
    return Fail("reset", reset.error());
  }
  const kvcove::ItemResult miss = GetOne(**session, "chunk-2", into);
  const std::string_view why = kvcove::MissReasonName(miss.reason);
  std::printf("after the reset: %s (%.*s)\n", miss.ok() ? "a hit" : "a miss",
              static_cast<int>(why.size()), why.data());
  return *prefix == 2 && same && miss.code == kvcove::Code::kMiss ? 0 : 1;
}
