// SPDX-License-Identifier: Apache-2.0
// The page of an admin endpoint: what a pool does, for a person with a browser, and the few things
// that an operator does there. docs/page.md has the design. Its files are beside this one, in
// page/; CMake puts them into the library.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/http/server.h"
#include "kvcove/master/server/admin_pool.h"

namespace kvcove::master {

struct PageOptions {
  bool drains = false;  // owners can be drained, and tasks exist
};

struct Page {
  // The page's files, which need no credential because they say nothing of the pool, and
  // GET /v1/page, which runs on a worker.
  std::vector<http::Route> routes;
  // Samples the pool when that is due; for http::ServerOptions::tick.
  std::function<void()> tick;
};

// `clock` outlives the routes.
Page PageOf(std::shared_ptr<AdminPool> pool, const PageOptions& options, const Clock& clock);

}  // namespace kvcove::master
