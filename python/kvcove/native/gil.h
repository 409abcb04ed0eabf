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

#include <utility>

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

 private:
  PyThreadState* state_;
};

// Runs a call with the GIL, on any thread.
template <typename Call>
decltype(auto) WithGil(Call&& call) {
  struct Held {
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
