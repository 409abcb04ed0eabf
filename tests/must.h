// SPDX-License-Identifier: Apache-2.0
// Values of results in tests. A call may fail or be late on a busy machine: then the test ends with
// the error's text, instead of reading a value that is not there.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <source_location>
#include <thread>
#include <utility>

#include "kvcove/base/result.h"

namespace kvcove {

inline void FailTheTest(const std::string& why, const std::source_location& where) {
  GTEST_FAIL_AT(where.file_name(), static_cast<int>(where.line())) << why;
}

// Ends the test: gtest catches the exception, knows that it was reported, and tears down. In
// another thread see InThread; a child that forked must not come here.
[[noreturn]] inline void EndTheTest(const std::string& why, const std::source_location& where) {
  FailTheTest(why, where);
  throw testing::AssertionException(
      testing::TestPartResult(testing::TestPartResult::kFatalFailure, where.file_name(),
                              static_cast<int>(where.line()), why.c_str()));
}

// The value of `result`, or the end of the test.
template <typename T>
T Must(Result<T> result, const std::source_location& where = std::source_location::current()) {
  if (!result) EndTheTest(result.error().ToString(), where);
  return *std::move(result);
}

// The value of what `call` returns, a result: called again until it is there.
template <typename Call>
auto Await(Call&& call, std::chrono::milliseconds patience = std::chrono::milliseconds(60'000),
           const std::source_location& where = std::source_location::current()) {
  const auto until = std::chrono::steady_clock::now() + patience;
  auto result = call();
  while (!result) {
    if (std::chrono::steady_clock::now() >= until) EndTheTest(result.error().ToString(), where);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    result = call();
  }
  return *std::move(result);
}

// For a thread of the test's own: the end of the test ends that thread alone.
template <typename Body>
void InThread(Body&& body) {
  try {
    body();
  } catch (const testing::AssertionException&) {
    // It has been reported.
  }
}

// What the pool says of itself, as soon as it answers.
template <typename Pool>
auto AwaitStat(Pool& pool, const std::source_location& where = std::source_location::current()) {
  return Await([&] { return pool.Stat(); }, std::chrono::milliseconds(60'000), where);
}

}  // namespace kvcove
