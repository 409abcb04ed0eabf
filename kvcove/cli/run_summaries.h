// SPDX-License-Identifier: Apache-2.0
// What engines say of the pool to the `kvcove run` that has started them.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "kvcove/base/posix.h"
#include "kvcove/base/result.h"

namespace kvcove::cli {

// A pipe that engines find by a path: one below /proc, so that nothing is left when this process is
// killed. An engine writes a line, its name and what the pool has brought since it started, each
// minute and at its end; the last one counts. It opens the pipe without blocking: while this
// process does not read, lines are lost, and no engine waits. For one thread.
class RunSummaries {
 public:
  static Result<RunSummaries> Open();

  // Of the pipe, for engines of the same user and the same pid namespace.
  std::string path() const;
  // Takes what engines have said.
  void Read();
  // By their names, what each said last.
  const std::map<std::string, std::string>& last() const { return last_; }

 private:
  RunSummaries(UniqueFd reading, UniqueFd writing)
      : reading_(std::move(reading)), writing_(std::move(writing)) {}
  void Take(std::string_view line);

  UniqueFd reading_;
  UniqueFd writing_;    // what the path names
  std::string unread_;  // the beginning of a line
  std::map<std::string, std::string> last_;
};

}  // namespace kvcove::cli
