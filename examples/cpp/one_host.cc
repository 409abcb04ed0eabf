// SPDX-License-Identifier: Apache-2.0
// Two engines of one host: the first makes values in the pool's memory, the second reads them
// there, and no byte is copied. Then the weights change under the reader.
//
//   one_host [ADDRESS]     default "auto": the daemon of this host (`kvcove serve`), else embedded
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "kvcove/pool/pool.h"

namespace {

constexpr std::size_t kChunkBytes = 64 * 1024;
constexpr std::array<std::string_view, 2> kKeys = {"chunk-1", "chunk-2"};

int Fail(std::string_view what, const kvcove::Error& error) {
  std::fprintf(stderr, "%.*s: %s\n", static_cast<int>(what.size()), what.data(),
               error.ToString().c_str());
  return 1;
}

// Reserves memory for both chunks, fills it as a GPU's copy would, and makes values of it. `mark`
// is the first chunk's byte; the second one's is the next.
kvcove::Status Make(kvcove::Session& session, int mark) {
  // Before the KV is computed: if a reset comes in between, the commit is refused.
  KVCOVE_ASSIGN(const kvcove::Token token, session.Capture({}));
  const std::array<kvcove::ReserveItem, 2> items = {{
      {.key = kKeys[0], .size_bytes = kChunkBytes},
      {.key = kKeys[1], .size_bytes = kChunkBytes},
  }};
  KVCOVE_ASSIGN(kvcove::Reserved space, session.Reserve(token, items, {}));
  for (std::size_t i = 0; i < space.size(); ++i) {
    // None for a chunk that is not ok: the engine goes on without storing it.
    for (const kvcove::MutableBuffer& piece : space.pieces(i)) {
      std::memset(piece.data, mark + static_cast<int>(i), piece.size);
    }
  }
  std::array<kvcove::ItemResult, 2> results;
  KVCOVE_TRY(space.Commit(results));
  for (const kvcove::ItemResult& result : results) {
    if (!result.ok()) return kvcove::Fail(result.code, "a chunk was not stored");
  }
  return {};
}

// Counts the bytes that are those of Make.
std::size_t CountBytes(const kvcove::Borrowed& loan, int mark) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < loan.size(); ++i) {
    for (const kvcove::ConstBuffer& piece : loan.pieces(i)) {
      const auto* bytes = static_cast<const unsigned char*>(piece.data);
      for (std::size_t at = 0; at < piece.size; ++at) {
        if (bytes[at] == mark + static_cast<int>(i)) ++count;
      }
    }
  }
  return count;
}

// Prints the outcome of both chunks, and returns whether it is as expected.
bool Say(std::string_view what, const std::array<kvcove::ItemResult, 2>& results, bool ok) {
  std::printf("%.*s:", static_cast<int>(what.size()), what.data());
  bool as_expected = true;
  for (const kvcove::ItemResult& result : results) {
    const std::string_view why = kvcove::MissReasonName(result.reason);
    if (result.ok()) {
      std::printf(" ok");
    } else {
      std::printf(" a miss (%.*s)", static_cast<int>(why.size()), why.data());
    }
    as_expected = as_expected && result.ok() == ok;
  }
  std::printf("\n");
  return as_expected;
}

}  // namespace

int main(int argc, char** argv) {
  const auto pool = kvcove::Pool::Open(argc > 1 ? argv[1] : "auto");
  if (!pool) return Fail("open", pool.error());
  // Two engines of one model share a namespace. Each would have a process and a pool of its own.
  const auto writer = (*pool)->OpenSession({.name = "example/model@1/fp8", .engine = "engine-0"});
  if (!writer) return Fail("session", writer.error());
  const auto reader = (*pool)->OpenSession({.name = "example/model@1/fp8", .engine = "engine-1"});
  if (!reader) return Fail("session", reader.error());
  // Nothing says which weights the KV is of that others have left in this namespace. Both resets
  // come before work, so they share one generation: the engines share what they make from now on.
  if (const auto done = (*writer)->Reset({}); !done) return Fail("first reset", done.error());
  if (const auto done = (*reader)->Reset({}); !done) return Fail("first reset", done.error());

  if (const auto made = Make(**writer, 1); !made) return Fail("make", made.error());
  auto loan = (*reader)->Borrow(kKeys, {});  // no call, no copy: protected until it is released
  if (!loan) return Fail("borrow", loan.error());
  const std::size_t right = CountBytes(*loan, 1);
  std::printf("read in place: %zu bytes of %zu are right\n", right, 2 * kChunkBytes);
  std::array<kvcove::ItemResult, 2> results;
  if (const auto done = loan->Release(results); !done) return Fail("release", done.error());
  const bool valid = Say("released", results, true);

  // The weights change while the second engine reads. The reset does not wait for it, and the bytes
  // stay as they are; the release says that they are of old weights.
  loan = (*reader)->Borrow(kKeys, {});
  if (!loan) return Fail("borrow", loan.error());
  if (const auto done = (*writer)->Reset({}); !done) return Fail("reset", done.error());
  if (const auto done = loan->Release(results); !done) return Fail("release", done.error());
  const bool void_now = Say("released after a reset", results, false);

  // Nothing says which weights the second engine has: it neither finds nor stores until it resets,
  // too. Both resets come before new work, so they share one generation.
  if (const auto done = (*reader)->Exists(kKeys, results, {}); !done) {
    return Fail("look up", done.error());
  }
  const bool closed = Say("the second engine's look-up", results, false);
  if (const auto done = (*reader)->Reset({}); !done) return Fail("reset", done.error());
  if (const auto made = Make(**writer, 3); !made) return Fail("make", made.error());
  loan = (*reader)->Borrow(kKeys, {});
  if (!loan) return Fail("borrow", loan.error());
  const std::size_t fresh = CountBytes(*loan, 3);
  std::printf("with new weights: %zu bytes of %zu are right\n", fresh, 2 * kChunkBytes);
  const bool all = right == 2 * kChunkBytes && fresh == 2 * kChunkBytes;
  return valid && void_now && closed && all ? 0 : 1;
}
