// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "kvcove/base/hash.h"

namespace kvcove::connector {
namespace {

constexpr std::size_t kMostEvents = 1 << 16;
constexpr std::size_t kMostAnnounced = 1 << 18;
constexpr std::uint64_t kFirstStrides = 64;
constexpr std::int64_t kMemoNs = 30 * kSecond;  // half of what a hold lasts
constexpr std::size_t kMostPolled = 16;         // versions a step
constexpr std::size_t kMostAdapters = 4096;     // remembered, those that ranks have not
constexpr std::chrono::milliseconds kCaptureTimeout{5};
constexpr std::chrono::milliseconds kNamingTimeout{20};
constexpr std::int64_t kNamingEveryNs = kSecond;

std::uint64_t CeilDiv(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

}  // namespace

Result<VersionSource> ParseVersionSource(std::string_view name) {
  if (name == "fingerprint") return VersionSource::kFingerprint;
  if (name == "engine") return VersionSource::kEngine;
  if (name == "salt") return VersionSource::kSalt;
  if (name == "none") return VersionSource::kNone;
  return Fail(
      Code::kInvalid,
      fmt::format("weight_version_source '{}': give fingerprint, engine, salt or none", name));
}

SchedulerRole::SchedulerRole(const SchedulerOptions& options, Store& store, LookupRunner& runner,
                             const Clock& clock)
    : options_(options),
      keys_(options.shape),
      stride_(options.shape.stride_tokens()),
      store_(store),
      runner_(runner),
      clock_(clock),
      budget_ns_(options.lookup_budget.count() * kMillisecond),
      weights_(Weights::kKnown),
      changes_(options.shape.world(), 0),
      queued_(options.shape.world(), 0),
      rank_adapters_(options.shape.world()),
      adapters_seen_(options.shape.world(), 0) {
  const MutexLock lock(mutex_);
  if (options_.versions == VersionSource::kFingerprint) AwaitFingerprints();
}

// ---- what is known of a request

SchedulerRole::Request& SchedulerRole::Find(const RequestView& view) {
  auto at = requests_.find(view.id);
  if (at == requests_.end()) at = requests_.emplace(std::string(view.id), Request{}).first;
  Request& request = at->second;
  request.prompt_tokens = view.prompt_tokens;
  return request;
}

SchedulerRole::NewHashes SchedulerRole::ReadHashes(const RequestView& view, std::size_t known,
                                                   std::uint64_t tokens) const {
  NewHashes read{.known = known, .hashes = {}};
  const std::size_t wanted =
      std::min<std::uint64_t>(view.hashes, tokens / options_.shape.hash_tokens);
  if (wanted <= known) return read;
  ExpectNoLock("a callback of the engine");
  view.read_hashes(known, wanted, read.hashes);
  return read;
}

bool SchedulerRole::Keep(Request& request, const NewHashes& read) {
  if (request.hashes.size() != read.known) return false;
  for (std::size_t i = 0; i < read.hashes.size(); ++i) request.hashes.Add(read.hashes[i]);
  return true;
}

void SchedulerRole::DropLookup(Request& request) {
  request.lookup.reset();
  request.lookup_epoch = 0;
}

std::string SchedulerRole::VersionOf(std::string_view salt) const {
  switch (options_.versions) {
    case VersionSource::kSalt:
      return std::string(salt);
    case VersionSource::kNone:
      return {};
    default:
      return version_;
  }
}

bool SchedulerRole::BindAdapter(Request& request, AdapterId adapter) const {
  request.adapter = {.id = adapter, .digest = {}};
  request.adapter_tag = 0;
  if (adapter == 0) return true;
  const auto at = adapters_.find(adapter);
  if (at == adapters_.end() || !at->second.there) return false;
  request.adapter.digest = at->second.digest;
  request.adapter_tag = at->second.tag;
  return true;
}

std::string SchedulerRole::HashOf(const Request& request, std::uint32_t group,
                                  std::uint64_t chunk) const {
  const std::uint64_t hashes =
      options_.shape.groups[group].chunk_tokens / options_.shape.hash_tokens;
  return std::string(request.hashes[(chunk + 1) * hashes - 1]);
}

SchedulerRole::BlockMark& SchedulerRole::MarkOf(BlockId block) {
  if (block >= marks_.size()) {
    marks_.resize(std::max<std::size_t>({options_.blocks, block + 1ULL, marks_.size() * 2}));
  }
  return marks_[block];
}

// ---- look-ups

SchedulerRole::Request* SchedulerRole::BeginLookup(const RequestView& view,
                                                   std::uint64_t computed_tokens, Match& match) {
  const std::int64_t now = clock_.NowNs();
  Request& request = Find(view);
  request.computed_tokens = computed_tokens;
  request.version = VersionOf(view.salt);
  if (!BindAdapter(request, view.adapter)) return nullptr;
  if (!options_.lookup || request.lookup_over || weights_ == Weights::kChanging) return nullptr;
  if (weights_ == Weights::kAwaited) {
    // The ranks answer with the next step's report.
    match.ask_again = now - awaited_since_ns_ < options_.fingerprint_timeout.count() * kMillisecond;
    if (match.ask_again) ++stats_.asked_again;
    return nullptr;
  }
  // With full attention only, the last token is computed on blocks that were all loaded. Other
  // groups have what a hit needs at chunk ends alone, so the hit ends before the last token.
  const std::uint64_t limit =
      (options_.shape.all_full() ? view.tokens : std::max<std::uint64_t>(view.tokens, 1) - 1) /
      stride_ * stride_;
  if (limit <= computed_tokens) return nullptr;
  const bool fresh = request.lookup_epoch == epoch_ && request.lookup_from <= computed_tokens &&
                     request.lookup_limit == limit && now - request.lookup_since_ns < kMemoNs;
  if (!fresh) {
    request.lookup.reset();
    request.lookup_epoch = epoch_;
    request.lookup_limit = limit;
    request.lookup_from = computed_tokens / stride_ * stride_;
    request.lookup_begin = request.lookup_from;
    request.lookup_since_ns = now;
    request.tiers = {};
    request.lookup_counted = false;
    ++stats_.lookups;
    stats_.asked_tokens += limit - computed_tokens;
  }
  return &request;
}

std::uint64_t SchedulerRole::LookupEnd(const Request& request) const {
  // A long request's hashes are not even read before its beginning is found.
  const bool short_first = options_.shape.all_full() && request.lookup_begin == 0;
  return short_first ? std::min(request.lookup_limit, kFirstStrides * stride_)
                     : request.lookup_limit;
}

std::shared_ptr<Lookup> SchedulerRole::LookupFor(const RequestView& view,
                                                 std::uint64_t computed_tokens, Match& match) {
  std::size_t known = 0;
  std::uint64_t to = 0;
  {
    const MutexLock lock(mutex_);
    Request* const request = BeginLookup(view, computed_tokens, match);
    if (request == nullptr) return nullptr;
    if (request->lookup != nullptr) return request->lookup;
    known = request->hashes.size();
    to = LookupEnd(*request);
  }
  const NewHashes read = ReadHashes(view, known, to);
  const MutexLock lock(mutex_);
  Request& request = Find(view);
  if (!Keep(request, read)) {
    match.ask_again = true;
    return nullptr;
  }
  // A new epoch since then makes no difference here: the answer is refused after the look-up.
  request.lookup = std::make_shared<Lookup>(options_.shape, keys_,
                                            Lookup::Question{.hashes = request.hashes,
                                                             .from_tokens = request.lookup_begin,
                                                             .limit_tokens = to,
                                                             .version = request.version,
                                                             .adapter = request.adapter.digest});
  return request.lookup;
}

Match SchedulerRole::Matched(const RequestView& view, std::uint64_t computed_tokens) {
  bool again = true;
  Match match;
  while (again) match = MatchOnce(view, computed_tokens, again);
  return match;
}

Match SchedulerRole::MatchOnce(const RequestView& view, std::uint64_t computed_tokens,
                               bool& again) {
  again = false;
  Match match;
  const std::shared_ptr<Lookup> lookup = LookupFor(view, computed_tokens, match);
  if (lookup == nullptr) return match;
  std::int64_t budget_ns = 0;
  {
    const MutexLock lock(mutex_);
    budget_ns = std::max<std::int64_t>(budget_ns_, 0);
  }
  const std::int64_t start = clock_.NowNs();
  // Rounded up: what is left of a budget is never a whole look-up's end.
  const bool ended =
      runner_.Run(lookup, std::chrono::milliseconds(CeilDiv(budget_ns, kMillisecond)));
  const std::int64_t now = clock_.NowNs();

  const MutexLock lock(mutex_);
  budget_ns_ -= now - start;
  stats_.lookup_ns += static_cast<std::uint64_t>(now - start);
  const auto at = requests_.find(view.id);
  if (at == requests_.end()) return {};
  Request& request = at->second;
  const bool late = now - request.lookup_since_ns > options_.lookup_timeout.count() * kMillisecond;
  // Not answered yet, or void while it ran.
  if (ended ? request.lookup_epoch != epoch_ : !late) {
    ++stats_.asked_again;
    return {.ask_again = true};
  }
  if (!ended || !lookup->done()) {
    DropLookup(request);
    request.lookup_over = true;
    ++stats_.lookup_timeouts;
    return {};
  }
  return TakeAnswer(view, computed_tokens, *lookup, again);
}

Match SchedulerRole::TakeAnswer(const RequestView& view, std::uint64_t computed_tokens,
                                const Lookup& lookup, bool& again) {
  Request& request = requests_.find(view.id)->second;
  std::uint64_t hit = lookup.hit_tokens();
  stats_.lookup_keys += lookup.asked();
  if (hit == lookup.limit_tokens() && hit < request.lookup_limit) {
    for (std::size_t i = 0; i < kTiers; ++i) request.tiers[i] += lookup.tiers()[i];
    request.lookup.reset();
    request.lookup_begin = hit;
    again = true;
    return {};
  }
  if (hit >= view.tokens) hit = view.tokens - 1;  // the last token is always computed
  if (!request.lookup_counted) {
    for (std::size_t i = 0; i < kTiers; ++i) request.tiers[i] += lookup.tiers()[i];
    request.lookup_counted = true;
  }
  if (hit <= computed_tokens) return {};
  return {.tokens = hit - computed_tokens, .async = options_.load_async};
}

Result<std::uint64_t> SchedulerRole::Ask(const std::vector<std::string>& hashes,
                                         std::string_view salt, std::chrono::milliseconds timeout) {
  Lookup::Question question{.limit_tokens = hashes.size() * options_.shape.hash_tokens};
  for (const std::string& hash : hashes) question.hashes.Add(hash);
  {
    const MutexLock lock(mutex_);
    if (weights_ != Weights::kKnown) return Fail(Code::kClosed, "the weights are changing");
    question.version = VersionOf(salt);
  }
  Lookup lookup(options_.shape, keys_, std::move(question));
  const std::int64_t deadline_ns = clock_.NowNs() + timeout.count() * kMillisecond;
  while (!lookup.Step(store_, clock_, deadline_ns, std::chrono::milliseconds(0))) {
    if (clock_.NowNs() >= deadline_ns) return Fail(Code::kTimeout, "the pool did not answer");
  }
  return lookup.hit_tokens();
}

std::array<std::uint64_t, kTiers> SchedulerRole::TiersOf(std::string_view id) const {
  const MutexLock lock(mutex_);
  const auto at = requests_.find(id);
  return at == requests_.end() ? std::array<std::uint64_t, kTiers>{} : at->second.tiers;
}

void SchedulerRole::Allocated(std::string_view id, std::uint64_t external_tokens,
                              const std::function<BlockTables()>& blocks) {
  {
    const MutexLock lock(mutex_);
    const auto at = requests_.find(id);
    if (at == requests_.end()) return;
    DropLookup(at->second);
    if (external_tokens == 0) return;
  }
  ExpectNoLock("a callback of the engine");
  const BlockTables tables = blocks();
  const MutexLock lock(mutex_);
  const auto at = requests_.find(id);
  if (at == requests_.end()) return;
  const Request& request = at->second;
  Load load = LoadOf(request, id, external_tokens, tables);
  stats_.hit_tokens += external_tokens;
  for (std::size_t i = 0; i < kTiers; ++i) stats_.hit_keys[i] += request.tiers[i];
  ++stats_.loads;
  plan_.loads.push_back(load.order);
  load_of_[std::string(id)] = load.order.job;
  loads_.emplace(load.order.job, std::move(load));
}

SchedulerRole::Load SchedulerRole::LoadOf(const Request& request, std::string_view id,
                                          std::uint64_t external_tokens,
                                          const BlockTables& tables) {
  const std::uint64_t end = request.computed_tokens + external_tokens;
  Load load{.order = {.job = ++last_job_,
                      .request = std::string(id),
                      .version = request.version,
                      .adapter = request.adapter,
                      .sync = !options_.load_async},
            .epoch = epoch_,
            .adapter_tag = request.adapter_tag};
  for (std::uint32_t g = 0; g < options_.shape.groups.size() && g < tables.size(); ++g) {
    const std::uint64_t chunk_tokens = options_.shape.groups[g].chunk_tokens;
    const auto [needed, behind] = options_.shape.Needed(g, end);
    const std::uint64_t own = request.computed_tokens / chunk_tokens;
    const std::uint64_t hashed =
        request.hashes.size() / (chunk_tokens / options_.shape.hash_tokens);
    const std::uint64_t last = std::min<std::uint64_t>({behind, tables[g].size(), hashed});
    for (std::uint64_t c = std::max(needed, own); c < last; ++c) {
      if (tables[g][c] == kNullBlock) continue;
      // The blocks of a synchronous load hold the values when the step begins, or are reported and
      // computed again; those of another one are marked when it has ended.
      MarkOf(tables[g][c]) = load.order.sync ? BlockMark{.epoch = block_epoch_,
                                                         .stored = block_epoch_,
                                                         .adapter_tag = load.adapter_tag}
                                             : BlockMark{};
      load.order.chunks.push_back(
          {.group = g, .chunk = c, .block = tables[g][c], .hash = HashOf(request, g, c)});
    }
  }
  return load;
}

bool SchedulerRole::LoadEnded(std::string_view id) {
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  const auto job = load_of_.find(id);
  if (job == load_of_.end()) return true;
  Load& load = loads_.at(job->second);
  if (load.wanted && load.epoch != epoch_ && !load.refused) {
    load.refused = true;
    ++stats_.loads_void;
    plan_.refused.push_back(load.order);
    return false;
  }
  if (!load.failed.empty()) ++stats_.loads_failed;
  if (!load.refused && load.epoch == epoch_) {
    for (const ChunkPlace& place : load.order.chunks) {
      if (load.failed.contains(place.block)) {
        if (options_.events && announced_.erase(place.hash) > 0) {
          AddEvent({.kind = PoolEvent::Kind::kRemoved,
                    .group = place.group,
                    .first_chunk = place.chunk,
                    .hashes = {place.hash}},
                   lines);
        }
        continue;
      }
      MarkOf(place.block) = {
          .epoch = block_epoch_, .stored = block_epoch_, .adapter_tag = load.adapter_tag};
    }
  }
  const auto request = requests_.find(id);
  // What was found and is not there would be found again: compute.
  if (request != requests_.end() && !load.refused && !load.failed.empty()) {
    request->second.lookup_over = true;
  }
  loads_.erase(job->second);
  load_of_.erase(job);
  return true;
}

// ---- what a step computes

void SchedulerRole::Schedule(const ScheduledPart& part) {
  std::string version;
  const std::optional<Token> token = CaptureFor(part, version);
  std::size_t known = 0;
  {
    LinesAfterLock lines;
    const MutexLock lock(mutex_);
    const Request& request = Find(part.request);
    if (token) Notice(version, *token, lines);
    if (!Concerns(request, part)) return;
    known = request.hashes.size();
  }
  const NewHashes read =
      ReadHashes(part.request, known, part.computed_tokens + part.scheduled_tokens);
  ExpectNoLock("a callback of the engine");
  const BlockTables tables = part.blocks();
  if (tables.size() < options_.shape.groups.size()) return;
  const MutexLock lock(mutex_);
  Request& request = Find(part.request);
  if (!Keep(request, read) || (!part.started && request.marked_chunks.empty())) return;
  Compute(request, part, tables, token);
}

std::optional<Token> SchedulerRole::CaptureFor(const ScheduledPart& part, std::string& version) {
  if (!part.started || !options_.save) return std::nullopt;
  {
    const MutexLock lock(mutex_);
    version = VersionOf(part.request.salt);
    if (weights_ != Weights::kKnown) return std::nullopt;
  }
  const Result<Token> captured = store_.Capture(version, kCaptureTimeout);
  return captured ? std::optional<Token>(*captured) : std::nullopt;
}

bool SchedulerRole::Concerns(const Request& request, const ScheduledPart& part) const {
  if (part.started || request.spoiled) return true;
  if (request.marked_chunks.empty()) return false;  // never started: it is not ours to store
  const std::uint64_t after = part.computed_tokens + part.scheduled_tokens;
  const std::uint64_t savable = SavableTokens(request, part);
  for (std::uint32_t g = 0; g < options_.shape.groups.size(); ++g) {
    const std::uint64_t chunk_tokens = options_.shape.groups[g].chunk_tokens;
    if (CeilDiv(after, chunk_tokens) > request.marked_chunks[g]) return true;
    if (savable / chunk_tokens > request.saved_chunks[g]) return true;
  }
  return false;
}

void SchedulerRole::Compute(Request& request, const ScheduledPart& part, const BlockTables& tables,
                            const std::optional<Token>& token) {
  if (part.started) Begin(request, part, tables, token);
  const bool kept = request.epoch == block_epoch_;
  // The step may run under other weights than those that the request's salt names.
  const bool other_weights =
      options_.versions == VersionSource::kSalt && !version_.empty() && version_ != request.version;
  if (std::exchange(request.spoiled, false)) {
    request.may_store = false;
    for (const auto& table : tables) {
      for (const BlockId block : table) MarkOf(block).epoch = 0;
    }
  }
  if (!kept || other_weights || weights_ != Weights::kKnown) request.may_store = false;
  Mark(request, part, tables);
  // What a synchronous load brings is known when all ranks have reported; later steps save.
  if (request.may_store && !load_of_.contains(part.request.id)) OrderSave(request, part, tables);
}

void SchedulerRole::StopStoring(const std::function<bool(const Request&)>& matches) {
  for (auto& [id, request] : requests_) {
    if (matches(request)) request.may_store = false;
  }
}

void SchedulerRole::Begin(Request& request, const ScheduledPart& part, const BlockTables& tables,
                          const std::optional<Token>& token) {
  request.version = VersionOf(part.request.salt);
  request.may_store = BindAdapter(request, part.request.adapter) && token.has_value();
  request.token = token.value_or(Token{});
  request.epoch = block_epoch_;
  DropLookup(request);
  request.lookup_over = false;
  request.marked_chunks.assign(tables.size(), 0);
  request.saved_chunks.assign(tables.size(), 0);
  for (std::uint32_t g = 0; g < options_.shape.groups.size(); ++g) {
    const std::uint64_t begun =
        CeilDiv(part.computed_tokens, options_.shape.groups[g].chunk_tokens);
    request.marked_chunks[g] = begun;
    for (std::uint64_t c = 0; c < begun && c < tables[g].size(); ++c) {
      const BlockId block = tables[g][c];
      if (block == kNullBlock) continue;
      // Blocks of an older epoch, or of an adapter that has changed since, in the engine's own
      // cache: nothing that depends on them is stored.
      const BlockMark& mark = MarkOf(block);
      if (mark.epoch != block_epoch_ || mark.adapter_tag != request.adapter_tag) {
        request.may_store = false;
      }
    }
  }
  if (token && !request.may_store) ++stats_.unstored_requests;
}

void SchedulerRole::Mark(Request& request, const ScheduledPart& part, const BlockTables& tables) {
  const std::uint64_t after = part.computed_tokens + part.scheduled_tokens;
  const std::uint64_t epoch = request.may_store ? block_epoch_ : 0;
  for (std::uint32_t g = 0; g < options_.shape.groups.size(); ++g) {
    const std::uint64_t chunk_tokens = options_.shape.groups[g].chunk_tokens;
    const std::uint64_t end =
        std::min<std::uint64_t>(CeilDiv(after, chunk_tokens), tables[g].size());
    // The chunk that was begun before goes on to be computed.
    const std::uint64_t first =
        std::min(request.marked_chunks[g], part.computed_tokens / chunk_tokens);
    for (std::uint64_t c = first; c < end; ++c) {
      if (tables[g][c] == kNullBlock) continue;
      BlockMark& mark = MarkOf(tables[g][c]);
      if (c < request.marked_chunks[g]) {
        if (epoch == 0) mark.epoch = 0;
      } else {
        mark = {.epoch = epoch, .adapter_tag = request.adapter_tag};
      }
    }
    request.marked_chunks[g] = std::max(request.marked_chunks[g], end);
  }
}

std::uint64_t SchedulerRole::SavableTokens(const Request& request,
                                           const ScheduledPart& part) const {
  const std::uint64_t after = part.computed_tokens + part.scheduled_tokens;
  const std::uint64_t hashed = part.request.hashes * options_.shape.hash_tokens;
  return std::min({after, hashed, options_.save_decoded ? after : request.prompt_tokens});
}

std::vector<ChunkPlace> SchedulerRole::SavableChunks(Request& request, const ScheduledPart& part,
                                                     std::uint32_t group,
                                                     const BlockTables& tables) {
  const GroupShape& shape = options_.shape.groups[group];
  const std::uint64_t after = part.computed_tokens + part.scheduled_tokens;
  const std::uint64_t end = std::min<std::uint64_t>(
      SavableTokens(request, part) / shape.chunk_tokens, tables[group].size());
  std::vector<ChunkPlace> chunks;
  for (std::uint64_t c = request.saved_chunks[group]; c < end; ++c) {
    const BlockId block = tables[group][c];
    if (block == kNullBlock) continue;
    // A state is that of a chunk's end only when the step ends there.
    if (shape.kind == GroupKind::kState && after != (c + 1) * shape.chunk_tokens) continue;
    BlockMark& mark = MarkOf(block);
    if (mark.epoch != block_epoch_ || mark.stored == block_epoch_) continue;
    mark.stored = block_epoch_;
    if (chunks.empty() && c > 0) {
      chunks.push_back({.group = group,
                        .chunk = c - 1,
                        .block = kNullBlock,  // only says what the next one follows
                        .hash = HashOf(request, group, c - 1)});
    }
    chunks.push_back(
        {.group = group, .chunk = c, .block = block, .hash = HashOf(request, group, c)});
  }
  request.saved_chunks[group] = std::max(request.saved_chunks[group], end);
  return chunks;
}

void SchedulerRole::OrderSave(Request& request, const ScheduledPart& part,
                              const BlockTables& tables) {
  if (saves_.size() >= options_.most_save_jobs ||
      (options_.blocks > 0 && stats_.pinned_blocks > options_.blocks / 4)) {
    ++stats_.saves_postponed;
    return;
  }
  SaveOrder order{.request = std::string(part.request.id),
                  .token = request.token,
                  .version = request.version,
                  .adapter = request.adapter};
  for (std::uint32_t g = 0; g < options_.shape.groups.size(); ++g) {
    std::vector<ChunkPlace> chunks = SavableChunks(request, part, g, tables);
    std::move(chunks.begin(), chunks.end(), std::back_inserter(order.chunks));
  }
  if (order.chunks.empty()) return;
  order.hints = request.hints;
  // Decoded chunks may come for as long as the request runs, and nothing is saved at its end.
  order.goes_on =
      options_.save_decoded || part.computed_tokens + part.scheduled_tokens < request.prompt_tokens;
  order.job = ++last_job_;
  for (const ChunkPlace& place : order.chunks) {
    if (place.block == kNullBlock) continue;
    pins_.push_back(place.block);
    ++stats_.pinned_blocks;
  }
  ++stats_.saves;
  plan_.saves.push_back(order);
  const JobId job = order.job;
  saves_.emplace(job, Save{.order = std::move(order), .ranks_left = options_.shape.world()});
}

void SchedulerRole::Hint(std::string_view id, const RequestHints& hints) {
  const MutexLock lock(mutex_);
  auto at = requests_.find(id);
  if (at == requests_.end()) at = requests_.emplace(std::string(id), Request{}).first;
  at->second.hints = hints;
}

void SchedulerRole::Finished(std::string_view id) {
  const MutexLock lock(mutex_);
  const auto at = requests_.find(id);
  if (at != requests_.end()) requests_.erase(at);
  const auto job = load_of_.find(id);
  if (job == load_of_.end()) return;
  loads_.at(job->second).wanted = false;
  plan_.cancelled.push_back(job->second);
}

Plan SchedulerRole::BuildPlan(std::vector<BlockId>& pins) {
  PollGenerations();
  NameVersions();
  const bool closed = store_.closed();
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  if (closed_since_ns_ != 0 && !closed) {
    lines.Info("{}: the reset is proven after {:.1f} s; look-ups and stores go on", options_.engine,
               static_cast<double>(clock_.NowNs() - closed_since_ns_) / 1e9);
    closed_since_ns_ = 0;
    NewEpoch(/*blocks=*/false);
  }
  budget_ns_ = options_.lookup_budget.count() * kMillisecond;
  // No rank has said yet with which weights this step computes.
  if (weights_ != Weights::kKnown) StopStoring([](const Request&) { return true; });
  Plan plan = std::move(plan_);
  plan_ = {};
  plan.pool = options_.pool;
  plan.engine = options_.door;
  if (!adapters_.empty()) plan.adapters = adapters_seen_;
  if (weights_ == Weights::kAwaited && !fingerprint_told_) {
    plan.fingerprint = fingerprint_asked_;
    fingerprint_told_ = true;
  }
  pins = std::move(pins_);
  pins_.clear();
  return plan;
}

std::vector<BlockId> SchedulerRole::TakeUnpins() {
  const MutexLock lock(mutex_);
  return std::exchange(unpins_, {});
}

bool SchedulerRole::Pending() const {
  const MutexLock lock(mutex_);
  return !saves_.empty() || !loads_.empty() || !unpins_.empty() || !plan_.empty();
}

// ---- what the ranks report

void SchedulerRole::OnReport(const Report& report) {
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  if (report.rank >= changes_.size()) {
    lines.Error("{}: a report of rank {} of {}", options_.engine, report.rank, changes_.size());
    return;
  }
  stats_.ranks.Add(report.counters);
  queued_[report.rank] = report.counters.queued_jobs;
  stats_.ranks.queued_jobs = std::accumulate(queued_.begin(), queued_.end(), std::uint64_t{0});
  TakeWeights(report, lines);
  TakeAdapters(report, lines);
  TakeLoads(report);
  TakeSaves(report, lines);
}

void SchedulerRole::TakeWeights(const Report& report, LinesAfterLock& lines) {
  const bool changed = report.weight_changes > changes_[report.rank];
  if (changed) {
    changes_[report.rank] = report.weight_changes;
    weights_moved_ = true;
  }
  if (options_.versions != VersionSource::kFingerprint) return;
  if (changed && weights_ != Weights::kChanging) {
    NewEpoch(/*blocks=*/false);
    AwaitFingerprints();
  }
  if (weights_ == Weights::kAwaited && report.fingerprint_asked == fingerprint_asked_) {
    if (report.fingerprint_changes == changes_[report.rank]) {
      fingerprints_[report.rank] = report.fingerprint;
    } else {
      AwaitFingerprints();  // it has changed since
    }
  }
  AdoptFingerprints(lines);
}

void SchedulerRole::TakeLoads(const Report& report) {
  for (const LoadDone& done : report.loads) {
    const auto at = loads_.find(done.job);
    if (at == loads_.end()) continue;
    Load& load = at->second;
    load.failed.insert(done.failed.begin(), done.failed.end());
    if (!load.order.sync || ++load.ranks < options_.shape.world()) continue;
    if (!load.failed.empty()) {
      ++stats_.loads_failed;
      const auto request = requests_.find(load.order.request);
      if (request != requests_.end()) request->second.spoiled = true;
      for (const BlockId block : load.failed) MarkOf(block) = {};
    }
    load_of_.erase(load.order.request);
    loads_.erase(at);
  }
}

void SchedulerRole::TakeSaves(const Report& report, LinesAfterLock& lines) {
  for (const SaveDone& done : report.saves) {
    const auto at = saves_.find(done.job);
    if (at == saves_.end()) continue;
    at->second.missing.insert(done.missing.begin(), done.missing.end());
    if (--at->second.ranks_left > 0) continue;
    EndSave(at->second, lines);
    saves_.erase(at);
  }
}

void SchedulerRole::TakeAdapters(const Report& report, LinesAfterLock& lines) {
  if (report.adapters_number <= adapters_seen_[report.rank]) return;
  adapters_seen_[report.rank] = report.adapters_number;
  auto& mine = rank_adapters_[report.rank];
  mine.clear();
  for (const AdapterPrint& print : report.adapters) {
    mine[print.id] = print.digest;
    adapters_.try_emplace(print.id);
  }
  for (auto at = adapters_.begin(); at != adapters_.end();) {
    auto& [id, known] = *at;
    const std::string digest = DigestOf(id);
    const bool other = !digest.empty() && digest != known.digest;
    if (known.there && (digest.empty() || other)) VoidAdapter(id);
    known.there = !digest.empty();
    if (other) {
      lines.Info("{}: LoRA adapter {}: {}{}", options_.engine, id, digest,
                 known.digest.empty() ? "" : fmt::format(" (was {})", known.digest));
      known.digest = digest;
      known.tag = ++last_tag_;
    }
    at = !known.there && adapters_.size() > kMostAdapters ? adapters_.erase(at) : std::next(at);
  }
}

std::string SchedulerRole::DigestOf(AdapterId adapter) const {
  std::string all;
  std::string first;
  bool alike = true;
  for (const auto& rank : rank_adapters_) {
    const auto at = rank.find(adapter);
    if (at == rank.end()) return {};
    all += at->second + "|";
    if (first.empty()) first = all;
    alike = alike && at->second + "|" == first;
  }
  // As many ranks as there may be: mostly each has the whole adapter.
  if (alike) all = first;
  const Id128 hash = Hash128(all, 0);
  return ToHex(hash);
}

void SchedulerRole::VoidAdapter(AdapterId adapter) {
  for (auto& [id, request] : requests_) {
    if (request.adapter.id != adapter) continue;
    request.may_store = false;
    DropLookup(request);
    request.tiers = {};
  }
  for (auto& [job, load] : loads_) {
    if (load.order.adapter.id == adapter) load.epoch = 0;
  }
}

void SchedulerRole::EndSave(const Save& save, LinesAfterLock& lines) {
  PoolEvent event;
  const std::vector<ChunkPlace>& chunks = save.order.chunks;
  for (std::uint32_t i = 0; i < chunks.size(); ++i) {
    const ChunkPlace& place = chunks[i];
    if (place.block == kNullBlock) continue;
    unpins_.push_back(place.block);
    --stats_.pinned_blocks;
    if (save.missing.contains(i)) {
      // A request that computes on with it, or finds it in the engine's own cache, may store it.
      BlockMark& mark = MarkOf(place.block);
      if (mark.stored == block_epoch_) mark.stored = 0;
      continue;
    }
    if (!options_.events) continue;
    if (announced_.size() < kMostAnnounced) announced_.insert(place.hash);
    const bool follows = event.hashes.size() > 0 && event.group == place.group &&
                         event.first_chunk + event.hashes.size() == place.chunk;
    if (!follows) {
      if (!event.hashes.empty()) AddEvent(std::move(event), lines);
      event = {.request = save.order.request,
               .group = place.group,
               .first_chunk = place.chunk,
               .hashes = {},
               .parent = i > 0 && chunks[i - 1].group == place.group &&
                                 chunks[i - 1].chunk + 1 == place.chunk
                             ? chunks[i - 1].hash
                             : std::string()};
    }
    event.hashes.push_back(place.hash);
  }
  if (!event.hashes.empty()) AddEvent(std::move(event), lines);
}

void SchedulerRole::AddEvent(PoolEvent event, LinesAfterLock& lines) {
  if (events_.size() >= kMostEvents) {
    events_.pop_front();
    if (stats_.events_dropped++ == 0) {
      lines.Warn("{}: nobody takes the KV events; the oldest are dropped", options_.engine);
    }
  }
  events_.push_back(std::move(event));
}

std::vector<PoolEvent> SchedulerRole::TakeEvents() {
  const MutexLock lock(mutex_);
  std::vector<PoolEvent> events(std::make_move_iterator(events_.begin()),
                                std::make_move_iterator(events_.end()));
  events_.clear();
  return events;
}

// ---- epochs

void SchedulerRole::NewEpoch(bool blocks) {
  ++epoch_;
  ++stats_.epochs;
  if (blocks) ++block_epoch_;
  for (auto& [id, request] : requests_) {
    DropLookup(request);
    request.tiers = {};
  }
}

void SchedulerRole::Notice(std::string_view version, const Token& token, LinesAfterLock& lines) {
  auto at = tokens_.find(version);
  if (at == tokens_.end()) {
    if (tokens_.size() > 64) tokens_.clear();
    tokens_.emplace(std::string(version), token);
    return;
  }
  if (at->second == token) return;
  at->second = token;
  lines.Info("{}: the pool was reset; what was computed before is not stored", options_.engine);
  NewEpoch(/*blocks=*/true);
}

void SchedulerRole::PollGenerations() {
  std::vector<std::string> versions;
  {
    const MutexLock lock(mutex_);
    const auto add = [&](const std::string& version) {
      // Mostly they are one.
      if (std::ranges::find(versions, version) == versions.end()) versions.push_back(version);
    };
    // Only what something depends on: asking makes a generation used.
    for (const auto& [job, load] : loads_) {
      if (load.epoch == epoch_) add(load.order.version);
    }
    for (const auto& [id, request] : requests_) {
      if (request.may_store && request.epoch == block_epoch_) add(request.version);
      if (versions.size() >= kMostPolled) break;
    }
  }
  for (const std::string& version : versions) {
    const Result<Token> token = store_.Capture(version, kCaptureTimeout);
    if (!token) continue;
    LinesAfterLock lines;
    const MutexLock lock(mutex_);
    Notice(version, *token, lines);
  }
}

void SchedulerRole::NameVersions() {
  std::set<std::string> names;
  {
    const MutexLock lock(mutex_);
    const std::int64_t now = clock_.NowNs();
    const bool salts = options_.versions == VersionSource::kSalt && !requests_.empty();
    if (!names_changed_ && !salts) return;
    if (now - named_ns_ < kNamingEveryNs) return;
    named_ns_ = now;
    names_changed_ = false;
    if (!version_.empty()) names.insert(version_);
    for (const auto& [id, request] : requests_) {
      if (salts && !request.version.empty()) names.insert(request.version);
    }
  }
  const std::vector<std::string> list(names.begin(), names.end());
  // A hint for what is reclaimed first; it may be lost.
  (void)store_.NameVersions(list, kNamingTimeout);
}

// ---- resets and weights

bool SchedulerRole::Reset() {
  ResetOptions options{.timeout = options_.reset_timeout};
  {
    LinesAfterLock lines;
    const MutexLock lock(mutex_);
    NewEpoch(/*blocks=*/true);
    tokens_.clear();
    events_.clear();
    announced_.clear();
    if (options_.events) AddEvent({.kind = PoolEvent::Kind::kAllCleared}, lines);
    const bool versioned = options_.versions == VersionSource::kFingerprint ||
                           options_.versions == VersionSource::kEngine;
    if (versioned && !version_.empty()) options.version = version_;
  }
  const std::int64_t start = clock_.NowNs();
  const Status status = store_.Reset(options);
  if (status) UseUnlessWeightsMoved();
  const double ms = static_cast<double>(clock_.NowNs() - start) / 1e6;
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  ++(status ? stats_.resets_proven : stats_.resets_failed);
  if (status) {
    lines.Info("{}: reset in {:.1f} ms (number {})", options_.engine, ms, stats_.resets_proven);
    return true;
  }
  if (closed_since_ns_ == 0) closed_since_ns_ = start;
  lines.Error(
      "{}: the reset could not be proven in {:.0f} ms ({}); nothing is looked up or stored "
      "until it is; it is repeated in the background",
      options_.engine, ms, status.error().detail);
  return options_.closed_on_reset_failure;
}

void SchedulerRole::UseUnlessWeightsMoved() {
  {
    const MutexLock lock(mutex_);
    const bool moved = std::exchange(weights_moved_, false);
    if (moved || options_.versions != VersionSource::kNone) return;
  }
  // Without versions, engines that reset after one update share the generation until one of them
  // uses it. This reset followed no update, so an engine that resets for newer weights must not
  // share it.
  (void)store_.Capture({}, kCaptureTimeout);
}

void SchedulerRole::WeightsChanging() {
  const MutexLock lock(mutex_);
  weights_moved_ = true;
  if (options_.versions != VersionSource::kFingerprint &&
      options_.versions != VersionSource::kEngine) {
    return;
  }
  weights_ = Weights::kChanging;
  NewEpoch(/*blocks=*/false);
}

void SchedulerRole::WeightsChanged() {
  const MutexLock lock(mutex_);
  // With kEngine the version says that they are the new ones.
  if (options_.versions == VersionSource::kFingerprint) AwaitFingerprints();
}

void SchedulerRole::AwaitFingerprints() {
  weights_ = Weights::kAwaited;
  ++fingerprint_asked_;
  fingerprint_told_ = false;
  awaited_since_ns_ = clock_.NowNs();
  fingerprints_.clear();
}

void SchedulerRole::StartWith(const std::vector<std::string>& fingerprints) {
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  if (options_.versions != VersionSource::kFingerprint || weights_ != Weights::kAwaited ||
      fingerprints.size() != changes_.size()) {
    return;
  }
  for (std::uint32_t rank = 0; rank < fingerprints.size(); ++rank) {
    fingerprints_[rank] = fingerprints[rank];
  }
  AdoptFingerprints(lines);
}

void SchedulerRole::AdoptFingerprints(LinesAfterLock& lines) {
  if (weights_ != Weights::kAwaited || fingerprints_.size() != changes_.size()) return;
  std::string all;
  for (const auto& [rank, fingerprint] : fingerprints_) all += fingerprint + "|";
  const Id128 hash = Hash128(all, 0);
  Adopt("w" + ToHex(hash), lines);
}

void SchedulerRole::Adopt(const std::string& version, LinesAfterLock& lines) {
  weights_ = Weights::kKnown;
  if (version == version_) return;
  if (!version_.empty()) {
    lines.Info("{}: other weights: {} (was {})", options_.engine, version, version_);
  }
  version_ = version;
  names_changed_ = true;
  NewEpoch(/*blocks=*/true);
}

void SchedulerRole::SetVersion(std::string_view version) {
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  if (options_.versions == VersionSource::kEngine) {
    Adopt(std::string(version), lines);
  } else if (options_.versions == VersionSource::kSalt) {
    version_ = version;
    names_changed_ = true;
    StopStoring([&](const Request& request) { return request.version != version; });
  }
}

std::string SchedulerRole::version() const {
  const MutexLock lock(mutex_);
  return version_;
}

bool SchedulerRole::HasAdapter(AdapterId adapter) const {
  const MutexLock lock(mutex_);
  const auto at = adapters_.find(adapter);
  return at != adapters_.end() && at->second.there;
}

SchedulerStats SchedulerRole::stats() const {
  const bool closed = store_.closed();
  const MutexLock lock(mutex_);
  SchedulerStats stats = stats_;
  stats.closed = closed || weights_ != Weights::kKnown ? 1 : 0;
  return stats;
}

}  // namespace kvcove::connector
