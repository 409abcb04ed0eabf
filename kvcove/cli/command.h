// SPDX-License-Identifier: Apache-2.0
// The `kvcove` command. Each subcommand adds its options to the parser and runs when it was chosen.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>
#include <span>
#include <string>

#include "kvcove/base/result.h"
#include "kvcove/cli/process.h"
#include "kvcove/rpc/access.h"
#include "kvcove/rpc/address.h"
#include "kvcove/rpc/call_limits.h"

namespace kvcove::cli {

// What the chosen subcommand does; its value is the exit status.
using Action = std::function<Result<int>()>;

using AddCommand = void (*)(CLI::App& app, Action& chosen);
// Runs the command and returns its exit status. 0: done. 1: it ran and found something wrong (a
// wrong byte, a target missed). 2: it could not run. `more`: commands beside the ones below.
int Main(int argc, char** argv, std::span<const AddCommand> more);

// The group of options for which no variable stands: they are of one call, and have names that
// other programs use, too.
inline constexpr const char* kOfThisCall = "What is asked";
// The group of an admin endpoint's TLS. No variable stands for these either: engines have
// $KVCOVE_TLS_AUTHORITY and its like for data ports, and a master's admin endpoint has no TLS.
inline constexpr const char* kEndpointTls = "An endpoint with TLS";

void AddServe(CLI::App& app, Action& chosen);
void AddMaster(CLI::App& app, Action& chosen);
void AddOwner(CLI::App& app, Action& chosen);
void AddRun(CLI::App& app, Action& chosen);
void AddEngine(CLI::App& app, Action& chosen);
void AddToken(CLI::App& app, Action& chosen);
void AddAdmin(CLI::App& app, Action& chosen);
// `kvcove keys` and its like, which find the pool by themselves (find_pool.h).
void AddPoolCommands(CLI::App& app, Action& chosen);
void AddPrefix(CLI::App& app, Action& chosen);
void AddWhyNot(CLI::App& app, Action& chosen);
void AddStatus(CLI::App& app, Action& chosen);
void AddTop(CLI::App& app, Action& chosen);
void AddDoctor(CLI::App& app, Action& chosen);
void AddStore(CLI::App& app, Action& chosen);
void AddDisk(CLI::App& app, Action& chosen);

// A size option that is read as `4GiB`; a wrong one is an error that names the option.
struct SizeOption {
  explicit SizeOption(std::string initial) : text(std::move(initial)) {}
  std::string text;
  Result<std::uint64_t> Bytes(std::string_view option) const;
};

// Who is let in by a server, and how it speaks.
struct SecurityOptions {
  std::string credentials;
  rpc::TlsFiles tls;
  bool insecure = false;

  struct Loaded {
    std::shared_ptr<rpc::Credentials> credentials;  // null: every caller may do everything
    std::shared_ptr<rpc::Tls> tls;
    // Looks at their files now.
    void Refresh() const;
  };
  Result<Loaded> Load() const;
};
void AddSecurityOptions(CLI::App& app, SecurityOptions& options);

// How much a server takes on (rpc/call_limits.h).
struct LimitOptions {
  explicit LimitOptions(const rpc::CallLimitsOptions& defaults);
  Result<rpc::CallLimitsOptions> Load() const;

  rpc::CallLimitsOptions limits;  // calls and connections
  SizeOption connection_bytes;
  SizeOption tenant_bytes;
  SizeOption total_bytes;
};
void AddLimitOptions(CLI::App& app, LimitOptions& options);

// An address to listen on. One that other hosts can reach is refused without credentials, unless
// `security.insecure`.
Result<rpc::Address> ListenOption(const std::string& text, std::uint16_t default_port,
                                  const SecurityOptions& security);

// Where the admin endpoint listens: "off", or an address; one that other hosts can reach is refused
// unless `security.insecure`, for it is plain HTTP.
Result<std::optional<rpc::Address>> AdminOption(const std::string& text,
                                                const SecurityOptions& security);
// Where the admin interface of a pool of one host listens: "off", or an address; one that other
// hosts can reach is refused without credentials and TLS, unless `security.insecure`.
Result<std::optional<rpc::Address>> HostAdminOption(const std::string& text,
                                                    const SecurityOptions& security);
// Where monitoring reads /metrics: "off", or an address. One that other hosts can reach is refused
// without credentials, unless `security.insecure`.
Result<std::optional<rpc::Address>> MetricsOption(const std::string& text,
                                                  const SecurityOptions& security);
void LogMetrics(const rpc::Address& address, const SecurityOptions::Loaded& security);
inline constexpr const char* kMetricsHelp =
    "host:port where monitoring reads /metrics, /healthz and /readyz and can do nothing else, with "
    "the TLS of the other ports; a token of the scope metrics is enough; or off";

// The GID index that RDMA shall use: `text`, the option --gid-index, or $MC_GID_INDEX.
Result<std::optional<int>> GidIndexOption(const std::string& text);

// Returns the variable that stands for an option of a command where no such flag is given:
// KVCOVE_MAX_OBJECTS for "max-objects". KVCOVE_ADMIN names an endpoint to ask, so servers, whose
// --admin is where they listen, have KVCOVE_ADMIN_LISTEN for it.
std::string VariableOf(const std::string& option, const std::string& command);

// Takes SIGTERM and SIGINT for this process, from construction on, in all threads started later;
// and SIGHUP, upon which the files of `security` are read again, and the log's file and level: a
// closed terminal ends no server.
class StopSignal {
 public:
  explicit StopSignal(SecurityOptions::Loaded security = {});
  // SIGTERM when the parent ends, too; false when it has ended already.
  static bool FollowParent();
  void Wait();
  // False when none has come in time, or SIGHUP before.
  bool WaitFor(std::chrono::milliseconds duration);

 private:
  SecurityOptions::Loaded security_;
};

// This program's own file, to start it again as another process.
std::string SelfPath();

// A directory of mode 0700 under $TMPDIR that goes with the object, and when SIGINT or SIGTERM ends
// the process.
class TemporaryDirectory {
 public:
  static Result<TemporaryDirectory> Make();
  TemporaryDirectory(TemporaryDirectory&& other) noexcept : path_(std::move(other.path_)) {
    other.path_.clear();
  }
  TemporaryDirectory& operator=(TemporaryDirectory&&) = delete;
  ~TemporaryDirectory();
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// A `kvcove serve` in a process of its own, stopped with the object.
class ServeProcess {
 public:
  // Returns when it answers. `arguments`: behind `serve --socket PATH`.
  static Result<std::unique_ptr<ServeProcess>> Start(const std::string& socket_path,
                                                     const std::vector<std::string>& arguments);
  ~ServeProcess() { process_.End(std::chrono::seconds(30)); }
  std::string address() const { return "unix:" + socket_path_; }

 private:
  ServeProcess(std::string socket_path, Process process)
      : socket_path_(std::move(socket_path)), process_(std::move(process)) {}
  std::string socket_path_;
  Process process_;
};

}  // namespace kvcove::cli
