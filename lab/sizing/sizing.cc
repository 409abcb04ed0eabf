// SPDX-License-Identifier: Apache-2.0
#include "lab/sizing/sizing.h"

#include <fmt/core.h>

#include <algorithm>
#include <unordered_set>

#include "kvcove/base/size.h"
#include "kvcove/disklog/format.h"
#include "kvcove/model/ids.h"
#include "kvcove/owner/disk/disk_path.h"
#include "kvcove/segment/payload.h"
#include "lab/policy/two_tiers.h"

namespace kvcove::lab {
namespace {

// What docs/cluster.md and docs/ssd.md say that an object costs, at most, beside its value.
constexpr std::uint64_t kDirectoryBytes = 96;       // at the master, with the table's room to grow
constexpr std::uint64_t kIndexBytes = 128;          // at the owner of its memory, beside the key
constexpr std::uint64_t kDiskIndexBytes = 44 + 16;  // at the owner of its disk: index, shared table
constexpr std::uint64_t kHashBytes = 32;            // of a block: SHA-256
constexpr std::uint64_t kNamespaceBytes = 64;       // its name in a record, with the weight version
constexpr std::uint64_t kZonesKeptFree = 4;
constexpr std::uint64_t kMostObjects = 1ULL << 27;  // of an owner, unless --max-objects says more
constexpr std::uint64_t kLeastObjectBytes = 512;    // the same, by its memory
constexpr std::uint64_t kDiskBytesAPlace = 2048;    // of the owner's table of its disks
constexpr std::uint64_t kMostHosts = 4096;          // owners of a master
constexpr std::uint64_t kMostDiskBytes = 1ULL << 50;
constexpr std::uint64_t kMostTokenBytes = 1ULL << 40;
constexpr std::uint32_t kMostChunkTokens = 1U << 16;
constexpr std::uint64_t kSmallBlockTokens = 16;  // of a block in traces of Bailian and vLLM

// One object of each kind that a chunk has.
struct Piece {
  std::uint64_t bytes = 0;
  std::uint64_t key_bytes = 0;
};

connector::EngineShape ShapeOf(const ModelKv& model, const SizingOptions& options) {
  connector::EngineShape shape{
      .model = "planned", .hash_tokens = options.chunk_tokens, .tp = options.tp, .pp = options.pp};
  for (const KvGroup& group : model.groups) {
    shape.groups.push_back({.kind = group.kind,
                            .chunk_tokens = options.chunk_tokens,
                            .window_tokens = group.window_tokens,
                            .heads = group.heads,
                            .layout = ""});
  }
  return shape;
}

Result<std::vector<Piece>> PiecesOf(const ModelKv& model, const SizingOptions& options) {
  const connector::EngineShape shape = ShapeOf(model, options);
  KVCOVE_TRY(shape.Check());
  if (options.pp > model.layers()) {
    return Fail(Code::kInvalid,
                fmt::format("--pp {}: the model has {} layers", options.pp, model.layers()));
  }
  const connector::Keys keys(shape);
  const std::string hash(kHashBytes, '\0');
  std::vector<Piece> pieces;
  for (std::uint32_t g = 0; g < model.groups.size(); ++g) {
    const std::vector<std::string>& tags = keys.Tags(g);
    const std::uint64_t chunk_bytes = model.groups[g].token_bytes * options.chunk_tokens;
    for (const std::string& tag : tags) {
      pieces.push_back({.bytes = (chunk_bytes + tags.size() - 1) / tags.size(),
                        .key_bytes = connector::KeyBytes(tag, hash)});
    }
  }
  return pieces;
}

template <typename F>
std::uint64_t SumOf(const std::vector<Piece>& pieces, F bytes) {
  std::uint64_t sum = 0;
  for (const Piece& piece : pieces) sum += bytes(piece);
  return sum;
}

// `chunks`: of one host.
TierSizing TierOf(const SizingOptions& options, std::uint64_t host_bytes, std::uint64_t chunks,
                  std::uint64_t objects_per_chunk) {
  return {.bytes = options.hosts * host_bytes,
          .objects = options.hosts * chunks * objects_per_chunk,
          .tokens = options.hosts * chunks * options.chunk_tokens};
}

Result<std::uint64_t> ChunksInMemory(const std::vector<Piece>& pieces,
                                     const SizingOptions& options) {
  if (options.memory_bytes > segment::kMaxPayloadBytes) {
    return Fail(Code::kInvalid, fmt::format("--memory: an owner gives at most {}",
                                            FormatSize(segment::kMaxPayloadBytes)));
  }
  const segment::Granule granule = segment::Granule::For(options.memory_bytes);
  const std::uint64_t chunk =
      SumOf(pieces, [&](const Piece& piece) { return granule.Occupied(piece.bytes); });
  const std::uint64_t most_objects =
      std::clamp<std::uint64_t>(options.memory_bytes / kLeastObjectBytes, 1024, kMostObjects);
  const std::uint64_t chunks = std::min(options.memory_bytes / chunk, most_objects / pieces.size());
  if (chunks == 0) {
    return Fail(
        Code::kInvalid,
        fmt::format("--memory: {} hold no chunk of {} tokens, which takes {}",
                    FormatSize(options.memory_bytes), options.chunk_tokens, FormatSize(chunk)));
  }
  return chunks;
}

// Records do not cross zones, and an owner keeps some zones free.
Result<std::uint64_t> ChunksOnDisk(const std::vector<Piece>& pieces, const SizingOptions& options) {
  if (options.disk_bytes == 0) return 0;
  const std::uint64_t zone = owner::ZoneBytesFor(options.disk_bytes);
  const std::uint64_t usable =
      options.disk_bytes > disklog::kZonesStart ? options.disk_bytes - disklog::kZonesStart : 0;
  const std::uint64_t zones = usable / zone;
  const std::uint64_t chunk = SumOf(pieces, [](const Piece& piece) {
    const std::uint64_t record =
        disklog::kRecordHeadBytes + kNamespaceBytes + piece.key_bytes + piece.bytes;
    return disklog::AlignUp(record, disklog::kUnitBytes) + disklog::kSummaryEntryBytes +
           piece.key_bytes;
  });
  // Zones fill object by object, so what a zone has no room for is a part of an object.
  const std::uint64_t object = std::max<std::uint64_t>(chunk / pieces.size(), 1);
  const std::uint64_t a_zone = (zone - 2 * disklog::kBlockBytes) / object;
  const std::uint64_t chunks =
      zones <= kZonesKeptFree
          ? 0
          : std::min((zones - kZonesKeptFree) * a_zone, options.disk_bytes / kDiskBytesAPlace) /
                pieces.size();
  if (chunks == 0) {
    return Fail(Code::kInvalid, fmt::format("--disk: {} hold no chunk of {} tokens, which takes {} "
                                            "in zones of {}",
                                            FormatSize(options.disk_bytes), options.chunk_tokens,
                                            FormatSize(chunk), FormatSize(zone)));
  }
  return chunks;
}

Status CheckOptions(const ModelKv& model, const SizingOptions& options) {
  if (options.hosts == 0 || options.hosts > kMostHosts) {
    return Fail(Code::kInvalid, fmt::format("--hosts {}: give 1 to {}, the owners of one pool",
                                            options.hosts, kMostHosts));
  }
  if (options.tp == 0 || options.pp == 0 || options.tp > connector::kMaxRanks / options.pp) {
    return Fail(
        Code::kInvalid,
        fmt::format("--tp {} --pp {}: each is at least 1, and an engine has at most {} ranks",
                    options.tp, options.pp, connector::kMaxRanks));
  }
  if (options.chunk_tokens == 0 || options.chunk_tokens > kMostChunkTokens) {
    return Fail(Code::kInvalid, fmt::format("--chunk-tokens {}: give 1 to {}", options.chunk_tokens,
                                            kMostChunkTokens));
  }
  if (options.disk_bytes > kMostDiskBytes) {
    return Fail(Code::kInvalid,
                fmt::format("--disk: give at most {} a host", FormatSize(kMostDiskBytes)));
  }
  if (model.token_bytes() > kMostTokenBytes) {
    return Fail(Code::kInvalid, fmt::format("--model: a token of it would take {}; is it right?",
                                            FormatSize(model.token_bytes())));
  }
  return {};
}

std::uint64_t BlockTokens(TraceFormat format) {
  return format == TraceFormat::kMooncake ? kTokensPerBlock : kSmallBlockTokens;
}

Result<TwoTierCount> Simulated(const std::vector<Chain>& chains, std::uint64_t memory_blocks,
                               std::uint64_t disk_blocks) {
  if (disk_blocks > 0) {
    return SimulateTwoTiers({.descent = Descent::kAdmitted,
                             .zones = true,
                             .moves = true,
                             .memory_blocks = memory_blocks,
                             .disk_blocks = disk_blocks},
                            chains);
  }
  KVCOVE_ASSIGN(const HitCount count, Simulate("default", chains, memory_blocks));
  return TwoTierCount{.together = count, .memory_hits = count.hit_blocks};
}

// A trace that is read in another format than its own has blocks of other sizes, and the hit ratio
// would be that of another memory.
Status CheckBlocks(const std::vector<Request>& requests, TraceFormat format) {
  const std::uint64_t block = BlockTokens(format);
  const auto wrong = std::ranges::count_if(requests, [block](const Request& request) {
    const std::uint64_t blocks = request.input_tokens / block;
    return request.blocks.size() < blocks / 2 || request.blocks.size() / 2 > blocks + 1;
  });
  if (static_cast<std::size_t>(wrong) <= requests.size() / 2) return {};
  return Fail(Code::kInvalid,
              fmt::format("--trace-format: {} of {} prompts have another number of blocks than "
                          "their tokens make at {} a block; the trace has another format",
                          wrong, requests.size(), block));
}

// A tier that is larger than all blocks of the trace finds no more than one that has them all.
std::uint64_t BlocksOf(std::uint64_t tokens, TraceFormat format, std::uint64_t distinct) {
  return std::min(tokens / BlockTokens(format), 4 * distinct);
}

}  // namespace

Result<Sizing> SizeOf(const ModelKv& model, const SizingOptions& options) {
  KVCOVE_TRY(CheckOptions(model, options));
  KVCOVE_ASSIGN(const std::vector<Piece> pieces, PiecesOf(model, options));
  Sizing sizing{.objects_per_chunk = pieces.size()};
  for (const Piece& piece : pieces) {
    sizing.largest_object_bytes = std::max(sizing.largest_object_bytes, piece.bytes);
  }
  if (const Status fits = CheckObjectSize(sizing.largest_object_bytes); !fits) {
    return Fail(Code::kInvalid,
                fmt::format("--chunk-tokens {}: {}", options.chunk_tokens, fits.error().detail));
  }
  KVCOVE_ASSIGN(const std::uint64_t in_memory, ChunksInMemory(pieces, options));
  KVCOVE_ASSIGN(const std::uint64_t on_disk, ChunksOnDisk(pieces, options));
  sizing.memory = TierOf(options, options.memory_bytes, in_memory, pieces.size());
  sizing.disk = TierOf(options, options.disk_bytes, on_disk, pieces.size());
  sizing.directory_bytes = (sizing.memory.objects + sizing.disk.objects) * kDirectoryBytes;
  sizing.memory_index_bytes =
      in_memory * SumOf(pieces, [](const Piece& piece) { return kIndexBytes + piece.key_bytes; });
  sizing.disk_index_bytes = on_disk * pieces.size() * kDiskIndexBytes;
  return sizing;
}

Result<ExpectedHits> ExpectHits(const std::vector<Request>& requests, TraceFormat format,
                                std::uint64_t memory_tokens, std::uint64_t disk_tokens) {
  KVCOVE_TRY(CheckBlocks(requests, format));
  ExpectedHits hits{.requests = requests.size()};
  const std::vector<Chain> chains = ChainsOf(requests);
  std::unordered_set<std::uint32_t> distinct;
  for (const Request& request : requests) hits.tokens += request.input_tokens;
  for (const Chain& chain : chains) distinct.insert(chain.begin(), chain.end());
  hits.distinct_tokens = distinct.size() * BlockTokens(format);
  const std::uint64_t memory = BlocksOf(memory_tokens, format, distinct.size());
  const std::uint64_t disk = BlocksOf(disk_tokens, format, distinct.size());
  if (memory < 2 || (disk_tokens > 0 && disk < 2)) {
    return Fail(Code::kInvalid,
                fmt::format("--trace: its blocks have {} tokens, and {} hold {} tokens; give more",
                            BlockTokens(format), memory < 2 ? "--memory" : "--disk",
                            memory < 2 ? memory_tokens : disk_tokens));
  }
  KVCOVE_ASSIGN(const TwoTierCount planned, Simulated(chains, memory, disk));
  KVCOVE_ASSIGN(const TwoTierCount half, Simulated(chains, memory / 2, disk / 2));
  KVCOVE_ASSIGN(const TwoTierCount twice, Simulated(chains, memory * 2, disk * 2));
  KVCOVE_ASSIGN(const HitCount any, Simulate("lru", chains, distinct.size() + 1));
  hits.ratio = planned.together.ratio();
  hits.memory_ratio = planned.memory_ratio();
  hits.half = half.together.ratio();
  hits.twice = twice.together.ratio();
  hits.any = any.ratio();
  return hits;
}

}  // namespace kvcove::lab
