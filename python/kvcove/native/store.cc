// SPDX-License-Identifier: Apache-2.0
// The calls of mooncake.store that engines make often, over a session: addresses in, that API's
// integers out. kvcove/mooncake/store.py is the rest of it.
#include <fmt/core.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <openssl/evp.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "codes.h"
#include "kvcove/base/clock.h"
#include "kvcove/base/hash.h"
#include "regions.h"
#include "session.h"

namespace kvcove::python {
namespace {

using Kind = Regions::Kind;
using Numbers = std::vector<std::uint64_t>;

// Keys longer than the pool's are stored under their hash, and so are those that look like one.
constexpr std::string_view kHashed = "kvcove-long-key-sha256:";

std::string StoredName(std::string_view key) {
  if (key.size() <= kMaxKeyBytes && !key.starts_with(kHashed)) return std::string(key);
  unsigned char digest[32];
  unsigned size = sizeof(digest);
  if (EVP_Digest(key.data(), key.size(), digest, &size, EVP_sha256(), nullptr) != 1) return {};
  std::string name(kHashed);
  for (const unsigned char byte : digest) name += fmt::format("{:02x}", byte);
  return name;
}

// The caller's keys as they are stored.
class StoredKeys {
 public:
  explicit StoredKeys(nb::handle keys) : given_(keys) {
    views_.assign(given_.views().begin(), given_.views().end());
    for (std::string_view& view : views_) {
      if (view.size() <= kMaxKeyBytes && !view.starts_with(kHashed)) continue;
      view = hashed_.emplace_back(StoredName(view));
    }
  }
  std::span<const std::string_view> views() const { return views_; }
  std::size_t size() const { return views_.size(); }
  std::string_view operator[](std::size_t i) const { return views_[i]; }

 private:
  Keys given_;
  std::vector<std::string_view> views_;
  std::deque<std::string> hashed_;
};

// [0, 0, ...] as that API answers.
nb::list ToList(std::span<const std::int64_t> codes) {
  nb::list list = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(codes.size())));
  for (std::size_t i = 0; i < codes.size(); ++i) {
    PyObject* code = PyLong_FromLongLong(codes[i]);
    if (code == nullptr || PyList_SetItem(list.ptr(), static_cast<Py_ssize_t>(i), code) != 0) {
      throw nb::python_error();
    }
  }
  return list;
}

nb::list ToList(std::size_t count, std::int64_t code) {
  return ToList(std::vector<std::int64_t>(count, code));
}

std::uint64_t ToUnsigned(PyObject* number) {
  if (PyLong_Check(number)) {
    const std::uint64_t value = PyLong_AsUnsignedLongLong(number);
    if (value != ~0ULL || PyErr_Occurred() == nullptr) return value;
    PyErr_Clear();  // negative or too large: no address and no size
    return 0;
  }
  const nb::object index = nb::steal(PyNumber_Index(number));
  if (!index.is_valid()) throw nb::python_error();
  return ToUnsigned(index.ptr());
}

struct Piece {
  std::uintptr_t address = 0;
  std::size_t size = 0;
};

// Each item's pieces, as the lists of addresses and sizes say. An item whose lists do not fit
// together has one piece of nothing.
class Pieces {
 public:
  // `several`: lists of lists.
  static std::optional<Pieces> Of(nb::handle addresses, nb::handle sizes, std::size_t items,
                                  bool several) {
    const nb::object all_addresses = Sequence(addresses);
    const nb::object all_sizes = Sequence(sizes);
    if (Size(all_addresses) != items || Size(all_sizes) != items) return std::nullopt;
    Pieces pieces;
    pieces.ends_.reserve(items);
    for (std::size_t i = 0; i < items; ++i) {
      PyObject* address = At(all_addresses, i);
      PyObject* size = At(all_sizes, i);
      if (several) {
        pieces.AddSeveral(address, size);
      } else {
        pieces.pieces_.push_back({.address = ToUnsigned(address), .size = ToUnsigned(size)});
      }
      pieces.ends_.push_back(pieces.pieces_.size());
    }
    return pieces;
  }
  std::span<const Piece> Item(std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::span(pieces_).subspan(begin, ends_[i] - begin);
  }
  std::size_t total() const { return pieces_.size(); }

 private:
  static nb::object Sequence(nb::handle items) {
    nb::object sequence = nb::steal(PySequence_Fast(items.ptr(), "a list is wanted"));
    if (!sequence.is_valid()) throw nb::python_error();
    return sequence;
  }
  static std::size_t Size(nb::handle items) {
    return static_cast<std::size_t>(PySequence_Size(items.ptr()));
  }
  static PyObject* At(nb::handle items, std::size_t i) {
    const auto at = static_cast<Py_ssize_t>(i);
    PyObject* item = PyList_Check(items.ptr()) ? PyList_GetItem(items.ptr(), at)
                                               : PyTuple_GetItem(items.ptr(), at);
    if (item == nullptr) throw nb::python_error();
    return item;
  }
  void AddSeveral(PyObject* addresses, PyObject* sizes) {
    const nb::object all_addresses = Sequence(addresses);
    const nb::object all_sizes = Sequence(sizes);
    const std::size_t count = Size(all_addresses);
    if (count == 0 || count != Size(all_sizes)) {
      pieces_.push_back({});
      return;
    }
    for (std::size_t k = 0; k < count; ++k) {
      pieces_.push_back(
          {.address = ToUnsigned(At(all_addresses, k)), .size = ToUnsigned(At(all_sizes, k))});
    }
  }

  std::vector<Piece> pieces_;
  std::vector<std::size_t> ends_;
};

// What a transfer reads or writes in place of GPU memory.
struct Staging {
  std::vector<std::byte> bytes;
  std::span<const Piece> pieces;
};

class Store {
 public:
  Store(double timeout, double lease)
      : timeout_(Milliseconds(timeout)), lease_(Milliseconds(lease)) {}

  std::int64_t RegisterBuffer(std::uintptr_t address, std::size_t size) {
    Status status;
    {
      const nb::gil_scoped_release release;
      status = regions_.Add(address, size);
    }
    if (!status && status.error().code == Code::kInternal) {
      const nb::object logger = nb::module_::import_("logging").attr("getLogger")("kvcove");
      logger.attr("error")("register_buffer(%#x, %d): this GPU memory cannot be copied: %s",
                           address, size, status.error().detail.c_str());
    }
    return status ? kStoreOk : FromCode(status.error().code);
  }
  std::int64_t UnregisterBuffer(std::uintptr_t address) {
    const Status status = regions_.Remove(address);
    return status ? kStoreOk : FromCode(status.error().code);
  }

  // Per key 1, 0 or a negative code.
  nb::list BatchIsExist(const PySession& self, nb::object keys) const {
    return LookUp(self, keys, [](const ItemResult&) { return 1; }, /*missing=*/0);
  }
  // Per key its value's bytes or a negative code.
  nb::list BatchSizes(const PySession& self, nb::object keys) const {
    return LookUp(
        self, keys,
        [](const ItemResult& result) { return static_cast<std::int64_t>(result.bytes); },
        kObjectNotFound);
  }

  // Values, None for what is not there.
  nb::list BatchGet(const PySession& self, nb::object keys_in) const {
    const std::shared_ptr<Session> session = self.Get();
    const StoredKeys keys(keys_in);
    return GetValues(*session, keys.views(), Options(0));
  }

  nb::list BatchGetInto(const PySession& self, nb::object keys_in, nb::object addresses,
                        nb::object sizes, bool several) const {
    const std::shared_ptr<Session> session = self.Get();
    const StoredKeys keys(keys_in);
    const auto pieces = Pieces::Of(addresses, sizes, keys.size(), several);
    if (!pieces) return ToList(keys.size(), kInvalidParams);
    std::vector<std::int64_t> codes(keys.size());
    {
      const nb::gil_scoped_release release;
      GetInto(*session, keys, *pieces, codes);
    }
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
    {
      const nb::gil_scoped_release release;
      PutFrom(*session, keys, *pieces, replace, codes);
    }
    return ToList(codes);
  }

  // Values that Python holds.
  nb::list BatchPut(const PySession& self, nb::object keys_in, nb::object values_in,
                    const std::optional<Token>& given, bool replace) {
    const std::shared_ptr<Session> session = self.Get();
    const StoredKeys keys(keys_in);
    const Buffers values(values_in, "values", /*writable=*/false);
    if (keys.size() != values.size()) return ToList(keys.size(), kInvalidParams);
    std::vector<PutItem> items(keys.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      items[i] = {.key = keys[i], .value = values.ConstItem(i), .after = {}};
    }
    std::vector<std::int64_t> codes(keys.size());
    {
      const nb::gil_scoped_release release;
      const Result<Token> token = given ? *given : session->Capture({.timeout = timeout_});
      if (token) {
        Put(*session, items, *token, replace, codes);
      } else {
        std::ranges::fill(codes, FromCode(token.error().code));
      }
    }
    return ToList(codes);
  }

  // Keys that this store has put, as far as it remembers.
  std::vector<bool> WasPutHere(nb::object keys_in) const {
    const StoredKeys keys(keys_in);
    std::vector<bool> here;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::uint64_t hash = Hash64(keys[i], 0);
      here.push_back(own_[hash % own_.size()].load(std::memory_order_relaxed) == hash);
    }
    return here;
  }

  nb::list BatchRemove(const PySession& self, nb::object keys_in, bool force) const {
    const std::shared_ptr<Session> session = self.Get();
    const StoredKeys keys(keys_in);
    std::vector<std::int64_t> codes(keys.size());
    {
      const nb::gil_scoped_release release;
      Remove(*session, keys.views(), force, codes);
    }
    return ToList(codes);
  }

  // Ranges between a value that Python has and addresses: the bytes of all of them, or a code.
  // Nothing is copied unless everything can be.
  std::int64_t Copy(nb::object value, const Numbers& offsets, const Numbers& addresses,
                    const Numbers& sizes, bool out) const {
    const Buffers buffer(nb::make_tuple(value), "value", /*writable=*/!out);
    const MutableBuffer whole = buffer.Item(0).front();
    const nb::gil_scoped_release release;
    if (offsets.size() != sizes.size() || addresses.size() != sizes.size()) return kInvalidParams;
    Regions::Lookup regions(regions_, /*writable=*/out);
    std::vector<Kind> kinds(sizes.size(), Kind::kNone);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (!IsWithin(offsets[i], sizes[i], whole.size)) return kInvalidParams;
      if (sizes[i] == 0) continue;
      kinds[i] = regions.Of(addresses[i], sizes[i]);
      if (kinds[i] == Kind::kNone) return kInvalidParams;
    }
    std::int64_t copied = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      std::byte* at = static_cast<std::byte*>(whole.data) + offsets[i];
      if (!CopyOne(kinds[i], at, addresses[i], sizes[i], out)) return kTransferFail;
      copied += static_cast<std::int64_t>(sizes[i]);
    }
    return copied;
  }

  // Fragments of a value to offsets in the registered buffer that an address lies in, not beyond
  // its end; per fragment its bytes or a code.
  nb::list CopyFragments(nb::object value, std::uintptr_t buffer, const Numbers& to,
                         const Numbers& from, const Numbers& sizes) const {
    if (to.size() != sizes.size() || from.size() != sizes.size()) {
      return ToList(to.size(), kInvalidParams);
    }
    std::vector<std::int64_t> codes(sizes.size(), kInvalidParams);
    const std::size_t room = regions_.Room(buffer);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (room == 0 || !IsWithin(to[i], sizes[i], room)) continue;
      codes[i] = Copy(value, {from[i]}, {buffer + to[i]}, {sizes[i]}, /*out=*/true);
    }
    return ToList(codes);
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
    return Copy(bytes, {0}, {address}, {size}, /*out=*/false) < 0 ? nb::none() : bytes;
  }

  // A reset of the session's namespace: the fence first, then what it voided, as far as owners say.
  std::int64_t Reset(const PySession& self) const {
    const std::shared_ptr<Session> session = self.Get();
    const nb::gil_scoped_release release;
    const Result<Token> before = session->Capture({.timeout = timeout_});
    const Status status = session->Reset({.timeout = kProofTimeout, .all_void = true});
    if (!status) return FromCode(status.error().code);
    const Result<ObjectCount> count = session->Count({.timeout = kCountTimeout});
    if (!count || !before || before->generation == count->generation) return 0;
    return static_cast<std::int64_t>(count->voided);
  }

 private:
  // Of resets and removals: an owner that does not answer is waited for until its lease has ended.
  static constexpr std::chrono::milliseconds kProofTimeout{2500};
  static constexpr std::chrono::milliseconds kCountTimeout{250};
  // Another writer of the same key mostly ends within this time.
  static constexpr std::int64_t kOtherWriterNs = 200 * kMillisecond;
  static constexpr std::uint64_t kSlowestBytesPerMs = 100'000;

  static bool IsWithin(std::uint64_t offset, std::uint64_t size, std::uint64_t total) {
    return offset <= total && size <= total - offset;
  }

  static bool CopyOne(Kind kind, std::byte* value, std::uintptr_t address, std::size_t size,
                      bool out) {
    if (kind == Kind::kDevice) {
      return bool(out ? Device::Get()->FromHost(address, value, size)
                      : Device::Get()->ToHost(value, address, size));
    }
    void* memory = reinterpret_cast<void*>(address);  // NOLINT
    if (kind == Kind::kHost) std::memcpy(out ? memory : value, out ? value : memory, size);
    return true;
  }

  CallOptions Options(std::uint64_t bytes) const {
    return {.timeout = timeout_ + std::chrono::milliseconds(bytes / kSlowestBytesPerMs),
            .hold = lease_};
  }

  template <typename Found>
  nb::list LookUp(const PySession& self, nb::object keys_in, Found&& found,
                  std::int64_t missing) const {
    const std::shared_ptr<Session> session = self.Get();
    const StoredKeys keys(keys_in);
    std::vector<ItemResult> results(keys.size());
    std::vector<std::int64_t> codes(keys.size());
    {
      const nb::gil_scoped_release release;
      const Status status = session->Exists(keys.views(), results, Options(0));
      for (std::size_t i = 0; i < keys.size(); ++i) {
        codes[i] = results[i].ok()   ? found(results[i])
                   : keys[i].empty() ? kObjectNotFound
                                     : ResultOf(results[i], status);
        if (codes[i] == kObjectNotFound) codes[i] = missing;
      }
    }
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
    const Status status = session.Get(items, results, Options(bytes));
    for (std::size_t k = 0; k < which.size(); ++k) {
      codes[which[k]] = results[k].ok() ? static_cast<std::int64_t>(results[k].bytes)
                                        : ResultOf(results[k], status);
    }
    for (const auto& [k, staging] : staged) {
      if (!results[k].ok()) continue;
      std::size_t at = 0;
      for (const Piece& piece : staging.pieces) {
        const std::size_t count = std::min<std::size_t>(piece.size, results[k].bytes - at);
        if (count == 0) break;
        if (!Device::Get()->FromHost(piece.address, staging.bytes.data() + at, count)) {
          codes[which[k]] = kTransferFail;
          break;
        }
        at += count;
      }
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
    Put(session, items, *token, replace, answers);
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
  // `replace` what is there is removed, until this value is the one that is there.
  void Put(Session& session, std::span<const PutItem> items, const Token& token, bool replace,
           std::span<std::int64_t> codes) {
    std::uint64_t bytes = 0;
    for (const PutItem& item : items) {
      for (const ConstBuffer& piece : item.value) bytes += piece.size;
    }
    const Clock& clock = SystemClock::Instance();
    const std::int64_t until_ns = clock.NowNs() + kOtherWriterNs;
    std::vector<PutItem> left(items.begin(), items.end());
    std::vector<std::size_t> which(items.size());
    for (std::size_t i = 0; i < which.size(); ++i) which[i] = i;
    for (;;) {
      std::vector<ItemResult> results(left.size());
      if (replace) {
        std::vector<std::string_view> keys;
        for (const PutItem& item : left) keys.push_back(item.key);
        const Status removed = session.Remove(keys, results, {.timeout = kProofTimeout});
        if (!removed) {
          for (const std::size_t i : which) codes[i] = FromCode(removed.error().code);
          return;
        }
      }
      const Status status = session.Put(token, left, results, Options(bytes));
      std::vector<PutItem> again;
      std::vector<std::size_t> which_again;
      for (std::size_t k = 0; k < left.size(); ++k) {
        codes[which[k]] = ResultOf(results[k], status);
        if (results[k].ok()) Remember(left[k].key);
        if (replace && results[k].code == Code::kExists) codes[which[k]] = kReplicaIsNotReady;
        // Another upsert's removal voids this put while it is under way, just as a reset does.
        const bool again_later = results[k].code == Code::kInProgress ||
                                 codes[which[k]] == kReplicaIsNotReady ||
                                 (replace && results[k].code == Code::kStale);
        if (!again_later) continue;
        again.push_back(left[k]);
        which_again.push_back(which[k]);
      }
      if (again.empty()) return;
      if (clock.NowNs() >= until_ns) {
        // Refused by a reset, or by removals of other upserts of the same keys?
        const Result<Token> current = session.Capture({.timeout = timeout_});
        if (!current || *current != token) return;
        for (const std::size_t i : which_again) codes[i] = kReplicaIsNotReady;
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      left = std::move(again);
      which = std::move(which_again);
    }
  }

  void Remember(std::string_view key) {
    const std::uint64_t hash = Hash64(key, 0);
    own_[hash % own_.size()].store(hash, std::memory_order_relaxed);
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
  Regions regions_;
  std::vector<std::atomic<std::uint64_t>> own_ = std::vector<std::atomic<std::uint64_t>>(1 << 16);
};

// A value that Python keeps: readable as a buffer, and by its address.
struct BufferHandle {
  std::vector<std::byte> bytes;
};

int GetBuffer(PyObject* self, Py_buffer* view, int flags) {
  auto* handle = nb::inst_ptr<BufferHandle>(nb::handle(self));
  return PyBuffer_FillInfo(view, self, handle->bytes.data(),
                           static_cast<Py_ssize_t>(handle->bytes.size()), /*readonly=*/1, flags);
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
      .def(nb::init<double, double>(), nb::kw_only(), nb::arg("timeout"), nb::arg("lease"))
      .def("register_buffer", &Store::RegisterBuffer, nb::arg("address"), nb::arg("size"))
      .def("unregister_buffer", &Store::UnregisterBuffer, nb::arg("address"))
      .def("batch_is_exist", &Store::BatchIsExist, nb::arg("session"), nb::arg("keys"),
           nb::sig("def batch_is_exist(self, session: Session, keys: collections.abc.Sequence[str "
                   "| bytes]) -> list[int]"))
      .def("batch_sizes", &Store::BatchSizes, nb::arg("session"), nb::arg("keys"),
           nb::sig("def batch_sizes(self, session: Session, keys: collections.abc.Sequence[str | "
                   "bytes]) -> list[int]"))
      .def("batch_get", &Store::BatchGet, nb::arg("session"), nb::arg("keys"),
           nb::sig("def batch_get(self, session: Session, keys: collections.abc.Sequence[str | "
                   "bytes]) -> list[bytes | None]"))
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
           nb::arg("token").none(), nb::arg("replace"),
           nb::sig("def batch_put(self, session: Session, keys: collections.abc.Sequence[str | "
                   "bytes], values: collections.abc.Sequence[typing.Any], token: Token | None, "
                   "replace: bool) -> list[int]"))
      .def("was_put_here", &Store::WasPutHere, nb::arg("keys"))
      .def("batch_remove", &Store::BatchRemove, nb::arg("session"), nb::arg("keys"),
           nb::arg("force"),
           nb::sig("def batch_remove(self, session: Session, keys: collections.abc.Sequence[str | "
                   "bytes], force: bool) -> list[int]"))
      .def("copy", &Store::Copy, nb::arg("value"), nb::arg("offsets"), nb::arg("addresses"),
           nb::arg("sizes"), nb::arg("out"))
      .def("copy_fragments", &Store::CopyFragments, nb::arg("value"), nb::arg("buffer"),
           nb::arg("to"), nb::arg("from_"), nb::arg("sizes"),
           nb::sig("def copy_fragments(self, value: object, buffer: int, to: "
                   "collections.abc.Sequence[int], from_: collections.abc.Sequence[int], sizes: "
                   "collections.abc.Sequence[int]) -> list[int]"))
      .def("is_registered", &Store::IsRegistered, nb::arg("address"))
      .def("read", &Store::Read, nb::arg("address"), nb::arg("size"),
           nb::sig("def read(self, address: int, size: int) -> bytearray | None"))
      .def("reset", &Store::Reset, nb::arg("session"));
  nb::class_<BufferHandle>(module, "BufferHandle", nb::type_slots(buffer_slots))
      .def(
          "__init__",
          [](BufferHandle* self, nb::bytes value) {
            const auto* begin = static_cast<const std::byte*>(value.data());
            new (self) BufferHandle{{begin, begin + value.size()}};
          },
          nb::arg("value"))
      .def("__len__", [](const BufferHandle& self) { return self.bytes.size(); })
      .def("size", [](const BufferHandle& self) { return self.bytes.size(); })
      .def("ptr", [](const BufferHandle& self) {
        return reinterpret_cast<std::uintptr_t>(self.bytes.data());  // NOLINT
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
