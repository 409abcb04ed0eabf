// SPDX-License-Identifier: Apache-2.0
// How old_glibc.cc takes the place of a function of glibc.
#pragma once

// The version that a function has had from the start on this processor, else a later one; and a
// jump to a function.
#if defined(__x86_64__)
#define FIRST "GLIBC_2.2.5"
#define SINCE(VERSION) VERSION
#define JUMP(NAME) "jmp " NAME "@PLT"
#define STAT_VERSION 1
#elif defined(__aarch64__)
#define FIRST "GLIBC_2.17"
#define SINCE(VERSION) FIRST
#define JUMP(NAME) "b " NAME
#define STAT_VERSION 0
#else
#error "no wheel is made for this processor"
#endif

// Calls of NAME go to its older VERSION, whatever its arguments are.
#define OLDER(NAME, VERSION)                                                                    \
  __asm__(".symver old_" #NAME "," #NAME "@" VERSION "\n.text\n.globl __wrap_" #NAME            \
          "\n.hidden __wrap_" #NAME "\n.type __wrap_" #NAME                                     \
          ",%function"                                                                          \
          "\n__wrap_" #NAME ":\n" JUMP("old_" #NAME) "\n.size __wrap_" #NAME ",.-__wrap_" #NAME \
                                                     "\n")

// NAME(...) is this one.
#define MADE(RESULT, NAME) extern "C" __attribute__((visibility("hidden"))) RESULT __wrap_##NAME
