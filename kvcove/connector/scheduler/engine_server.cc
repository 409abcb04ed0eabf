// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/engine_server.h"

#include <fmt/core.h>

#include <exception>

#include "kvcove/base/clock.h"
#include "kvcove/base/text.h"
#include "kvcove/connector/scheduler/counts.h"

namespace kvcove::connector {
namespace {

std::string_view TextOf(std::span<const std::byte> body) {
  return {reinterpret_cast<const char*>(body.data()), body.size()};
}

std::string CountersText(const SchedulerRole& role) {
  std::string text = fmt::format("version {}\n", role.version());
  for (const Count& count : CountsOf(role.stats())) {
    text += fmt::format("{} {}\n", count.name, count.value);
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<EngineServer>> EngineServer::Open(const std::string& socket_path,
                                                         SchedulerRole& role) {
  std::unique_ptr<EngineServer> server(new EngineServer(role));
  KVCOVE_ASSIGN(
      server->server_,
      rpc::Server::Open({.socket_path = socket_path, .thread_name = "kvcove-engine"}, *server));
  KVCOVE_TRY(server->lookups_.Start());
  KVCOVE_TRY(server->admin_.Start());
  KVCOVE_TRY(server->server_->Start());
  return server;
}

EngineServer::~EngineServer() {
  if (server_ != nullptr) server_->Stop();
}

rpc::Reply EngineServer::Answer(wire::Method method, const EngineQuestion& question) {
  switch (method) {
    case wire::Method::kEngineLookup: {
      const Result<std::uint64_t> tokens =
          role_.Ask(question.hashes, question.salt, std::chrono::milliseconds(question.budget_ms));
      if (!tokens) return rpc::ErrorReply(tokens.error());
      return {.body = std::to_string(*tokens)};
    }
    case wire::Method::kEngineReset:
      if (role_.Reset()) return {};
      return {.code = Code::kNotProven,
              .body = "the reset is not proven; the engine's log says why"};
    case wire::Method::kEngineWeights:
      switch (static_cast<WeightsNews>(question.news)) {
        case WeightsNews::kChanging:
          role_.WeightsChanging();
          return {};
        case WeightsNews::kChanged:
          role_.WeightsChanged();
          return {};
        case WeightsNews::kVersion:
          role_.SetVersion(question.version);
          return {};
      }
      return {.code = Code::kInvalid, .body = "weights are changing, changed, or have a version"};
    case wire::Method::kEngineCounters:
      return {.body = CountersText(role_)};
    default:
      return {.code = Code::kInvalid, .body = "an engine does not know this method"};
  }
}

void EngineServer::OnRequest(rpc::ConnectionId, wire::Method method,
                             std::span<const std::byte> body, std::int64_t /*deadline_ns*/,
                             rpc::Responder respond) {
  Result<EngineQuestion> question = DecodeQuestion(TextOf(body));
  if (!question) return respond(rpc::ErrorReply(question.error(), /*close=*/true));
  const std::int64_t deadline_ns =
      SystemClock::Instance().NowNs() +
      static_cast<std::int64_t>(std::min<std::uint64_t>(question->budget_ms, 600'000)) *
          kMillisecond;
  // A reset may take seconds, and look-ups must not wait for it, nor a reset for them.
  rpc::Workers& workers = method == wire::Method::kEngineLookup ? lookups_ : admin_;
  const bool posted = workers.Post([this, method, question = std::move(*question), deadline_ns,
                                    respond] {
    // The client has given up, so the work would be in vain.
    if (SystemClock::Instance().NowNs() > deadline_ns) {
      return respond({.code = Code::kTimeout, .body = "it waited for longer than its deadline"});
    }
    rpc::Reply reply{.code = Code::kInternal, .body = "the engine failed to answer"};
    try {
      reply = Answer(method, question);
    } catch (const std::exception& error) {
      reply.body = error.what();
    }
    respond(std::move(reply));
  });
  if (!posted) respond({.code = Code::kLimit, .body = "too many requests wait"});
}

Result<std::string> EngineClient::Call(wire::Method method, EngineQuestion question,
                                       std::chrono::milliseconds timeout) {
  const std::int64_t deadline_ns = SystemClock::Instance().NowNs() + timeout.count() * kMillisecond;
  question.budget_ms = static_cast<std::uint64_t>(timeout.count());
  const std::string body = Encode(question);
  // Each call has its own connection, so a late answer cannot pass for the answer of a later call.
  KVCOVE_ASSIGN(rpc::Client client, rpc::Client::Connect(path_, deadline_ns));
  return client.Call(method, std::as_bytes(std::span(body)), deadline_ns);
}

Result<std::uint64_t> EngineClient::Lookup(const std::vector<std::string>& hashes,
                                           std::string_view salt,
                                           std::chrono::milliseconds timeout) {
  KVCOVE_ASSIGN(
      const std::string text,
      Call(wire::Method::kEngineLookup, {.salt = std::string(salt), .hashes = hashes}, timeout));
  return LeadingNumber(text);
}
Status EngineClient::Reset(std::chrono::milliseconds timeout) {
  KVCOVE_TRY(Call(wire::Method::kEngineReset, {}, timeout));
  return {};
}
Status EngineClient::Weights(WeightsNews news, std::string_view version,
                             std::chrono::milliseconds timeout) {
  KVCOVE_TRY(Call(wire::Method::kEngineWeights,
                  {.news = static_cast<std::uint8_t>(news), .version = std::string(version)},
                  timeout));
  return {};
}
Result<std::string> EngineClient::Counters(std::chrono::milliseconds timeout) {
  return Call(wire::Method::kEngineCounters, {}, timeout);
}

}  // namespace kvcove::connector
