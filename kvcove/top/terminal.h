// SPDX-License-Identifier: Apache-2.0
// The terminal that the view has for itself: its modes, its size, what it shows, and the signals
// that are about it. Plain ANSI sequences, which every terminal but a dumb one understands; a
// library would bring the database of terminals that is not on each host, for six sequences.
#pragma once

#include <termios.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/posix.h"

namespace kvcove::top {

// Signals since the last call of Take.
struct Signalled {
  bool end = false;        // SIGTERM, SIGINT, SIGHUP, SIGQUIT
  bool stop = false;       // SIGTSTP
  bool continued = false;  // SIGCONT
  bool resized = false;    // SIGWINCH
};

// Takes these signals while it exists; one object a process. The handlers do no more than note the
// signal, and interrupt a write to a terminal that takes no bytes.
class Signals {
 public:
  static Result<std::unique_ptr<Signals>> Open();
  ~Signals();
  // Readable while a signal is noted.
  int fd() const;
  Signalled Take();
  // Stops this process as SIGTSTP does that nobody takes; returns when it continues.
  void StopProcess();

 private:
  Signals() = default;
  UniqueFd event_;
};

struct Size {
  std::size_t width = 80;
  std::size_t height = 24;
  bool operator==(const Size&) const = default;
};

// Uses the terminal from Enter to Leave. Leave restores the mode of its input that Enter has found,
// its cursor, and the screen from before; the destructor leaves. Belongs to one thread.
class Terminal {
 public:
  // Neither is a terminal that can move its cursor: says why.
  static Status Check(int input, int output);
  // `input` and `output` outlive it. Errors: kInternal.
  static Result<std::unique_ptr<Terminal>> Open(int input, int output);
  ~Terminal() { Leave(); }

  // In the background, stops this process until it is in the foreground.
  void Enter();
  // Waits one second at most for a terminal that takes no bytes.
  void Leave();
  // Returns the size now; 80 x 24 where the terminal does not know it.
  Size size() const;
  // Shows the lines, of which only those that changed are written. False: the terminal is gone.
  bool Show(const std::vector<std::string>& lines);
  // Makes the next Show write all lines.
  void Forget() { shown_.clear(); }

 private:
  Terminal(int input, int output) : input_(input), output_(output) {}
  bool Write(std::string_view bytes) const;

  const int input_;
  const int output_;
  termios before_{};
  bool entered_ = false;
  std::vector<std::string> shown_;
};

}  // namespace kvcove::top
