# SPDX-License-Identifier: Apache-2.0
add_compile_options(-Wall -Wextra -Wpedantic -Wno-missing-field-initializers -fno-omit-frame-pointer)
if(KVCOVE_WERROR)
  add_compile_options(-Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12
   AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # Wrong for "x" + std::string() and for string = "x" in this version (GCC's bug 105651).
  add_compile_options(-Wno-restrict)
  # Wrong for strings that are inlined into one another (bugs 105329, 105580), which happens more in large units.
  add_compile_options(-Wno-stringop-overflow -Wno-maybe-uninitialized -Wno-array-bounds)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  add_compile_options(-Wthread-safety -Werror=thread-safety)
endif()
if(KVCOVE_CHECK_LOCKS)
  add_compile_definitions(KVCOVE_CHECK_LOCKS)
endif()
if(KVCOVE_SANITIZE)
  # The address sanitizer catches null and short objects itself; both checks and that of vtables took a fifth of the compile time.
  add_compile_options(-fsanitize=${KVCOVE_SANITIZE} -fno-sanitize=null,object-size,vptr -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${KVCOVE_SANITIZE})
  # GNU ld takes seconds for each of these programs, which have the debug information of all libraries in them.
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=lld KVCOVE_LLD)
  if(KVCOVE_LLD)
    add_link_options(-fuse-ld=lld)
  endif()
endif()
# Code whose speed is nobody's concern, such as a test's own, calls the sanitizer's checks: inlined, they are most of its instructions.
set(outlined_checks)
if(KVCOVE_SANITIZE MATCHES address AND CMAKE_CXX_COMPILER_ID MATCHES Clang)
  set(outlined_checks -fsanitize-address-outline-instrumentation)
endif()
# Coverage guides the fuzzers. It takes a quarter of the compile time, and each comparison becomes a call, so only sources that a fuzzer
# exercises have it (FUZZED), and no test.
set(coverage -fsanitize-coverage=inline-8bit-counters,indirect-calls,trace-cmp,pc-table)

# Only what a header marks with KVCOVE_API is seen outside of the shared library.
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

# Headers of other projects that most units include are parsed once: that was a third of the product's compile time and half of
# the tests'. None of ours is among them, so a change of ours builds no more than it would anyway. A unit includes what it uses
# all the same: the builds for aarch64 and for projects that add kvcove have no precompiled headers.
option(KVCOVE_PRECOMPILED "precompile headers of other projects" ${PROJECT_IS_TOP_LEVEL})

# kvcove_precompile(TARGET HEADERS <a>... [OPTIONS ...] [PACKAGES X::Y] [PROGRAM])
# kvcove_use_precompiled(NAME TARGET) then compiles NAME with them, and with the same OPTIONS: compilers refuse others. PROGRAM is
# for executables, which are compiled as such and not as part of a shared library.
function(kvcove_precompile target)
  cmake_parse_arguments(ARG "PROGRAM" "" "HEADERS;OPTIONS;PACKAGES" ${ARGN})
  if(ARG_PROGRAM)
    add_executable(${target} ${PROJECT_SOURCE_DIR}/cmake/precompiled_program.cc)
  else()
    add_library(${target} OBJECT ${PROJECT_SOURCE_DIR}/cmake/precompiled.cc)
  endif()
  target_link_libraries(${target} PRIVATE kvcove_fmt ${ARG_PACKAGES})
  # The first option lets ccache tell whether the headers are the same.
  if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
    list(PREPEND ARG_OPTIONS -Xclang -fno-pch-timestamp)
  else()
    list(PREPEND ARG_OPTIONS -fpch-preprocess)
  endif()
  target_compile_options(${target} PRIVATE ${ARG_OPTIONS})
  set_property(TARGET ${target} PROPERTY kvcove_options ${ARG_OPTIONS})
  target_precompile_headers(${target} PRIVATE ${ARG_HEADERS})
endfunction()

function(kvcove_use_precompiled name target)
  get_target_property(options ${target} kvcove_options)
  target_compile_options(${name} PRIVATE ${options})
  target_precompile_headers(${name} REUSE_FROM ${target})
endfunction()

set(standard_headers <algorithm> <array> <atomic> <charconv> <chrono> <condition_variable> <cstdint> <cstring> <deque> <expected>
    <functional> <list> <map> <memory> <mutex> <optional> <set> <span> <sstream> <string> <string_view> <thread> <tuple>
    <unordered_map> <unordered_set> <utility> <variant> <vector> <fmt/core.h>)
if(KVCOVE_PRECOMPILED)
  kvcove_precompile(kvcove_precompiled HEADERS ${standard_headers})
endif()

# The rest of a unit's compile time is mostly templates that each unit instantiates anew, so the build compiles several sources of a
# module, or of a program of tests, as one unit. Names in unnamed namespaces must therefore differ within it. 0: each source is a unit
# of its own, which a debugging session wants (preset `debug`) and clang-tidy needs.
set(unity 0)
if(PROJECT_IS_TOP_LEVEL)
  set(unity 8)
endif()
set(KVCOVE_UNITY ${unity} CACHE STRING "sources of a module that are compiled as one unit, or 0")
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND KVCOVE_UNITY)
  add_compile_options(-Wno-subobject-linkage)  # gcc takes a source that the unit includes for a header
endif()
# gcc collects garbage beyond 128 MiB, which the precompiled headers alone have; that took 7 % of its time.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND KVCOVE_PRECOMPILED)
  add_compile_options(--param=ggc-min-heapsize=786432)
endif()

# Sets RESULT to the files that the patterns name, each of which must name one. WHAT is for the message.
function(kvcove_files result what)
  set(files)
  foreach(pattern ${ARGN})
    file(GLOB found CONFIGURE_DEPENDS ${pattern})
    if(NOT found)
      message(FATAL_ERROR "kvcove: ${what} names ${pattern}, which is no file in ${CMAKE_CURRENT_SOURCE_DIR}")
    endif()
    list(APPEND files ${found})
  endforeach()
  set(${result} ${files} PARENT_SCOPE)
endfunction()

# kvcove_module(NAME DEPS a b c PACKAGES X::Y ALONE x_test.cc ONE_THREAD y_test.cc PRECOMPILED t FUZZED x.cc [RELEASE])
# One folder, one namespace, one target kvcove::NAME. Sources are all *.cc (of its folders, too) but tests; each `*_test.cc` beside
# the code becomes part of the program NAME_tests and a test NAME_x_test of its own, with the label `unit`. DEPS are modules
# further down only. ALONE names tests that need a program of their own, because they replace a function of the whole program.
# ONE_THREAD names tests, by patterns, in which the thread sanitizer has nothing to look for: its build leaves them out, and the release
# fails each of them that starts a thread (tests/support/stacks.cc).
# PRECOMPILED names other headers than the standard ones (kvcove_precompile). FUZZED names sources whose coverage guides a fuzzer, by
# patterns; `*` is all. FOLDERS, of a folder that is made into several targets, are those of this one; `.` is the folder itself. RELEASE:
# CI runs its tests without sanitizers only.
function(kvcove_module name)
  cmake_parse_arguments(ARG "RELEASE" "PRECOMPILED" "DEPS;PACKAGES;ALONE;ONE_THREAD;FOLDERS;FUZZED" ${ARGN})
  if(NOT ARG_FOLDERS)
    set(ARG_FOLDERS . *)
  endif()
  list(TRANSFORM ARG_FOLDERS APPEND /*.cc)
  list(TRANSFORM ARG_FOLDERS REPLACE "^\\./" "")
  file(GLOB sources CONFIGURE_DEPENDS ${ARG_FOLDERS})
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$|/main/main\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  # Those with coverage are objects of their own, so that units have either all of it or none.
  set(fuzzed)
  if(KVCOVE_FUZZ AND ARG_FUZZED AND NOT ARG_FUZZED STREQUAL "*")
    kvcove_files(fuzzed "FUZZED of ${name}" ${ARG_FUZZED})
    list(FILTER fuzzed EXCLUDE REGEX "_test\\.cc$")
    list(REMOVE_ITEM sources ${fuzzed})
  endif()
  if(sources)
    add_library(kvcove_${name} STATIC ${sources})
    set(scope PUBLIC)
  else()
    add_library(kvcove_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(kvcove::${name} ALIAS kvcove_${name})
  target_include_directories(kvcove_${name} ${scope} ${PROJECT_SOURCE_DIR})
  list(TRANSFORM ARG_DEPS PREPEND kvcove::)
  target_link_libraries(kvcove_${name} ${scope} ${ARG_DEPS} ${ARG_PACKAGES} Threads::Threads)
  set(compiled)
  if(sources)
    list(APPEND compiled kvcove_${name})
    if(KVCOVE_FUZZ AND ARG_FUZZED STREQUAL "*")
      target_compile_options(kvcove_${name} PRIVATE ${coverage})
    endif()
  endif()
  if(fuzzed)
    list(APPEND compiled kvcove_${name}_fuzzed)
    add_library(kvcove_${name}_fuzzed OBJECT ${fuzzed})
    target_include_directories(kvcove_${name}_fuzzed PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(kvcove_${name}_fuzzed PRIVATE ${ARG_DEPS} ${ARG_PACKAGES})
    target_compile_options(kvcove_${name}_fuzzed PRIVATE ${coverage})
    target_sources(kvcove_${name} PRIVATE $<TARGET_OBJECTS:kvcove_${name}_fuzzed>)
  endif()
  foreach(target ${compiled})
    if(KVCOVE_UNITY)
      set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${KVCOVE_UNITY})
    endif()
    if(KVCOVE_PRECOMPILED)
      if(NOT ARG_PRECOMPILED)
        set(ARG_PRECOMPILED kvcove_precompiled)
      endif()
      kvcove_use_precompiled(${target} ${ARG_PRECOMPILED})
    endif()
  endforeach()
  if(NOT KVCOVE_TESTS)
    return()
  endif()
  kvcove_files(alone "ALONE of ${name}" ${ARG_ALONE})
  kvcove_files(one_thread "ONE_THREAD of ${name}" ${ARG_ONE_THREAD})
  if(KVCOVE_SANITIZE STREQUAL thread)
    list(REMOVE_ITEM tests ${one_thread})
  endif()
  set(together ${tests})
  list(REMOVE_ITEM together ${alone})
  set(release)
  if(ARG_RELEASE)
    set(release RELEASE)
  endif()
  if(together)
    kvcove_test_program(${name}_tests SOURCES ${together} DEPS ${name} ${release})
  endif()
  foreach(test ${tests})
    get_filename_component(test_name ${test} NAME_WE)
    set(program ${name}_tests)
    if(test IN_LIST alone)
      set(program ${name}_${test_name})
      kvcove_test_program(${program} SOURCES ${test} DEPS ${name} ${release})
    endif()
    kvcove_test(${name}_${test_name} PROGRAM ${program} FILE ${test} LABEL unit ${release})
    if(test IN_LIST one_thread)
      set_tests_properties(${name}_${test_name} PROPERTIES ENVIRONMENT KVCOVE_ONE_THREAD=1)
    endif()
  endforeach()
endfunction()

# The main function of the test programs (tests/support/main.cc), and the headers that tests include. A test's own code is
# compiled without optimisation, which takes 40 % off its compile time; the library that it tests keeps its own.
if(KVCOVE_TESTS)
  set(test_support ${CMAKE_CURRENT_LIST_DIR}/../tests/support)
  add_library(kvcove_test_main STATIC ${test_support}/main.cc)
  target_include_directories(kvcove_test_main PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(kvcove_test_main PUBLIC GTest::gmock GTest::gtest)
  # The assertions notice a test that reads an element that is not there, or the value of a result that is an error.
  set(test_options -D_GLIBCXX_ASSERTIONS)
  if(NOT KVCOVE_SANITIZE)  # instrumented fakes that are not optimised answer later than the library waits
    list(PREPEND test_options -O0)
  endif()
  list(APPEND test_options ${outlined_checks})
  if(KVCOVE_PRECOMPILED)
    kvcove_precompile(kvcove_test_precompiled PROGRAM HEADERS <gmock/gmock.h> <gtest/gtest.h> ${standard_headers} <filesystem> <fstream>
                      OPTIONS ${test_options} PACKAGES GTest::gmock)
  endif()
  # What scripts/run_test.py preloads: a process that crashes prints the stacks of its threads.
  add_library(kvcove_stacks SHARED ${test_support}/stacks.cc)
endif()

# kvcove_test_program(NAME SOURCES a.cc DEPS module... [OPTIMISE] [RELEASE]) makes a program of tests. OPTIMISE is for simulations,
# which spend their time in code of their own. RELEASE is for one whose tests all have the label `release`: the target
# `instrumented_tests` builds the others.
function(kvcove_test_program name)
  cmake_parse_arguments(ARG "OPTIMISE;RELEASE" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  if(NOT ARG_RELEASE)
    set_property(GLOBAL APPEND PROPERTY kvcove_instrumented_tests ${name})
  endif()
  list(TRANSFORM ARG_DEPS PREPEND kvcove::)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} kvcove_test_main)
  if(ARG_OPTIMISE)
    return()
  endif()
  if(KVCOVE_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${KVCOVE_UNITY})
  endif()
  if(KVCOVE_PRECOMPILED)
    kvcove_use_precompiled(${name} kvcove_test_precompiled)
  else()
    target_compile_options(${name} PRIVATE ${test_options})
  endif()
endfunction()

# kvcove_run(NAME COMMAND ... LABEL unit|integration|fault [TIMEOUT s] [SERIAL] [RELEASE]) adds a test: a command under
# scripts/run_test.py, which prints all stacks of a test that crashes or is silent for its TIMEOUT, and reports skipped cases. Exit code
# 77 is a skip. RELEASE adds the label `release`: CI runs it without sanitizers only (tests/CMakeLists.txt says why).
function(kvcove_run name)
  cmake_parse_arguments(ARG "SERIAL;RELEASE" "LABEL;TIMEOUT" "COMMAND" ${ARGN})
  if(ARG_RELEASE)
    list(APPEND ARG_LABEL release)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 900)  # for a hang, not for a slow machine
  endif()
  set(preload)
  if(NOT KVCOVE_SANITIZE)  # a sanitizer prints stacks itself
    set(preload --preload $<TARGET_FILE:kvcove_stacks>)
  endif()
  add_test(NAME ${name} COMMAND python3 ${PROJECT_SOURCE_DIR}/scripts/run_test.py --name ${name} --timeout ${ARG_TIMEOUT} ${preload}
           -- ${ARG_COMMAND})
  math(EXPR last "${ARG_TIMEOUT} * 4")  # run_test.py ends a test that hangs before
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${last} RUN_SERIAL ${ARG_SERIAL} SKIP_RETURN_CODE 77)
endfunction()

# kvcove_test(NAME PROGRAM p FILE x_test.cc LABEL ... [TIMEOUT s] [SERIAL] [RELEASE]) adds the test NAME: the cases of one source of
# a program.
function(kvcove_test name)
  cmake_parse_arguments(ARG "SERIAL;RELEASE" "PROGRAM;FILE;LABEL;TIMEOUT" "" ${ARGN})
  file(RELATIVE_PATH file ${PROJECT_SOURCE_DIR} ${ARG_FILE})
  set(flags)
  foreach(flag SERIAL RELEASE)
    if(ARG_${flag})
      list(APPEND flags ${flag})
    endif()
  endforeach()
  kvcove_run(${name} COMMAND $<TARGET_FILE:${ARG_PROGRAM}> --tests_of=${file} LABEL ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT} ${flags})
endfunction()
