// SPDX-License-Identifier: Apache-2.0
// `kvcove top`: samples of a pool as a live screen, as text or as lines of JSON.
#pragma once

#include "kvcove/base/result.h"
#include "kvcove/top/screen.h"
#include "kvcove/top/source.h"

namespace kvcove::top {

struct Options {
  SourceOptions source;
  double interval_s = 1;
  bool once = false;
  bool json = false;
  bool color = true;  // where stdout is a terminal
};

// Runs until the user ends it, or once. Returns the exit status. Errors: those of the source where
// nothing answers and there is no screen to say so.
Result<int> Run(const Options& options);

}  // namespace kvcove::top
