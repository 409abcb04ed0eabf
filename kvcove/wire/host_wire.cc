// SPDX-License-Identifier: Apache-2.0
#include "kvcove/wire/host_wire.h"

#include <algorithm>
#include <array>
#include <functional>

#include "host_generated.h"
#include "kvcove/base/clock.h"
#include "kvcove/wire/flat.h"
#include "kvcove/wire/hints.h"

namespace kvcove::wire {
namespace {

fb::Id ToFb(const Id128& id) { return {id.high, id.low}; }
Id128 FromFb(const fb::Id* id) {
  return id == nullptr ? Id128{} : Id128{.high = id->high(), .low = id->low()};
}

fb::TokenValue ToFb(const Token& token) {
  return {ToFb(token.incarnation), token.generation, token.slot};
}
Token FromFb(const fb::TokenValue& token) {
  return {.incarnation = FromFb(&token.incarnation()),
          .generation = token.generation(),
          .slot = token.slot()};
}

Result<Code> ToCode(std::uint16_t value) {
  if (value > kMaxCode) return Fail(Code::kCorrupt, "a reply with an unknown code");
  return static_cast<Code>(value);
}

constexpr std::array kPoolNumbers = {
    &PoolStat::payload_bytes,  &PoolStat::populated_bytes,
    &PoolStat::free_bytes,     &PoolStat::object_bytes,
    &PoolStat::reserved_bytes, &PoolStat::withdrawn_bytes,
    &PoolStat::index_bytes,    &PoolStat::objects,
    &PoolStat::puts,           &PoolStat::put_bytes,
    &PoolStat::hits,           &PoolStat::evictions,
    &PoolStat::removals,       &PoolStat::swept,
    &PoolStat::stale_puts,     &PoolStat::expired_puts,
    &PoolStat::dropped_events,
};

Result<std::vector<Code>> CodesFrom(const std::string& reply, std::size_t expected) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::CodesReply>(AsBytes(reply)));
  if (SizeOf(root->codes()) != expected) {
    return Fail(Code::kCorrupt, "a reply for another number of items");
  }
  std::vector<Code> codes;
  codes.reserve(expected);
  for (std::size_t i = 0; i < expected; ++i) {
    KVCOVE_ASSIGN(const Code code, ToCode(root->codes()->Get(static_cast<unsigned>(i))));
    codes.push_back(code);
  }
  return codes;
}

std::string CodesToString(std::span<const Code> codes) {
  Builder builder;
  std::vector<std::uint16_t> numbers;
  numbers.reserve(codes.size());
  for (const Code code : codes) numbers.push_back(static_cast<std::uint16_t>(code));
  builder.Finish(fb::CreateCodesReplyDirect(builder, &numbers));
  return StringOf(builder);
}

// What is left of a caller's time travels, not its deadline: clocks differ from host to host.
// The frame tells it as of the request's arrival, but no more than about a minute; the tables of
// calls that may take longer tell it, too, and a peer of before only those.
std::int64_t DeadlineOf(std::int64_t frame_deadline_ns, std::int64_t table_budget_ns = 0) {
  const std::int64_t now = SystemClock::Instance().NowNs();
  const std::int64_t left = std::clamp<std::int64_t>(table_budget_ns, 0, 3600 * kSecond);
  if (frame_deadline_ns != 0 && left < kMaxFrameBudgetNs) return frame_deadline_ns;
  return now + (left > 0 ? left : kUntoldBudgetNs);
}

class Stub final : public HostService {
 public:
  Stub(Channel& channel, const Id128& holder, const Clock& clock)
      : channel_(channel), holder_(holder), clock_(clock) {}

  Result<Registration> Register(const RegisterRequest& request, std::int64_t deadline_ns) override {
    Builder builder;
    const auto name = Text(builder, request.name);
    const auto version = Text(builder, request.version);
    const auto engine = Text(builder, request.engine);
    const fb::Id incarnation = ToFb(request.last_incarnation);
    const fb::Id holder = ToFb(request.holder != Id128{} ? request.holder : holder_);
    builder.Finish(fb::CreateRegister(builder, name, version, engine, request.follow_always,
                                      request.assume_weights, &incarnation, request.last_generation,
                                      &holder, deadline_ns - clock_.NowNs()));
    KVCOVE_ASSIGN(const std::string reply,
                  channel_.Call(Method::kRegister, BytesOf(builder), deadline_ns));
    KVCOVE_ASSIGN(const auto* root, Root<fb::RegisterReply>(AsBytes(reply)));
    if (root->slot() >= kMaxSlots) return Fail(Code::kCorrupt, "a reply with an unknown slot");
    return Registration{.incarnation = FromFb(root->incarnation()),
                        .slot = root->slot(),
                        .generation = root->generation(),
                        .open = root->open()};
  }

  Result<ResetOutcome> Reset(const ResetRequest& request, std::int64_t deadline_ns) override {
    Builder builder;
    const auto name = Text(builder, request.name);
    const auto engine = Text(builder, request.engine);
    const auto version = Text(builder, request.version.value_or(""));
    const fb::Id id = ToFb(request.id);
    const fb::Id holder = ToFb(request.holder != Id128{} ? request.holder : holder_);
    builder.Finish(fb::CreateReset(builder, name, engine, request.version.has_value(), version, &id,
                                   deadline_ns - clock_.NowNs(), request.late, &holder));
    KVCOVE_ASSIGN(const std::string reply,
                  channel_.Call(Method::kReset, BytesOf(builder), deadline_ns));
    return DecodeResetOutcome(AsBytes(reply));
  }

  Status NameVersions(std::string_view name, std::string_view engine,
                      std::span<const std::string> versions, std::int64_t deadline_ns) override {
    return Engine(Method::kNameVersions, name, engine, versions, deadline_ns);
  }
  Status EndEngine(std::string_view name, std::string_view engine,
                   std::int64_t deadline_ns) override {
    return Engine(Method::kEndEngine, name, engine, {}, deadline_ns);
  }

  Result<std::vector<PutResult>> Put(const Token& token, std::span<const PutItem> items,
                                     std::int64_t deadline_ns) override {
    std::size_t bytes = 256;
    for (const PutItem& item : items) {
      bytes += item.value.size() + item.key.size() + item.after.size() + 64;
    }
    Builder builder(bytes);
    std::vector<flatbuffers::Offset<fb::PutItem>> offsets;
    offsets.reserve(items.size());
    for (const PutItem& item : items) {
      const auto key = Text(builder, item.key);
      flatbuffers::Offset<flatbuffers::Vector<std::uint8_t>> value;
      if (!item.value.empty()) {
        value = builder.CreateVector(reinterpret_cast<const std::uint8_t*>(item.value.data()),
                                     item.value.size());
      }
      flatbuffers::Offset<flatbuffers::String> after;
      if (!item.after.empty()) after = Text(builder, item.after);
      const fb::StagedAt staged(item.staged.sequence, item.staged.offset);
      offsets.push_back(fb::CreatePutItem(builder, key, item.size_bytes, value, after,
                                          item.staged.sequence == 0 ? nullptr : &staged,
                                          FlagsOf(item.hints), item.hints.output_tokens));
    }
    const auto list = builder.CreateVector(offsets);
    const fb::TokenValue value = ToFb(token);
    builder.Finish(fb::CreatePut(builder, &value, list));
    KVCOVE_ASSIGN(const std::string reply,
                  channel_.Call(Method::kPut, BytesOf(builder), deadline_ns));
    KVCOVE_ASSIGN(const auto* root, Root<fb::PutReply>(AsBytes(reply)));
    if (SizeOf(root->items()) != items.size()) {
      return Fail(Code::kCorrupt, "a reply for another number of items");
    }
    std::vector<PutResult> results;
    results.reserve(items.size());
    for (const fb::PutResult* item : *root->items()) {
      KVCOVE_ASSIGN(const Code code, ToCode(item->code()));
      PutResult result{.code = code, .reservation = item->reservation(), .extents = {}};
      for (std::size_t i = 0; i < SizeOf(item->extents()); ++i) {
        const fb::Piece* piece = item->extents()->Get(static_cast<unsigned>(i));
        result.extents.push_back({.start = piece->start(), .count = piece->count()});
      }
      results.push_back(std::move(result));
    }
    return results;
  }

  Result<std::vector<Code>> Finish(std::span<const FinishItem> items,
                                   std::int64_t deadline_ns) override {
    Builder builder;
    std::vector<fb::FinishItem> list;
    list.reserve(items.size());
    for (const FinishItem& item : items) list.emplace_back(item.reservation, item.commit ? 1 : 0);
    builder.Finish(fb::CreateFinishBatch(builder, builder.CreateVectorOfStructs(list)));
    KVCOVE_ASSIGN(const std::string reply,
                  channel_.Call(Method::kFinish, BytesOf(builder), deadline_ns));
    return CodesFrom(reply, items.size());
  }

  Result<std::vector<Code>> Remove(const Token& token, std::span<const std::string_view> keys,
                                   std::int64_t deadline_ns) override {
    KVCOVE_ASSIGN(const std::string reply, Keys(Method::kRemove, token, keys, 0, 0, deadline_ns));
    return CodesFrom(reply, keys.size());
  }
  Result<std::uint64_t> RemoveMatching(const Token& token, std::string_view pattern,
                                       std::int64_t deadline_ns) override {
    Builder builder;
    const fb::TokenValue value = ToFb(token);
    builder.Finish(
        fb::CreateMatch(builder, &value, Text(builder, pattern), deadline_ns - clock_.NowNs()));
    KVCOVE_ASSIGN(const std::string reply,
                  channel_.Call(Method::kRemoveMatching, BytesOf(builder), deadline_ns));
    KVCOVE_ASSIGN(const auto* root, Root<fb::CountReply>(AsBytes(reply)));
    return root->count();
  }
  Result<std::vector<Code>> Pin(const Token& token, std::span<const std::string_view> keys,
                                std::optional<PinKind> kind, std::int64_t duration_ns,
                                std::int64_t deadline_ns) override {
    KVCOVE_ASSIGN(const std::string reply,
                  Keys(Method::kPin, token, keys, kind ? static_cast<std::uint8_t>(*kind) : 0,
                       duration_ns, deadline_ns));
    return CodesFrom(reply, keys.size());
  }
  Result<InventoryReply> Page(const InventoryRequest& request, std::int64_t deadline_ns) override {
    const std::string body = Encode(request);
    KVCOVE_ASSIGN(const std::string reply,
                  channel_.Call(Method::kInventory, std::as_bytes(std::span(body)), deadline_ns));
    return DecodeInventoryReply(AsBytes(reply));
  }
  Result<std::vector<std::optional<ObjectStat>>> StatObjects(const Token& token,
                                                             std::span<const std::string_view> keys,
                                                             std::int64_t deadline_ns) override {
    KVCOVE_ASSIGN(const std::string reply,
                  Keys(Method::kStatObjects, token, keys, 0, 0, deadline_ns));
    KVCOVE_ASSIGN(const auto* root, Root<fb::ObjectStats>(AsBytes(reply)));
    if (SizeOf(root->items()) != keys.size()) {
      return Fail(Code::kCorrupt, "a reply for another number of items");
    }
    std::vector<std::optional<ObjectStat>> stats;
    for (const fb::ObjectStat* item : *root->items()) {
      if (item->present() == 0) {
        stats.emplace_back();
        continue;
      }
      stats.push_back(ObjectStat{.size_bytes = item->size_bytes(),
                                 .extents = item->extents(),
                                 .hard_pinned = (item->flags() & 1) != 0,
                                 .soft_pinned = (item->flags() & 2) != 0,
                                 .held = (item->flags() & 4) != 0});
    }
    return stats;
  }
  Result<PoolStat> Stat(std::int64_t deadline_ns) override {
    KVCOVE_ASSIGN(const std::string reply, channel_.Call(Method::kStat, {}, deadline_ns));
    KVCOVE_ASSIGN(const auto* root, Root<fb::PoolStat>(AsBytes(reply)));
    PoolStat stat;
    for (std::size_t i = 0; i < std::min(kPoolNumbers.size(), SizeOf(root->numbers())); ++i) {
      stat.*kPoolNumbers[i] = root->numbers()->Get(static_cast<unsigned>(i));
    }
    for (std::size_t i = 0; i < SizeOf(root->namespaces()); ++i) {
      const auto* item = root->namespaces()->Get(static_cast<unsigned>(i));
      stat.namespaces.push_back({.name = Str(item->name()),
                                 .bytes = item->bytes(),
                                 .maximum_bytes = item->maximum_bytes(),
                                 .guaranteed_bytes = item->guaranteed_bytes()});
    }
    for (std::size_t i = 0; i < SizeOf(root->sessions()); ++i) {
      const auto* item = root->sessions()->Get(static_cast<unsigned>(i));
      stat.sessions.push_back({.number = item->number(),
                               .pid = item->pid(),
                               .protected_objects = item->protected_objects(),
                               .reserved_bytes = item->reserved_bytes(),
                               .held_bytes = item->held_bytes()});
    }
    return stat;
  }

 private:
  Status Engine(Method method, std::string_view name, std::string_view engine,
                std::span<const std::string> versions, std::int64_t deadline_ns) {
    Builder builder;
    const auto name_text = Text(builder, name);
    const auto engine_text = Text(builder, engine);
    const auto list = builder.CreateVectorOfStrings(versions.begin(), versions.end());
    const fb::Id holder = ToFb(holder_);
    builder.Finish(fb::CreateEngineVersions(builder, name_text, engine_text, list, &holder));
    KVCOVE_TRY(channel_.Call(method, BytesOf(builder), deadline_ns));
    return {};
  }
  Result<std::string> Keys(Method method, const Token& token,
                           std::span<const std::string_view> keys, std::uint8_t kind,
                           std::int64_t duration_ns, std::int64_t deadline_ns) {
    Builder builder;
    std::vector<flatbuffers::Offset<flatbuffers::String>> list;
    list.reserve(keys.size());
    for (const std::string_view key : keys) list.push_back(Text(builder, key));
    const auto vector = builder.CreateVector(list);
    const fb::TokenValue value = ToFb(token);
    builder.Finish(fb::CreateKeys(builder, &value, vector, kind, duration_ns));
    return channel_.Call(method, BytesOf(builder), deadline_ns);
  }

  Channel& channel_;
  const Id128 holder_;
  const Clock& clock_;
};

std::string CountToString(std::uint64_t count) {
  Builder builder;
  builder.Finish(fb::CreateCountReply(builder, count));
  return StringOf(builder);
}

Result<std::string> ServePut(PutService& service, std::span<const std::byte> body,
                             std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Put>(body));
  if (root->token() == nullptr) return Fail(Code::kCorrupt, "a put without token");
  const Token token = FromFb(*root->token());
  std::vector<PutItem> items;
  items.reserve(SizeOf(root->items()));
  for (std::size_t i = 0; i < SizeOf(root->items()); ++i) {
    const fb::PutItem* item = root->items()->Get(static_cast<unsigned>(i));
    std::span<const std::byte> value;
    if (item->value() != nullptr) {
      value = {reinterpret_cast<const std::byte*>(item->value()->data()), item->value()->size()};
    }
    items.push_back({.key = View(item->key()),
                     .size_bytes = item->size_bytes(),
                     .value = value,
                     .after = View(item->after())});
    if (const fb::StagedAt* staged = item->staged(); staged != nullptr) {
      items.back().staged = {.sequence = staged->sequence(), .offset = staged->offset()};
    }
    items.back().hints = HintsOf(item->hints(), item->output_tokens());
  }
  KVCOVE_ASSIGN(const std::vector<PutResult> results, service.Put(token, items, deadline_ns));
  Builder builder;
  std::vector<flatbuffers::Offset<fb::PutResult>> list;
  list.reserve(results.size());
  for (const PutResult& result : results) {
    flatbuffers::Offset<flatbuffers::Vector<const fb::Piece*>> extents;
    if (!result.extents.empty()) {
      std::vector<fb::Piece> pieces;
      for (const Extent& extent : result.extents) pieces.emplace_back(extent.start, extent.count);
      extents = builder.CreateVectorOfStructs(pieces);
    }
    list.push_back(fb::CreatePutResult(builder, static_cast<std::uint16_t>(result.code),
                                       result.reservation, extents));
  }
  const auto vector = builder.CreateVector(list);
  builder.Finish(fb::CreatePutReply(builder, vector));
  return StringOf(builder);
}

Result<std::string> ServeFinish(PutService& service, std::span<const std::byte> body,
                                std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::FinishBatch>(body));
  if (!Aligned(root->items())) return Fail(Code::kCorrupt, "a message that is not aligned");
  std::vector<FinishItem> items;
  for (std::size_t i = 0; i < SizeOf(root->items()); ++i) {
    const fb::FinishItem* item = root->items()->Get(static_cast<unsigned>(i));
    items.push_back({.reservation = item->reservation(), .commit = item->commit() != 0});
  }
  KVCOVE_ASSIGN(const std::vector<Code> codes, service.Finish(items, deadline_ns));
  return CodesToString(codes);
}

// A request about keys of one generation.
struct KeysCall {
  Token token;
  std::vector<std::string_view> keys;  // within the body
  std::optional<PinKind> kind;
  std::int64_t duration_ns = 0;
};

Result<KeysCall> DecodeKeys(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Keys>(body));
  if (root->token() == nullptr) return Fail(Code::kCorrupt, "keys without a token");
  if (root->kind() > 2) return Fail(Code::kCorrupt, "an unknown kind of pin");
  KeysCall call{.token = FromFb(*root->token()),
                .keys = {},
                .kind = std::nullopt,
                .duration_ns = root->duration_ns()};
  KVCOVE_ASSIGN(call.keys, Views(root->keys(), body));
  if (root->kind() != 0) call.kind = static_cast<PinKind>(root->kind());
  return call;
}

Result<std::string> ServeRemovals(RemovalService& service, Method method,
                                  std::span<const std::byte> body, std::int64_t deadline_ns) {
  if (method == Method::kRemove) {
    KVCOVE_ASSIGN(const KeysCall call, DecodeKeys(body));
    KVCOVE_ASSIGN(const std::vector<Code> codes,
                  service.Remove(call.token, call.keys, DeadlineOf(deadline_ns)));
    return CodesToString(codes);
  }
  KVCOVE_ASSIGN(const auto* root, Root<fb::Match>(body));
  if (root->token() == nullptr) return Fail(Code::kCorrupt, "a pattern without a token");
  KVCOVE_ASSIGN(const std::uint64_t count,
                service.RemoveMatching(FromFb(*root->token()), View(root->pattern()),
                                       DeadlineOf(deadline_ns, root->budget_ns())));
  return CountToString(count);
}

Result<std::string> ServeStatObjects(ObjectService& service, std::span<const std::byte> body,
                                     std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const KeysCall call, DecodeKeys(body));
  KVCOVE_ASSIGN(const auto stats, service.StatObjects(call.token, call.keys, deadline_ns));
  Builder builder;
  std::vector<fb::ObjectStat> list;
  for (const std::optional<ObjectStat>& stat : stats) {
    if (!stat) {
      list.emplace_back(0, 0, 0, 0);
      continue;
    }
    const auto flags = static_cast<std::uint8_t>(
        (stat->hard_pinned ? 1 : 0) | (stat->soft_pinned ? 2 : 0) | (stat->held ? 4 : 0));
    list.emplace_back(1, flags, stat->extents, stat->size_bytes);
  }
  builder.Finish(fb::CreateObjectStats(builder, builder.CreateVectorOfStructs(list)));
  return StringOf(builder);
}

Result<std::string> ServeStat(ObjectService& service, std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const PoolStat stat, service.Stat(deadline_ns));
  Builder builder;
  std::vector<std::uint64_t> numbers;
  for (const auto member : kPoolNumbers) numbers.push_back(stat.*member);
  std::vector<flatbuffers::Offset<fb::NamespaceStat>> namespaces;
  for (const NamespaceStat& item : stat.namespaces) {
    namespaces.push_back(fb::CreateNamespaceStatDirect(builder, item.name.c_str(), item.bytes,
                                                       item.maximum_bytes, item.guaranteed_bytes));
  }
  std::vector<fb::SessionStat> sessions;
  for (const SessionStat& item : stat.sessions) {
    sessions.emplace_back(item.number, item.pid, item.protected_objects, item.reserved_bytes,
                          item.held_bytes);
  }
  builder.Finish(fb::CreatePoolStatDirect(builder, &numbers, &namespaces, &sessions));
  return StringOf(builder);
}

}  // namespace

// ---- generations

Result<RegisterCall> DecodeRegister(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Register>(body));
  return RegisterCall{.request = {.name = Str(root->name()),
                                  .version = Str(root->version()),
                                  .engine = Str(root->engine()),
                                  .follow_always = root->follow_always(),
                                  .assume_weights = root->assume_weights(),
                                  .last_incarnation = FromFb(root->last_incarnation()),
                                  .last_generation = root->last_generation(),
                                  .holder = FromFb(root->holder())},
                      .budget_ns = root->budget_ns()};
}

std::string Encode(const Registration& registration) {
  Builder builder;
  const fb::Id incarnation = ToFb(registration.incarnation);
  builder.Finish(fb::CreateRegisterReply(builder, &incarnation, registration.slot,
                                         registration.generation, registration.open));
  return StringOf(builder);
}

Result<ResetCall> DecodeReset(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Reset>(body));
  ResetCall call{.request = {.name = Str(root->name()),
                             .engine = Str(root->engine()),
                             .version = std::nullopt,
                             .id = FromFb(root->id()),
                             .late = root->late(),
                             .holder = FromFb(root->holder())},
                 .budget_ns = root->budget_ns()};
  if (root->has_version()) call.request.version = Str(root->version());
  return call;
}

Result<ResetOutcome> DecodeResetOutcome(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::ResetReply>(body));
  return ResetOutcome{.raised = static_cast<std::uint32_t>(root->raised()),
                      .incarnation = FromFb(root->incarnation()),
                      .generation = root->generation()};
}

std::string Encode(const ResetOutcome& outcome) {
  Builder builder;
  const fb::Id incarnation = ToFb(outcome.incarnation);
  builder.Finish(fb::CreateResetReply(builder, outcome.raised, &incarnation, outcome.generation));
  return StringOf(builder);
}

Result<EngineVersions> DecodeEngineVersions(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::EngineVersions>(body));
  KVCOVE_ASSIGN(const std::vector<std::string_view> versions, Views(root->versions(), body));
  return EngineVersions{.name = Str(root->name()),
                        .engine = Str(root->engine()),
                        .versions = {versions.begin(), versions.end()},
                        .holder = FromFb(root->holder())};
}

std::unique_ptr<HostService> MakeHostStub(Channel& channel, const Clock& clock) {
  return std::make_unique<Stub>(channel, Id128{}, clock);
}
std::unique_ptr<ObjectService> MakeObjectStub(Channel& channel, const Clock& clock) {
  return std::make_unique<Stub>(channel, Id128{}, clock);
}
std::unique_ptr<GenerationService> MakeGenerationStub(Channel& channel, const Id128& holder,
                                                      const Clock& clock) {
  return std::make_unique<Stub>(channel, holder, clock);
}

bool MayWait(Method method) {
  return method == Method::kRegister || method == Method::kReset ||
         method == Method::kNameVersions || method == Method::kEndEngine ||
         method == Method::kRemoveMatching;
}

bool MayWaitInCluster(Method method) {
  return method == Method::kPut || method == Method::kFinish || method == Method::kRemove;
}

Result<std::string> ServeGenerations(GenerationService& service, Method method,
                                     std::span<const std::byte> body, std::int64_t deadline_ns) {
  switch (method) {
    case Method::kRegister: {
      KVCOVE_ASSIGN(const RegisterCall call, DecodeRegister(body));
      KVCOVE_ASSIGN(const Registration registration,
                    service.Register(call.request, DeadlineOf(deadline_ns, call.budget_ns)));
      return Encode(registration);
    }
    case Method::kReset: {
      KVCOVE_ASSIGN(const ResetCall call, DecodeReset(body));
      KVCOVE_ASSIGN(const ResetOutcome outcome,
                    service.Reset(call.request, DeadlineOf(deadline_ns, call.budget_ns)));
      return Encode(outcome);
    }
    case Method::kNameVersions: {
      KVCOVE_ASSIGN(const EngineVersions engine, DecodeEngineVersions(body));
      KVCOVE_TRY(service.NameVersions(engine.name, engine.engine, engine.versions,
                                      DeadlineOf(deadline_ns)));
      return std::string();
    }
    case Method::kEndEngine: {
      KVCOVE_ASSIGN(const EngineVersions engine, DecodeEngineVersions(body));
      KVCOVE_TRY(service.EndEngine(engine.name, engine.engine, DeadlineOf(deadline_ns)));
      return std::string();
    }
    default:
      return Fail(Code::kCorrupt, "a method that is not answered here");
  }
}

Result<std::string> ServeObjects(ObjectService& service, Method method,
                                 std::span<const std::byte> body, std::int64_t frame_deadline_ns) {
  const std::int64_t deadline_ns = DeadlineOf(frame_deadline_ns);
  switch (method) {
    case Method::kPin: {
      KVCOVE_ASSIGN(const KeysCall call, DecodeKeys(body));
      KVCOVE_ASSIGN(const std::vector<Code> codes,
                    service.Pin(call.token, call.keys, call.kind, call.duration_ns, deadline_ns));
      return CodesToString(codes);
    }
    case Method::kStatObjects:
      return ServeStatObjects(service, body, deadline_ns);
    case Method::kInventory: {
      KVCOVE_ASSIGN(InventoryRequest request, DecodeInventory(body));
      if (!request.slot) return Fail(Code::kInvalid, "a page of what: the slot is missing");
      request.at_most = std::clamp<std::uint32_t>(request.at_most, 1, kMaxPage);
      KVCOVE_ASSIGN(const InventoryReply page, service.Page(request, deadline_ns));
      return Encode(page);
    }
    case Method::kStat:
      return ServeStat(service, deadline_ns);
    default:
      return Fail(Code::kCorrupt, "a method that is not answered here");
  }
}

Result<std::string> ServeHost(HostService& service, Method method, std::span<const std::byte> body,
                              std::int64_t deadline_ns) {
  switch (method) {
    case Method::kRegister:
    case Method::kReset:
    case Method::kNameVersions:
    case Method::kEndEngine:
      return ServeGenerations(service, method, body, deadline_ns);
    case Method::kPut:
      return ServePut(service, body, DeadlineOf(deadline_ns));
    case Method::kFinish:
      return ServeFinish(service, body, DeadlineOf(deadline_ns));
    case Method::kRemove:
    case Method::kRemoveMatching:
      return ServeRemovals(service, method, body, deadline_ns);
    default:
      return ServeObjects(service, method, body, deadline_ns);
  }
}

std::string EncodeHello(std::string_view name) {
  Builder builder;
  builder.Finish(fb::CreateHello(builder, Text(builder, name)));
  return StringOf(builder);
}

Result<std::string> DecodeHello(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Hello>(body));
  return Str(root->name());
}

std::string EncodeWelcome(const Welcome& welcome) {
  Builder builder;
  const fb::Id secret = ToFb(welcome.secret);
  builder.Finish(fb::CreateHelloReply(builder, welcome.session, &secret, welcome.now_ns));
  return StringOf(builder);
}

std::string Encode(const Attendance& attendance) {
  Builder builder;
  builder.Finish(fb::CreateAttendReply(builder, attendance.lease_left_ns, attendance.attendants,
                                       Text(builder, attendance.address)));
  return StringOf(builder);
}

Result<Attendance> DecodeAttendance(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::AttendReply>(body));
  return Attendance{.lease_left_ns = root->lease_left_ns(),
                    .attendants = root->attendants(),
                    .address = Str(root->address())};
}

Result<Welcome> DecodeWelcome(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::HelloReply>(body));
  return Welcome{
      .session = root->session(), .secret = FromFb(root->secret()), .now_ns = root->now_ns()};
}

std::string EncodeJoin(const Welcome& welcome) {
  Builder builder;
  const fb::Id secret = ToFb(welcome.secret);
  builder.Finish(fb::CreateJoin(builder, welcome.session, &secret));
  return StringOf(builder);
}

Result<Welcome> DecodeJoin(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Join>(body));
  return Welcome{.session = root->session(), .secret = FromFb(root->secret())};
}

}  // namespace kvcove::wire
