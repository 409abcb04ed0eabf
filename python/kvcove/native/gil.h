// SPDX-License-Identifier: Apache-2.0
// The GIL, given up and taken back, also where the interpreter ends meanwhile.
//
// When the main thread has left the interpreter, CPython before 3.14 ends every other thread that
// asks for the GIL: pthread_exit() unwinds its stack, and a destructor on it that may not throw
// ends the process with SIGABRT. Since 3.14 such a thread waits until the process ends. These
// classes do that with every version, so nothing of a call's arguments and results is destroyed
// without the GIL.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/posix.h"

namespace kvcove::python {

namespace nb = nanobind;

// Whether the interpreter ends or has ended. A thread other than the ending one gets no GIL then.
inline bool InterpreterEnds() { return Py_IsInitialized() == 0; }

[[noreturn]] inline void WaitForProcessEnd() noexcept {
  for (;;) pause();
}

// Runs what may ask for the GIL: Python's own code, too, gives it up now and then. The handler of a
// forced unwinding must not end, or glibc aborts the process.
template <typename Call>
decltype(auto) OrWaitForProcessEnd(Call&& call) {
  try {
    return std::forward<Call>(call)();
  } catch (const abi::__forced_unwind&) {
    WaitForProcessEnd();
  }
}

// Gives up the GIL, which this thread has, for its scope.
class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ~ReleasedGil() {
    OrWaitForProcessEnd([this] { PyEval_RestoreThread(state_); });
  }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

  // Runs a call with the GIL in between.
  template <typename Call>
  void With(Call&& call) {
    OrWaitForProcessEnd([&] {
      PyEval_RestoreThread(state_);
      std::forward<Call>(call)();
      state_ = PyEval_SaveThread();
    });
  }

 private:
  PyThreadState* state_;
};

// Python runs handlers of signals in this thread only.
inline bool InMainThread() {
  struct Known {
    unsigned forks;
    bool main;
  };
  const auto look = [] { return Known{.forks = ForkCount(), .main = gettid() == getpid()}; };
  static thread_local Known known = look();
  if (known.forks != ForkCount()) known = look();  // the thread that forks is the child's first
  return known.main;
}

// While a call of the pool waits in the main thread, runs the handlers of the signals that have
// come (base/interrupt.h). One that raises ends the call; one that returns lets it go on. The
// handler may itself call the pool.
class Signals final : public Interrupt {
 public:
  // `raised`: what a handler has raised, for the end of the call.
  Signals(ReleasedGil& released, std::optional<nb::python_error>& raised)
      : Interrupt(InMainThread()), released_(released), raised_(raised) {}

 private:
  bool Asks() override {
    released_.With([this] {
      if (PyErr_CheckSignals() != 0) raised_.emplace();
    });
    return raised_.has_value();
  }

  ReleasedGil& released_;
  std::optional<nb::python_error>& raised_;
};

// Runs a call of the pool without the GIL, and raises what a handler of a signal has raised
// meanwhile; an answer is dropped then, without the GIL and in no hurry: it may be a pool. Every
// call that may wait is made so. What must not be cut short, such as a close, uses ReleasedGil.
template <typename Call>
auto WithoutGil(Call&& call) {
  using Answer = std::invoke_result_t<Call&>;
  constexpr bool kAnswers = !std::is_void_v<Answer>;
  std::optional<nb::python_error> raised;
  std::optional<std::conditional_t<kAnswers, Answer, bool>> answer;
  {
    ReleasedGil released;
    {
      Signals signals(released, raised);
      try {
        if constexpr (kAnswers) {
          answer.emplace(call());
        } else {
          call();
        }
      } catch (const std::exception&) {
        if (!raised) throw;  // what the handler raised goes before it
      }
    }
    if (raised) answer.reset();
  }
  if (raised) throw std::move(*raised);
  if constexpr (kAnswers) return std::move(*answer);
}

// Runs a call with the GIL, on any thread.
template <typename Call>
decltype(auto) WithGil(Call&& call) {
  struct Held {
    const Interrupt::Aside aside;  // the interpreter itself looks for signals
    // A thread that Python does not know would ask an interpreter that is gone for a state.
    Held() {
      if (InterpreterEnds() && PyGILState_GetThisThreadState() == nullptr) WaitForProcessEnd();
      state = OrWaitForProcessEnd([] { return PyGILState_Ensure(); });
    }
    ~Held() { PyGILState_Release(state); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    PyGILState_STATE state;
  };
  const Held held;
  return OrWaitForProcessEnd(std::forward<Call>(call));
}

}  // namespace kvcove::python
