// SPDX-License-Identifier: Apache-2.0
// Linked into what a wheel carries, so that it starts with glibc 2.28 (manylinux_2_28).
//
// A linker takes the newest version of each function of glibc and names it in the program; an older
// glibc then refuses the program. Here each function that got a new version after 2.28 is asked for
// by an older one, and what 2.28 did not have at all is made of what it had. CMakeLists.txt beside
// this file reads the names here and leads every call to them (the linker's --wrap), those of
// libstdc++, which is linked in, too. A test reads what the wheel asks for.
#include "old_glibc.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>

OLDER(exp, FIRST);
OLDER(log, FIRST);
OLDER(pow, FIRST);
// Until 2.34 these lay in libpthread and libdl, which are linked for them.
OLDER(dladdr, FIRST);
OLDER(dlclose, FIRST);
OLDER(dlerror, FIRST);
OLDER(dlopen, FIRST);
OLDER(dlsym, FIRST);
OLDER(dlvsym, FIRST);
OLDER(__pthread_key_create, FIRST);
OLDER(pthread_condattr_setclock, SINCE("GLIBC_2.3.3"));
OLDER(pthread_create, FIRST);
OLDER(pthread_detach, FIRST);
OLDER(pthread_getspecific, FIRST);
OLDER(pthread_join, FIRST);
OLDER(pthread_key_create, FIRST);
OLDER(pthread_key_delete, FIRST);
OLDER(pthread_once, FIRST);
OLDER(pthread_rwlock_destroy, FIRST);
OLDER(pthread_rwlock_init, FIRST);
OLDER(pthread_rwlock_rdlock, FIRST);
OLDER(pthread_rwlock_unlock, FIRST);
OLDER(pthread_rwlock_wrlock, FIRST);
OLDER(pthread_setname_np, SINCE("GLIBC_2.12"));
OLDER(pthread_setspecific, FIRST);
OLDER(pthread_sigmask, FIRST);
OLDER(sem_destroy, FIRST);
OLDER(sem_init, FIRST);
OLDER(sem_post, FIRST);
OLDER(sem_trywait, FIRST);
OLDER(sem_wait, FIRST);

// libstdc++ asks whether it needs atomic instructions; only glibc 2.32 and later know.
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;

MADE(pid_t, gettid)() { return static_cast<pid_t>(syscall(SYS_gettid)); }

MADE(int, getcpu)(unsigned* cpu, unsigned* node) {
  return static_cast<int>(syscall(SYS_getcpu, cpu, node, nullptr));
}

// std::random_device asks for these numbers.
MADE(std::uint32_t, arc4random)() {
  std::uint32_t number = 0;
  while (getrandom(&number, sizeof(number), 0) != sizeof(number)) {
  }
  return number;
}

// Until 2.33 stat was no function of the library, but a part of each program that called these.
extern "C" {
int __xstat(int version, const char* path, struct stat* out);
int __lxstat(int version, const char* path, struct stat* out);
int __fxstat(int version, int descriptor, struct stat* out);
int __fxstat64(int version, int descriptor, struct stat64* out);
int __fxstatat(int version, int directory, const char* path, struct stat* out, int flags);
}
MADE(int, stat)(const char* path, struct stat* out) { return __xstat(STAT_VERSION, path, out); }
MADE(int, lstat)(const char* path, struct stat* out) { return __lxstat(STAT_VERSION, path, out); }
MADE(int, fstat)(int fd, struct stat* out) { return __fxstat(STAT_VERSION, fd, out); }
MADE(int, fstat64)(int fd, struct stat64* out) { return __fxstat64(STAT_VERSION, fd, out); }
MADE(int, fstatat)(int directory, const char* path, struct stat* out, int flags) {
  return __fxstatat(STAT_VERSION, directory, path, out, flags);
}

// Until `until` of `clock`, as glibc 2.30 and later have it; with an older one until the moment of
// the real-time clock that is as far away now. Its callers look at their own clock again when they
// wake.
MADE(int, pthread_cond_clockwait)
(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until) {
  using Wait = int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);
  static const auto theirs = reinterpret_cast<Wait>(dlsym(RTLD_DEFAULT, "pthread_cond_clockwait"));
  if (theirs != nullptr) return theirs(condition, mutex, clock, until);
  constexpr long kSecondNs = 1'000'000'000;
  timespec here{};
  timespec real{};
  clock_gettime(clock, &here);
  clock_gettime(CLOCK_REALTIME, &real);
  real.tv_sec += until->tv_sec - here.tv_sec;
  real.tv_nsec += until->tv_nsec - here.tv_nsec;
  if (real.tv_nsec >= kSecondNs) {
    real.tv_nsec -= kSecondNs;
    ++real.tv_sec;
  } else if (real.tv_nsec < 0) {
    real.tv_nsec += kSecondNs;
    --real.tv_sec;
  }
  if (real.tv_sec < 0) real = {};  // long ago
  return pthread_cond_timedwait(condition, mutex, &real);
}
