// SPDX-License-Identifier: Apache-2.0
// Values in place: what borrowing and reserving cost by themselves, and with the caller's memcpy,
// beside a get and a put of the same values.
#include <cstring>

#include "kvcove/base/random.h"
#include "lab/commands/bench.h"
#include "lab/commands/bench_local.h"

namespace kvcove::lab::local_bench {
namespace {

constexpr std::size_t kPicks = 64;

// Calls `copy` with each piece of item i and the offset of its bytes in the caller's buffer.
template <typename Handle, typename Copy>
void ForPieces(const Handle& handle, std::uint64_t object_bytes, const Copy& copy) {
  for (std::size_t i = 0; i < handle.size(); ++i) {
    std::uint64_t at = i * object_bytes;
    for (const auto& piece : handle.pieces(i)) {
      copy(piece, at);
      at += piece.size;
    }
  }
}

Status AllOk(std::span<const ItemResult> results, const char* what) {
  for (const ItemResult& result : results) {
    if (!result.ok()) return Fail(result.code, what);
  }
  return {};
}

void PrintPerKey(const BenchOptions& options, Row& row) {
  row.extra["us_per_key"] = row.p50_us / static_cast<double>(row.batch);
  Print(options, row);
}

}  // namespace

Status BenchBorrow(const BenchOptions& options, const std::string& form, const Shape& shape) {
  KVCOVE_ASSIGN(Target target, Target::Open(form, shape.memory));
  const std::uint64_t objects = shape.memory / shape.object_bytes * 7 / 8;
  KVCOVE_TRY(Fill(*target.session, objects, shape.object_bytes));
  const std::uint64_t bytes = shape.object_bytes * shape.batch;
  std::vector<std::byte> buffer(bytes, std::byte{0});
  Random random(1);
  std::vector<std::vector<std::string>> keys(kPicks);
  std::vector<std::vector<std::string_view>> views(kPicks);
  for (std::size_t p = 0; p < kPicks; ++p) {
    for (std::uint64_t i = 0; i < shape.batch; ++i) keys[p].push_back(KeyOf(random.Below(objects)));
    views[p].assign(keys[p].begin(), keys[p].end());
  }
  std::vector<MutableBuffer> pieces(shape.batch);
  std::vector<GetItem> items(shape.batch);
  std::vector<ItemResult> results(shape.batch);
  Status failed;
  const auto note = [&](const Status& status) {
    if (!status) failed = status;
  };
  const auto get = [&](std::size_t turn) {
    for (std::uint64_t i = 0; i < shape.batch; ++i) {
      pieces[i] = {.data = buffer.data() + i * shape.object_bytes, .size = shape.object_bytes};
      items[i] = {.key = keys[turn % kPicks][i], .into = {&pieces[i], 1}};
    }
    note(target.session->Get(items, results, {.timeout = kTimeout}));
    note(AllOk(results, "a get of the benchmark failed"));
  };
  const auto borrow = [&](std::size_t turn, bool copies) {
    auto loan = target.session->Borrow(views[turn % kPicks], {.timeout = kTimeout});
    if (!loan) return note(std::unexpected(loan.error()));
    if (copies) {
      ForPieces(*loan, shape.object_bytes, [&](const ConstBuffer& piece, std::uint64_t at) {
        std::memcpy(buffer.data() + at, piece.data, piece.size);
      });
    }
    note(loan->Release(results));
    note(AllOk(results, "a borrow of the benchmark failed"));
  };
  for (const bool copies : {false, true}) {
    Row row{.bench = "borrow",
            .form = form,
            .objects = objects,
            .object_bytes = shape.object_bytes,
            .batch = shape.batch,
            .state = copies ? "copy" : "bare",
            .limit = "get"};
    for (std::size_t turn = 0; turn < kPicks; ++turn) get(turn);  // its pages are touched
    Measure(options, row, bytes, [&](std::size_t turn) { borrow(turn, copies); }, get);
    KVCOVE_TRY(failed);
    PrintPerKey(options, row);
  }
  return {};
}

Status BenchReserve(const BenchOptions& options, const std::string& form, const Shape& shape) {
  KVCOVE_ASSIGN(Target target, Target::Open(form, shape.memory));
  const std::uint64_t bytes = shape.object_bytes * shape.batch;
  const std::uint64_t places = shape.memory / shape.object_bytes;
  const std::vector<std::byte> values(bytes, std::byte{3});
  // Full from the start, so that each of both evicts; and every page of this process is touched.
  KVCOVE_TRY(Fill(*target.session, places, shape.object_bytes, 1ULL << 40));
  KVCOVE_ASSIGN(const Token token, target.session->Capture({}));
  std::vector<ConstBuffer> pieces(shape.batch);
  std::vector<PutItem> puts(shape.batch);
  std::vector<ReserveItem> reserves(shape.batch);
  std::vector<ItemResult> results(shape.batch);
  std::vector<std::string> keys(shape.batch);
  std::uint64_t next = 0;
  Status failed;
  const auto note = [&](const Status& status) {
    if (!status) failed = status;
  };
  const auto prepare = [&] {
    for (std::uint64_t i = 0; i < shape.batch; ++i) {
      keys[i] = KeyOf(next++);
      pieces[i] = {.data = values.data() + i * shape.object_bytes, .size = shape.object_bytes};
      puts[i] = {.key = keys[i], .value = {&pieces[i], 1}, .after = {}};
      reserves[i] = {.key = keys[i], .size_bytes = shape.object_bytes};
    }
  };
  const auto reserve = [&](bool copies) {
    auto space = target.session->Reserve(token, reserves, {.timeout = kTimeout});
    if (!space) return note(std::unexpected(space.error()));
    if (copies) {
      ForPieces(*space, shape.object_bytes, [&](const MutableBuffer& piece, std::uint64_t at) {
        std::memcpy(piece.data, values.data() + at, piece.size);
      });
    }
    note(space->Commit(results, kTimeout));
    note(AllOk(results, "a reservation of the benchmark failed"));
  };
  for (const bool copies : {false, true}) {
    Row row{.bench = "reserve",
            .form = form,
            .objects = places,
            .object_bytes = shape.object_bytes,
            .batch = shape.batch,
            .state = copies ? "copy" : "bare",
            .limit = "put"};
    // Keys are made outside the timed part.
    std::vector<double> ours;
    std::vector<double> theirs;
    const std::int64_t until = Now() + static_cast<std::int64_t>(options.seconds * 1e9);
    while (Now() < until || ours.size() < 20) {
      prepare();
      std::int64_t start = Now();
      reserve(copies);
      ours.push_back(static_cast<double>(Now() - start) / 1e3);
      prepare();
      start = Now();
      note(target.session->Put(token, puts, results, {.timeout = kTimeout}));
      theirs.push_back(static_cast<double>(Now() - start) / 1e3);
    }
    KVCOVE_TRY(failed);
    Summarize(row, bytes, ours, theirs);
    PrintPerKey(options, row);
  }
  return {};
}

}  // namespace kvcove::lab::local_bench
