// SPDX-License-Identifier: Apache-2.0
#include "kvcove/top/terminal.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>

namespace kvcove::top {
namespace {

// The alternate screen, no cursor, no automatic line breaks: a cell too many must not scroll.
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J";
constexpr std::string_view kLeave = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";
constexpr std::string_view kClear = "\x1b[H\x1b[2J";
constexpr int kLeaveMs = 1000;

constexpr auto kTaken =
    std::to_array<int>({SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH});

// Written by the handlers. Lock-free atomics are safe there, and so is write(2).
std::atomic<unsigned> noted_signals{0};
std::atomic<int> signal_event{-1};
static_assert(std::atomic<unsigned>::is_always_lock_free);
std::array<struct sigaction, kTaken.size()> former_actions;

unsigned BitOf(int signal) {
  for (std::size_t i = 0; i < kTaken.size(); ++i) {
    if (kTaken[i] == signal) return 1U << i;
  }
  return 0;
}

void NoteSignal(int signal) {
  const int error = errno;
  noted_signals.fetch_or(BitOf(signal));
  const std::uint64_t one = 1;
  (void)!write(signal_event.load(), &one, sizeof(one));
  errno = error;
}

// No SA_RESTART: a write to a terminal that takes nothing must end.
struct sigaction NotingAction() {
  struct sigaction action{};
  action.sa_handler = &NoteSignal;
  sigemptyset(&action.sa_mask);
  return action;
}

bool EndIsNoted() {
  return (noted_signals.load() &
          (BitOf(SIGTERM) | BitOf(SIGINT) | BitOf(SIGHUP) | BitOf(SIGQUIT))) != 0;
}

}  // namespace

Result<std::unique_ptr<Signals>> Signals::Open() {
  std::unique_ptr<Signals> signals(new Signals);
  signals->event_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!signals->event_.valid()) return FailErrno(Code::kInternal, "creating an eventfd");
  noted_signals = 0;
  signal_event = signals->event_.get();
  const struct sigaction action = NotingAction();
  for (std::size_t i = 0; i < kTaken.size(); ++i) {
    sigaction(kTaken[i], &action, &former_actions[i]);
  }
  return signals;
}

Signals::~Signals() {
  if (!event_.valid()) return;
  for (std::size_t i = 0; i < kTaken.size(); ++i) {
    sigaction(kTaken[i], &former_actions[i], nullptr);
  }
  signal_event = -1;
}

int Signals::fd() const { return event_.get(); }

Signalled Signals::Take() {
  std::uint64_t count = 0;
  (void)!read(event_.get(), &count, sizeof(count));
  const unsigned noted = noted_signals.exchange(0);
  const auto has = [&](int signal) { return (noted & BitOf(signal)) != 0; };
  return {.end = has(SIGTERM) || has(SIGINT) || has(SIGHUP) || has(SIGQUIT),
          .stop = has(SIGTSTP),
          .continued = has(SIGCONT),
          .resized = has(SIGWINCH)};
}

void Signals::StopProcess() {
  struct sigaction usual{};
  usual.sa_handler = SIG_DFL;
  sigaction(SIGTSTP, &usual, nullptr);
  raise(SIGTSTP);
  const struct sigaction action = NotingAction();
  sigaction(SIGTSTP, &action, nullptr);
}

Status Terminal::Check(int input, int output) {
  if (isatty(output) == 0) return Fail(Code::kInvalid, "stdout is no terminal");
  if (isatty(input) == 0) return Fail(Code::kInvalid, "stdin is no terminal");
  const char* const name = std::getenv("TERM");
  if (name == nullptr || *name == '\0') return Fail(Code::kInvalid, "TERM names no terminal");
  if (std::string_view(name) == "dumb") {
    return Fail(Code::kInvalid, "TERM=dumb is a terminal whose cursor cannot be moved");
  }
  return {};
}

Result<std::unique_ptr<Terminal>> Terminal::Open(int input, int output) {
  std::unique_ptr<Terminal> terminal(new Terminal(input, output));
  if (tcgetattr(input, &terminal->before_) != 0) {
    return FailErrno(Code::kInternal, "reading the mode of the terminal");
  }
  return terminal;
}

// ISIG stays: Ctrl-C and Ctrl-Z are signals. IXON ends, so that Ctrl-S stops no output. In the
// background tcsetattr() stops the process, and SIGCONT interrupts it: the mode that was read is
// the line editor's of the shell, so it is read again.
void Terminal::Enter() {
  if (entered_) return;
  bool again = true;
  while (again) {
    if (tcgetattr(input_, &before_) != 0) break;  // the terminal is gone, as Show notices
    termios mode = before_;
    mode.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | IEXTEN);
    mode.c_iflag &= ~static_cast<tcflag_t>(IXON | ICRNL);
    mode.c_cc[VMIN] = 1;
    mode.c_cc[VTIME] = 0;
    again = tcsetattr(input_, TCSANOW, &mode) != 0 && errno == EINTR && !EndIsNoted();
  }
  entered_ = true;
  Forget();
  Write(kEnter);
}

// Once more when a signal interrupts it: the shell needs its terminal.
void Terminal::Leave() {
  if (!entered_) return;
  entered_ = false;
  pollfd output{.fd = output_, .events = POLLOUT, .revents = 0};
  int ready = 0;
  do {
    ready = poll(&output, 1, kLeaveMs);
  } while (ready < 0 && errno == EINTR);
  if (ready > 0 && !Write(kLeave)) (void)!write(output_, kLeave.data(), kLeave.size());
  tcsetattr(input_, TCSANOW, &before_);
}

Size Terminal::size() const {
  winsize window{};
  if (ioctl(output_, TIOCGWINSZ, &window) != 0 || window.ws_col == 0 || window.ws_row == 0) {
    return {};
  }
  return {.width = window.ws_col, .height = window.ws_row};
}

bool Terminal::Show(const std::vector<std::string>& lines) {
  std::string bytes;
  if (shown_.size() != lines.size()) {
    shown_.clear();
    bytes = kClear;
  }
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i < shown_.size() && shown_[i] == lines[i]) continue;
    // Cleared first: behind a line of full width the cursor is on its last cell.
    bytes += fmt::format("\x1b[{};1H\x1b[K{}", i + 1, lines[i]);
  }
  shown_ = lines;
  return Write(bytes);
}

// False: the terminal is gone, or somebody wants this process to end while it takes no bytes.
bool Terminal::Write(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t written = write(output_, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) return false;
    bytes.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
    // Also after a part: where the terminal has taken one, a signal ends the write without an
    // error.
    if (!bytes.empty() && EndIsNoted()) return false;
  }
  return true;
}

}  // namespace kvcove::top
