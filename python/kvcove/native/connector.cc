// SPDX-License-Identifier: Apache-2.0
// The connector's roles for engines in Python (kvcove/vllm). Callables that the roles are given are
// called with the GIL, within the call that they were given to.
//
// Calls of a role that may call the pool (look-ups, captures, version names, resets) run without
// the GIL; their callbacks take it. The other calls only take the role's lock, which is never held
// for long and never while a thread waits for the GIL, so they keep it.
#include <fmt/core.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <thread>

#include "device.h"
#include "kvcove/base/clock.h"
#include "kvcove/base/hash.h"
#include "kvcove/base/log.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/connector/scheduler/counts.h"
#include "kvcove/connector/scheduler/engine_server.h"
#include "kvcove/connector/scheduler/scheduler.h"
#include "kvcove/connector/worker/worker.h"
#include "session.h"

namespace kvcove::python {
namespace {

using connector::EngineShape;

std::string_view BytesView(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }
nb::bytes ToBytes(std::string_view text) { return nb::bytes(text.data(), text.size()); }

using HashesArg = nb::typed<nb::list, nb::bytes>;
using TablesArg = nb::typed<nb::callable, connector::BlockTables()>;

using GroupTuple =
    std::tuple<std::string, std::uint32_t, std::uint32_t, std::uint32_t, std::string>;

connector::GroupShape GroupOf(const GroupTuple& tuple) {
  const auto& [kind, chunk_tokens, window_tokens, heads, layout] = tuple;
  connector::GroupShape group{.chunk_tokens = chunk_tokens,
                              .window_tokens = window_tokens,
                              .heads = heads,
                              .layout = layout};
  if (kind == "full") {
    group.kind = connector::GroupKind::kFull;
  } else if (kind == "window") {
    group.kind = connector::GroupKind::kWindow;
  } else if (kind == "state") {
    group.kind = connector::GroupKind::kState;
  } else {
    throw nb::value_error("a KV group's kind is full, window or state");
  }
  return group;
}

struct PyShape {
  PyShape(const std::string& space, const std::string& model_name, const std::string& model,
          const std::string& kv_dtype, const std::string& hashing, std::uint32_t hash_tokens,
          std::uint32_t tp, std::uint32_t pp, std::uint32_t pcp, std::uint32_t dcp,
          std::uint32_t interleave, const std::string& layers, std::uint32_t store_tp,
          const std::vector<GroupTuple>& groups)
      : shape{.space = space,
              .model_name = model_name,
              .model = model,
              .kv_dtype = kv_dtype,
              .hashing = hashing,
              .hash_tokens = hash_tokens,
              .tp = tp,
              .pp = pp,
              .pcp = pcp,
              .dcp = dcp,
              .interleave = interleave,
              .layers = layers,
              .store_tp = store_tp} {
    for (const GroupTuple& group : groups) shape.groups.push_back(GroupOf(group));
    Unwrap(shape.Check());
  }
  EngineShape shape;
};

// Calls a role without the GIL. If another thread closes the role meanwhile, this call ends it,
// which may call the pool and must not have the GIL either.
template <typename Role, typename Call>
auto WithRole(std::shared_ptr<Role> role, Call call) {
  return WithoutGil([&] {
    const std::shared_ptr<Role> kept = std::move(role);
    return call(*kept);
  });
}

// ---- the scheduler's role

class PyScheduler {
 public:
  PyScheduler(const PyShape& shape, const PyPool& pool, const std::string& engine,
              const std::string& pool_address, const std::string& versions, double lookup_budget,
              double lookup_timeout, double hold, double reset_timeout, bool load_async,
              bool lookup, bool save, bool save_decoded, bool events, bool closed_on_reset_failure,
              bool assume_weights, std::uint64_t blocks, const std::string& door,
              bool drop_last_stride, bool trust_siblings, const std::string& load_when,
              double save_wait)
      : parts_(std::make_shared<Parts>()) {
    const std::shared_ptr<Parts> parts = parts_;
    parts->pool = pool.Get();
    connector::SchedulerOptions options{.shape = shape.shape,
                                        .engine = engine,
                                        .pool = pool_address,
                                        .engine_socket = door,
                                        .versions = Unwrap(connector::ParseVersionSource(versions)),
                                        .lookup_budget = Milliseconds(lookup_budget),
                                        .lookup_timeout = Milliseconds(lookup_timeout),
                                        .save_wait = Milliseconds(save_wait),
                                        .reset_timeout = Milliseconds(reset_timeout),
                                        .load_async = load_async,
                                        .load_when = Unwrap(connector::ParseLoadWhen(load_when)),
                                        .lookup = lookup,
                                        .save = save,
                                        .save_decoded = save_decoded,
                                        .drop_last_stride = drop_last_stride,
                                        .trust_siblings = trust_siblings,
                                        .events = events,
                                        .closed_on_reset_failure = closed_on_reset_failure,
                                        .blocks = blocks,
                                        .bind_in_thread = true};
    const SessionOptions session{
        .name = shape.shape.Namespace(), .engine = engine, .assume_weights = assume_weights};
    const std::chrono::milliseconds hold_ms = Milliseconds(hold);
    Status opened = WithoutGil([&] { return parts->Open(options, session, hold_ms); });
    Unwrap(opened);
  }

  std::tuple<std::optional<std::uint64_t>, bool> Matched(
      const std::string& id, std::uint64_t tokens, std::uint64_t prompt_tokens,
      const std::string& salt, const HashesArg& hashes, std::uint64_t computed,
      connector::AdapterId adapter, bool waits_for_saves) {
    connector::RequestView view = ViewOf(id, tokens, prompt_tokens, salt, hashes, adapter);
    view.waits_for_saves = waits_for_saves;
    const connector::Match match =
        WithRole(role(), [&](auto& role) { return role.Matched(view, computed); });
    if (match.ask_again) return {std::nullopt, false};
    return {match.tokens, match.async};
  }
  void Allocated(const std::string& id, std::uint64_t external, const TablesArg& blocks) {
    role()->Allocated(id, external, TablesOf(blocks));
  }
  void Schedule(const std::string& id, std::uint64_t tokens, std::uint64_t prompt_tokens,
                const std::string& salt, const HashesArg& hashes, std::uint64_t computed,
                std::uint64_t scheduled, bool started, const TablesArg& blocks,
                connector::AdapterId adapter) {
    const connector::ScheduledPart part{
        .request = ViewOf(id, tokens, prompt_tokens, salt, hashes, adapter),
        .computed_tokens = computed,
        .scheduled_tokens = scheduled,
        .started = started,
        .blocks = TablesOf(blocks)};
    // Only a first step asks the pool.
    if (!started) return role()->Schedule(part);
    WithRole(role(), [&](auto& role) { role.Schedule(part); });
  }
  std::tuple<nb::bytes, std::vector<connector::BlockId>> BuildPlan() {
    std::vector<connector::BlockId> pins;
    const connector::Plan plan = WithRole(role(), [&](auto& role) { return role.BuildPlan(pins); });
    return {ToBytes(connector::Encode(plan)), std::move(pins)};
  }
  void OnReport(const nb::bytes& bytes) {
    role()->OnReport(Unwrap(connector::DecodeReport(BytesView(bytes))));
  }
  bool Reset() {
    return WithRole(role(), [](auto& role) { return role.Reset(); });
  }
  std::vector<std::uint64_t> Tiers(const std::string& id) const {
    const auto tiers = role()->TiersOf(id);
    return {tiers.begin(), tiers.end()};
  }
  nb::list Events() {
    nb::list list;
    for (const connector::PoolEvent& event : role()->TakeEvents()) {
      nb::list hashes;
      for (const std::string& hash : event.hashes) hashes.append(ToBytes(hash));
      static constexpr const char* kKinds[] = {"stored", "removed", "cleared"};
      static constexpr const char* kMedia[] = {"memory", "disk"};
      list.append(nb::make_tuple(kKinds[static_cast<int>(event.kind)], event.request, event.group,
                                 event.first_chunk, hashes, ToBytes(event.parent),
                                 kMedia[static_cast<int>(event.medium)]));
    }
    return list;
  }
  // All counts since the start, and gauges.
  std::map<std::string, std::uint64_t> Stats() const {
    std::map<std::string, std::uint64_t> all;
    for (const connector::Count& count : connector::CountsOf(StatsNow())) {
      all.emplace(count.name, count.value);
    }
    return all;
  }
  // What was counted since the last call, and gauges; none if nothing has changed.
  std::optional<std::map<std::string, std::uint64_t>> TakeStats() {
    const connector::SchedulerStats now = StatsNow();
    if (now == told_) return std::nullopt;
    const std::vector<connector::Count> before = connector::CountsOf(told_);
    const std::vector<connector::Count> after = connector::CountsOf(now);
    std::map<std::string, std::uint64_t> news;
    for (std::size_t i = 0; i < after.size(); ++i) {
      const bool gauge = after[i].kind == connector::CountKind::kGauge;
      if (!gauge && after[i].value == before[i].value) continue;
      news.emplace(after[i].name, gauge ? after[i].value : after[i].value - before[i].value);
    }
    told_ = now;
    return news;
  }
  // A call keeps the role: another thread may close it meanwhile.
  std::shared_ptr<connector::SchedulerRole> role() const {
    const std::shared_ptr<Parts> parts = Get();
    return {parts, parts->role.get()};
  }
  void Close() {
    std::shared_ptr<Parts> parts = std::move(parts_);
    parts_.reset();
    const ReleasedGil release;
    parts.reset();
  }
  ~PyScheduler() { Close(); }

 private:
  // In the order in which they need each other; they end in the opposite one.
  struct Parts {
    std::shared_ptr<Pool> pool;
    std::unique_ptr<connector::Store> store;
    std::unique_ptr<connector::LookupRunner> runner;
    std::unique_ptr<connector::SchedulerRole> role;
    std::unique_ptr<connector::EngineServer> server;

    Status Open(const connector::SchedulerOptions& options, const SessionOptions& session_options,
                std::chrono::milliseconds hold) {
      KVCOVE_ASSIGN(auto session, pool->OpenSession(session_options));
      store = connector::StoreOf(std::move(session));
      const Clock& clock = SystemClock::Instance();
      if (pool->form() == "cluster") {
        KVCOVE_ASSIGN(runner, connector::RunInThread(*store, clock, hold, options.lookup_timeout));
      } else {
        runner = connector::RunHere(*store, clock, hold);
      }
      role = std::make_unique<connector::SchedulerRole>(options, *store, *runner, clock);
      KVCOVE_TRY(role->started());
      if (options.engine_socket.empty()) return {};
      KVCOVE_ASSIGN(server, connector::EngineServer::Open(options.engine_socket, *role));
      return {};
    }
  };

  std::shared_ptr<Parts> Get() const {
    if (parts_ == nullptr) RaiseInvalid("this scheduler role is closed");
    return parts_;
  }
  connector::SchedulerStats StatsNow() const {
    return WithRole(role(), [](auto& role) { return role.stats(); });
  }

  static connector::RequestView ViewOf(const std::string& id, std::uint64_t tokens,
                                       std::uint64_t prompt_tokens, const std::string& salt,
                                       const HashesArg& hashes, connector::AdapterId adapter) {
    return {.id = id,
            .tokens = tokens,
            .prompt_tokens = prompt_tokens,
            .salt = salt,
            .adapter = adapter,
            .hashes = hashes.size(),
            .read_hashes = [&hashes](std::size_t from, std::size_t to, connector::HashList& into) {
              WithGil([&] { AddHashes(hashes, from, to, into); });
            }};
  }
  static void AddHashes(const HashesArg& hashes, std::size_t from, std::size_t to,
                        connector::HashList& into) {
    // The engine may have cut the list since it was measured.
    for (std::size_t i = from; i < std::min(to, hashes.size()); ++i) {
      const nb::object hash = hashes[i];
      if (!PyBytes_Check(hash.ptr())) throw nb::type_error("block hashes are bytes");
      const auto size = static_cast<std::size_t>(PyBytes_Size(hash.ptr()));
      if (size > connector::BlockHash::kMostBytes) {
        throw nb::value_error("a block hash has 64 bytes at most");
      }
      into.Add({PyBytes_AsString(hash.ptr()), size});
    }
  }
  static std::function<connector::BlockTables()> TablesOf(const TablesArg& blocks) {
    return
        [&blocks] { return WithGil([&] { return nb::cast<connector::BlockTables>(blocks()); }); };
  }

  std::shared_ptr<Parts> parts_;  // null once it is closed; with the GIL
  connector::SchedulerStats told_;
};

// ---- a rank's role

using AxisTuple = std::tuple<std::string, std::uint64_t, std::uint64_t>;
using LayerTuple =
    std::tuple<std::string, std::uint32_t, std::uintptr_t, std::uint64_t, std::vector<AxisTuple>>;

class PyWorker {
 public:
  PyWorker(const PyShape& shape, std::uint32_t tp, std::uint32_t pp, std::uint32_t pcp,
           const std::string& engine, std::uint32_t threads, double timeout, bool fingerprints,
           bool tier_log, const std::string& preferred_segment, const std::string& priority,
           std::uint64_t device_ring, std::uint64_t device_staging, std::int64_t device_threshold,
           std::uint32_t layer_parts, std::int64_t device_pin)
      : shape_(shape.shape), engine_(engine), preferred_segment_(preferred_segment) {
    if (tp >= shape_.tp || pp >= shape_.pp || pcp >= shape_.pcp) {
      throw nb::value_error("this rank is not in the engine's world");
    }
    number_ = (pp * shape_.pcp + pcp) * shape_.tp + tp;
    Device* const device = Device::Get();
    if (device != nullptr) {
      DeviceSettings settings{.queue = {.ring_bytes = device_ring}};
      settings.device.slot_bytes =
          device_staging / (settings.device.load_slots + settings.device.save_slots);
      if (device_threshold >= 0) {
        settings.device.threshold = static_cast<std::uint64_t>(device_threshold);
      }
      device->Set(settings);
    }
    role_ = std::make_shared<connector::WorkerRole>(
        connector::WorkerOptions{.shape = shape_,
                                 .rank = {.tp = tp, .pp = pp, .pcp = pcp},
                                 .number = number_,
                                 .engine = engine,
                                 .device = device,
                                 .threads = threads,
                                 .timeout = Milliseconds(timeout),
                                 .pin_bytes = static_cast<std::uint64_t>(device_pin),  // -1: all
                                 .in_place_bytes = device_ring,
                                 .layer_parts = std::max(layer_parts, 1U),
                                 .fingerprints = fingerprints,
                                 .tier_log = tier_log,
                                 .priority = ParsePriority(priority)},
        SystemClock::Instance());
    Unwrap(role_->started());
  }

  void Register(const std::vector<LayerTuple>& layers) {
    std::vector<connector::LayerMemory> memory;
    for (const auto& [name, group, base, element_bytes, axes] : layers) {
      connector::LayerMemory layer{
          .name = name, .group = group, .base = base, .element_bytes = element_bytes};
      for (const auto& [kind, count, stride] : axes) {
        layer.axes.push_back(
            {.kind = Unwrap(connector::ParseAxis(kind)), .count = count, .stride_bytes = stride});
      }
      memory.push_back(std::move(layer));
    }
    Unwrap(WithRole(role(), [&](auto& role) { return role.Register(memory); }));
  }
  bool Unregister() {
    return WithRole(role(), [](auto& role) { return role.Unregister(); });
  }
  void WaitForSyncLoads(std::uintptr_t stream) {
    WithRole(role(), [=](auto& role) { role.WaitForSyncLoads(stream); });
  }
  void WaitForLayer(const std::string& layer, std::uintptr_t stream) {
    WithRole(role(), [&](auto& role) { role.WaitForLayer(layer, stream); });
  }
  // True: the rank's fingerprint is wanted.
  bool Begin(const nb::bytes& bytes, std::uintptr_t stream) {
    // The bytes stay while they are an argument.
    connector::Plan plan = Unwrap(WithRole(role(), [coded = BytesView(bytes)](auto& /*role*/) {
      return connector::DecodePlan(coded);
    }));
    door_ = plan.engine;
    ConnectBeside(plan.pool);
    return WithRole(role(), [&](auto& role) {
      role.Begin(std::move(plan), stream);
      return role.FingerprintWanted();
    });
  }
  void FinishStep(const nb::object& ready, std::uintptr_t stream) {
    if (ready.is_none()) {
      return WithRole(role(), [=](auto& role) { role.FinishStep({}, stream); });
    }
    // Freed, like it is called, with the GIL.
    const std::shared_ptr<nb::object> kept(
        new nb::object(ready), [](nb::object* object) { WithGil([object] { delete object; }); });
    role()->FinishStep([kept] {
      WithGil([&kept] {
        try {
          (*kept)();
        } catch (nb::python_error& error) {
          throw std::runtime_error(error.what());
        }
      });
    });
  }
  // Requests whose loads have ended, blocks that hold nothing, requests with such blocks; mostly
  // none.
  using EndedTuple = std::tuple<std::vector<std::string>, std::vector<connector::BlockId>,
                                std::vector<std::string>>;
  std::optional<EndedTuple> TakeEnded() {
    connector::Ended ended = role()->TakeEnded();
    if (ended.loaded.empty() && ended.failed_blocks.empty()) return std::nullopt;
    return EndedTuple{std::move(ended.loaded), std::move(ended.failed_blocks),
                      std::move(ended.failed)};
  }
  std::optional<nb::bytes> TakeReport() {
    const connector::Report report = role()->TakeReport();
    if (report.empty() && report.weight_changes == told_changes_) return std::nullopt;
    told_changes_ = report.weight_changes;
    return ToBytes(connector::Encode(report));
  }
  // Also tells the scheduler at once, which else learns of it with the next step's report.
  void WeightsChanging() {
    WithRole(role(), [door = door_](auto& role) {
      role.WeightsChanging();
      if (door.empty()) return;
      connector::EngineClient scheduler(door);
      constexpr std::chrono::milliseconds kTimeout{200};
      if (scheduler.Weights(connector::WeightsNews::kChanging, {}, kTimeout)) {
        (void)scheduler.Weights(connector::WeightsNews::kChanged, {}, kTimeout);
      }
    });
  }
  // The scheduler neither finds nor stores, for an update that it knows of, or does not say.
  bool SchedulerClosed() {
    return WithRole(role(), [door = door_](auto& /*role*/) {
      if (door.empty()) return true;
      const auto counters = connector::EngineClient(door).Counters(std::chrono::seconds(1));
      return !counters || counters->find("\nclosed 0\n") == std::string::npos;
    });
  }
  // Somebody wrote weights unseen: what was stored since then is under a wrong name, and nobody
  // knows since when, so all of that version is void.
  void WeightsMoved() {
    WithRole(role(), [this, door = door_](auto& role) {
      role.WeightsChanging();
      if (door.empty()) return;
      connector::EngineClient scheduler(door);
      constexpr std::chrono::seconds kTimeout{5};
      if (!scheduler.Weights(connector::WeightsNews::kChanging, {}, kTimeout)) return;
      if (const Status reset = scheduler.Reset(kTimeout); !reset) {
        LogError("{}: what was stored since weights were written unseen is not void yet: {}",
                 engine_, reset.error().detail);
      }
      (void)scheduler.Weights(connector::WeightsNews::kChanged, {}, kTimeout);
    });
  }
  // By the engine's number of each adapter.
  void SetAdapters(const std::map<connector::AdapterId, std::string>& digests) {
    std::vector<connector::AdapterPrint> adapters;
    for (const auto& [id, digest] : digests) adapters.push_back({.id = id, .digest = digest});
    role()->SetAdapters(adapters);
  }
  std::uint32_t number() const { return number_; }
  // A call keeps the role: another thread may close it meanwhile.
  std::shared_ptr<connector::WorkerRole> role() const {
    if (role_ == nullptr) RaiseInvalid("this worker role is closed");
    return role_;
  }
  // The threads of the role need the GIL to end.
  void Close() {
    std::shared_ptr<connector::WorkerRole> role = std::move(role_);
    role_.reset();
    std::thread connector = std::move(connector_);
    const ReleasedGil release;
    {
      const MutexLock lock(mutex_);
      closing_ = true;
      closed_.NotifyAll();
    }
    if (connector.joinable()) connector.join();
    // While the interpreter ends, they wait for the GIL until the process ends: the role stays.
    if (InterpreterEnds()) new std::shared_ptr<connector::WorkerRole>(std::move(role));  // NOLINT
    role.reset();
  }
  ~PyWorker() { Close(); }

 private:
  // Opens the pool that the plans name on a thread of its own, again and again until it is there:
  // the model's thread never waits for it, and on a busy host that may take long. Saves wait for
  // it for kPatienceNs, loads for as long as a call may take. What the pool refuses it would refuse
  // again: then the engine goes on without it.
  void ConnectBeside(const std::string& address) {
    if (address.empty() || connector_.joinable()) return;
    // role(): another thread may have closed it while the plan was decoded.
    auto connector = StartThread("kvcove-connect", [this, address, role = role()] {
      const Clock& clock = SystemClock::Instance();
      const std::int64_t patient_until_ns = clock.NowNs() + kPatienceNs;
      LogLimit away(60 * kSecond);
      while (true) {
        Status connected;
        try {
          connected = Connect(*role, address);
        } catch (const std::exception& error) {  // it would end the engine's process
          connected = Fail(Code::kInternal, fmt::format("the pool at {} cannot be opened: {}",
                                                        address, error.what()));
        }
        if (connected) return;
        const Code code = connected.error().code;
        if (code == Code::kInvalid || code == Code::kDenied || code == Code::kIncompatible) {
          LogError("{}: rank {}: {}; this engine runs without a pool until it is started again",
                   engine_, number_, connected.error().detail);
          return role->DoWithout();
        }
        const std::int64_t now_ns = clock.NowNs();
        if (away.Due(now_ns) > 0) {
          LogError(
              "{}: rank {}: {}; it is tried again each second, and until then this engine "
              "neither loads nor stores",
              engine_, number_, connected.error().detail);
        }
        if (now_ns >= patient_until_ns) role->FailWaiting();
        const MutexLock lock(mutex_);
        if (!closing_) (void)closed_.WaitFor(mutex_, std::chrono::seconds(1));
        if (closing_) return;
      }
    });
    if (connector) {
      connector_ = std::move(*connector);
    } else if (refused_.Due(SystemClock::Instance().NowNs()) > 0) {
      // The next plan tries again.
      LogError("{}: the pool at {} is not opened: {}", engine_, address, connector.error().detail);
    }
  }
  Status Connect(connector::WorkerRole& role, const std::string& address) const {
    auto opened = Pool::Open(address, std::chrono::seconds(2));
    if (!opened) {
      return Fail(opened.error().code, fmt::format("the pool at {} cannot be opened: {}", address,
                                                   opened.error().detail));
    }
    const std::shared_ptr<Pool> pool = std::move(*opened);
    auto session = pool->OpenSession(
        {.name = shape_.Namespace(), .engine = engine_, .preferred_segment = preferred_segment_});
    if (!session) {
      return Fail(session.error().code,
                  fmt::format("no session of the pool at {}: {}", address, session.error().detail));
    }
    role.Connect(connector::StoreOf(std::move(*session), pool), pool->form() == "cluster");
    return {};
  }

  static constexpr std::int64_t kPatienceNs = 10 * kSecond;

  const EngineShape shape_;
  const std::string engine_;
  const std::string preferred_segment_;
  std::uint32_t number_ = 0;  // of the rank in the engine's world
  std::string door_;
  std::uint64_t told_changes_ = 0;
  std::shared_ptr<connector::WorkerRole> role_;  // null once it is closed; with the GIL
  LogLimit refused_;
  std::thread connector_;  // with the GIL
  Mutex mutex_;
  CondVar closed_;
  bool closing_ KVCOVE_GUARDED_BY(mutex_) = false;
};

// Which of a step's requests begin a chunk, or fill one, or start: the others, mostly decoding
// ones, need not be told. `scheduled`: tokens by request.
std::vector<std::size_t> ToldOf(const nb::typed<nb::list, nb::str>& requests,
                                const nb::typed<nb::list, int>& computed,
                                const nb::typed<nb::dict, nb::str, int>& scheduled,
                                const nb::typed<nb::set, nb::str>& started,
                                std::uint64_t chunk_tokens) {
  if (requests.size() != computed.size() || chunk_tokens == 0) {
    throw nb::value_error("as many computed tokens as requests, and a chunk's tokens");
  }
  std::vector<std::size_t> told;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const nb::handle id = requests[i];
    if (connector::TouchesChunks(nb::cast<std::uint64_t>(computed[i]),
                                 nb::cast<std::uint64_t>(scheduled[id]), chunk_tokens) ||
        (started.size() > 0 && started.contains(id))) {
      told.push_back(i);
    }
  }
  return told;
}

// The blocks that a plan's loads are to write: of each request, group and block.
std::vector<std::tuple<std::string, std::vector<std::pair<std::uint32_t, connector::BlockId>>>>
LoadsOf(const nb::bytes& bytes) {
  const connector::Plan plan = Unwrap(connector::DecodePlan(BytesView(bytes)));
  std::vector<std::tuple<std::string, std::vector<std::pair<std::uint32_t, connector::BlockId>>>>
      loads;
  for (const connector::LoadOrder& order : plan.loads) {
    auto& [request, blocks] = loads.emplace_back();
    request = order.request;
    for (const connector::ChunkPlace& place : order.chunks) {
      blocks.emplace_back(place.group, place.block);
    }
  }
  return loads;
}

std::vector<nb::bytes> PrefixKeysOf(const PyShape& shape, const HashesArg& hashes,
                                    const std::string& adapter) {
  std::vector<std::string_view> views;
  for (const nb::handle hash : hashes) {
    if (!PyBytes_Check(hash.ptr())) throw nb::type_error("block hashes are bytes");
    views.emplace_back(PyBytes_AsString(hash.ptr()),
                       static_cast<std::size_t>(PyBytes_Size(hash.ptr())));
  }
  const connector::PrefixTags of = Unwrap(connector::PrefixTagsOf(shape.shape));
  std::vector<nb::bytes> keys;
  for (const std::string& key : connector::PrefixKeys(of, views, adapter)) {
    keys.push_back(ToBytes(key));
  }
  return keys;
}

// 128 bits of host memory, piece after piece.
std::string Fingerprint(const std::vector<std::tuple<std::uintptr_t, std::size_t>>& pieces) {
  const ReleasedGil release;
  std::string all;
  for (const auto& [address, size] : pieces) {
    const Id128 hash = Hash128({reinterpret_cast<const char*>(address), size}, size);  // NOLINT
    all += fmt::format("{:016x}{:016x}", hash.high, hash.low);
  }
  const Id128 hash = Hash128(all, 0);
  return fmt::format("{:016x}{:016x}", hash.high, hash.low);
}

}  // namespace

void BindConnector(nb::module_& module) {
  nb::class_<PyShape>(module, "EngineShape")
      .def(nb::init<const std::string&, const std::string&, const std::string&, const std::string&,
                    const std::string&, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t,
                    std::uint32_t, std::uint32_t, const std::string&, std::uint32_t,
                    const std::vector<GroupTuple>&>(),
           nb::kw_only(), nb::arg("space"), nb::arg("model_name"), nb::arg("model"),
           nb::arg("kv_dtype"), nb::arg("hashing"), nb::arg("hash_tokens"), nb::arg("tp"),
           nb::arg("pp"), nb::arg("pcp"), nb::arg("dcp"), nb::arg("interleave"), nb::arg("layers"),
           nb::arg("store_tp"), nb::arg("groups"))
      .def_prop_ro("namespace", [](const PyShape& self) { return self.shape.Namespace(); })
      .def_prop_ro("stride_tokens", [](const PyShape& self) { return self.shape.stride_tokens(); })
      .def_prop_ro("world", [](const PyShape& self) { return self.shape.world(); })
      .def(
          "objects",
          [](const PyShape& self, std::uint32_t group) {
            if (group >= self.shape.groups.size()) throw nb::index_error("there is no such group");
            const connector::Keys keys(self.shape);
            return std::make_tuple(keys.Tags(group).size(), keys.PartsOf({}, group).size());
          },
          nb::arg("group"), "How many objects a group's chunk is; of them, those of a rank.")
      .def(
          "prefix_tags",
          [](const PyShape& self) {
            connector::PrefixTags of = Unwrap(connector::PrefixTagsOf(self.shape));
            return std::make_tuple(std::move(of.tags), of.hashes_per_chunk);
          },
          "Return the beginnings of the keys of a prefix's chunk, and how many hashes it has.")
      .def("prefix_keys", &PrefixKeysOf, nb::arg("hashes"), nb::arg("adapter") = "",
           "Return the keys of a prefix's whole chunks, of each one for each tag.");

  nb::class_<PyScheduler>(module, "SchedulerRole")
      .def(nb::init<const PyShape&, const PyPool&, const std::string&, const std::string&,
                    const std::string&, double, double, double, double, bool, bool, bool, bool,
                    bool, bool, bool, std::uint64_t, const std::string&, bool, bool,
                    const std::string&, double>(),
           nb::arg("shape"), nb::arg("pool"), nb::kw_only(), nb::arg("engine"),
           nb::arg("pool_address"), nb::arg("versions"), nb::arg("lookup_budget"),
           nb::arg("lookup_timeout"), nb::arg("hold"), nb::arg("reset_timeout"),
           nb::arg("load_async"), nb::arg("lookup"), nb::arg("save"), nb::arg("save_decoded"),
           nb::arg("events"), nb::arg("closed_on_reset_failure"), nb::arg("assume_weights"),
           nb::arg("blocks"), nb::arg("door") = "", nb::arg("drop_last_stride") = false,
           nb::arg("trust_siblings") = false, nb::arg("load_when") = "always",
           nb::arg("save_wait") = 0.0)
      .def(
          "hint",
          [](PyScheduler& self, const std::string& id, std::uint32_t output_tokens,
             std::int64_t ephemeral_from, bool session_ends) {
            connector::RequestHints hints{.output_tokens = output_tokens,
                                          .session_ends = session_ends};
            if (ephemeral_from >= 0) {
              hints.ephemeral_from = static_cast<std::uint64_t>(ephemeral_from);
            }
            self.role()->Hint(id, hints);
          },
          nb::arg("request"), nb::arg("output_tokens"), nb::arg("ephemeral_from"),
          nb::arg("session_ends"))
      .def("matched", &PyScheduler::Matched, nb::arg("request"), nb::arg("tokens"),
           nb::arg("prompt_tokens"), nb::arg("salt"), nb::arg("hashes"), nb::arg("computed"),
           nb::arg("adapter") = 0, nb::arg("waits_for_saves") = true)
      .def("allocated", &PyScheduler::Allocated, nb::arg("request"), nb::arg("external"),
           nb::arg("blocks"))
      .def("schedule", &PyScheduler::Schedule, nb::arg("request"), nb::arg("tokens"),
           nb::arg("prompt_tokens"), nb::arg("salt"), nb::arg("hashes"), nb::arg("computed"),
           nb::arg("scheduled"), nb::arg("started"), nb::arg("blocks"), nb::arg("adapter") = 0)
      .def(
          "has_adapter",
          [](PyScheduler& self, connector::AdapterId id) { return self.role()->HasAdapter(id); },
          nb::arg("adapter"))
      .def(
          "copied",
          [](PyScheduler& self,
             const std::vector<std::pair<connector::BlockId, connector::BlockId>>& copies) {
            self.role()->Copied(copies);
          },
          nb::arg("copies"))
      .def(
          "finished", [](PyScheduler& self, const std::string& id) { self.role()->Finished(id); },
          nb::arg("request"))
      .def("build_plan", &PyScheduler::BuildPlan)
      .def("take_unpins", [](PyScheduler& self) { return self.role()->TakeUnpins(); })
      .def("pending", [](PyScheduler& self) { return self.role()->Pending(); })
      .def("on_report", &PyScheduler::OnReport, nb::arg("report"))
      .def(
          "load_failed",
          [](PyScheduler& self, const std::string& id,
             const std::vector<connector::BlockId>& blocks) {
            self.role()->LoadFailed(id, blocks);
          },
          nb::arg("request"), nb::arg("blocks"))
      .def(
          "load_ended",
          [](PyScheduler& self, const std::string& id) { return self.role()->LoadEnded(id); },
          nb::arg("request"))
      .def("tiers", &PyScheduler::Tiers, nb::arg("request"))
      .def("reset", &PyScheduler::Reset)
      .def("weights_changing", [](PyScheduler& self) { self.role()->WeightsChanging(); })
      .def("weights_changed", [](PyScheduler& self) { self.role()->WeightsChanged(); })
      .def(
          "start_with",
          [](PyScheduler& self, const std::vector<std::string>& fingerprints) {
            self.role()->StartWith(fingerprints);
          },
          nb::arg("fingerprints"))
      .def(
          "set_version",
          [](PyScheduler& self, const std::string& version) { self.role()->SetVersion(version); },
          nb::arg("version"))
      .def("takes_peers",
           [](PyScheduler& self) -> std::optional<std::tuple<std::uint64_t, std::string>> {
             auto own = WithRole(self.role(), [](auto& role) { return role.TakesPeers(); });
             if (!own) return std::nullopt;
             return std::make_tuple(own->number, std::move(own->text));
           })
      .def(
          "set_peers",
          [](PyScheduler& self, std::uint64_t number, const std::vector<std::string>& peers,
             bool alone) {
            WithRole(self.role(), [&](auto& role) { role.SetPeers(number, peers, alone); });
          },
          nb::arg("number"), nb::arg("peers"), nb::arg("alone"))
      .def_prop_ro("version", [](PyScheduler& self) { return self.role()->version(); })
      .def("own_cache_cleared", [](PyScheduler& self) { self.role()->OwnCacheCleared(); })
      .def("take_events", &PyScheduler::Events,
           nb::sig("def take_events(self) -> "
                   "list[tuple[str, str, int, int, list[bytes], bytes, str]]"))
      .def("stats", &PyScheduler::Stats)
      .def("take_stats", &PyScheduler::TakeStats)
      .def_static("gauges",
                  [] {
                    std::vector<std::string> gauges;
                    for (const connector::Count& count : connector::CountsOf({})) {
                      if (count.kind == connector::CountKind::kGauge) gauges.push_back(count.name);
                    }
                    return gauges;
                  })
      .def_static(
          "counts",
          [] {
            std::vector<std::tuple<std::string, std::string, std::string>> counts;
            for (const connector::Count& count : connector::CountsOf({})) {
              counts.emplace_back(count.name, connector::CountKindName(count.kind), count.help);
            }
            return counts;
          },
          "Name, kind (counter, gauge, bucket) and help of everything that is counted.")
      .def("close", &PyScheduler::Close);

  module.def("told_of", &ToldOf, nb::arg("requests"), nb::arg("computed"), nb::arg("scheduled"),
             nb::arg("started"), nb::arg("chunk_tokens"));
  module.def("loads_of", &LoadsOf, nb::arg("plan"),
             "Return the blocks that a plan's loads write: of each request, group and block.");

  nb::class_<PyWorker>(module, "WorkerRole")
      .def(nb::init<const PyShape&, std::uint32_t, std::uint32_t, std::uint32_t, const std::string&,
                    std::uint32_t, double, bool, bool, const std::string&, const std::string&,
                    std::uint64_t, std::uint64_t, std::int64_t, std::uint32_t, std::int64_t>(),
           nb::arg("shape"), nb::kw_only(), nb::arg("tp"), nb::arg("pp"), nb::arg("pcp"),
           nb::arg("engine"), nb::arg("threads"), nb::arg("timeout"), nb::arg("fingerprints"),
           nb::arg("tier_log"), nb::arg("preferred_segment"), nb::arg("priority") = "",
           nb::arg("device_ring") = std::uint64_t{64} << 20,
           nb::arg("device_staging") = std::uint64_t{96} << 20, nb::arg("device_threshold") = -1,
           nb::arg("layer_parts") = 1, nb::arg("device_pin") = -1)
      .def_prop_ro("number", &PyWorker::number)
      .def("register", &PyWorker::Register, nb::arg("layers"))
      .def("unregister", &PyWorker::Unregister)
      .def("chunk_bytes", [](PyWorker& self) { return self.role()->ChunkBytes(); })
      .def("begin", &PyWorker::Begin, nb::arg("plan"), nb::arg("stream") = 0)
      .def("wait_for_sync_loads", &PyWorker::WaitForSyncLoads, nb::arg("stream") = 0)
      .def("wait_for_layer", &PyWorker::WaitForLayer, nb::arg("layer"), nb::arg("stream"))
      .def("finish_step", &PyWorker::FinishStep, nb::arg("ready").none(), nb::arg("stream") = 0)
      .def("take_ended", &PyWorker::TakeEnded)
      .def("take_report", &PyWorker::TakeReport)
      .def("weights_changing", &PyWorker::WeightsChanging)
      .def("scheduler_closed", &PyWorker::SchedulerClosed)
      .def("weights_moved", &PyWorker::WeightsMoved)
      .def("set_adapters", &PyWorker::SetAdapters, nb::arg("digests"))
      .def(
          "set_fingerprint",
          [](PyWorker& self, const std::string& fingerprint) {
            self.role()->SetFingerprint(fingerprint);
          },
          nb::arg("fingerprint"))
      .def("close", &PyWorker::Close);

  module.def("fingerprint", &Fingerprint, nb::arg("pieces"),
             "128 bits of host memory as hex digits, of (address, bytes) in order.");
}

}  // namespace kvcove::python
