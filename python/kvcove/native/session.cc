// SPDX-License-Identifier: Apache-2.0
#include "session.h"

#include <fmt/core.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "docs.h"
#include "kvcove/base/clock.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/size.h"
#include "kvcove/pool/connection.h"
#include "kvcove/transport/landing.h"
#include "store_disk.h"

namespace kvcove::python {

ForkGuard::ForkGuard() : forks_(ForkCount()) {}
bool ForkGuard::Here() const { return forks_ == ForkCount(); }
void ForkGuard::Check() const {
  if (Here()) return;
  const nb::object made = OrWaitForProcessEnd(
      [] { return nb::object(nb::module_::import_("kvcove._errors").attr("forked")()); });
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
  throw nb::python_error();
}

std::shared_ptr<Pool> PyPool::Get() const {
  guard.Check();
  if (pool == nullptr) RaiseInvalid("this pool is closed");
  return pool;
}

std::shared_ptr<Session> PySession::Get() const {
  guard.Check();
  if (session == nullptr) RaiseInvalid("this session is closed");
  return session;
}

std::optional<Token> TokenOf(nb::handle token) {
  if (token.is_none()) return std::nullopt;
  if (Token given; nb::try_cast(token, given, /*convert=*/false)) return given;
  RaiseInvalid(
      fmt::format("token: a kvcove.Token is wanted (session.capture()), not {}; Token.parse(text) "
                  "makes one of its text",
                  nb::type_name(token.type()).c_str()));
}

After::After(nb::handle after) {
  if (PyUnicode_Check(after.ptr())) {
    first = Utf8Of(after, "after");
  } else if (PyBytes_Check(after.ptr())) {
    const auto bytes = nb::cast<nb::bytes>(after);
    first.assign(bytes.c_str(), bytes.size());
  } else if (!after.is_none()) {
    each = Keys(after, "after");
  }
}

std::vector<Hints> HintsOf(nb::handle hints, std::size_t items) {
  if (hints.is_none()) return std::vector<Hints>(items);
  if (Hints all; nb::try_cast(hints, all)) return std::vector<Hints>(items, all);
  std::vector<Hints> each;
  if (!nb::try_cast(hints, each)) {
    RaiseInvalid("hints must be a kvcove.Hints, or a sequence of them, one for each value");
  }
  if (each.size() != items) {
    RaiseInvalid(fmt::format("hints: {} for {} values", each.size(), items));
  }
  return each;
}

PutWork::PutWork(nb::handle keys_in, nb::handle values_in, nb::handle after_in, nb::handle hints_in)
    : keys(keys_in), values(values_in, "values", /*writable=*/false), after(after_in) {
  if (keys.size() != values.size()) {
    RaiseInvalid(fmt::format("{} keys but {} values", keys.size(), values.size()));
  }
  if (after.each.size() > 0 && after.each.size() != keys.size()) {
    RaiseInvalid(fmt::format("after: {} keys for {} values", after.each.size(), keys.size()));
  }
  items.resize(keys.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i] = {.key = keys[i], .value = values.ConstItem(i), .after = {}};
    if (after.each.size() > 0) items[i].after = after.each[i];
  }
  if (hints_in.is_none()) return;
  const std::vector<Hints> each = HintsOf(hints_in, items.size());
  for (std::size_t i = 0; i < items.size(); ++i) items[i].hints = each[i];
}

GetWork::GetWork(nb::handle keys_in, nb::handle buffers_in)
    : keys(keys_in), buffers(buffers_in, "buffers", /*writable=*/true) {
  if (keys.size() != buffers.size()) {
    RaiseInvalid(fmt::format("{} keys but {} buffers", keys.size(), buffers.size()));
  }
  items.resize(keys.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i] = {.key = keys[i], .into = buffers.Item(i)};
  }
}

namespace {

using Text = std::string;

CallOptions OptionsOf(double timeout, const Text& version) {
  return {.timeout = Milliseconds(timeout), .version = version, .after = {}};
}

// Of the call as a whole nothing but misuse is raised: what becomes of the items is in their
// results.
void RaiseMisuse(const Status& status) {
  if (!status && (status.error().code == Code::kInvalid || status.error().code == Code::kDenied)) {
    Raise(status.error());
  }
}

Results Put(const PySession& self, nb::object keys, nb::object values, nb::object token_in,
            nb::object after, nb::object hints, double timeout) {
  const std::shared_ptr<Session> session = self.Get();
  const std::optional<Token> token = TokenOf(token_in);
  const PutWork work(keys, values, after, hints);
  Results results(work.items.size());
  CallOptions options = OptionsOf(timeout, {});
  options.after = work.after.first;
  Status status = WithoutGil([&] {
    Status put;
    // The buffers are the caller's again once this call has returned.
    (void)transport::Settle(transport::kSettle, [&] {
      put = token ? session->Put(*token, work.items, results.items, options)
                  : session->Put(work.items, results.items, options);
    });
    return put;
  });
  RaiseMisuse(status);
  return results;
}

Results GetInto(const PySession& self, nb::object keys, nb::object buffers, const Text& version,
                double timeout) {
  const std::shared_ptr<Session> session = self.Get();
  const GetWork work(keys, buffers);
  const CallOptions options = OptionsOf(timeout, version);
  Results results(work.items.size());
  Status status;
  WithoutGil([&] {
    (void)transport::Settle(transport::kSettle,
                            [&] { status = session->Get(work.items, results.items, options); });
  });
  RaiseMisuse(status);
  return results;
}

// Arguments are checked before the GIL is released, because raising an error needs it.

// A call on keys that answers a result each.
template <typename Call>
Results ForKeys(const PySession& self, nb::handle keys_in, double timeout, const Text& version,
                Call&& call) {
  const std::shared_ptr<Session> session = self.Get();
  const CallOptions options = OptionsOf(timeout, version);
  const Keys keys(keys_in);
  Results results(keys.size());
  Status status =
      WithoutGil([&] { return call(*session, keys.views(), std::span(results.items), options); });
  RaiseMisuse(status);
  return results;
}

nb::list Get(const PySession& self, nb::object keys_in, const Text& version, double timeout) {
  const std::shared_ptr<Session> session = self.Get();
  const Keys keys(keys_in);
  return GetValues(*session, keys.views(), OptionsOf(timeout, version));
}

nb::bytes BytesOf(std::string_view text) { return nb::bytes(text.data(), text.size()); }

std::vector<std::optional<ObjectStat>> Stat(const PySession& self, nb::object keys_in,
                                            const Text& version, double timeout) {
  const std::shared_ptr<Session> session = self.Get();
  const Keys keys(keys_in);
  const CallOptions options = OptionsOf(timeout, version);
  Result<std::vector<std::optional<ObjectStat>>> stats =
      WithoutGil([&] { return session->Stat(keys.views(), options); });
  return Unwrap(std::move(stats));
}

template <typename Call>
auto Released(const PySession& self, double timeout, const Text& version, Call&& call) {
  const std::shared_ptr<Session> session = self.Get();
  const CallOptions options = OptionsOf(timeout, version);
  auto result = WithoutGil([&] { return call(*session, options); });
  return Unwrap(std::move(result));
}

template <typename T>
void Close(std::shared_ptr<T>& what, const ForkGuard& guard) {
  if (!guard.Here()) return;
  std::shared_ptr<T> last = std::move(what);
  const ReleasedGil release;
  last.reset();
}

PyPool OpenPool(const Text& address, double timeout) {
  const auto wait = Milliseconds(timeout);
  Result<std::unique_ptr<Pool>> pool = WithoutGil([&] { return Pool::Open(address, wait); });
  return {.guard = {}, .pool = Unwrap(std::move(pool))};
}

PySession OpenSession(const PyPool& self, const Text& name, const Text& engine, bool follow_always,
                      bool assume_weights, const Text& preferred_segment, const Text& placement,
                      std::uint32_t replicas, std::uint64_t borrow_bytes) {
  SessionOptions options{.name = name,
                         .engine = engine,
                         .follow_always = follow_always,
                         .assume_weights = assume_weights,
                         .preferred_segment = preferred_segment,
                         .placement = std::nullopt,
                         .replicas = replicas,
                         .borrow_bytes = borrow_bytes};
  if (!placement.empty()) options.placement = Unwrap(ParsePlacement(placement));
  const std::shared_ptr<Pool> pool = self.Get();
  Result<SessionPtr> session = WithoutGil([&] { return pool->OpenSession(options); });
  return {.guard = {}, .session = Unwrap(std::move(session)), .name = name};
}

// Why a value stays, to be read behind its size.
template <typename Stat>
Text KeptBy(const Stat& stat) {
  Text text;
  if (stat.hard_pinned) text += ", pinned";
  if (stat.soft_pinned) text += ", pinned for a time";
  if (stat.held) text += ", held";
  return text;
}

Text DescribeHints(const Hints& hints) {
  Text text = "kvcove.Hints(";
  const auto add = [&text](std::string_view name, std::string_view value) {
    text += fmt::format("{}{}={}", text.back() == '(' ? "" : ", ", name, value);
  };
  if (hints.output_tokens != 0) add("output_tokens", fmt::format("{}", hints.output_tokens));
  if (hints.ephemeral) add("ephemeral", "True");
  if (hints.session_ends) add("session_ends", "True");
  if (hints.request_goes_on) add("request_goes_on", "True");
  if (const auto name = PriorityName(hints.priority); !name.empty()) {
    add("priority", fmt::format("'{}'", name));
  }
  return text + ")";
}

// A closed one, or one of a process that was forked, has nothing else to say.
Text DescribePool(const PyPool& self) {
  if (!self.guard.Here()) return "<kvcove.Pool of the process before the fork>";
  if (self.pool == nullptr) return "<kvcove.Pool closed>";
  return fmt::format("<kvcove.Pool {}>", self.pool->form());
}
Text DescribeSession(const PySession& self) {
  const Text name = nb::cast<Text>(nb::repr(nb::str(self.name.c_str())));
  if (!self.guard.Here()) {
    return fmt::format("<kvcove.Session {} of the process before the fork>", name);
  }
  return fmt::format("<kvcove.Session {}{}>", name, self.session == nullptr ? " closed" : "");
}

void BindValues(nb::module_& module) {
  nb::class_<Memory>(module, "Memory", docs::kMemory)
      .def(
          "__init__",
          [](Memory* self, std::uintptr_t address, std::size_t nbytes) {
            if (address == 0 && nbytes > 0) RaiseInvalid("Memory: address 0 is no memory");
            new (self) Memory{.address = address, .size = nbytes};
          },
          nb::arg("address"), nb::arg("nbytes"))
      .def_ro("address", &Memory::address)
      .def_ro("nbytes", &Memory::size)
      .def("__repr__", [](const Memory& self) {
        return fmt::format("<kvcove.Memory {} bytes at {:#x}>", self.size, self.address);
      });
  nb::class_<Token>(module, "Token", docs::kToken)
      .def("__str__", &Token::ToString)
      .def("__repr__",
           [](const Token& token) { return fmt::format("<kvcove.Token {}>", token.ToString()); })
      .def("__eq__",
           [](const Token& a, nb::handle b) {
             Token other;
             return nb::try_cast(b, other) && a == other;
           })
      .def("__hash__", [](const Token& token) { return std::hash<Text>()(token.ToString()); })
      .def_static(
          "parse", [](const Text& text) { return Unwrap(Token::Parse(text)); }, nb::arg("text"));
  nb::class_<Hints>(module, "Hints", docs::kHints)
      .def(
          "__init__",
          [](Hints* self, std::uint32_t output_tokens, bool ephemeral, bool session_ends,
             bool request_goes_on, const std::string& priority) {
            new (self) Hints{.output_tokens = output_tokens,
                             .ephemeral = ephemeral,
                             .session_ends = session_ends,
                             .request_goes_on = request_goes_on,
                             .priority = ParsePriority(priority)};
          },
          nb::kw_only(), nb::arg("output_tokens") = 0, nb::arg("ephemeral") = false,
          nb::arg("session_ends") = false, nb::arg("request_goes_on") = false,
          nb::arg("priority") = "")
      .def_ro("output_tokens", &Hints::output_tokens)
      .def_ro("ephemeral", &Hints::ephemeral)
      .def_ro("session_ends", &Hints::session_ends)
      .def_ro("request_goes_on", &Hints::request_goes_on)
      .def_prop_ro("priority",
                   [](const Hints& self) { return std::string(PriorityName(self.priority)); })
      .def("__repr__", &DescribeHints);
  nb::class_<ObjectStat>(module, "ObjectStat")
      .def_ro("nbytes", &ObjectStat::size_bytes)
      .def_ro("extents", &ObjectStat::extents)
      .def_ro("hard_pinned", &ObjectStat::hard_pinned)
      .def_ro("soft_pinned", &ObjectStat::soft_pinned)
      .def_ro("held", &ObjectStat::held)
      .def("__repr__", [](const ObjectStat& self) {
        return fmt::format("<kvcove.ObjectStat {} bytes{}>", self.size_bytes, KeptBy(self));
      });
  nb::class_<StoredObject>(module, "StoredObject")
      .def_prop_ro("key", [](const StoredObject& object) { return BytesOf(object.key); })
      .def_ro("nbytes", &StoredObject::size_bytes)
      .def_ro("hard_pinned", &StoredObject::hard_pinned)
      .def_ro("soft_pinned", &StoredObject::soft_pinned)
      .def_ro("held", &StoredObject::held)
      .def_prop_ro(
          "tier",
          [](const StoredObject& object) { return object.tier == Tier::kDisk ? "disk" : "memory"; })
      .def("__repr__", [](const StoredObject& self) {
        const Text key = nb::cast<Text>(nb::repr(BytesOf(self.key)));
        return fmt::format("<kvcove.StoredObject {}: {} bytes {}{}>", key, self.size_bytes,
                           self.tier == Tier::kDisk ? "on a disk" : "in memory", KeptBy(self));
      });
  nb::class_<OwnerPrefix>(module, "OwnerPrefix")
      .def_ro("owner", &OwnerPrefix::owner)
      .def_ro("prefix", &OwnerPrefix::prefix)
      .def_ro("memory_prefix", &OwnerPrefix::memory_prefix)
      .def_ro("memory", &OwnerPrefix::memory)
      .def_ro("disk", &OwnerPrefix::disk)
      .def("__repr__", [](const OwnerPrefix& self) {
        return fmt::format("<kvcove.OwnerPrefix {}: {} keys, {} in memory>", self.owner,
                           self.prefix, self.memory_prefix);
      });
  nb::class_<LocatedPrefix>(module, "LocatedPrefix", docs::kLocatedPrefix)
      .def_ro("keys", &LocatedPrefix::keys)
      .def_ro("reason", &LocatedPrefix::reason)
      .def_ro("owners", &LocatedPrefix::owners)
      .def("__repr__", [](const LocatedPrefix& self) {
        return fmt::format("<kvcove.LocatedPrefix {} keys at {} owners>", self.keys,
                           self.owners.size());
      });
  nb::class_<PoolStat>(module, "PoolStat")
      .def_ro("payload_bytes", &PoolStat::payload_bytes)
      .def_ro("populated_bytes", &PoolStat::populated_bytes)
      .def_ro("free_bytes", &PoolStat::free_bytes)
      .def_ro("object_bytes", &PoolStat::object_bytes)
      .def_ro("objects", &PoolStat::objects)
      .def_ro("puts", &PoolStat::puts)
      .def_ro("hits", &PoolStat::hits)
      .def_ro("evictions", &PoolStat::evictions)
      .def_ro("removals", &PoolStat::removals)
      .def_ro("stale_puts", &PoolStat::stale_puts)
      .def_ro("resets", &PoolStat::resets)
      .def_ro("voided", &PoolStat::voided)
      .def_ro("voided_bytes", &PoolStat::voided_bytes)
      .def_ro("pinned_bytes", &PoolStat::pinned_bytes)
      .def_ro("timed_pin_bytes", &PoolStat::timed_pin_bytes)
      .def_ro("refused_pins", &PoolStat::refused_pins)
      .def_ro("ended_pins", &PoolStat::ended_pins)
      .def_ro("disk_capacity_bytes", &PoolStat::disk_capacity_bytes)
      .def_ro("disk_bytes", &PoolStat::disk_bytes)
      .def_ro("disk_objects", &PoolStat::disk_objects)
      .def_ro("disk_aside", &PoolStat::disk_aside)
      .def_ro("disk_puts", &PoolStat::disk_puts)
      .def_ro("disk_hits", &PoolStat::disk_hits)
      .def_ro("disk_not_worth", &PoolStat::disk_not_worth)
      .def_ro("disk_over_rate", &PoolStat::disk_over_rate)
      .def_ro("disk_dropped_full", &PoolStat::disk_dropped_full)
      .def_ro("disk_errors", &PoolStat::disk_errors)
      .def_ro("disk_damaged", &PoolStat::disk_damaged)
      .def_ro("disk_put_bytes", &PoolStat::disk_put_bytes)
      .def_ro("disk_written_bytes", &PoolStat::disk_written_bytes)
      .def_ro("disk_kept", &PoolStat::disk_kept)
      .def_ro("disk_dropped_other", &PoolStat::disk_dropped_other)
      .def_ro("disk_hit_bytes", &PoolStat::disk_hit_bytes)
      .def_ro("disk_misses", &PoolStat::disk_misses)
      .def_ro("disk_timeouts", &PoolStat::disk_timeouts)
      .def_ro("disk_failed", &PoolStat::disk_failed)
      .def_ro("disk_no_room", &PoolStat::disk_no_room)
      .def_ro("disk_asides", &PoolStat::disk_asides)
      .def("__repr__", [](const PoolStat& self) {
        return fmt::format("<kvcove.PoolStat {} objects, {} of {} bytes free>", self.objects,
                           self.free_bytes, self.payload_bytes);
      });
}

void BindPool(nb::module_& module) {
  nb::class_<PyPool>(module, "Pool", docs::kPool)
      .def_prop_ro("form", [](const PyPool& self) { return Text(self.Get()->form()); })
      .def("__repr__", &DescribePool)
      .def("session", &OpenSession, nb::arg("name"), nb::kw_only(), nb::arg("engine") = "",
           nb::arg("follow_always") = false, nb::arg("assume_weights") = false,
           nb::arg("preferred_segment") = "", nb::arg("placement") = "", nb::arg("replicas") = 1,
           nb::arg("borrow_bytes") = 0, docs::kOpenSession)
      .def(
          "settings",
          [](const PyPool& self) {
            const PoolSettings settings = self.Get()->Settings();
            return std::pair(static_cast<double>(settings.read_hold.count()) / 1000,
                             settings.admin);
          },
          docs::kPoolSettings)
      .def(
          "scopes", [](const PyPool& self) { return self.Get()->Settings().scopes; },
          docs::kPoolScopes)
      .def(
          "stat",
          [](const PyPool& self, double timeout) {
            const std::shared_ptr<Pool> pool = self.Get();
            const auto wait = Milliseconds(timeout);
            Result<PoolStat> stat = WithoutGil([&] { return pool->Stat(wait); });
            return Unwrap(std::move(stat));
          },
          nb::kw_only(), nb::arg("timeout") = 1.0, docs::kPoolStat)
      .def(
          "wait_populated",
          [](const PyPool& self, double timeout) {
            const std::shared_ptr<Pool> pool = self.Get();
            const auto wait = Milliseconds(timeout);
            return WithoutGil([&] { return pool->WaitPopulated(wait); });
          },
          nb::arg("timeout") = 60.0, docs::kWaitPopulated)
      .def(
          "close", [](PyPool& self) { Close(self.pool, self.guard); }, docs::kClose)
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Pool"))
      .def(
          "__exit__", [](PyPool& self, nb::args) { Close(self.pool, self.guard); },
          nb::sig("def __exit__(self, *args: object) -> None"));
  module.def("open_pool", &OpenPool, nb::arg("address"), nb::arg("timeout"));
  module.def("default_socket_path", &DefaultSocketPath);
  module.def(
      "why_no_owner", [](const std::string& path) { return Unwrap(pool::WhyNoOwner(path)); },
      nb::arg("path"),
      "Why no owner serves a socket; None if one may. Raises where that cannot be known.");
  module.def(
      "parse_size", [](const std::string& text) { return Unwrap(ParseSize(text)); },
      nb::arg("text"), "Bytes of a size such as \"4GiB\".");
}

}  // namespace

// The size is found first; a value that was replaced by a larger one in between is asked for again.
namespace {

// A new value of Python's, and where its bytes go.
std::pair<nb::object, char*> NewValue(std::uint64_t bytes, bool writable) {
  const auto size = static_cast<Py_ssize_t>(bytes);
  PyObject* value = writable ? PyByteArray_FromStringAndSize(nullptr, size)
                             : PyBytes_FromStringAndSize(nullptr, size);
  if (value == nullptr) throw nb::python_error();
  return {nb::steal(value), writable ? PyByteArray_AsString(value) : PyBytes_AsString(value)};
}

}  // namespace

nb::list GetValues(Session& session, std::span<const std::string_view> keys,
                   const CallOptions& options, ValuesWanted* wanted) {
  const std::int64_t deadline_ns =
      SystemClock::Instance().NowNs() + options.timeout.count() * kMillisecond;
  std::vector<ItemResult> results(keys.size());
  Status status = WithoutGil([&] { return session.Exists(keys, results, options); });
  RaiseMisuse(status);
  std::vector<nb::object> values(keys.size());
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (results[i].ok()) which.push_back(i);
  }
  for (int attempt = 0; attempt < 3 && !which.empty(); ++attempt) {
    std::vector<MutableBuffer> buffers;
    std::vector<GetItem> items;
    buffers.reserve(which.size());
    for (const std::size_t i : which) {
      auto [value, data] = NewValue(results[i].bytes, wanted != nullptr && wanted->writable);
      values[i] = std::move(value);
      buffers.push_back({.data = data, .size = results[i].bytes});
      items.push_back({.key = keys[i], .into = std::span(&buffers.back(), 1)});
    }
    std::vector<ItemResult> got(which.size());
    CallOptions left = options;
    left.timeout = std::chrono::milliseconds(
        std::max<std::int64_t>((deadline_ns - SystemClock::Instance().NowNs()) / kMillisecond, 0));
    const std::int64_t patience_ns = wanted != nullptr ? wanted->patience_ns : 0;
    status = WithoutGil([&] { return GetPatiently(session, items, got, left, patience_ns); });
    RaiseMisuse(status);
    std::vector<std::size_t> again;
    for (std::size_t k = 0; k < which.size(); ++k) {
      // A smaller value than it was when its size was found is asked for again, too.
      const bool other_size = got[k].ok() && got[k].bytes != buffers[k].size;
      if (got[k].ok() && !other_size) continue;
      values[which[k]] = nb::object();
      if (other_size || got[k].code == Code::kBufferTooSmall) {
        results[which[k]].bytes = got[k].bytes;
        again.push_back(which[k]);
      }
    }
    which = std::move(again);
  }
  for (const std::size_t i : which) values[i] = nb::object();
  nb::list list;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i].is_valid()) {
      list.append(nb::none());
      continue;
    }
    if (wanted != nullptr && results[i].tier == Tier::kDisk) ++wanted->from_disk;
    list.append(std::move(values[i]));
  }
  return list;
}

void BindSession(nb::module_& module) {
  BindValues(module);
  BindPool(module);
  nb::class_<PySession>(module, "Session", docs::kSession)
      .def("__repr__", &DescribeSession)
      .def(
          "capture",
          [](const PySession& self, const Text& version, double timeout, bool leased) {
            return Released(self, timeout, version, [&](Session& session, CallOptions options) {
              options.leased = leased;
              return session.Capture(options);
            });
          },
          nb::arg("version") = "", nb::kw_only(), nb::arg("timeout") = 1.0,
          nb::arg("leased") = false,
          nb::sig("def capture(self, version: str = '', *, timeout: float = 1.0, leased: bool = "
                  "False) -> Token"),
          docs::kCapture)
      .def("put", &Put, nb::arg("keys"), nb::arg("values"), nb::kw_only(),
           nb::arg("token") = nb::none(), nb::arg("after") = nb::none(),
           nb::arg("hints") = nb::none(), nb::arg("timeout") = 1.0,
           nb::sig("def put(self, keys: collections.abc.Sequence[str | bytes], values: "
                   "collections.abc.Sequence[typing.Any], *, token: Token | None = None, after: "
                   "str | bytes | collections.abc.Sequence[str | bytes] | None = None, hints: "
                   "Hints | collections.abc.Sequence[Hints] | None = None, timeout: float = 1.0) "
                   "-> Results"),
           docs::kPut)
      .def("get_into", &GetInto, nb::arg("keys"), nb::arg("buffers"), nb::kw_only(),
           nb::arg("version") = "", nb::arg("timeout") = 1.0,
           nb::sig("def get_into(self, keys: collections.abc.Sequence[str | bytes], buffers: "
                   "collections.abc.Sequence[typing.Any], *, version: str = '', timeout: float = "
                   "1.0) -> Results"),
           docs::kGetInto)
      .def("get", &Get, nb::arg("keys"), nb::kw_only(), nb::arg("version") = "",
           nb::arg("timeout") = 1.0,
           nb::sig("def get(self, keys: collections.abc.Sequence[str | bytes], *, version: str = "
                   "'', timeout: float = 1.0) -> list[bytes | None]"),
           docs::kGet)
      .def(
          "exists",
          [](const PySession& self, nb::object keys, const Text& version, double timeout) {
            return ForKeys(
                self, keys, timeout, version,
                [&](Session& session, auto views, auto results, const CallOptions& options) {
                  return session.Exists(views, results, options);
                });
          },
          nb::arg("keys"), nb::kw_only(), nb::arg("version") = "", nb::arg("timeout") = 1.0,
          nb::sig("def exists(self, keys: collections.abc.Sequence[str | bytes], *, version: str = "
                  "'', timeout: float = 1.0) -> Results"),
          docs::kExists)
      .def(
          "longest_prefix",
          [](const PySession& self, nb::object keys_in, const Text& version, double timeout) {
            const Keys keys(keys_in);
            return Released(self, timeout, version,
                            [&](Session& session, const CallOptions& options) {
                              return session.LongestPrefix(keys.views(), options);
                            });
          },
          nb::arg("keys"), nb::kw_only(), nb::arg("version") = "", nb::arg("timeout") = 1.0,
          nb::sig("def longest_prefix(self, keys: collections.abc.Sequence[str | bytes], *, "
                  "version: str = '', timeout: float = 1.0) -> int"),
          docs::kLongestPrefix)
      .def(
          "hold",
          [](const PySession& self, nb::object keys, double seconds, const Text& version,
             double timeout) {
            const auto duration = Milliseconds(seconds);
            return ForKeys(
                self, keys, timeout, version,
                [&](Session& session, auto views, auto results, const CallOptions& options) {
                  return session.Hold(views, duration, results, options);
                });
          },
          nb::arg("keys"), nb::arg("seconds") = 5.0, nb::kw_only(), nb::arg("version") = "",
          nb::arg("timeout") = 1.0,
          nb::sig("def hold(self, keys: collections.abc.Sequence[str | bytes], seconds: float = "
                  "5.0, *, version: str = '', timeout: float = 1.0) -> Results"),
          docs::kHold)
      .def(
          "pin",
          [](const PySession& self, nb::object keys, std::optional<double> seconds, bool hard,
             const Text& version, double timeout) {
            const auto duration = PinDuration(seconds, hard);
            const PinKind kind = hard || !seconds ? PinKind::kHard : PinKind::kSoft;
            return ForKeys(
                self, keys, timeout, version,
                [&](Session& session, auto views, auto results, const CallOptions& options) {
                  return session.Pin(views, kind, duration, results, options);
                });
          },
          nb::arg("keys"), nb::arg("seconds") = nb::none(), nb::kw_only(), nb::arg("hard") = false,
          nb::arg("version") = "", nb::arg("timeout") = 1.0,
          nb::sig("def pin(self, keys: collections.abc.Sequence[str | bytes], seconds: float | "
                  "None = None, *, hard: bool = False, version: str = '', timeout: float = 1.0) "
                  "-> Results"),
          docs::kPin)
      .def(
          "unpin",
          [](const PySession& self, nb::object keys, const Text& version, double timeout) {
            return ForKeys(
                self, keys, timeout, version,
                [&](Session& session, auto views, auto results, const CallOptions& options) {
                  return session.Unpin(views, results, options);
                });
          },
          nb::arg("keys"), nb::kw_only(), nb::arg("version") = "", nb::arg("timeout") = 1.0,
          nb::sig("def unpin(self, keys: collections.abc.Sequence[str | bytes], *, version: str = "
                  "'', timeout: float = 1.0) -> Results"),
          docs::kUnpin)
      .def(
          "remove",
          [](const PySession& self, nb::object keys, const Text& version, double timeout) {
            return ForKeys(
                self, keys, timeout, version,
                [&](Session& session, auto views, auto results, const CallOptions& options) {
                  return session.Remove(views, results, options);
                });
          },
          nb::arg("keys"), nb::kw_only(), nb::arg("version") = "", nb::arg("timeout") = 2.5,
          nb::sig("def remove(self, keys: collections.abc.Sequence[str | bytes], *, version: str = "
                  "'', timeout: float = 2.5) -> Results"),
          docs::kRemove)
      .def(
          "remove_matching",
          [](const PySession& self, const Text& pattern, const Text& version, double timeout) {
            return Released(self, timeout, version,
                            [&](Session& session, const CallOptions& options) {
                              return session.RemoveMatching(pattern, options);
                            });
          },
          nb::arg("pattern"), nb::kw_only(), nb::arg("version") = "", nb::arg("timeout") = 2.5,
          nb::sig("def remove_matching(self, pattern: str, *, version: str = '', timeout: float = "
                  "2.5) -> int"),
          docs::kRemoveMatching)
      .def("stat", &Stat, nb::arg("keys"), nb::kw_only(), nb::arg("version") = "",
           nb::arg("timeout") = 1.0,
           nb::sig("def stat(self, keys: collections.abc.Sequence[str | bytes], *, version: str = "
                   "'', timeout: float = 1.0) -> list[ObjectStat | None]"),
           docs::kStat)
      .def(
          "list",
          [](const PySession& self, const Text& prefix, const Text& version, double timeout) {
            return Released(self, timeout, version,
                            [&](Session& session, const CallOptions& options) {
                              return session.List(prefix, options);
                            });
          },
          nb::arg("prefix") = "", nb::kw_only(), nb::arg("version") = "", nb::arg("timeout") = 2.5,
          nb::sig(
              "def stored(self, prefix: str = '', *, version: str = '', timeout: float = 2.5) -> "
              "list[StoredObject]"),
          docs::kList)
      .def(
          "where",
          [](const PySession& self, nb::object keys_in, const Text& version, double timeout) {
            const Keys keys(keys_in);
            return Released(self, timeout, version,
                            [&](Session& session, const CallOptions& options) {
                              return session.Where(keys.views(), options);
                            });
          },
          nb::arg("keys"), nb::kw_only(), nb::arg("version") = "", nb::arg("timeout") = 1.0,
          nb::sig("def where(self, keys: collections.abc.Sequence[str | bytes], *, version: str = "
                  "'', timeout: float = 1.0) -> list[list[str]]"),
          docs::kWhere)
      .def(
          "locate",
          [](const PySession& self, nb::object keys_in, const Text& version, double timeout) {
            const Keys keys(keys_in);
            return Released(self, timeout, version,
                            [&](Session& session, const CallOptions& options) {
                              return session.Locate(keys.views(), options);
                            });
          },
          nb::arg("keys"), nb::kw_only(), nb::arg("version") = "", nb::arg("timeout") = 1.0,
          nb::sig("def locate(self, keys: collections.abc.Sequence[str | bytes], *, version: str = "
                  "'', timeout: float = 1.0) -> LocatedPrefix"),
          docs::kLocate)
      .def(
          "reset",
          [](const PySession& self, const std::optional<Text>& version, bool all_void,
             double timeout) {
            const std::shared_ptr<Session> session = self.Get();
            const ResetOptions options{
                .timeout = Milliseconds(timeout), .version = version, .all_void = all_void};
            Status status = WithoutGil([&] { return session->Reset(options); });
            Unwrap(status);
          },
          nb::arg("version") = nb::none(), nb::kw_only(), nb::arg("all_void") = false,
          nb::arg("timeout") = 2.5,
          nb::sig("def reset(self, version: str | None = None, *, all_void: bool = False, timeout: "
                  "float = 2.5) -> None"),
          docs::kReset)
      .def(
          "prune",
          [](const PySession& self, const Text& before, double timeout) {
            return Released(self, timeout, Text(),
                            [&](Session& session, const CallOptions& options) {
                              return session.Prune(before, options);
                            });
          },
          nb::arg("before"), nb::kw_only(), nb::arg("timeout") = 2.5,
          nb::sig("def prune(self, before: str, *, timeout: float = 2.5) -> int"), docs::kPrune)
      .def(
          "name_versions",
          [](const PySession& self, const std::vector<Text>& versions, double timeout) {
            const std::shared_ptr<Session> session = self.Get();
            const auto wait = Milliseconds(timeout);
            Status status =
                WithoutGil([&] { return session->NameVersions(versions, {.timeout = wait}); });
            Unwrap(status);
          },
          nb::arg("versions"), nb::kw_only(), nb::arg("timeout") = 1.0,
          nb::sig("def name_versions(self, versions: collections.abc.Sequence[str], *, timeout: "
                  "float = 1.0) -> None"),
          docs::kNameVersions)
      .def_prop_ro(
          "closed",
          [](const PySession& self) {
            self.guard.Check();
            return self.session == nullptr || self.session->closed();
          },
          docs::kClosed)
      .def(
          "close", [](PySession& self) { Close(self.session, self.guard); }, docs::kClose)
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Session"))
      .def(
          "__exit__", [](PySession& self, nb::args) { Close(self.session, self.guard); },
          nb::sig("def __exit__(self, *args: object) -> None"));
}

}  // namespace kvcove::python
