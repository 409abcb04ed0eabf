// SPDX-License-Identifier: Apache-2.0
// The answering side: each frame becomes a call of a service, its result the reply.
#include <algorithm>

#include "kvcove/base/clock.h"
#include "kvcove/wire/cluster.h"
#include "kvcove/wire/hints.h"
#include "kvcove/wire/host_flat.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::wire {
namespace {

std::string CodesToString(std::span<const Code> codes, bool hard = false) {
  Builder builder;
  std::vector<std::uint16_t> numbers;
  numbers.reserve(codes.size());
  for (const Code code : codes) numbers.push_back(static_cast<std::uint16_t>(code));
  builder.Finish(fb::CreateCodesReplyDirect(builder, &numbers, hard));
  return StringOf(builder);
}

Result<std::string> EncodeCodes(const Result<std::vector<Code>>& codes) {
  if (!codes) return std::unexpected(codes.error());
  return CodesToString(*codes);
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

struct PutCall {
  Token token;
  std::vector<PutItem> items;  // views of the body
};

Result<PutCall> DecodePut(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Put>(body));
  if (root->token() == nullptr) return Fail(Code::kCorrupt, "a put without token");
  PutCall call{.token = FromFb(*root->token()), .items = {}};
  call.items.reserve(SizeOf(root->items()));
  for (std::size_t i = 0; i < SizeOf(root->items()); ++i) {
    const fb::PutItem* item = root->items()->Get(static_cast<unsigned>(i));
    std::span<const std::byte> value;
    if (item->value() != nullptr) {
      value = {reinterpret_cast<const std::byte*>(item->value()->data()), item->value()->size()};
    }
    call.items.push_back({.key = View(item->key()),
                          .size_bytes = item->size_bytes(),
                          .value = value,
                          .after = View(item->after())});
    if (const fb::StagedAt* staged = item->staged(); staged != nullptr) {
      call.items.back().staged = {.sequence = staged->sequence(), .offset = staged->offset()};
    }
    call.items.back().hints = HintsOf(item->hints(), item->output_tokens());
  }
  return call;
}

Result<std::string> EncodePut(const Result<std::vector<PutResult>>& results) {
  if (!results) return std::unexpected(results.error());
  Builder builder;
  std::vector<flatbuffers::Offset<fb::PutResult>> list;
  list.reserve(results->size());
  for (const PutResult& result : *results) {
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

Result<std::vector<FinishItem>> DecodeFinish(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::FinishBatch>(body));
  if (!Aligned(root->items())) return Fail(Code::kCorrupt, "a message that is not aligned");
  std::vector<FinishItem> items;
  for (std::size_t i = 0; i < SizeOf(root->items()); ++i) {
    const fb::FinishItem* item = root->items()->Get(static_cast<unsigned>(i));
    items.push_back({.reservation = item->reservation(), .commit = item->commit() != 0});
  }
  return items;
}

Result<std::string> ServePut(PutService& service, std::span<const std::byte> body,
                             std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const PutCall call, DecodePut(body));
  return EncodePut(service.Put(call.token, call.items, deadline_ns));
}

Result<std::string> ServeNoteSaves(PutService& service, std::span<const std::byte> body,
                                   std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const LookupRequest request, DecodeLookup(body));
  KVCOVE_ASSIGN(const std::vector<Code> codes,
                service.NoteSaves(request.token, request.hashes, request.notice, deadline_ns));
  return Encode(std::span<const Code>(codes));
}

Result<std::string> ServeFinish(PutService& service, std::span<const std::byte> body,
                                std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const std::vector<FinishItem> items, DecodeFinish(body));
  return EncodeCodes(service.Finish(items, deadline_ns));
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
  KeysCall call{.token = FromFb(*root->token()), .keys = {}, .kind = std::nullopt};
  KVCOVE_ASSIGN(call.keys, Views(root->keys(), body));
  if (root->kind() == 0) return call;
  call.kind = static_cast<PinKind>(root->kind());
  if (root->hard()) {
    call.kind = PinKind::kHard;
    call.duration_ns = root->duration_ns();
    constexpr std::int64_t kLongestNs = std::chrono::nanoseconds(kLongestHardPin).count();
    if (call.duration_ns <= 0 || call.duration_ns > kLongestNs) {
      return Fail(Code::kInvalid, "a hard pin's time to live is between 0 and 24 hours");
    }
  } else if (call.kind == PinKind::kSoft) {
    constexpr std::int64_t kLongestNs = std::chrono::nanoseconds(kLongestSoftPin).count();
    call.duration_ns = std::clamp<std::int64_t>(root->duration_ns(), 0, kLongestNs);
  }
  return call;
}

// A request to remove what matches.
struct MatchCall {
  Token token;
  std::string_view pattern;  // within the body
  std::int64_t budget_ns = 0;
};

Result<MatchCall> DecodeMatch(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Match>(body));
  if (root->token() == nullptr) return Fail(Code::kCorrupt, "a pattern without a token");
  return MatchCall{.token = FromFb(*root->token()),
                   .pattern = View(root->pattern()),
                   .budget_ns = root->budget_ns()};
}

Result<std::string> EncodeMatched(const Result<std::uint64_t>& count) {
  if (!count) return std::unexpected(count.error());
  Builder builder;
  builder.Finish(fb::CreateCountReply(builder, *count));
  return StringOf(builder);
}

Result<std::string> ServeRemovals(RemovalService& service, Method method,
                                  std::span<const std::byte> body, std::int64_t deadline_ns) {
  if (method == Method::kRemove) {
    KVCOVE_ASSIGN(const KeysCall call, DecodeKeys(body));
    return EncodeCodes(service.Remove(call.token, call.keys, DeadlineOf(deadline_ns)));
  }
  KVCOVE_ASSIGN(const MatchCall call, DecodeMatch(body));
  return EncodeMatched(
      service.RemoveMatching(call.token, call.pattern, DeadlineOf(deadline_ns, call.budget_ns)));
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
  const std::vector<std::uint64_t> figures = ValuesOf(kPoolFigures, stat);
  std::vector<flatbuffers::Offset<fb::NamespaceStat>> namespaces;
  for (const NamespaceStat& item : stat.namespaces) {
    namespaces.push_back(fb::CreateNamespaceStatDirect(builder, item.name.c_str(), item.bytes,
                                                       item.maximum_bytes, item.guaranteed_bytes,
                                                       static_cast<std::uint8_t>(item.priority)));
  }
  std::vector<fb::SessionStat> sessions;
  for (const SessionStat& item : stat.sessions) {
    sessions.emplace_back(item.number, item.pid, item.protected_objects, item.reserved_bytes,
                          item.held_bytes);
  }
  std::vector<flatbuffers::Offset<fb::DiskStat>> disks;
  for (const DiskStat& item : stat.disks) {
    const std::vector<std::uint64_t> space = ValuesOf(kDiskSpaceFigures, item.space);
    const std::vector<std::uint64_t> log = ValuesOf(kDiskLogFigures, item.log);
    const std::vector<std::uint64_t> tier = ValuesOf(kDiskTierFigures, item);
    disks.push_back(fb::CreateDiskStatDirect(builder, item.path.c_str(), item.retry_ms, &space,
                                             &log, &tier, item.counted_ms));
  }
  std::vector<flatbuffers::Offset<fb::DiskShareStat>> shares;
  for (const DiskShareStat& item : stat.disk_shares) {
    shares.push_back(fb::CreateDiskShareStatDirect(
        builder, item.name.c_str(), item.bytes, item.maximum_bytes, item.guaranteed_bytes,
        item.read_bytes, item.read_rate, item.write_rate));
  }
  builder.Finish(
      fb::CreatePoolStatDirect(builder, &namespaces, &sessions, &disks, &shares, &figures));
  return StringOf(builder);
}

}  // namespace

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
    case Method::kPrune: {
      KVCOVE_ASSIGN(const PruneCall call, DecodePrune(body));
      KVCOVE_ASSIGN(const PruneOutcome outcome,
                    service.Prune(call.request, DeadlineOf(deadline_ns, call.budget_ns)));
      return Encode(outcome);
    }
    default:
      return Fail(Code::kCorrupt, "a method that is not answered here");
  }
}

bool ServePutThen(PutService& service, std::span<const std::byte> body, std::int64_t deadline_ns,
                  const std::function<bool(const Token&)>& may_begin,
                  const std::function<void(Result<std::string>)>& done) {
  const auto call = DecodePut(body);
  if (!call) {
    done(std::unexpected(call.error()));
    return true;
  }
  if (!may_begin(call->token)) return false;
  service.PutThen(
      call->token, call->items, DeadlineOf(deadline_ns),
      [done](const Result<std::vector<PutResult>>& results) { done(EncodePut(results)); });
  return true;
}

void ServeFinishThen(PutService& service, std::span<const std::byte> body, std::int64_t deadline_ns,
                     const std::function<void(Result<std::string>)>& done) {
  const auto items = DecodeFinish(body);
  if (!items) return done(std::unexpected(items.error()));
  service.FinishThen(*items, DeadlineOf(deadline_ns),
                     [done](const Result<std::vector<Code>>& codes) { done(EncodeCodes(codes)); });
}

void ServeRemovalThen(RemovalService& service, Method method, std::span<const std::byte> body,
                      std::int64_t deadline_ns,
                      const std::function<void(Result<std::string>)>& done) {
  if (method == Method::kRemove) {
    const auto call = DecodeKeys(body);
    if (!call) return done(std::unexpected(call.error()));
    return service.RemoveThen(
        call->token, call->keys, DeadlineOf(deadline_ns),
        [done](const Result<std::vector<Code>>& codes) { done(EncodeCodes(codes)); });
  }
  const auto call = DecodeMatch(body);
  if (!call) return done(std::unexpected(call.error()));
  service.RemoveMatchingThen(
      call->token, call->pattern, DeadlineOf(deadline_ns, call->budget_ns),
      [done](const Result<std::uint64_t>& count) { done(EncodeMatched(count)); });
}

void ServeLoad(ObjectService& service, std::span<const std::byte> body, std::int64_t deadline_ns,
               const std::function<void(Result<std::string>)>& done) {
  const auto root = Root<fb::Load>(body);
  if (!root) return done(std::unexpected(root.error()));
  if ((*root)->token() == nullptr) return done(Fail(Code::kCorrupt, "a load without a token"));
  const auto keys = Views((*root)->keys(), body);
  if (!keys) return done(std::unexpected(keys.error()));
  const std::int64_t longest_ns = 3600 * kSecond;
  service.Load({.token = FromFb(*(*root)->token()),
                .keys = *keys,
                .wait_ns = std::clamp<std::int64_t>((*root)->wait_ns(), 0, longest_ns),
                .hold_ns = std::clamp<std::int64_t>((*root)->hold_ns(), 0, longest_ns)},
               DeadlineOf(deadline_ns), [done](const Result<std::vector<LoadResult>>& results) {
                 if (!results) return done(std::unexpected(results.error()));
                 std::vector<fb::LoadResult> list;
                 list.reserve(results->size());
                 for (const LoadResult& one : *results) {
                   list.emplace_back(one.bytes, static_cast<std::uint16_t>(one.code),
                                     static_cast<std::uint8_t>(one.reason));
                 }
                 Builder builder;
                 builder.Finish(fb::CreateLoadReply(builder, builder.CreateVectorOfStructs(list)));
                 done(StringOf(builder));
               });
}

Result<std::string> ServeObjects(ObjectService& service, Method method,
                                 std::span<const std::byte> body, std::int64_t frame_deadline_ns) {
  const std::int64_t deadline_ns = DeadlineOf(frame_deadline_ns);
  switch (method) {
    case Method::kPin: {
      KVCOVE_ASSIGN(const KeysCall call, DecodeKeys(body));
      KVCOVE_ASSIGN(const std::vector<Code> codes,
                    service.Pin(call.token, call.keys, call.kind, call.duration_ns, deadline_ns));
      return CodesToString(codes, /*hard=*/call.kind == PinKind::kHard);
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
    case Method::kPrune:
      return ServeGenerations(service, method, body, deadline_ns);
    case Method::kPut:
      return ServePut(service, body, DeadlineOf(deadline_ns));
    case Method::kFinish:
      return ServeFinish(service, body, DeadlineOf(deadline_ns));
    case Method::kNoteSaves:
      return ServeNoteSaves(service, body, DeadlineOf(deadline_ns));
    case Method::kRemove:
    case Method::kRemoveMatching:
      return ServeRemovals(service, method, body, deadline_ns);
    default:
      return ServeObjects(service, method, body, deadline_ns);
  }
}

}  // namespace kvcove::wire
