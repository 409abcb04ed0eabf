// SPDX-License-Identifier: Apache-2.0
// Preloaded into the processes of a test by scripts/run_test.py: one that is about to die of a
// fatal signal first has gdb print the stacks of all its threads to stderr. A core file would need
// the system's consent, and room for the segments. A test that is listed as one of one thread dies
// when it starts another.
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
std::atomic<bool> forked{false};
std::atomic<bool> dying{false};

void Write(const char* text) { (void)!write(STDERR_FILENO, text, std::strlen(text)); }

// Runs on the stack of the thread that crashed, so it calls only what signal handlers may call.
void PrintStacks(int signal) {
  // The second thread to crash, or a crash in here, ends the process at once.
  if (dying.exchange(true)) return;
  // A death test's child is meant to abort.
  if (forked.load() && signal == SIGABRT) return;
  Write("\n== A fatal signal: the stacks of all threads\n");
  char pid[16];
  std::snprintf(pid, sizeof(pid), "%d", static_cast<int>(getpid()));
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  // fork() would call the program's own handlers, whose locks the crash may hold.
  const pid_t child = _Fork();
  if (child == 0) {
    dup2(STDERR_FILENO, STDOUT_FILENO);
    unsetenv("LD_PRELOAD");
    execlp("gdb", "gdb", "-q", "-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex",
           "set print thread-events off", "-ex", "thread apply all backtrace 40", "-p", pid,
           static_cast<char*>(nullptr));
    Write("no gdb here (Debian's package gdb); the stack of the thread that crashed:\n");
    _exit(127);
  }
  int status = 0;
  while (child > 0 && waitpid(child, &status, 0) < 0) {
  }
  if (child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, std::size(frames)), STDERR_FILENO);
}

void OnSignal(int signal) {
  PrintStacks(signal);
  struct sigaction usual{};
  usual.sa_handler = SIG_DFL;
  sigaction(signal, &usual, nullptr);
  raise(signal);
}

// GoogleTest starts some death tests anew, with an option of its own.
bool IsDeathTest() {
  char arguments[4096];
  const int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const ssize_t size = read(fd, arguments, sizeof(arguments));
  close(fd);
  constexpr char kOption[] = "--gtest_internal_run_death_test";
  return size > 0 &&
         memmem(arguments, static_cast<std::size_t>(size), kOption, sizeof(kOption) - 1) != nullptr;
}

__attribute__((constructor)) void Install() {
  if (IsDeathTest()) return;
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
  void* unused[1];
  backtrace(unused, 1);  // loads its library now: a handler must not
  for (const int signal : kSignals) {
    struct sigaction current{};
    // Go's and Python's own handlers, and signals that are ignored, stay.
    if (sigaction(signal, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) continue;
    struct sigaction action{};
    action.sa_handler = OnSignal;
    action.sa_flags = SA_NODEFER;
    sigaction(signal, &action, nullptr);
  }
}

}  // namespace

// The thread sanitizer's build leaves out the tests of ONE_THREAD (kvcove_module): none of them may
// have what it looks for.
extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
    void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (std::getenv("KVCOVE_ONE_THREAD") != nullptr) {
    Write("\n== This test starts a thread: take it from ONE_THREAD in its CMakeLists.txt\n");
    std::abort();
  }
  return create(thread, attributes, run, argument);
}
