// SPDX-License-Identifier: Apache-2.0
// A client of servers with OpenAI's interface, as vLLM and SGLang have it: models, streamed
// answers, metrics.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/rpc/address.h"

namespace kvcove::lab {

// Where a server is: http://host:8000, http://host:8000/prefix; with or without /v1 at its end.
struct Endpoint {
  rpc::Address address;
  std::string prefix;  // of its paths; empty: none
  std::string ToString() const;
};
// Errors: kInvalid. Port 80 where the text names none.
Result<Endpoint> ParseEndpoint(std::string_view text);

struct Message {
  std::string_view role;  // "system", "user", "assistant"
  std::string text;
};

struct Question {
  std::string api;  // "completions" or "chat"
  std::string model;
  std::vector<Message> messages;
  std::uint64_t output_tokens = 1;  // exactly so many, where the server knows ignore_eos
};

struct Answer {
  std::string text;
  std::uint64_t prompt_tokens = 0;  // 0: the server does not say
  std::uint64_t output_tokens = 0;  // events with text where the server does not say
  std::int64_t asked_ns = 0;
  std::int64_t first_token_ns = 0;
  std::int64_t ended_ns = 0;
};

// Reads the server-sent events of one answer. Belongs to one thread.
class AnswerReader {
 public:
  // The answer was asked for now.
  explicit AnswerReader(const Clock& clock);
  // Takes what came. Errors: kCorrupt, kUnavailable with what the server says of its failure.
  Status Take(std::string_view bytes);
  // Call it when the stream has ended. Errors: kUnavailable for an answer without its end.
  Result<Answer> Finish();

 private:
  Status TakeEvent(std::string_view data);

  const Clock& clock_;
  std::string line_;  // begin of a line
  Answer answer_;
  std::uint64_t events_ = 0;  // with a token
  bool done_ = false;
};

struct Model {
  std::string name;
  std::uint64_t max_tokens = 0;  // of a request and its answer; 0: the server does not say
};

// Immutable, thread-safe. Each request has a connection of its own, as servers close kept ones
// whenever they like. Waits end early as base/interrupt.h says.
class OpenAiClient {
 public:
  // `key`: bearer of each request; empty: none.
  OpenAiClient(Endpoint endpoint, std::string key, std::int64_t timeout_ns)
      : endpoint_(std::move(endpoint)), key_(std::move(key)), timeout_ns_(timeout_ns) {}

  std::string name() const { return endpoint_.ToString(); }
  // Returns the models of the server. Errors: kUnavailable, kTimeout; kInvalid for a server that
  // has no such list.
  Result<std::vector<Model>> Models() const;
  // Asks and waits for the whole answer. Errors: kInvalid when the server refuses the request
  // itself, so that asking again is useless; kUnavailable, kTimeout, kCorrupt.
  Result<Answer> Ask(const Question& question) const;
  // Returns the metrics in Prometheus' text form. Errors: kMiss when the server has none,
  // kUnavailable, kTimeout.
  Result<std::string> Metrics() const;

 private:
  Result<std::string> Get(const std::string& path) const;
  Result<Answer> Post(const std::string& target, const std::string& body) const;
  std::string authorization() const { return key_.empty() ? "" : "Bearer " + key_; }

  Endpoint endpoint_;
  std::string key_;
  std::int64_t timeout_ns_;
};

}  // namespace kvcove::lab
