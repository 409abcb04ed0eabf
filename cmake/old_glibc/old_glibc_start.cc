// SPDX-License-Identifier: Apache-2.0
// How a program begins with glibc 2.28: as old_glibc.cc, for what has a main function.
#include "old_glibc.h"

extern "C" {
using Main = int (*)(int, char**, char**);
using End = void (*)();
int old___libc_start_main(Main, int, char**, Main, End, End, void*);
void _init();
extern void (*__init_array_start[])(int, char**, char**);
extern void (*__init_array_end[])(int, char**, char**);
}
__asm__(".symver old___libc_start_main,__libc_start_main@" FIRST);

namespace {

// Constructors. glibc 2.34 and later find them by themselves, older ones call what they are given.
int Construct(int count, char** arguments, char** environment) {
  _init();
  for (auto each = __init_array_start; each != __init_array_end; ++each) {
    (*each)(count, arguments, environment);
  }
  return 0;
}

}  // namespace

MADE(int, __libc_start_main)
(Main main, int count, char** arguments, Main, End end, End end_of_linker, void* stack) {
  return old___libc_start_main(main, count, arguments, Construct, end, end_of_linker, stack);
}
