// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>

#include <cstdlib>

#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/server/embedded_admin.h"
#include "kvcove/server/etcd_masters.h"
#include "kvcove/version.h"
#include "session.h"

namespace kvcove::python {

NB_MODULE(_native, module) {
  ForkCount();                   // from now on forks are counted
  nb::set_leak_warnings(false);  // objects that live as long as the interpreter
  // An engine's log is not ours: what only tells of life cycles stays out of it.
  const char* level = std::getenv("KVCOVE_LOG");
  const auto wanted = ParseLogLevel(level == nullptr ? "warn" : level);
  SetLogLevel(wanted ? *wanted : LogLevel::kWarn);
  server::UseEtcd();
  server::ServeEmbedded();
  BindResults(module);
  BindSession(module);
  BindBorrow(module);
  BindQueue(module);
  BindOwner(module);
  BindConnector(module);
  BindStore(module);
  module.def(
      "set_log_level", [](const char* name) { SetLogLevel(Unwrap(ParseLogLevel(name))); },
      nb::arg("level"));
  module.def("version", [] { return std::string(Version()); });
}

}  // namespace kvcove::python
