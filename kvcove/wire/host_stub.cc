// SPDX-License-Identifier: Apache-2.0
// The asking side: each call of a service becomes a frame, each reply a value.
#include "kvcove/wire/cluster.h"
#include "kvcove/wire/hints.h"
#include "kvcove/wire/host_flat.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::wire {
namespace {

Result<Code> ToCode(std::uint16_t value) {
  if (value > kMaxCode) return Fail(Code::kCorrupt, "a reply with an unknown code");
  return static_cast<Code>(value);
}

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
                                   deadline_ns - clock_.NowNs(), request.late, &holder,
                                   request.registered));
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
  Result<PruneOutcome> Prune(const PruneRequest& request, std::int64_t deadline_ns) override {
    Builder builder;
    const auto name = Text(builder, request.name);
    const auto before = Text(builder, request.before);
    builder.Finish(fb::CreatePrune(builder, name, before, deadline_ns - clock_.NowNs()));
    const auto reply = channel_.Call(Method::kPrune, BytesOf(builder), deadline_ns);
    if (!reply) {
      const Error& error = reply.error();
      if (error.code != Code::kCorrupt || !error.answered) return std::unexpected(error);
      // An authority of an earlier build does not know the method.
      return Fail(Code::kIncompatible,
                  "the pool is of an earlier version, which cannot prune; update its master, or "
                  "the process that serves this host, first");
    }
    return DecodePruneOutcome(AsBytes(*reply));
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

  Result<std::vector<Code>> NoteSaves(const Token& token, std::span<const Id128> hashes,
                                      SaveNotice notice, std::int64_t deadline_ns) override {
    const std::string body = EncodeLookup(token, hashes, notice);
    KVCOVE_ASSIGN(const std::string reply,
                  channel_.Call(Method::kNoteSaves, AsBytes(body), deadline_ns));
    return DecodeCodes(AsBytes(reply), hashes.size());
  }

  Result<std::vector<Code>> Remove(const Token& token, std::span<const std::string_view> keys,
                                   std::int64_t deadline_ns) override {
    KVCOVE_ASSIGN(const std::string reply,
                  Keys({.method = Method::kRemove}, token, keys, deadline_ns));
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
    // Asks for a hard pin with an end as for a soft one, and an owner of an earlier build makes
    // just that. It would keep a hard pin for ever, and close the connection for an unknown kind.
    const bool timed = kind == PinKind::kHard && duration_ns != 0;
    if (timed) kind = PinKind::kSoft;
    KVCOVE_ASSIGN(const std::string reply,
                  Keys({.method = Method::kPin,
                        .kind = static_cast<std::uint8_t>(kind.value_or(PinKind{})),
                        .hard = timed,
                        .duration_ns = duration_ns},
                       token, keys, deadline_ns));
    KVCOVE_ASSIGN(std::vector<Code> codes, CodesFrom(reply, keys.size()));
    KVCOVE_ASSIGN(const auto* root, Root<fb::CodesReply>(AsBytes(reply)));
    if (timed && !root->hard()) {
      return Fail(Code::kIncompatible,
                  "an owner is of an earlier version, whose hard pins have no time to live; it has "
                  "pinned softly for that time; update it");
    }
    return codes;
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
                  Keys({.method = Method::kStatObjects}, token, keys, deadline_ns));
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
    SetValues(kPoolFigures, root->figures(), stat);
    for (std::size_t i = 0; i < SizeOf(root->namespaces()); ++i) {
      const auto* item = root->namespaces()->Get(static_cast<unsigned>(i));
      stat.namespaces.push_back({.name = Str(item->name()),
                                 .bytes = item->bytes(),
                                 .maximum_bytes = item->maximum_bytes(),
                                 .guaranteed_bytes = item->guaranteed_bytes(),
                                 .priority = static_cast<NamespacePriority>(item->priority() & 3)});
    }
    for (std::size_t i = 0; i < SizeOf(root->sessions()); ++i) {
      const auto* item = root->sessions()->Get(static_cast<unsigned>(i));
      stat.sessions.push_back({.number = item->number(),
                               .pid = item->pid(),
                               .protected_objects = item->protected_objects(),
                               .reserved_bytes = item->reserved_bytes(),
                               .held_bytes = item->held_bytes()});
    }
    for (std::size_t i = 0; i < SizeOf(root->disks()); ++i) {
      const auto* item = root->disks()->Get(static_cast<unsigned>(i));
      DiskStat disk;
      disk.path = Str(item->path());
      disk.retry_ms = item->retry_ms();
      disk.counted_ms = item->counted_ms();
      SetValues(kDiskSpaceFigures, item->space(), disk.space);
      SetValues(kDiskLogFigures, item->log(), disk.log);
      SetValues(kDiskTierFigures, item->tier(), disk);
      stat.AddDisk(std::move(disk));
    }
    for (std::size_t i = 0; i < SizeOf(root->disk_shares()); ++i) {
      const auto* item = root->disk_shares()->Get(static_cast<unsigned>(i));
      stat.disk_shares.push_back({.name = Str(item->name()),
                                  .bytes = item->bytes(),
                                  .maximum_bytes = item->maximum_bytes(),
                                  .guaranteed_bytes = item->guaranteed_bytes(),
                                  .read_bytes = item->read_bytes(),
                                  .read_rate = item->read_rate(),
                                  .write_rate = item->write_rate()});
    }
    return stat;
  }

  void Load(const LoadRequest& request, std::int64_t deadline_ns, const Loaded& done) override {
    done(CallLoad(request, deadline_ns));
  }

 private:
  Result<std::vector<LoadResult>> CallLoad(const LoadRequest& request, std::int64_t deadline_ns) {
    Builder builder;
    std::vector<flatbuffers::Offset<flatbuffers::String>> list;
    list.reserve(request.keys.size());
    for (const std::string_view key : request.keys) list.push_back(Text(builder, key));
    const auto keys = builder.CreateVector(list);
    const fb::TokenValue token = ToFb(request.token);
    builder.Finish(fb::CreateLoad(builder, &token, keys, request.wait_ns, request.hold_ns));
    KVCOVE_ASSIGN(const std::string reply,
                  channel_.Call(Method::kLoad, BytesOf(builder), deadline_ns));
    KVCOVE_ASSIGN(const auto* root, Root<fb::LoadReply>(AsBytes(reply)));
    if (SizeOf(root->items()) != request.keys.size() || !Aligned(root->items())) {
      return Fail(Code::kCorrupt, "a reply for another number of items");
    }
    std::vector<LoadResult> results;
    results.reserve(request.keys.size());
    for (std::size_t i = 0; i < request.keys.size(); ++i) {
      const fb::LoadResult* item = root->items()->Get(static_cast<unsigned>(i));
      KVCOVE_ASSIGN(const Code code, ToCode(item->code()));
      if (item->reason() >= kMissReasons) {
        return Fail(Code::kCorrupt, "a reply with an unknown reason");
      }
      results.push_back({.code = code,
                         .reason = static_cast<MissReason>(item->reason()),
                         .bytes = item->bytes()});
    }
    return results;
  }
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
  struct KeysRequest {
    Method method = Method::kPin;
    std::uint8_t kind = 0;
    bool hard = false;
    std::int64_t duration_ns = 0;
  };
  Result<std::string> Keys(const KeysRequest& call, const Token& token,
                           std::span<const std::string_view> keys, std::int64_t deadline_ns) {
    Builder builder;
    std::vector<flatbuffers::Offset<flatbuffers::String>> list;
    list.reserve(keys.size());
    for (const std::string_view key : keys) list.push_back(Text(builder, key));
    const auto vector = builder.CreateVector(list);
    const fb::TokenValue value = ToFb(token);
    builder.Finish(fb::CreateKeys(builder, &value, vector, call.kind, call.duration_ns, call.hard));
    return channel_.Call(call.method, BytesOf(builder), deadline_ns);
  }

  Channel& channel_;
  const Id128 holder_;
  const Clock& clock_;
};

}  // namespace

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

}  // namespace kvcove::wire
