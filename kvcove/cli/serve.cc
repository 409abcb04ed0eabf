// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>

#include "kvcove/base/log.h"
#include "kvcove/base/size.h"
#include "kvcove/cli/command.h"
#include "kvcove/pool/daemon.h"
#include "kvcove/pool/pool.h"

namespace kvcove::cli {
namespace {

struct ServeOptions {
  std::string socket = DefaultSocketPath();
  std::string data_directory;
  SizeOption memory{"4GiB"};
  std::uint64_t max_objects = 0;
  std::string policy = "default";
  std::vector<std::string> quotas;
  bool no_populate = false;
  bool exit_with_parent = false;
};

// NAMESPACE=MAXIMUM or NAMESPACE=MAXIMUM:GUARANTEED
Status ParseQuota(const std::string& text, pool::LocalHostOptions& options) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string::npos) {
    return Fail(
        Code::kInvalid,
        fmt::format("--quota: '{}' is not NAMESPACE=MAXIMUM or NAMESPACE=MAXIMUM:GUARANTEED, "
                    "such as acme=2GiB:1GiB",
                    text));
  }
  const std::string sizes = text.substr(equals + 1);
  const std::size_t colon = sizes.find(':');
  owner::Quota quota;
  KVCOVE_ASSIGN(quota.maximum_bytes, SizeOption(sizes.substr(0, colon)).Bytes("--quota"));
  if (colon != std::string::npos) {
    KVCOVE_ASSIGN(quota.guaranteed_bytes, SizeOption(sizes.substr(colon + 1)).Bytes("--quota"));
  }
  if (quota.guaranteed_bytes > quota.maximum_bytes) {
    return Fail(Code::kInvalid,
                fmt::format("--quota: '{}' guarantees more than its maximum", text));
  }
  options.owner.quotas[text.substr(0, equals)] = quota;
  return {};
}

Result<int> Run(const ServeOptions& options) {
  pool::DaemonOptions daemon_options;
  daemon_options.socket_path = options.socket;
  daemon_options.host.data_directory = options.data_directory;
  if (options.data_directory.empty()) {
    const std::size_t slash = options.socket.rfind('/');
    daemon_options.host.data_directory =
        (slash == std::string::npos ? std::string(".") : options.socket.substr(0, slash)) + "/data";
  }
  KVCOVE_ASSIGN(daemon_options.host.owner.memory_bytes, options.memory.Bytes("--memory"));
  daemon_options.host.owner.max_objects = options.max_objects;
  daemon_options.host.owner.policy = options.policy;
  daemon_options.host.owner.populate = !options.no_populate;
  std::uint64_t guaranteed = 0;
  for (const std::string& quota : options.quotas) {
    KVCOVE_TRY(ParseQuota(quota, daemon_options.host));
  }
  for (const auto& [name, quota] : daemon_options.host.owner.quotas) {
    guaranteed += quota.guaranteed_bytes;
  }
  if (guaranteed > daemon_options.host.owner.memory_bytes) {
    return Fail(Code::kInvalid, fmt::format("the quotas guarantee {} together, but --memory is {}",
                                            FormatSize(guaranteed), options.memory.text));
  }
  // Signals are taken here, one by one, and in no other thread.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  if (options.exit_with_parent) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() == 1) return 0;
  }
  KVCOVE_ASSIGN(auto daemon, pool::Daemon::Open(daemon_options, SystemClock::Instance()));
  LogInfo("serving {} at unix:{} (policy {}, data in '{}')",
          FormatSize(daemon_options.host.owner.memory_bytes), options.socket, options.policy,
          daemon_options.host.data_directory);
  int signal = 0;
  sigwait(&signals, &signal);
  LogInfo("stopping on {}", signal == SIGTERM ? "SIGTERM" : "SIGINT");
  daemon.reset();
  LogInfo("stopped");
  return 0;
}

}  // namespace

void AddServe(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* serve = app.add_subcommand("serve",
                                       "Serve this host's memory to engine processes over a "
                                       "Unix socket, until SIGTERM.");
  serve->add_option("--socket", options->socket, "where to listen; its directory must be private")
      ->capture_default_str();
  serve->add_option("--memory", options->memory.text, "payload memory, such as 64GiB")
      ->capture_default_str();
  serve->add_option("--data", options->data_directory,
                    "where generations are kept (default: 'data' beside the socket)");
  serve
      ->add_option("--max-objects", options->max_objects,
                   "most objects at a time (0: one per 512 bytes of memory)")
      ->capture_default_str();
  serve->add_option("--policy", options->policy, "eviction: default, lru or s3fifo")
      ->capture_default_str();
  serve->add_option("--quota", options->quotas,
                    "NAMESPACE=MAXIMUM[:GUARANTEED], such as acme=2GiB:1GiB; may be repeated");
  serve->add_flag("--no-populate", options->no_populate,
                  "do not touch memory before it is used (the first puts are slower)");
  serve->add_flag("--exit-with-parent", options->exit_with_parent)->group("");
  serve->callback([options, &chosen] { chosen = [options] { return Run(*options); }; });
}

}  // namespace kvcove::cli
