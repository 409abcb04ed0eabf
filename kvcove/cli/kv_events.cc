// SPDX-License-Identifier: Apache-2.0
// The options --kv-events... of `kvcove serve`, `owner` and `run` (docs/kv-events.md).
#include "kvcove/cli/kv_events.h"

#include <arpa/inet.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "kvcove/base/log.h"
#include "kvcove/kvevents/zmq.h"
#include "kvcove/server/daemons.h"

namespace kvcove::cli {
namespace {

constexpr const char* kOfKvEvents = "KV events for routers";
constexpr std::size_t kMostBlocks = 1'000'000'000;  // a negative number is read as a large one

// ZeroMQ binds to addresses of this host alone, and asks no DNS.
Result<rpc::Address> BoundAddress(const char* option, const std::string& text, bool insecure) {
  Result<rpc::Address> parsed = rpc::ParseAddress(text, 0);
  if (!parsed) {
    return Fail(Code::kInvalid, fmt::format("{}: {}", option, parsed.error().detail));
  }
  rpc::Address& address = *parsed;
  if (address.host == "localhost") address.host = "127.0.0.1";
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  if (inet_pton(AF_INET, address.host.c_str(), bytes.data()) != 1 &&
      inet_pton(AF_INET6, address.host.c_str(), bytes.data()) != 1) {
    return Fail(Code::kInvalid,
                fmt::format("{} {}: '{}' is no IP address; name one of this host, "
                            "such as 127.0.0.1:{}, or 0.0.0.0:{} for all",
                            option, text, address.host, address.port, address.port));
  }
  if (rpc::IsLoopback(address) || insecure) return address;
  return Fail(
      Code::kInvalid,
      fmt::format("{} {}: other hosts reach this address, and whoever does reads the hashes "
                  "of all blocks, as KV events have neither credentials nor TLS. Listen on "
                  "a loopback address, or say --insecure if the network keeps strangers out",
                  option, text));
}

Result<bool> OneOf(const char* option, const std::string& text, const char* first,
                   const char* second) {
  if (text == first || text == second) return text == second;
  return Fail(Code::kInvalid, fmt::format("{} '{}': give {} or {}", option, text, first, second));
}

}  // namespace

Result<std::optional<server::KvEventsOptions>> KvEventsOf(const KvEventsTexts& texts, bool insecure,
                                                          std::size_t owners) {
  if (texts.events == "off") {
    const KvEventsTexts none;
    const char* const given = texts.replay != none.replay             ? "--kv-events-replay"
                              : texts.topic != none.topic             ? "--kv-events-topic"
                              : texts.namespaces != none.namespaces   ? "--kv-events-namespace"
                              : texts.hashes != none.hashes           ? "--kv-events-hashes"
                              : texts.form != none.form               ? "--kv-events-form"
                              : texts.most_blocks != none.most_blocks ? "--kv-events-blocks"
                                                                      : nullptr;
    if (given == nullptr) return std::nullopt;
    return Fail(Code::kInvalid,
                fmt::format("{}: there are no events; name their address with --kv-events", given));
  }
  server::KvEventsOptions options;
  KVCOVE_ASSIGN(options.events, BoundAddress("--kv-events", texts.events, insecure));
  if (texts.replay != "off") {
    KVCOVE_ASSIGN(options.replay, BoundAddress("--kv-events-replay", texts.replay, insecure));
    const auto [low, high] = std::minmax(options.events.port, options.replay->port);
    const auto apart = static_cast<std::size_t>(high - low);
    if (options.replay->host == options.events.host && low != 0 && apart < owners) {
      return Fail(
          Code::kInvalid,
          fmt::format("--kv-events-replay {}: each of {} owners takes a port of its own, and "
                      "those from --kv-events on reach that one; give port {}",
                      texts.replay, owners, options.events.port + owners));
    }
  }
  options.topic = texts.topic;
  options.namespaces = texts.namespaces;
  if (texts.most_blocks == 0 || texts.most_blocks > kMostBlocks) {
    return Fail(Code::kInvalid,
                fmt::format("--kv-events-blocks: give the most blocks to follow, 1 at least and {} "
                            "at most",
                            kMostBlocks));
  }
  options.most_blocks = texts.most_blocks;
  KVCOVE_ASSIGN(options.form.whole_hashes,
                OneOf("--kv-events-hashes", texts.hashes, "int", "bytes"));
  KVCOVE_ASSIGN(options.form.arrays, OneOf("--kv-events-form", texts.form, "map", "array"));
  // Before there is an owner, whose memory an error would throw away.
  KVCOVE_TRY(kvevents::zmq::Functions::Open());
  return options;
}

void AddKvEventsOptions(CLI::App& app, KvEventsTexts& texts) {
  app.add_option("--kv-events", texts.events,
                 "host:port at which routers learn which blocks this owner stores and evicts, as "
                 "vLLM's KV events over ZeroMQ (docs/kv-events.md); or off")
      ->capture_default_str()
      ->group(kOfKvEvents);
  app.add_option("--kv-events-replay", texts.replay,
                 "host:port at which routers ask for events that they have missed, and for all "
                 "blocks when they begin; or off")
      ->capture_default_str()
      ->group(kOfKvEvents);
  app.add_option("--kv-events-topic", texts.topic,
                 "topic of the events; llm-d reads kv@POD@MODEL (default: the empty one)")
      ->group(kOfKvEvents);
  app.add_option("--kv-events-namespace", texts.namespaces,
                 "pattern for the namespaces whose blocks are told; routers of one model need no "
                 "others'")
      ->capture_default_str()
      ->group(kOfKvEvents);
  app.add_option("--kv-events-hashes", texts.hashes,
                 "block hashes as int (64 bits, vLLM's default) or bytes (with "
                 "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0)")
      ->capture_default_str()
      ->group(kOfKvEvents);
  app.add_option("--kv-events-form", texts.form,
                 "an event as a map of its fields, or as an array, which older readers need")
      ->capture_default_str()
      ->group(kOfKvEvents);
  app.add_option("--kv-events-blocks", texts.most_blocks,
                 "most blocks to follow, about 150 bytes each; further ones are not told")
      ->capture_default_str()
      ->group(kOfKvEvents);
}

Result<std::vector<std::unique_ptr<server::KvEvents>>> ServeKvEvents(
    std::span<const std::unique_ptr<server::Daemon>> daemons,
    const std::optional<server::KvEventsOptions>& options, std::int64_t patience_ns) {
  std::vector<std::unique_ptr<server::KvEvents>> all;
  const Clock& clock = SystemClock::Instance();
  const std::int64_t until_ns = clock.NowNs() + patience_ns;
  for (std::size_t i = 0; options && i < daemons.size(); ++i) {
    server::KvEventsOptions own = *options;
    KVCOVE_ASSIGN(own.events, server::StepPort(own.events, i));
    if (own.replay) {
      KVCOVE_ASSIGN(own.replay, server::StepPort(*own.replay, i));
    }
    pool::LocalHost& host = daemons[i]->host();
    // A daemon without a socket has no workers, and no successor.
    const bool workers = !host.socket_path().empty();
    const auto walk = [workers, daemon = daemons[i].get()](std::function<void()> call) {
      if (workers) return daemon->PostWalk(std::move(call));
      call();
      return true;
    };
    auto events = server::KvEvents::Open(host.owner(), own, walk, clock);
    // The predecessor of a take-over has the address until it has ended.
    while (!events && events.error().code == Code::kUnavailable && clock.NowNs() < until_ns) {
      SleepNs(10 * kMillisecond);
      events = server::KvEvents::Open(host.owner(), own, walk, clock);
    }
    if (!events) return std::unexpected(events.error());
    LogInfo("KV events at {}{}", (*events)->events_endpoint(),
            own.replay ? ", replayed at " + (*events)->replay_endpoint()
                       : ", without a replay: routers that miss one learn of it too late");
    all.push_back(std::move(*events));
  }
  // Not before all are there: an error ends those of before, and their owners may go on.
  for (std::size_t i = 0; i < all.size(); ++i) {
    daemons[i]->host().AddMetrics([one = all[i].get()](Metrics& metrics, const Labels& labels) {
      one->Collect(metrics, labels);
    });
  }
  return all;
}

}  // namespace kvcove::cli
