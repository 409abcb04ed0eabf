// SPDX-License-Identifier: Apache-2.0
#include "kvcove/top/top.h"

#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/top/sampler.h"
#include "kvcove/top/terminal.h"

namespace kvcove::top {
namespace {

using nlohmann::json;

// For this long the rest of a key is waited for, before an Escape is one.
constexpr int kKeyMs = 50;

std::string TimeOfDay() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 16> text{};
  std::strftime(text.data(), text.size(), "%H:%M:%S", &local);
  return text.data();
}

std::string NamesOf(const SourceOptions& options) {
  std::string names;
  for (const std::string& endpoint : options.endpoints) {
    names += (names.empty() ? "" : ",") + endpoint;
  }
  return names;
}

std::string Joined(const std::vector<std::string>& reasons) {
  std::string text;
  for (const std::string& reason : reasons) text += (text.empty() ? "" : "; ") + reason;
  return text;
}

std::int64_t Nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

// Makes a view of each sample and the one before it.
class Views {
 public:
  const View& Add(Sample sample, std::int64_t at_ns) {
    const double seconds = last_ ? static_cast<double>(at_ns - at_ns_) * 1e-9 : 0;
    view_ = MakeView(last_ ? &*last_ : nullptr, sample, seconds);
    last_ = std::move(sample);
    at_ns_ = at_ns;
    return *view_;
  }
  const std::optional<View>& view() const { return view_; }
  std::int64_t at_ns() const { return at_ns_; }

 private:
  std::optional<Sample> last_;
  std::int64_t at_ns_ = 0;
  std::optional<View> view_;
};

// ---- without a screen

// Returns false where nobody reads stdout any more. Errors: kInternal, as for a full disk.
Result<bool> Print(std::string text) {
  text += '\n';
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return true;
  }
  if (errno == EPIPE) return false;
  return FailErrno(Code::kInternal, "writing to stdout");
}

Result<bool> PrintJson(const json& line) {
  return Print(line.dump(-1, ' ', false, json::error_handler_t::replace));
}

Result<bool> PrintText(const View& view, const Options& options,
                       const std::vector<std::string>& silent) {
  State state;
  state.interval_s = options.interval_s;
  const Frame frame{.width = 200,
                    .color = options.color && isatty(STDOUT_FILENO) != 0,
                    .endpoint = NamesOf(options.source),
                    .time = TimeOfDay(),
                    .trouble = Joined(silent)};
  return Print(fmt::format("{}", fmt::join(DrawWhole(view, state, frame), "\n")));
}

// Returns what a line of JSON has beside the view.
json LineOf(const Options& options) {
  return {{"schema", "kvcove.top.1"},
          {"time", std::time(nullptr)},
          {"endpoint", NamesOf(options.source)}};
}

// Prints one snapshot, whose rates are those of one interval; with `json` and not `once`, a line
// for each interval until nobody reads them.
Result<int> PrintSnapshots(const Options& options, Source& source) {
  const Clock& clock = SystemClock::Instance();
  Views views;
  KVCOVE_ASSIGN(Taken first, source.Take());
  views.Add(std::move(first.sample), clock.NowNs());
  const std::int64_t interval_ns = Nanoseconds(options.interval_s);
  std::int64_t pause_ns = interval_ns;
  while (true) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(pause_ns));
    const std::int64_t spent_ns = ThreadCostNs();
    Result<Taken> taken = source.Take();
    if (!taken && options.once) return std::unexpected(taken.error());
    json line = LineOf(options);
    if (taken) {
      const View& view = views.Add(std::move(taken->sample), clock.NowNs());
      if (!options.json) {
        KVCOVE_TRY(PrintText(view, options, taken->silent));
        return 0;
      }
      line.update(JsonOf(view));
      line["silent"] = taken->silent;
    } else {
      line["error"] = taken.error().detail;
    }
    KVCOVE_ASSIGN(const bool read, PrintJson(line));
    if (options.once || !read) return 0;
    pause_ns = PauseNs(interval_ns, ThreadCostNs() - spent_ns);
  }
}

// ---- with one

class Screen {
 public:
  Screen(const Options& options, Terminal& terminal, Signals& signals, Sampler& sampler)
      : options_(options), terminal_(terminal), signals_(signals), sampler_(sampler) {
    state_.interval_s = options.interval_s;
  }

  // Returns when the user, a signal or the terminal's end says so.
  void Run() {
    terminal_.Enter();
    bool there = Draw();
    while (there && !state_.quit) there = Wait();
    terminal_.Leave();
  }

 private:
  // False: the terminal is gone.
  bool Draw() {
    const Size size = terminal_.size();
    if (size != size_) terminal_.Forget();
    size_ = size;
    const Frame frame{.width = size.width,
                      .height = size.height,
                      .color = options_.color,
                      .endpoint = NamesOf(options_.source),
                      .time = time_,
                      .trouble = trouble_};
    std::map<std::string, std::size_t> first_rows;
    const bool there =
        terminal_.Show(top::Draw(shown_ ? &*shown_ : nullptr, state_, frame, &first_rows));
    for (const auto& [list, first] : first_rows) state_.first_rows[list] = first;
    return there;
  }

  // Waits for a key, a signal or a sample, takes them, and draws. False: the end.
  bool Wait() {
    std::array<pollfd, 3> fds = {pollfd{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                                 pollfd{.fd = signals_.fd(), .events = POLLIN, .revents = 0},
                                 pollfd{.fd = sampler_.fd(), .events = POLLIN, .revents = 0}};
    const int ready = poll(fds.data(), fds.size(), keys_.pending() ? kKeyMs : -1);
    if (ready < 0 && errno != EINTR) return false;
    if (ready == 0) Press(keys_.Flush());
    if (fds[1].revents != 0 && !TakeSignals()) return false;
    if (ready > 0 && fds[0].revents != 0 && !TakeKeys()) return false;
    auto news = sampler_.Take();
    if (!news) return Draw();
    const std::int64_t spent_ns = ThreadCostNs();
    TakeNews(std::move(*news));
    const bool there = Draw();
    sampler_.AddCost(ThreadCostNs() - spent_ns);
    return there;
  }

  bool TakeSignals() {
    const Signalled signalled = signals_.Take();
    if (signalled.end) return false;
    if (signalled.stop) {
      terminal_.Leave();
      signals_.StopProcess();
      terminal_.Enter();
    } else if (signalled.continued) {
      // After SIGSTOP, which nobody can take: the shell has changed the mode meanwhile.
      terminal_.Leave();
      terminal_.Enter();
    }
    if (signalled.resized) terminal_.Forget();
    return true;
  }

  bool TakeKeys() {
    std::array<char, 256> bytes{};
    const ssize_t got = read(STDIN_FILENO, bytes.data(), bytes.size());
    if (got < 0) return errno == EINTR || errno == EAGAIN;
    // Poll has said that there is something, so no byte is the end: the terminal hung up.
    if (got == 0) return false;
    Press(keys_.Take({bytes.data(), static_cast<std::size_t>(got)}));
    return true;
  }

  void Press(const std::vector<Key>& keys) {
    const std::vector<Table> tables = shown_ ? TablesOf(*shown_) : std::vector<Table>{};
    const double interval_s = state_.interval_s;
    for (const Key& key : keys) {
      if (key.kind == Key::Kind::kRedraw) terminal_.Forget();
      top::Press(key, tables, state_);
    }
    if (state_.interval_s != interval_s) sampler_.SetInterval(Nanoseconds(state_.interval_s));
    if (!state_.paused && views_.view()) ShowLatest();
  }

  void TakeNews(Sampler::News news) {
    if (news.taken) {
      views_.Add(std::move(news.taken->sample), news.at_ns);
      latest_time_ = TimeOfDay();
      trouble_ = Joined(news.taken->silent);
      if (!state_.paused) ShowLatest();
      return;
    }
    trouble_ = "NO ANSWER";
    if (views_.view()) {
      const double silent_s = static_cast<double>(news.at_ns - views_.at_ns()) * 1e-9;
      trouble_ += fmt::format(" for {:.0f} s", silent_s);
    }
    trouble_ += ": " + news.error;
  }

  void ShowLatest() {
    shown_ = views_.view();
    time_ = latest_time_;
  }

  const Options& options_;
  Terminal& terminal_;
  Signals& signals_;
  Sampler& sampler_;
  KeyReader keys_;
  State state_;
  Size size_;
  Views views_;
  std::optional<View> shown_;  // other than the latest view while the screen is paused
  std::string time_;
  std::string latest_time_;
  std::string trouble_;
};

}  // namespace

Result<int> Run(const Options& options) {
  KVCOVE_ASSIGN(const std::unique_ptr<HttpSource> source, HttpSource::Open(options.source));
  Options used = options;
  if (!options.once && !options.json) {
    if (const Status live = Terminal::Check(STDIN_FILENO, STDOUT_FILENO); !live) {
      WriteStderr(fmt::format("kvcove top: {}, so this is one snapshot, as with --once",
                              live.error().detail));
      used.once = true;
    }
  }
  if (used.once || used.json) return PrintSnapshots(used, *source);
  // Before the sampler's thread: it takes no signals.
  KVCOVE_ASSIGN(const std::unique_ptr<Signals> signals, Signals::Open());
  KVCOVE_ASSIGN(const std::unique_ptr<Terminal> terminal,
                Terminal::Open(STDIN_FILENO, STDOUT_FILENO));
  KVCOVE_ASSIGN(const std::unique_ptr<Sampler> sampler,
                Sampler::Start(*source, Nanoseconds(used.interval_s)));
  // A log line would be written across the screen.
  SetLogLevel(LogLevel::kOff);
  Screen(used, *terminal, *signals, *sampler).Run();
  return 0;
}

}  // namespace kvcove::top
