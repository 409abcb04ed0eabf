// SPDX-License-Identifier: Apache-2.0
// What one call of an owner's core costs beside much of something else: puts under way, hard pins,
// sessions of other hosts, a reset or a removal of a million objects. One JSON line a row;
// bench/README.md has the figures.
#include <fmt/core.h>
#include <malloc.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/size.h"
#include "kvcove/owner/core/core.h"

namespace kvcove::owner {
namespace {

constexpr SlotId kNamed = 1;
constexpr SlotId kUnnamed = 2;
constexpr Generation kGeneration = 1ULL << 24;
constexpr std::size_t kRuns = 2000;
constexpr Id128 kIncarnation{.high = 1, .low = 1};

// Of this thread: how long a call holds the lock, without the time that others take the processor.
std::int64_t Now() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (now.tv_sec * kSecond) + now.tv_nsec;
}
std::size_t Heap() {
  const auto info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

struct Memory {
  explicit Memory(std::size_t bytes)
      : size(bytes),
        data(static_cast<std::byte*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {}
  ~Memory() { munmap(data, size); }
  std::size_t size;
  std::byte* data;
};

// A core whose segment holds `objects` values of one granule.
class Bench {
 public:
  Bench(std::uint64_t objects, bool listed)
      : sizes_{.max_objects = objects + 100'000, .payload_bytes = objects * segment::kLeastGranule},
        header_(segment::HeaderFileBytes(sizes_)),
        payload_(sizes_.payload_bytes) {
    if (!segment::FormatHeader(header_.data, sizes_, {.high = 1, .low = 2}, /*hash_seed=*/3)) {
      std::abort();
    }
    core_ = *Core::Open({.payload_bytes = sizes_.payload_bytes,
                         .max_objects = sizes_.max_objects,
                         .listed = listed},
                        *segment::HeaderView::Open(header_.data, header_.size), payload_.data,
                        SystemClock::Instance());
    core_->AddPayloadBelow(sizes_.payload_bytes);
    session_ = AddSession();
    core_->SetSlots(kIncarnation,
                    {{.slot = kNamed, .generation = kGeneration, .name = "m"},
                     {.slot = kUnnamed, .generation = kGeneration, .name = "m", .named = false}});
  }

  SessionNumber AddSession() {
    pages_.push_back(std::make_unique<Memory>(sizeof(segment::SessionPage)));
    segment::FormatSessionPage(pages_.back()->data);
    return core_->AddSession(reinterpret_cast<segment::SessionPage*>(pages_.back()->data), 1);
  }
  SessionNumber AddRemoteSession() { return core_->AddSession(nullptr, 1); }

  // A value that travels with the request, or a reservation that is committed at once.
  void Put(SlotId slot, std::uint64_t number, bool commit = true) {
    const std::string key = fmt::format("bench/model@tp_rank:0@{:032x}", number);
    const PutItem item{.key = key, .size_bytes = 64, .value = {}, .after = {}};
    const Token token{.incarnation = kIncarnation, .generation = kGeneration, .slot = slot};
    const PutResult result = core_->Put(session_, token, {&item, 1}).front();
    if (!commit || result.code != Code::kOk) return;
    const FinishItem finish{.reservation = result.reservation, .commit = true};
    core_->Finish(session_, {&finish, 1});
  }
  void Fill(SlotId slot, std::uint64_t count) {
    for (std::uint64_t i = 1; i <= count; ++i) {
      Put(slot, next_++);
      if (i % 1000 != 0 && i < count) continue;
      for (const Pending& pending : core_->TakePending()) core_->FinishListing(pending, Code::kOk);
    }
  }
  void ReportPut(const char* row) {
    std::vector<double> taken;
    for (std::size_t i = 0; i < kRuns; ++i) {
      const std::int64_t begin = Now();
      Put(kNamed, next_++);
      taken.push_back(static_cast<double>(Now() - begin) / 1e3);
    }
    std::ranges::sort(taken);
    fmt::print("{{\"bench\":\"core\",\"row\":\"{}\",\"p50_us\":{:.2f},\"p99_us\":{:.2f}}}\n", row,
               taken[kRuns / 2], taken[kRuns * 99 / 100]);
    std::fflush(stdout);
  }
  // `slice` is called until it says that nothing is left.
  void ReportSlices(const char* row, const std::function<bool()>& slice) {
    const std::size_t before = Heap();
    std::size_t most = before;
    std::vector<double> taken;
    for (bool more = true; more;) {
      const std::int64_t begin = Now();
      more = slice();
      taken.push_back(static_cast<double>(Now() - begin) / 1e3);
      most = std::max(most, Heap());
    }
    double sum = 0;
    for (const double one : taken) sum += one;
    fmt::print(
        "{{\"bench\":\"core\",\"row\":\"{}\",\"slices\":{},\"longest_us\":{:.0f},\"all_ms\":{:.1f},"
        "\"extra_mib\":{:.2f}}}\n",
        row, taken.size(), *std::ranges::max_element(taken), sum / 1e3,
        static_cast<double>(most - before) / kMiB);
    std::fflush(stdout);
  }
  Core& core() { return *core_; }

 private:
  segment::HeaderSizes sizes_;
  Memory header_;
  Memory payload_;
  std::vector<std::unique_ptr<Memory>> pages_;
  std::unique_ptr<Core> core_;
  SessionNumber session_ = 0;
  std::uint64_t next_ = 0;
};

constexpr std::uint64_t kMany = 1'000'000;

void BenchPuts() {
  Bench(200'000, false).ReportPut("put, nothing else");
  {
    Bench bench(400'000, true);
    for (std::uint64_t i = 0; i < 60'000; ++i) bench.Put(kNamed, 1'000'000'000 + i);
    bench.ReportPut("put, 60,000 puts wait for the master");
  }
  {
    Bench bench(100'000, false);
    bench.Fill(kNamed, 100'000);
    bench.ReportPut("put that evicts");
    for (int i = 0; i < 4000; ++i) bench.AddRemoteSession();
    bench.ReportPut("put that evicts, 4,000 sessions of other hosts");
  }
  {
    Bench bench(1'200'000, false);
    bench.Fill(kUnnamed, 1);
    bench.Fill(kNamed, 1'199'999);
    bench.core().Pin(kUnnamed, fmt::format("bench/model@tp_rank:0@{:032x}", 0), PinKind::kHard, 0);
    bench.ReportPut("put that evicts, 1.2 million objects, a hard pin in an unnamed version");
  }
}

void BenchWalks() {
  {
    Bench bench(kMany, true);
    bench.Fill(kNamed, kMany);
    bench.core().SetSlots(kIncarnation,
                          {{.slot = kNamed, .generation = 2 * kGeneration, .name = "m"}});
    bench.ReportSlices("reset of 10^6 objects", [&] { return bench.core().Tick(); });
  }
  {
    Bench bench(kMany, true);
    bench.Fill(kNamed, kMany);
    Core::Walk walk;
    bench.ReportSlices("removal of 10^6 objects by pattern", [&] {
      bench.core().RemoveMatching(kNamed, "bench/*", walk);
      return !walk.done;
    });
  }
  {
    Bench bench(kMany, true);
    bench.Fill(kNamed, kMany);
    Core::Walk walk;
    bench.ReportSlices("DropSlot of 10^6 objects", [&] {
      bench.core().DropSlot(kNamed, walk);
      return !walk.done;
    });
  }
  {
    Bench bench(kMany, false);
    bench.Fill(kNamed, kMany);
    bench.ReportSlices("a slot with 10^6 objects gets another namespace", [&] {
      bench.core().SetSlots(kIncarnation,
                            {{.slot = kNamed, .generation = 3 * kGeneration, .name = "other"}});
      return false;
    });
  }
}

}  // namespace
}  // namespace kvcove::owner

int main() {
  kvcove::owner::BenchPuts();
  kvcove::owner::BenchWalks();
  return 0;
}
