// SPDX-License-Identifier: Apache-2.0
// The calls of mooncake.store that engines make often, over a session: addresses in, that API's
// integers out. kvcove/mooncake/store.py is the rest of it.
#include <fmt/core.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "codes.h"
#include "kvcove/base/clock.h"
#include "kvcove/base/interrupt.h"
#include "kvcove/base/size.h"
#include "kvcove/transport/landing.h"
#include "own_keys.h"
#include "queue_fence.h"
#include "regions.h"
#include "store_arguments.h"
#include "store_disk.h"
#include "store_ranges.h"

namespace kvcove::python {
namespace {

using Kind = Regions::Kind;

// What a transfer reads or writes in place of GPU memory.
struct Staging {
  std::vector<std::byte> bytes;
  std::span<const Piece> pieces;
};

// A value that Python keeps: readable as a buffer, and by its address. Not zeroed before it is
// read.
struct BufferHandle {
  std::unique_ptr<std::byte[]> bytes;
  std::size_t size = 0;

  explicit BufferHandle(std::size_t count = 0)
      : bytes(count == 0 ? nullptr : new std::byte[count]), size(count) {}
};

// Values that a caller gets and drops are the end of the heap. In a process that has freed nothing
// large yet, glibc gives that end back to the kernel each time, and a batch of small values costs
// ten times its copies in page faults. Its thresholds grow with the largest chunk that is freed.
void KeepHeap() {
  static const bool kept = [] {
    void* volatile chunk = std::malloc(8 * kMiB);  // NOLINT: never touched
    std::free(chunk);                              // NOLINT
    return true;
  }();
  (void)kept;
}

class Store {
 public:
  Store(double timeout, double lease, bool prefetches, double wait_for_room)
      : timeout_(Milliseconds(timeout)),
        lease_(Milliseconds(lease)),
        prefetches_(prefetches),
        wait_for_room_ns_(Milliseconds(wait_for_room).count() * kMillisecond) {
    KeepHeap();
  }

  // `pool`: also for its devices, so that they move the bytes by themselves.
  std::int64_t RegisterBuffer(const PyPool& pool, std::uintptr_t address, std::size_t size) {
    const std::shared_ptr<Pool> open = pool.Get();
    Status status = WithoutGil([&] {
      Status added = regions_.Add(address, size);
      if (added) RegisterAt(*open, address, size);
      return added;
    });
    if (!status && status.error().code == Code::kInternal) {
      OrWaitForProcessEnd([&] {
        const nb::object logger = nb::module_::import_("logging").attr("getLogger")("kvcove");
        logger.attr("error")("register_buffer(%#x, %d): this GPU memory cannot be copied: %s",
                             address, size, status.error().detail.c_str());
      });
    }
    return status ? kStoreOk : FromCode(status.error().code);
  }
  // Memory of this library's own that the caller gets, e.g. from a pool.
  std::int64_t RegisterAllocation(std::uintptr_t address, std::size_t size) {
    const Status status = regions_.AddAllocation(address, size);
    return status ? kStoreOk : FromCode(status.error().code);
  }
  std::int64_t UnregisterBuffer(std::uintptr_t address) {
    const Status status = regions_.Remove(address);
    if (!status) return FromCode(status.error().code);
    WithoutGil([&] {
      std::shared_ptr<void> ended;  // behind the lock: a device is asked
      const MutexLock lock(registered_mutex_);
      if (const auto at = registered_.find(address); at != registered_.end()) {
        ended = std::move(at->second);
        registered_.erase(at);
      }
    });
    return kStoreOk;
  }

  // Per key 1, 0 or a negative code.
  nb::list BatchIsExist(const PySession& self, nb::object keys,
                        std::optional<bool> prefetches) const {
    const auto look = [this, prefetches](Session& session, auto names, auto results) {
      return prefetches.value_or(prefetches_) ? session.Exists(names, results, Options(0))
                                              : LookUpOnly(session, names, results, Options(0));
    };
    return LookUp(self, keys, look, [](const ItemResult&) { return 1; }, /*missing=*/0);
  }
  // Per key its value's bytes or a negative code.
  nb::list BatchSizes(const PySession& self, nb::object keys, bool hold) const {
    CallOptions options = Options(0);
    if (!hold) options.hold = {};
    const auto look = [&options](Session& session, auto names, auto results) {
      Status status = LookUpOnly(session, names, results, options);
      FindSizes(session, names, results, options);
      return status;
    };
    return LookUp(
        self, keys, look,
        [](const ItemResult& result) { return static_cast<std::int64_t>(result.bytes); },
        kObjectNotFound);
  }
  // Per key the owners that have it: each one's name, whether only its disk has the value, and the
  // value's bytes, 0 where that would have to be read. Holds what is in memory.
  using Places = std::vector<std::vector<std::tuple<std::string, bool, std::uint64_t>>>;
  Places BatchPlaces(const PySession& self, nb::object keys_in) const {
    const std::shared_ptr<Session> session = self.Get();
    const StoredKeys keys(keys_in);
    std::vector<ItemResult> results(keys.size());
    auto found = WithoutGil([&] {
      (void)LookUpOnly(*session, keys.views(), results, Options(0));
      return session->Places(keys.views(), {.timeout = timeout_});
    });
    Places places;
    for (const std::vector<ObjectPlace>& of_one : Unwrap(std::move(found))) {
      auto& one = places.emplace_back();
      for (const ObjectPlace& place : of_one) {
        one.emplace_back(place.owner, place.tier == Tier::kDisk, place.bytes);
      }
    }
    return places;
  }
  // Values that were read from a disk.
  std::uint64_t disk_reads() const { return disk_reads_.load(std::memory_order_relaxed); }

  // Values, None for what is not there. `writable`: bytearrays.
  nb::list BatchGet(const PySession& self, nb::object keys_in, bool writable) const {
    const std::shared_ptr<Session> session = self.Get();
    const StoredKeys keys(keys_in);
    ValuesWanted wanted{.writable = writable, .patience_ns = patience_ns()};
    nb::list values = GetValues(*session, keys.views(), Options(0), &wanted);
    disk_reads_.fetch_add(wanted.from_disk, std::memory_order_relaxed);
    return values;
  }

  // Values with addresses of their own, None for what is not there.
  nb::list BatchGetBuffer(const PySession& self, nb::object keys_in) const {
    const std::shared_ptr<Session> session = self.Get();
    const StoredKeys keys(keys_in);
    std::vector<BufferHandle> handles(keys.size());
    std::vector<ItemResult> results(keys.size());
    WithoutGil([&] { ReadWhole(*session, keys, handles, results); });
    nb::list list;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (results[i].ok()) {
        list.append(nb::cast(std::move(handles[i])));
      } else {
        list.append(nb::none());
      }
    }
    return list;
  }

  nb::list BatchGetInto(const PySession& self, nb::object keys_in, nb::object addresses,
                        nb::object sizes, bool several) const {
    const std::shared_ptr<Session> session = self.Get();
    const StoredKeys keys(keys_in);
    const auto pieces = Pieces::Of(addresses, sizes, keys.size(), several);
    if (!pieces) return ToList(keys.size(), kInvalidParams);
    std::vector<std::int64_t> codes(keys.size());
    WithoutGil([&] { GetInto(*session, keys, *pieces, codes); });
    return ToList(codes);
  }

  // `replace`: what the keys have goes first.
  nb::list BatchPutFrom(const PySession& self, nb::object keys_in, nb::object addresses,
                        nb::object sizes, bool several, bool replace) {
    const std::shared_ptr<Session> session = self.Get();
    const StoredKeys keys(keys_in);
    const auto pieces = Pieces::Of(addresses, sizes, keys.size(), several);
    if (!pieces) return ToList(keys.size(), kInvalidParams);
    std::vector<std::int64_t> codes(keys.size());
    WithoutGil([&] { PutFrom(*session, keys, *pieces, replace, codes); });
    return ToList(codes);
  }

  // Values that Python holds. One that is empty or larger than `largest` refuses the whole batch,
  // as that API has it, and so does an empty key.
  nb::list BatchPut(const PySession& self, nb::object keys_in, nb::object values_in,
                    const std::optional<Token>& given, std::uint64_t largest, bool replace) {
    const std::shared_ptr<Session> session = self.Get();
    const StoredKeys keys(keys_in);
    const Buffers values(values_in, "values", /*writable=*/false);
    if (keys.size() != values.size()) return ToList(keys.size(), kInvalidParams);
    std::vector<PutItem> items(keys.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      items[i] = {.key = keys[i], .value = values.ConstItem(i), .after = {}};
      std::uint64_t size = 0;
      for (const ConstBuffer& piece : items[i].value) size += piece.size;
      if (keys[i].empty() || size == 0 || size > largest) {
        return ToList(keys.size(), kInvalidParams);
      }
    }
    std::vector<std::int64_t> codes(keys.size());
    WithoutGil([&] {
      const Result<Token> token = given ? *given : session->Capture({.timeout = timeout_});
      if (token) {
        (void)transport::Settle(transport::kSettle,
                                [&] { Put(*session, items, *token, replace, codes); });
      } else {
        std::ranges::fill(codes, FromCode(token.error().code));
      }
    });
    return ToList(codes);
  }

  // Which keys this store has put, as far as it remembers.
  std::vector<bool> WasPutHere(nb::object keys_in) const {
    const StoredKeys keys(keys_in);
    std::vector<bool> here;
    for (const std::string_view key : keys.views()) here.push_back(own_.Has(key));
    return here;
  }

  nb::list BatchRemove(const PySession& self, nb::object keys_in, bool force) const {
    const std::shared_ptr<Session> session = self.Get();
    const StoredKeys keys(keys_in);
    std::vector<std::int64_t> codes(keys.size());
    WithoutGil([&] { Remove(*session, keys.views(), force, codes); });
    return ToList(codes);
  }

  // Per value the bytes of all its ranges, or a code; see CopyRanges.
  nb::list CopyRanges(nb::object values, nb::object all_offsets, nb::object all_addresses,
                      nb::object all_sizes, bool out) const {
    return python::CopyRanges(
        regions_,
        {.values = values, .offsets = all_offsets, .addresses = all_addresses, .sizes = all_sizes},
        out);
  }

  // Parts of values into one registered buffer, not beyond its end; per key and fragment its bytes
  // or a code.
  nb::list GetRanges(const PySession& self, std::uintptr_t buffer, nb::object keys_in,
                     nb::object all_to, nb::object all_from, nb::object all_sizes) const {
    const std::shared_ptr<Session> session = self.Get();
    const StoredKeys keys(keys_in);
    RangeRead read(regions_, buffer, keys, {.to = all_to, .from = all_from, .sizes = all_sizes});
    WithoutGil([&] {
      (void)transport::Settle(transport::kSettle, [&] {
        read.Run(*session, Options(read.largest_bytes()), patience_ns());
      });
    });
    disk_reads_.fetch_add(read.from_disk(), std::memory_order_relaxed);
    return read.Answers();
  }
  bool IsRegistered(std::uintptr_t address) const { return regions_.Room(address) != 0; }

  // A copy of what lies at an address, None where the caller has no such memory.
  nb::object Read(std::uintptr_t address, std::size_t size) const {
    if (Regions::Lookup(regions_, /*writable=*/false).Of(address, size) == Kind::kNone) {
      return nb::none();
    }
    const nb::object bytes =
        nb::steal(PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
    if (!bytes.is_valid()) throw nb::python_error();
    const bool copied = CopyPiece(regions_, {.address = address, .size = size},
                                  reinterpret_cast<std::byte*>(PyByteArray_AsString(bytes.ptr())));
    return copied ? bytes : nb::none();
  }

  // From now on a put that may have been queued before another store's reset is refused.
  void FenceQueues(const PySession& self) {
    const std::shared_ptr<Session> session = self.Get();
    Result<Token> now = WithoutGil([&] { return session->Capture({.timeout = timeout_}); });
    fence_.Begin(Unwrap(std::move(now)));
  }

  // A reset of the session's namespace: the fence first, then the number of values that it voided,
  // as far as owners say. Raises as Session.reset.
  std::int64_t Reset(const PySession& self) {
    const std::shared_ptr<Session> session = self.Get();
    return Unwrap(WithoutGil([&]() -> Result<std::int64_t> {
      const Result<Token> before = session->Capture({.timeout = timeout_});
      const Status status = session->Reset({.timeout = kProofTimeout, .all_void = true});
      if (!status) return std::unexpected(status.error());
      if (before && fence_.on()) {
        const Result<Token> after = session->Capture({.timeout = timeout_});
        if (after) fence_.OwnReset(*before, *after);
      }
      const Result<ObjectCount> count = session->Count({.timeout = kCountTimeout});
      if (!count || !before || before->generation == count->generation) return 0;
      return static_cast<std::int64_t>(count->voided);
    }));
  }

 private:
  // A device that does not take the memory costs nothing but its speed. GPU memory, and memory that
  // may only be read, is none that a device of the network takes here.
  void RegisterAt(Pool& pool, std::uintptr_t address, std::size_t size) {
    if (Regions::Lookup(regions_, /*writable=*/true).Of(address, size) != Kind::kHost) return;
    auto registered =
        pool.Register({reinterpret_cast<std::byte*>(address), size});  // NOLINT: the caller's
    if (!registered) return;
    // An earlier one of this address ends behind the lock: a device is asked.
    const MutexLock lock(registered_mutex_);
    std::swap(registered_[address], *registered);
  }

  // Of resets and removals: an owner that does not answer is waited for until its lease has ended.
  static constexpr std::chrono::milliseconds kProofTimeout{2500};
  static constexpr std::chrono::milliseconds kCountTimeout{250};
  // Another writer of the same key mostly ends within this time.
  static constexpr std::int64_t kOtherWriterNs = 200 * kMillisecond;
  static constexpr std::int64_t kPatienceNs = 500 * kMillisecond;
  static constexpr std::uint64_t kSlowestBytesPerMs = 100'000;

  // Where puts wait for a disk, nothing that it is to have may be missed.
  std::int64_t patience_ns() const { return std::min(wait_for_room_ns_, kPatienceNs); }
  CallOptions Options(std::uint64_t bytes) const {
    return {.timeout = timeout_ + std::chrono::milliseconds(bytes / kSlowestBytesPerMs),
            .hold = lease_};
  }

  // A value may be replaced by a larger one between the two calls: it is then a miss.
  void ReadWhole(Session& session, const StoredKeys& keys, std::span<BufferHandle> handles,
                 std::span<ItemResult> results) const {
    std::vector<ItemResult> found(keys.size());
    if (!session.Exists(keys.views(), found, Options(0))) return;
    BringUp(session, keys.views(), found, Options(0), patience_ns());
    std::vector<MutableBuffer> buffers(keys.size());
    std::vector<GetItem> items(keys.size());
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      items[i].key = keys[i];
      if (!found[i].ok()) continue;
      handles[i] = BufferHandle(found[i].bytes);
      buffers[i] = {.data = handles[i].bytes.get(), .size = handles[i].size};
      items[i].into = std::span(buffers).subspan(i, 1);
      bytes += found[i].bytes;
    }
    (void)GetPatiently(session, items, results, Options(bytes), patience_ns());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!results[i].ok()) continue;
      handles[i].size = results[i].bytes;
      CountRead(found[i].tier == Tier::kDisk ? found[i] : results[i]);
    }
  }

  void CountRead(const ItemResult& result) const {
    if (result.ok() && result.tier == Tier::kDisk) {
      disk_reads_.fetch_add(1, std::memory_order_relaxed);
    }
  }

  template <typename Look, typename Found>
  nb::list LookUp(const PySession& self, nb::object keys_in, Look&& look, Found&& found,
                  std::int64_t missing) const {
    const std::shared_ptr<Session> session = self.Get();
    const StoredKeys keys(keys_in);
    std::vector<ItemResult> results(keys.size());
    std::vector<std::int64_t> codes(keys.size());
    WithoutGil([&] {
      const Status status = look(*session, keys.views(), std::span(results));
      for (std::size_t i = 0; i < keys.size(); ++i) {
        codes[i] = results[i].ok()   ? found(results[i])
                   : keys[i].empty() ? kObjectNotFound
                                     : ResultOf(results[i], status);
        if (codes[i] == kObjectNotFound) codes[i] = missing;
      }
    });
    return ToList(codes);
  }

  static std::int64_t ResultOf(const ItemResult& result, const Status& status) {
    // An item that a call did not come to has its initial code.
    if (!status && result.code == Code::kInternal) return FromCode(status.error().code);
    return FromCode(result.code, result.reason);
  }

  void GetInto(Session& session, const StoredKeys& keys, const Pieces& pieces,
               std::span<std::int64_t> codes) const {
    Regions::Lookup regions(regions_, /*writable=*/true);
    std::vector<MutableBuffer> buffers;
    buffers.reserve(pieces.total() + keys.size());
    std::vector<GetItem> items;
    std::vector<std::size_t> which;
    std::vector<std::pair<std::size_t, Staging>> staged;  // by its place in `which`
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::span<const Piece> item = pieces.Item(i);
      const Kind kind = KindOf(regions, item);
      if (kind == Kind::kNone) {
        codes[i] = kInvalidParams;
        continue;
      }
      const std::size_t first = buffers.size();
      if (kind == Kind::kDevice) {
        Staging staging{.bytes = std::vector<std::byte>(SizeOf(item)), .pieces = item};
        buffers.push_back({.data = staging.bytes.data(), .size = staging.bytes.size()});
        staged.emplace_back(which.size(), std::move(staging));
      } else {
        for (const Piece& piece : item) {
          buffers.push_back(
              {.data = reinterpret_cast<void*>(piece.address), .size = piece.size});  // NOLINT
        }
      }
      bytes += SizeOf(item);
      items.push_back({.key = keys[i], .into = std::span(buffers).subspan(first)});
      which.push_back(i);
    }
    std::vector<ItemResult> results(items.size());
    Status status;
    const auto busy = transport::Settle(transport::kSettle, [&] {
      status = GetPatiently(session, items, results, Options(bytes), patience_ns());
    });
    for (std::size_t k = 0; k < which.size(); ++k) {
      CountRead(results[k]);
      codes[which[k]] = results[k].ok() ? static_cast<std::int64_t>(results[k].bytes)
                                        : ResultOf(results[k], status);
    }
    for (const auto& [k, staging] : staged) {
      if (!results[k].ok()) continue;
      std::size_t at = 0;
      for (const Piece& piece : staging.pieces) {
        const std::size_t count = std::min<std::size_t>(piece.size, results[k].bytes - at);
        if (count == 0) break;
        const Status copied =
            Device::Get()->FromHost(piece.address, staging.bytes.data() + at, count);
        if (!copied) {
          // The GPU may still write there, and the caller shall know.
          codes[which[k]] = copied.error().code == Code::kBufferBusy
                                ? FromCode(Code::kBufferBusy, MissReason::kNone)
                                : kTransferFail;
          break;
        }
        at += count;
      }
    }
    if (busy != nullptr) {
      busy->Then([kept = std::make_shared<decltype(staged)>(std::move(staged))] {});
    }
  }

  void PutFrom(Session& session, const StoredKeys& keys, const Pieces& pieces, bool replace,
               std::span<std::int64_t> codes) {
    Regions::Lookup regions(regions_, /*writable=*/false);
    // Captured before a byte is read, GPU memory included.
    const Result<Token> token = session.Capture({.timeout = timeout_});
    std::vector<ConstBuffer> buffers;
    buffers.reserve(pieces.total() + keys.size());
    std::vector<PutItem> items;
    std::vector<std::size_t> which;
    std::deque<std::vector<std::byte>> staged;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::span<const Piece> item = pieces.Item(i);
      const Kind kind = KindOf(regions, item);
      const std::size_t first = buffers.size();
      if (!token) {
        codes[i] = FromCode(token.error().code);
      } else if (kind == Kind::kNone) {
        codes[i] = kInvalidParams;
      } else if (kind == Kind::kDevice) {
        auto& bytes = staged.emplace_back(SizeOf(item));
        codes[i] = Stage(item, bytes);
        buffers.push_back({.data = bytes.data(), .size = bytes.size()});
      } else {
        for (const Piece& piece : item) {
          buffers.push_back({.data = reinterpret_cast<const void*>(piece.address),
                             .size = piece.size});  // NOLINT
        }
      }
      if (codes[i] != kStoreOk) continue;
      items.push_back({.key = keys[i], .value = std::span(buffers).subspan(first), .after = {}});
      which.push_back(i);
    }
    if (!token) return;
    std::vector<std::int64_t> answers(items.size());
    const auto busy = transport::Settle(transport::kSettle,
                                        [&] { Put(session, items, *token, replace, answers); });
    if (busy != nullptr) {
      busy->Then([kept = std::make_shared<decltype(staged)>(std::move(staged))] {});
    }
    for (std::size_t k = 0; k < which.size(); ++k) codes[which[k]] = answers[k];
  }

  static std::int64_t Stage(std::span<const Piece> item, std::span<std::byte> bytes) {
    for (const Piece& piece : item) {
      if (!Device::Get()->ToHost(bytes.data(), piece.address, piece.size)) return kTransferFail;
      bytes = bytes.subspan(piece.size);
    }
    return kStoreOk;
  }

  // What another writer holds is asked for again until it has ended: then that value stays. With
  // `replace` what is there is removed, until this value is the one that is there (MakeWay).
  void Put(Session& session, std::span<const PutItem> items, const Token& token, bool replace,
           std::span<std::int64_t> codes) {
    if (!fence_.Admits(token)) {
      std::ranges::fill(codes, FromCode(Code::kStale));
      return;
    }
    std::uint64_t bytes = 0;
    for (const PutItem& item : items) {
      for (const ConstBuffer& piece : item.value) bytes += piece.size;
    }
    const Clock& clock = SystemClock::Instance();
    const std::int64_t begun_ns = clock.NowNs();
    const std::int64_t until_ns = begun_ns + kOtherWriterNs;
    std::vector<PutItem> left(items.begin(), items.end());
    std::vector<std::size_t> which(items.size());
    for (std::size_t i = 0; i < which.size(); ++i) which[i] = i;
    for (bool first = true;; first = false) {
      if (replace) {
        const Status removed = MakeWay(session, left, first);
        if (!removed) {
          for (const std::size_t i : which) codes[i] = FromCode(removed.error().code);
          return;
        }
      }
      std::vector<ItemResult> results(left.size());
      const Status status = session.Put(token, left, results, Options(bytes));
      const bool waits = LeftNs(begun_ns + wait_for_room_ns_, clock) > 0;
      std::vector<PutItem> again;
      std::vector<std::size_t> which_again;
      for (std::size_t k = 0; k < left.size(); ++k) {
        codes[which[k]] = ResultOf(results[k], status);
        if (results[k].ok()) own_.Add(left[k].key);
        if (replace && results[k].code == Code::kExists) codes[which[k]] = kReplicaIsNotReady;
        // Another upsert's removal voids this put while it is under way, just as a reset does.
        const bool again_later =
            results[k].code == Code::kInProgress || (waits && results[k].code == Code::kNoSpace) ||
            codes[which[k]] == kReplicaIsNotReady || (replace && results[k].code == Code::kStale);
        if (!again_later) continue;
        again.push_back(left[k]);
        which_again.push_back(which[k]);
      }
      if (again.empty()) return;
      if (LeftNs(until_ns, clock) <= 0 && !waits) {
        // Refused by a reset, or by removals of other upserts of the same keys?
        const Result<Token> current = session.Capture({.timeout = timeout_});
        if (!current || *current != token) return;
        for (const std::size_t i : which_again) codes[i] = kReplicaIsNotReady;
        return;
      }
      if (!replace || !first) SleepNs(kMillisecond);
      left = std::move(again);
      which = std::move(which_again);
    }
  }

  // Removes what an upsert replaces. On its first pass only what this store has put before: the
  // other keys are mostly new. A put finds that out by itself, and the removal would take as long.
  Status MakeWay(Session& session, std::span<const PutItem> items, bool first) const {
    std::vector<std::string_view> keys;
    for (const PutItem& item : items) {
      if (!first || own_.Has(item.key)) keys.push_back(item.key);
    }
    if (keys.empty()) return {};
    std::vector<ItemResult> results(keys.size());
    return session.Remove(keys, results, {.timeout = kProofTimeout});
  }

  void Remove(Session& session, std::span<const std::string_view> keys, bool force,
              std::span<std::int64_t> codes) const {
    constexpr std::int64_t kObjectHasLease = -706;
    std::vector<std::string_view> free;
    std::vector<std::size_t> which;
    std::vector<std::optional<ObjectStat>> stats(keys.size());
    if (!force) {
      if (auto answer = session.Stat(keys, {.timeout = timeout_})) stats = std::move(*answer);
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      codes[i] = stats[i] && stats[i]->held ? kObjectHasLease : kStoreOk;
      if (codes[i] != kStoreOk) continue;
      free.push_back(keys[i]);
      which.push_back(i);
    }
    std::vector<ItemResult> results(free.size());
    const Status status = session.Remove(free, results, {.timeout = kProofTimeout});
    for (std::size_t k = 0; k < free.size(); ++k) codes[which[k]] = ResultOf(results[k], status);
  }

  static std::size_t SizeOf(std::span<const Piece> item) {
    std::size_t size = 0;
    for (const Piece& piece : item) size += piece.size;
    return size;
  }
  // kNone if any piece is; pieces in host and GPU memory are not mixed. Pieces may lie over each
  // other: together they may be more than 64 bits can count, and then no sum of theirs is right.
  static Kind KindOf(Regions::Lookup& regions, std::span<const Piece> item) {
    Kind kind = Kind::kNone;
    std::size_t total = 0;
    for (const Piece& piece : item) {
      if (!IsWithin(total, piece.size, PTRDIFF_MAX)) return Kind::kNone;
      total += piece.size;
      const Kind one = regions.Of(piece.address, piece.size);
      if (one == Kind::kNone || (kind != Kind::kNone && one != kind)) return Kind::kNone;
      kind = one;
    }
    return kind;
  }

  const std::chrono::milliseconds timeout_;
  const std::chrono::milliseconds lease_;
  const bool prefetches_;  // look-ups that say that a key is there start to read it from a disk
  const std::int64_t wait_for_room_ns_;  // for which a put waits until a disk has made room
  mutable std::atomic<std::uint64_t> disk_reads_{0};
  Regions regions_;
  Mutex registered_mutex_;
  // Registrations with the pool, by their addresses.
  std::map<std::uintptr_t, std::shared_ptr<void>> registered_ KVCOVE_GUARDED_BY(registered_mutex_);
  OwnKeys own_;
  QueueFence fence_{SystemClock::Instance()};
};

int GetBuffer(PyObject* self, Py_buffer* view, int flags) {
  auto* handle = nb::inst_ptr<BufferHandle>(nb::handle(self));
  return PyBuffer_FillInfo(view, self, handle->bytes.get(), static_cast<Py_ssize_t>(handle->size),
                           /*readonly=*/1, flags);
}
PyType_Slot buffer_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&GetBuffer)},  // NOLINT
                              {0, nullptr}};

// Anonymous memory by its address, for callers that want addresses. 0: there is none.
std::uintptr_t AllocateMemory(std::size_t size) {
  if (size == 0) return 0;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? 0 : reinterpret_cast<std::uintptr_t>(memory);  // NOLINT
}

}  // namespace

void BindStore(nb::module_& module) {
  nb::class_<Store>(module, "Store")
      .def(nb::init<double, double, bool, double>(), nb::kw_only(), nb::arg("timeout"),
           nb::arg("lease"), nb::arg("prefetches") = true, nb::arg("wait_for_room") = 0.0)
      .def("register_buffer", &Store::RegisterBuffer, nb::arg("pool"), nb::arg("address"),
           nb::arg("size"))
      .def("register_allocation", &Store::RegisterAllocation, nb::arg("address"), nb::arg("size"))
      .def("unregister_buffer", &Store::UnregisterBuffer, nb::arg("address"))
      .def("batch_is_exist", &Store::BatchIsExist, nb::arg("session"), nb::arg("keys"),
           nb::arg("prefetches").none() = nb::none(),
           nb::sig("def batch_is_exist(self, session: Session, keys: collections.abc.Sequence[str "
                   "| bytes], prefetches: bool | None = None) -> list[int]"))
      .def("batch_sizes", &Store::BatchSizes, nb::arg("session"), nb::arg("keys"), nb::arg("hold"),
           nb::sig("def batch_sizes(self, session: Session, keys: collections.abc.Sequence[str | "
                   "bytes], hold: bool) -> list[int]"))
      .def("batch_places", &Store::BatchPlaces, nb::arg("session"), nb::arg("keys"),
           nb::sig("def batch_places(self, session: Session, keys: collections.abc.Sequence[str | "
                   "bytes]) -> list[list[tuple[str, bool, int]]]"))
      .def("disk_reads", &Store::disk_reads)
      .def("batch_get", &Store::BatchGet, nb::arg("session"), nb::arg("keys"),
           nb::arg("writable") = false,
           nb::sig("def batch_get(self, session: Session, keys: collections.abc.Sequence[str | "
                   "bytes], writable: bool = False) -> list[typing.Any]"))
      .def("batch_get_buffer", &Store::BatchGetBuffer, nb::arg("session"), nb::arg("keys"),
           nb::sig("def batch_get_buffer(self, session: Session, keys: "
                   "collections.abc.Sequence[str | bytes]) -> list[BufferHandle | None]"))
      .def("batch_get_into", &Store::BatchGetInto, nb::arg("session"), nb::arg("keys"),
           nb::arg("addresses"), nb::arg("sizes"), nb::arg("several"),
           nb::sig("def batch_get_into(self, session: Session, keys: collections.abc.Sequence[str "
                   "| bytes], addresses: collections.abc.Sequence[typing.Any], sizes: "
                   "collections.abc.Sequence[typing.Any], several: bool) -> list[int]"))
      .def("batch_put_from", &Store::BatchPutFrom, nb::arg("session"), nb::arg("keys"),
           nb::arg("addresses"), nb::arg("sizes"), nb::arg("several"), nb::arg("replace"),
           nb::sig(
               "def batch_put_from(self, session: Session, keys: collections.abc.Sequence[str | "
               "bytes], addresses: collections.abc.Sequence[typing.Any], sizes: "
               "collections.abc.Sequence[typing.Any], several: bool, replace: bool) -> list[int]"))
      .def("batch_put", &Store::BatchPut, nb::arg("session"), nb::arg("keys"), nb::arg("values"),
           nb::arg("token").none(), nb::arg("largest"), nb::arg("replace"),
           nb::sig("def batch_put(self, session: Session, keys: collections.abc.Sequence[str | "
                   "bytes], values: collections.abc.Sequence[typing.Any], token: Token | None, "
                   "largest: int, replace: bool) -> list[int]"))
      .def("was_put_here", &Store::WasPutHere, nb::arg("keys"))
      .def("batch_remove", &Store::BatchRemove, nb::arg("session"), nb::arg("keys"),
           nb::arg("force"),
           nb::sig("def batch_remove(self, session: Session, keys: collections.abc.Sequence[str | "
                   "bytes], force: bool) -> list[int]"))
      .def("copy_ranges", &Store::CopyRanges, nb::arg("values"), nb::arg("all_offsets"),
           nb::arg("all_addresses"), nb::arg("all_sizes"), nb::arg("out"),
           nb::sig("def copy_ranges(self, values: collections.abc.Sequence[typing.Any], "
                   "all_offsets: collections.abc.Sequence[typing.Any], all_addresses: "
                   "collections.abc.Sequence[typing.Any], all_sizes: "
                   "collections.abc.Sequence[typing.Any], out: bool) -> list[int]"))
      .def("get_ranges", &Store::GetRanges, nb::arg("session"), nb::arg("buffer"), nb::arg("keys"),
           nb::arg("all_to"), nb::arg("all_from"), nb::arg("all_sizes"),
           nb::sig("def get_ranges(self, session: Session, buffer: int, keys: "
                   "collections.abc.Sequence[str | bytes], all_to: "
                   "collections.abc.Sequence[typing.Any], all_from: "
                   "collections.abc.Sequence[typing.Any], all_sizes: "
                   "collections.abc.Sequence[typing.Any]) -> list[list[int]]"))
      .def("is_registered", &Store::IsRegistered, nb::arg("address"))
      .def("read", &Store::Read, nb::arg("address"), nb::arg("size"),
           nb::sig("def read(self, address: int, size: int) -> bytearray | None"))
      .def("fence_queues", &Store::FenceQueues, nb::arg("session"))
      .def("reset", &Store::Reset, nb::arg("session"));
  nb::class_<BufferHandle>(module, "BufferHandle", nb::type_slots(buffer_slots))
      .def(
          "__init__",
          [](BufferHandle* self, nb::bytes value) {
            new (self) BufferHandle(value.size());
            if (value.size() > 0) std::memcpy(self->bytes.get(), value.data(), value.size());
          },
          nb::arg("value"))
      .def("__len__", [](const BufferHandle& self) { return self.size; })
      .def("__repr__",
           [](const BufferHandle& self) {
             return fmt::format("<BufferHandle {} bytes>", self.size);
           })
      .def("size", [](const BufferHandle& self) { return self.size; })
      .def("ptr", [](const BufferHandle& self) {
        return reinterpret_cast<std::uintptr_t>(self.bytes.get());  // NOLINT
      });
  module.def(
      "stored_name",
      [](const nb::bytes& key) {
        const std::string name = StoredName({key.c_str(), key.size()});
        return nb::bytes(name.data(), name.size());
      },
      nb::arg("key"));
  module.def(
      "store_code", [](int code) { return FromCode(static_cast<Code>(code)); }, nb::arg("code"));
  module.def("allocate_memory", &AllocateMemory, nb::arg("size"));
  module.def(
      "free_memory",
      [](std::uintptr_t address, std::size_t size) {
        return munmap(reinterpret_cast<void*>(address), size) == 0;  // NOLINT
      },
      nb::arg("address"), nb::arg("size"));
}

}  // namespace kvcove::python
