// SPDX-License-Identifier: Apache-2.0
#include "lab/serving/load_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/mutex.h"

namespace kvcove::lab {
namespace {

double Milliseconds(std::int64_t from_ns, std::int64_t to_ns) {
  return static_cast<double>(to_ns - from_ns) / 1e6;
}

Result<const Model*> Find(const std::vector<Model>& models, const std::string& name,
                          const OpenAiClient& engine) {
  std::string known;
  for (const Model& model : models) {
    if (model.name == name) return &model;
    known += (known.empty() ? "" : ", ") + model.name;
  }
  if (name.empty() && models.size() == 1) return &models.front();
  if (name.empty() && !models.empty()) {
    return Fail(Code::kInvalid, fmt::format("{} serves several models: name one with --model ({})",
                                            engine.name(), known));
  }
  return Fail(Code::kInvalid, fmt::format("{} does not serve the model '{}'; it serves: {}",
                                          engine.name(), name, known.empty() ? "none" : known));
}

// Returns the tokens of a word, from the difference of two prompts: a template's own do not count.
Result<double> TokensPerWord(const OpenAiClient& engine, const Load& load,
                             const std::string& model) {
  const auto tokens_of = [&](std::string text) -> Result<std::uint64_t> {
    KVCOVE_ASSIGN(const Answer answer,
                  engine.Ask({.api = load.api,
                              .model = model,
                              .messages = {{.role = "user", .text = std::move(text)}}}));
    return answer.prompt_tokens;
  };
  const std::string words = EveryWord();
  KVCOVE_ASSIGN(const std::uint64_t once, tokens_of(words));
  KVCOVE_ASSIGN(const std::uint64_t twice, tokens_of(words + ' ' + words));
  if (twice <= once) return 1.0;  // the server does not say
  return static_cast<double>(twice - once) / kDifferentWords;
}

class Runner {
 public:
  Runner(const Load& load, const Served& served, std::span<const OpenAiClient> engines)
      : load_(load), served_(served), engines_(engines) {}
  ~Runner() { Stop(); }

  Status Start() {
    began_ns_ = SystemClock::Instance().NowNs();
    for (std::uint64_t i = 0; i < std::min(load_.concurrency, load_.conversations); ++i) {
      KVCOVE_ASSIGN(auto thread, StartThread("kvcove-load", [this] { Work(); }));
      threads_.push_back(std::move(thread));
    }
    return {};
  }
  // Returns how many conversations have ended in any way.
  std::uint64_t ended() const { return ended_.load(std::memory_order_relaxed); }
  bool done() const { return ended() == load_.conversations || stop_.load(); }
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  // All threads have ended.
  Result<LoadResult> Take(bool interrupted) {
    const MutexLock lock(mutex_);
    if (refused_) return std::unexpected(*refused_);
    result_.interrupted = interrupted;
    result_.unfinished = load_.conversations - ended();
    result_.seconds = Milliseconds(began_ns_, std::max(began_ns_, last_ns_)) / 1e3;
    return std::move(result_);
  }

 private:
  void Work() {
    const InterruptBy interrupt(stop_);
    while (!stop_) {
      const std::uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
      if (number >= load_.conversations) return;
      const Status talked = Talk(number);
      if (!talked && stop_) return;  // a wait that was cut short is no loss
      {
        const MutexLock lock(mutex_);
        if (talked) {
          ++result_.completed;
        } else if (talked.error().code == Code::kInvalid) {
          if (!refused_) refused_ = talked.error();
          stop_ = true;
        } else {
          ++result_.lost[talked.error().ToString()];
        }
      }
      ended_.fetch_add(1, std::memory_order_relaxed);
    }
  }

  Status Talk(std::uint64_t number) {
    Conversation conversation = MakeConversation(load_, number, served_.tokens_per_word);
    Question question{.api = load_.api, .model = served_.model, .messages = {}};
    if (!conversation.system.empty()) {
      question.messages.push_back({.role = "system", .text = std::move(conversation.system)});
    }
    for (std::size_t i = 0; i < conversation.steps.size(); ++i) {
      Step& step = conversation.steps[i];
      if (step.begins_turn) SleepNs(static_cast<std::int64_t>(load_.pause_ms) * kMillisecond);
      if (step.tool) step.text.insert(0, "The tool's result: ");
      question.messages.push_back({.role = "user", .text = std::move(step.text)});
      question.output_tokens = step.output_tokens;
      KVCOVE_ASSIGN(Answer answer, EngineOf(number).Ask(question));
      Count(answer, /*first=*/i == 0, step.output_tokens);
      question.messages.push_back({.role = "assistant", .text = std::move(answer.text)});
    }
    return {};
  }

  const OpenAiClient& EngineOf(std::uint64_t conversation) {
    return engines_[load_.route == "request"
                        ? requests_.fetch_add(1, std::memory_order_relaxed) % engines_.size()
                        : load_.EngineOf(conversation, engines_.size())];
  }

  void Count(const Answer& answer, bool first, std::uint64_t asked_tokens) {
    const MutexLock lock(mutex_);
    (first ? result_.first_ttft_ms : result_.later_ttft_ms)
        .push_back(Milliseconds(answer.asked_ns, answer.first_token_ns));
    result_.e2e_ms.push_back(Milliseconds(answer.asked_ns, answer.ended_ns));
    result_.prompt_tokens += answer.prompt_tokens;
    result_.output_tokens += answer.output_tokens;
    if (answer.output_tokens < asked_tokens) ++result_.short_answers;
    last_ns_ = std::max(last_ns_, answer.ended_ns);
  }

  const Load& load_;
  const Served& served_;
  const std::span<const OpenAiClient> engines_;
  std::int64_t began_ns_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> next_{0};      // conversation
  std::atomic<std::uint64_t> requests_{0};  // of all conversations
  std::atomic<std::uint64_t> ended_{0};
  Mutex mutex_;
  LoadResult result_ KVCOVE_GUARDED_BY(mutex_);
  std::optional<Error> refused_ KVCOVE_GUARDED_BY(mutex_);
  std::int64_t last_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> threads_;
};

}  // namespace

std::uint64_t LoadResult::lost_conversations() const {
  std::uint64_t all = 0;
  for (const auto& [reason, count] : lost) all += count;
  return all;
}

Result<Served> LookAtEngines(const Load& load, std::span<const OpenAiClient> engines) {
  Served served{.model = load.model};
  for (const OpenAiClient& engine : engines) {
    const Result<std::vector<Model>> models = engine.Models();
    if (!models) {
      const Code code = models.error().code;
      if (code != Code::kUnavailable && code != Code::kTimeout) {
        return std::unexpected(models.error());
      }
      return Fail(code, fmt::format("{}; start the engine there and wait until it is ready, or "
                                    "name another one",
                                    models.error().detail));
    }
    KVCOVE_ASSIGN(const Model* model, Find(*models, served.model, engine));
    served.model = model->name;
    const std::uint64_t longest = load.LongestTokens();
    if (model->max_tokens > 0 && longest > model->max_tokens) {
      return Fail(
          Code::kInvalid,
          fmt::format("the load's longest request and its answer have {} tokens, and {} takes {} "
                      "(its max_model_len): fewer turns, or shorter messages and answers",
                      longest, engine.name(), model->max_tokens));
    }
  }
  KVCOVE_ASSIGN(served.tokens_per_word, TokensPerWord(engines.front(), load, served.model));
  return served;
}

Result<LoadResult> RunLoad(const Load& load, const Served& served,
                           std::span<const OpenAiClient> engines, const LoadRun& run) {
  Runner runner(load, served, engines);
  KVCOVE_TRY(runner.Start());
  bool interrupted = false;
  while (!runner.done() && !interrupted) {
    interrupted = run.interrupted();
    if (run.progress) run.progress(runner.ended());
  }
  runner.Stop();
  return runner.Take(interrupted);
}

}  // namespace kvcove::lab
