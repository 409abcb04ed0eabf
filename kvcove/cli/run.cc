// SPDX-License-Identifier: Apache-2.0
// `kvcove run [options] -- COMMAND...`: an engine, and this host's owner around it.
#include <fmt/core.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "kvcove/base/log.h"
#include "kvcove/cli/host_owner.h"
#include "kvcove/cli/owner_options.h"
#include "kvcove/cli/run_summaries.h"
#include "kvcove/transport/pick/transports.h"

namespace kvcove::cli {
namespace {

using std::chrono::milliseconds;
using Words = std::vector<std::string>;

constexpr int kForwarded[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
constexpr milliseconds kLookEvery{250};
constexpr milliseconds kLookWhileStarting{5};
constexpr std::int64_t kTellEveryNs = 5 * kSecond;

struct RunOptions : OwnerOptions {
  RunOptions() { master.clear(); }
  bool no_owner = false;
  bool shared = false;
  std::string connector = "kvcove";
  std::string on_failure = "crash";
  std::uint32_t ready_timeout_s = 120;
  std::uint32_t stop_timeout_s = 30;
  unsigned restarts = 5;
  std::string owner_log;
  Words command;
  Words log;        // --log and --log-format, if they were given: the owner's, too
  Words passed_on;  // options of the owner, as they were given
  // One that the owner which would be started does not have: --listen without --master, --data
  // with it and no disk.
  std::string unfit;
};

// ---- COMMAND

// A server of vLLM: its command, or one of its modules with or without `python -m`.
bool IsVllm(const Words& command) {
  for (std::size_t i = 0; i < command.size(); ++i) {
    if (command[i] == "vllm.entrypoints.openai.api_server" ||
        command[i].ends_with("vllm/entrypoints/openai/api_server.py")) {
      return true;
    }
    const bool program = std::filesystem::path(command[i]).filename() == "vllm" ||
                         command[i] == "vllm.entrypoints.cli.main" ||
                         command[i].ends_with("vllm/entrypoints/cli/main.py");
    if (program && i + 1 < command.size() && command[i + 1] == "serve") return true;
  }
  return false;
}

// A server of SGLang: its command, or its module with or without `python -m`.
bool IsSglang(const Words& command) {
  for (std::size_t i = 0; i < command.size(); ++i) {
    if (command[i] == "sglang.launch_server" || command[i].ends_with("sglang/launch_server.py")) {
      return true;
    }
    const bool program = std::filesystem::path(command[i]).filename() == "sglang";
    if (program && i + 1 < command.size() && command[i + 1] == "serve") return true;
  }
  return false;
}

// LMCache's server: `lmcache server`, or its module.
bool IsLmcache(const Words& command) {
  for (std::size_t i = 0; i < command.size(); ++i) {
    const bool program = std::filesystem::path(command[i]).filename() == "lmcache" ||
                         command[i] == "lmcache.cli.main" ||
                         command[i].ends_with("lmcache/cli/main.py");
    if (program && i + 1 < command.size() && command[i + 1] == "server") return true;
  }
  return false;
}

bool NamesAdapter(std::string_view text) { return text.starts_with("--l2-adapter"); }

bool NamesStorage(std::string_view text) {
  return text.starts_with("--hicache-storage-backend") ||
         text.starts_with("--hicache_storage_backend");
}

bool NamesTransfer(std::string_view text) {
  return text.starts_with("--kv-transfer-config") || text.starts_with("--kv_transfer_config");
}

// The words of its command line, and the lines of the file that --config names as such words.
Words SettingsOf(const Words& command) {
  Words settings = command;
  for (std::size_t i = 0; i < command.size(); ++i) {
    std::string path;
    if (command[i] == "--config" && i + 1 < command.size()) path = command[i + 1];
    if (command[i].starts_with("--config=")) path = command[i].substr(9);
    if (path.empty()) continue;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      if (const std::size_t colon = line.find(": "); colon != std::string::npos) {
        line.replace(colon, 2, "=");
      }
      settings.push_back("--" + line);
    }
  }
  return settings;
}

bool Mention(const Words& settings, std::string_view text) {
  return std::ranges::any_of(
      settings, [text](const std::string& word) { return word.find(text) != std::string::npos; });
}

// More than one rank, tensor or pipeline parallel, by any of vLLM's spellings.
bool HasSeveralRanks(const Words& settings) {
  std::map<char, std::string> sizes;  // 't', 'p'
  for (std::size_t i = 0; i < settings.size(); ++i) {
    const std::size_t equals = settings[i].find('=');
    std::string name = settings[i].substr(0, equals);
    std::ranges::replace(name, '_', '-');
    if (name == "-tp") name = "--tensor-parallel-size";
    if (name == "-pp") name = "--pipeline-parallel-size";
    if (name != "--tensor-parallel-size" && name != "--pipeline-parallel-size") continue;
    std::string size = "1";
    if (equals != std::string::npos) {
      size = settings[i].substr(equals + 1);
    } else if (i + 1 < settings.size()) {
      size = settings[i + 1];
    }
    std::erase_if(size, [](char c) { return c == '"' || c == '\'' || c == ' '; });
    sizes[name[2]] = size;
  }
  return std::ranges::any_of(sizes, [](const auto& size) { return size.second != "1"; });
}

// What nobody expects of vLLM's own connector; kvcove/launch/_stale.py says the same to trainers.
void WarnOfMooncake(const Words& settings, bool own_config) {
  if (HasSeveralRanks(settings)) {
    LogWarn(
        "MooncakeStoreConnector on an engine of several ranks: its reset empties the queue of puts "
        "of rank 0 only, so KV of before a reset may be stored after it; kvcove refuses what "
        "the other ranks had queued as far as it can tell (KVCOVE_MOONCAKE_QUEUE_FENCE). "
        "KvcoveConnector has no such gap");
  }
  if (own_config && !Mention(settings, "recompute")) {
    LogWarn(
        "the --kv-transfer-config names MooncakeStoreConnector without \"kv_load_failure_policy\": "
        "\"recompute\": a block that is evicted between its look-up and its load ends a user's "
        "request");
  }
}

// Under vLLM's own policy, "fail", a block that is evicted between its look-up and its load ends
// the user's request.
std::string TransferConfig(const std::string& connector, const std::string& pool) {
  nlohmann::ordered_json config;
  if (connector == "mooncake") {
    config["kv_connector"] = "MooncakeStoreConnector";
    config["kv_role"] = "kv_both";
    config["kv_load_failure_policy"] = "recompute";
    config["kv_connector_extra_config"] = {{"load_async", true},
                                           {"enable_cross_layers_blocks", true}};
  } else {
    config["kv_connector"] = "KvcoveConnector";
    config["kv_connector_module_path"] = "kvcove.vllm";
    config["kv_role"] = "kv_both";
    config["kv_load_failure_policy"] = "recompute";
    config["kv_connector_extra_config"] = {{"pool", pool}};
  }
  return config.dump();
}

// Without "interface_v1" SGLang copies each page once more.
std::string StorageConfig(const std::string& pool) {
  const nlohmann::ordered_json config = {{"backend_name", "kvcove"},
                                         {"module_path", "kvcove.sglang"},
                                         {"class_name", "KvcoveStorage"},
                                         {"interface_v1", 1},
                                         {"pool", pool}};
  return config.dump();
}

// Gives a server of SGLang the storage backend, unless its arguments say otherwise.
void AddStorage(const Words& settings, const std::string& pool, Words& words) {
  if (std::ranges::any_of(settings, NamesStorage)) {
    LogInfo("the command has a --hicache-storage-backend of its own");
    return;
  }
  // With the last two SGLang refuses a hierarchical cache, and would not start.
  for (const std::string_view other :
       {"--disable-radix-cache", "--enable-lmcache", "--enable-unified-cache-external-linker"}) {
    if (!Mention(settings, other)) continue;
    LogWarn("SGLang with {} has no hierarchical cache, so it gets no storage backend", other);
    return;
  }
  const std::string config = StorageConfig(pool);
  LogInfo(
      "adding --enable-hierarchical-cache --hicache-storage-backend dynamic "
      "--hicache-storage-backend-extra-config '{}'",
      config);
  words.insert(words.end(), {"--enable-hierarchical-cache", "--hicache-storage-backend", "dynamic",
                             "--hicache-storage-backend-extra-config", config});
}

// Gives LMCache's server the L2 adapter, unless its arguments have one.
void AddAdapter(const Words& settings, const std::string& pool, Words& words) {
  if (std::ranges::any_of(settings, NamesAdapter)) {
    LogInfo("the command has an --l2-adapter of its own");
    return;
  }
  const nlohmann::ordered_json config = {{"type", "plugin"},
                                         {"module_path", "kvcove.lmcache"},
                                         {"class_name", "KvcoveL2Adapter"},
                                         {"adapter_params", {{"pool", pool}}}};
  LogInfo("adding --l2-adapter '{}'", config.dump());
  words.insert(words.end(), {"--l2-adapter", config.dump()});
}

// The devices of --devices for a pool's address, which has no other place for --gid-index or
// $MC_GID_INDEX: each that names no GID itself gets that one.
std::string DevicesOf(const RunOptions& options) {
  const auto index = GidIndexOption(options.gid_index);  // an owner says what is wrong
  std::string names;
  for (const std::string& device : options.rdma_devices) {
    const bool port = device.find(':') != std::string::npos;
    const bool gid = !index || !*index || device.find('/') != std::string::npos;
    names += fmt::format("{}{}{}", names.empty() ? "" : ",", device,
                         gid ? "" : fmt::format("{}{}", port ? "/" : ":1/", **index));
  }
  return names;
}

// The command moves payload as the owner does: it is the other end of the same network.
std::string PoolOf(const RunOptions& options) {
  if (options.master.empty()) return "unix:" + options.socket;
  std::string pool = "kvcove://" + options.master;
  if (options.transport == "tcp") return pool;
  pool += "?transport=" + options.transport;
  if (const std::string devices = DevicesOf(options); !devices.empty()) {
    pool += "&devices=" + devices;
  }
  if (options.rdma_plaintext) pool += "&rdma_plaintext=1";
  return pool;
}

// How COMMAND is started. `segment`: the owner's address in a cluster. Without a pool it is started
// as it stands.
ProcessOptions CommandOf(const RunOptions& options, bool pool, const std::string& segment) {
  ProcessOptions process{.words = options.command, .environment = {}};
  // Killed, this process cannot end it any more.
  process.end_signal = SIGTERM;
  if (!pool) return process;
  process.environment.emplace_back("KVCOVE_POOL", PoolOf(options));
  // With several owners on this host each put chooses the near one; a preferred one would be the
  // first alone.
  if (!segment.empty() && options.numa.empty()) {
    process.environment.emplace_back("KVCOVE_PREFERRED_SEGMENT", segment);
    process.environment.emplace_back("MOONCAKE_PREFERRED_SEGMENT", segment);
  }
  if (!options.master.empty() && !options.security.credentials.empty() &&
      std::getenv("KVCOVE_TOKEN") == nullptr) {
    LogWarn(
        "$KVCOVE_TOKEN is not set: an engine that names no token file elsewhere gets nothing from "
        "a master with credentials");
  }
  if (options.connector == "none") return process;
  const Words settings = SettingsOf(options.command);
  if (options.connector == "kvcove" && IsSglang(options.command)) {
    AddStorage(settings, PoolOf(options), process.words);
  }
  if (options.connector == "kvcove" && IsLmcache(options.command)) {
    AddAdapter(settings, PoolOf(options), process.words);
  }
  if (!IsVllm(options.command)) return process;
  const bool own_config = std::ranges::any_of(settings, NamesTransfer);
  if (own_config ? Mention(settings, "MooncakeStoreConnector") : options.connector == "mooncake") {
    WarnOfMooncake(settings, own_config);
  }
  if (own_config) {
    LogInfo("the command has a --kv-transfer-config of its own");
    return process;
  }
  const std::string config = TransferConfig(options.connector, PoolOf(options));
  LogInfo("adding --kv-transfer-config '{}'", config);
  process.words.insert(process.words.end(), {"--kv-transfer-config", config});
  return process;
}

// ---- signals

// Takes the signals of this process from construction on. The destructor gives none back: the
// process ends.
class Signals {
 public:
  Signals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int number : kForwarded) sigaddset(&signals, number);
    sigaddset(&signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    fd_ = UniqueFd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  // The next one to be passed on; nothing when none came in time. A child's end only wakes.
  struct Taken {
    int number = 0;
    bool by_terminal = false;  // which has sent it to COMMAND, too
  };
  std::optional<Taken> Wait(milliseconds duration) {
    pollfd wait{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    if (poll(&wait, 1, static_cast<int>(duration.count())) <= 0) return std::nullopt;
    signalfd_siginfo info{};
    if (read(fd_.get(), &info, sizeof(info)) != sizeof(info)) return std::nullopt;
    if (info.ssi_signo == SIGCHLD) return std::nullopt;
    return Taken{.number = static_cast<int>(info.ssi_signo),
                 .by_terminal = info.ssi_code == SI_KERNEL};
  }

 private:
  UniqueFd fd_;
};

// ---- the owner

HostOwnerOptions OwnerOf(const RunOptions& options) {
  HostOwnerOptions owner{
      .socket = options.socket,
      .log = options.owner_log.empty() ? options.socket + ".log" : options.owner_log,
      .words = {SelfPath()},
      .shared = options.shared,
      .restarts = options.restarts};
  owner.words.insert(owner.words.end(), options.log.begin(), options.log.end());
  if (options.master.empty()) {
    owner.words.emplace_back("serve");
  } else {
    owner.words.insert(owner.words.end(), {"owner", "--master=" + options.master});
  }
  owner.words.insert(owner.words.end(), options.passed_on.begin(), options.passed_on.end());
  if (!options.shared) owner.words.emplace_back("--while-attended");
  return owner;
}

Status Check(const RunOptions& options) {
  if (options.command.empty()) {
    return Fail(Code::kInvalid, "no command: kvcove run [OPTIONS] -- COMMAND...");
  }
  if (options.no_owner && options.shared) {
    return Fail(Code::kInvalid, "--shared: with --no-owner there is no owner to leave running");
  }
  if (!options.unfit.empty() && !options.no_owner) {
    return Fail(
        Code::kInvalid,
        fmt::format(
            "{} {}", options.unfit,
            options.master.empty()
                ? "is for an owner in a cluster: name the master with --master HOST:7400, or "
                  "leave it out"
            : options.unfit == "--data"
                ? "keeps the identity of an owner with disks: with --master and no --disk "
                  "there is nothing to keep; name a disk with --disk, or leave it out"
                : "is for a pool of this host alone; with --master leave it out"));
  }
  if (!options.master.empty() && !options.security.credentials.empty() && options.tenant.empty()) {
    return Fail(Code::kInvalid,
                "--credentials: name the one tenant that the owner serves with --tenant; an owner "
                "for several tenants is started with 'kvcove owner', and used with --no-owner");
  }
  // The owner reads these again. Its error would come late, and --on-failure fallback would start
  // the command without a pool. With --no-owner no owner reads them.
  if (!options.no_owner) {
    KVCOVE_TRY(KvEventsOf(options.kv_events, options.security.insecure, /*owners=*/1));
  }
  if (!options.master.empty()) {
    KVCOVE_ASSIGN(const auto kind, transport::ParseTransport("--transport", options.transport));
    const auto index = GidIndexOption(options.gid_index);
    if (!index && !options.gid_index.empty()) return std::unexpected(index.error());
    if (index && *index && kind != transport::TransportOptions::Kind::kTcp &&
        options.rdma_devices.empty()) {
      LogWarn(
          "GID index {}: the command does not get it, since its address has it in the name of a "
          "device: name devices, too, such as --devices mlx5_0",
          **index);
    }
  }
  pool::LocalHostOptions host;
  return ReadFields(options, host);
}

// Returns nothing when the owner is ready, and an exit status when a signal came before that.
Result<std::optional<int>> AwaitOwner(HostOwner& owner, Signals& signals, std::uint32_t timeout_s,
                                      const Clock& clock) {
  const std::int64_t began_ns = clock.NowNs();
  std::int64_t tell_ns = began_ns + kTellEveryNs;
  while (true) {
    KVCOVE_TRY(owner.Look());
    if (owner.ready()) return std::nullopt;
    const std::int64_t now = clock.NowNs();
    if (now >= began_ns + timeout_s * kSecond) {
      const std::string log = owner.LogEnd();
      return Fail(Code::kTimeout, fmt::format("waited {} s for {}{}{}", timeout_s, owner.Waiting(),
                                              log.empty() ? "" : "; ", log));
    }
    if (now >= tell_ns) {
      // Once, for it rarely changes, and those who start it should not wait for the timeout.
      const std::string log = tell_ns == began_ns + kTellEveryNs ? owner.LogEnd() : std::string();
      tell_ns += kTellEveryNs;
      LogInfo("waiting for {} ({} s of {} s){}{}", owner.Waiting(), (now - began_ns) / kSecond,
              timeout_s, log.empty() ? "" : "; ", log);
    }
    if (const auto taken = signals.Wait(kLookWhileStarting)) return 128 + taken->number;
  }
}

// As process 1 of a container this one gets the children of those that have ended. Nobody else
// waits for them, so that each would keep its number until the container ends.
void WaitForOrphans(const Process& command, const HostOwner* owner) {
  if (getpid() != 1) return;
  const pid_t owners = owner != nullptr ? owner->pid() : 0;
  siginfo_t ended{};
  while (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0 &&
         ended.si_pid != command.pid() && ended.si_pid != owners) {
    waitpid(ended.si_pid, nullptr, WNOHANG);
    ended = {};
  }
}

// Watches both until COMMAND has ended. Returns COMMAND's exit status.
int Attend(Process& command, HostOwner* owner, RunSummaries* summaries, Signals& signals,
           std::uint32_t stop_timeout_s, const Clock& clock) {
  std::int64_t kill_ns = 0;
  std::int64_t look_ns = 0;
  while (true) {
    if (const auto status = command.Status()) return *status;
    const auto taken = signals.Wait(kLookEvery);
    WaitForOrphans(command, owner);
    if (summaries != nullptr) summaries->Read();
    if (taken && !taken->by_terminal) command.Signal(taken->number);
    const std::int64_t now = clock.NowNs();
    if (taken && taken->number == SIGTERM && kill_ns == 0) {
      kill_ns = now + stop_timeout_s * kSecond;
    }
    if (kill_ns != 0 && now >= kill_ns) {
      LogWarn("the command has not ended within {} s of SIGTERM: it is killed", stop_timeout_s);
      command.Signal(SIGKILL);
      kill_ns = now + kSecond;
    }
    if (owner == nullptr || now < look_ns) continue;
    look_ns = now + std::chrono::nanoseconds(kLookEvery).count();
    if (const Status looked = owner->Look(); !looked) {
      LogError("the owner: {}", looked.error().ToString());
    }
  }
}

// What the pool has brought to each engine of COMMAND.
void Tell(RunSummaries& summaries) {
  summaries.Read();
  for (const auto& [engine, text] : summaries.last()) LogInfo("engine {}: {}", engine, text);
}

Result<int> Run(const RunOptions& options) {
  KVCOVE_TRY(Check(options));
  const Clock& clock = SystemClock::Instance();
  Signals signals;
  std::optional<HostOwner> owner;
  bool pool = true;
  if (!options.no_owner) {
    owner.emplace(OwnerOf(options), clock);
    const auto ready = AwaitOwner(*owner, signals, options.ready_timeout_s, clock);
    if (ready && *ready) return **ready;
    if (!ready && options.on_failure == "crash") return std::unexpected(ready.error());
    if (!ready) {
      LogWarn("{}; the command is started without a pool (--on-failure fallback)",
              ready.error().ToString());
      owner.reset();
      pool = false;
    } else {
      LogInfo(
          "the owner is ready{}{}",
          owner->address().empty() ? std::string() : " at " + owner->address(),
          owner->started() || options.passed_on.empty()
              ? ""
              : "; it was there already, so --memory and other options of an owner do not apply");
    }
  }
  ProcessOptions started = CommandOf(options, pool, owner ? owner->address() : std::string());
  Result<RunSummaries> summaries = RunSummaries::Open();
  if (summaries) started.environment.emplace_back("KVCOVE_SUMMARIES", summaries->path());
  auto command = Process::Start(started);
  if (!command) {
    LogError("{}", command.error().detail);
    return command.error().code == Code::kInvalid ? 127 : 126;  // as a shell has it
  }
  const int status = Attend(*command, owner ? &*owner : nullptr, summaries ? &*summaries : nullptr,
                            signals, options.stop_timeout_s, clock);
  if (summaries) Tell(*summaries);
  return status;
}

}  // namespace

void AddRun(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* run = app.add_subcommand(
      "run",
      "Run a command, such as an engine, with this host's owner: find or start the owner, wait "
      "until it is ready, pass its address to the command, end it after the last command.");
  AddServeOptions(*run, *options);
  const std::vector<CLI::Option*> before = run->get_options();
  AddClusterOptions(*run, *options);
  std::vector<const CLI::Option*> of_cluster;
  for (const CLI::Option* option : run->get_options()) {
    if (std::ranges::find(before, option) == before.end()) of_cluster.push_back(option);
  }
  const std::size_t clustered_ends = run->get_options().size();
  AddAdminOptions(*run, *options,
                  "host:port of the admin endpoint, or off (default: 127.0.0.1:7481 in a cluster; "
                  "a pool of this host alone has its Unix socket, and no port)");
  // Without a cluster they are for the admin endpoint, where there is one.
  const std::vector<CLI::Option*> all = run->get_options();
  const std::vector<const CLI::Option*> of_admin(
      all.begin() + static_cast<std::ptrdiff_t>(clustered_ends), all.end());
  const std::size_t shared = run->get_options().size();
  run->add_option(
      "--data", options->data_directory,
      "directory of the generations of a pool of this host alone (default: 'data' beside "
      "the socket); in a cluster, with --disk: directory of the owner's identity "
      "(default: the disk's file with '.data' behind it)");
  std::vector<const CLI::Option*> of_host;
  for (std::size_t i = shared; i < run->get_options().size(); ++i) {
    of_host.push_back(run->get_options()[i]);
  }
  std::vector<const CLI::Option*> passed_on;
  for (CLI::Option* option : run->get_options()) {
    if (option->get_lnames().empty() || option->get_group().empty()) continue;
    if (option->get_lnames().front() == "help") continue;
    option->group("Options of the owner, where this command starts it");
    passed_on.push_back(option);
  }
  run->add_option(
      "--master", options->master,
      "host:port of the cluster's master, or of all its masters, separated by commas, or "
      "etcd://HOST:2379/PREFIX, as their --store (default: a pool of this host alone)");
  run->add_flag("--no-owner", options->no_owner, "start no owner, and wait for none");
  run->add_flag("--shared", options->shared, "leave the owner running when the command has ended");
  run->add_option(
         "--connector", options->connector,
         "connector of a 'vllm serve' without --kv-transfer-config: kvcove, mooncake or none; with "
         "kvcove a server of SGLang without --hicache-storage-backend, and 'lmcache server' "
         "without "
         "--l2-adapter, get kvcove's, too")
      ->check(CLI::IsMember({"kvcove", "mooncake", "none"}))
      ->capture_default_str();
  run->add_option(
         "--on-failure", options->on_failure,
         "what to do when the owner does not get ready: crash, or fallback (the command starts "
         "without a pool)")
      ->check(CLI::IsMember({"crash", "fallback"}))
      ->capture_default_str();
  run->add_option("--ready-timeout", options->ready_timeout_s, "seconds to wait for the owner")
      ->check(CLI::Range(1, 86'400))
      ->capture_default_str();
  run->add_option("--stop-timeout", options->stop_timeout_s,
                  "seconds from SIGTERM until the command is killed")
      ->check(CLI::Range(1, 86'400))
      ->capture_default_str();
  run->add_option("--restarts", options->restarts,
                  "times that an owner that has ended is started again")
      ->capture_default_str();
  run->add_option("--owner-log", options->owner_log,
                  "file for the owner's log, which remains (default: the socket's path and .log)");
  run->add_option("COMMAND", options->command, "command to run, behind --")->configurable(false);
  run->callback([options, passed_on, of_cluster, of_admin, of_host, &app, &chosen] {
    for (const char* name : {"--log", "--log-format"}) {
      for (const std::string& value : app.get_option(name)->results()) {
        options->log.push_back(fmt::format("{}={}", name, value));
      }
    }
    // KV events need --insecure where other hosts are to hear them.
    const bool admin = !of_admin.front()->empty() || options->kv_events.events != "off";
    for (const CLI::Option* option : passed_on) {
      const std::string& name = option->get_lnames().front();
      const bool clustered = std::ranges::find(of_cluster, option) != of_cluster.end() ||
                             (!admin && std::ranges::find(of_admin, option) != of_admin.end());
      const bool kept = name == "data" && !options->lists["disk"].empty();
      const bool alone = !kept && std::ranges::find(of_host, option) != of_host.end();
      if (!option->empty() && (options->master.empty() ? clustered : alone)) {
        // A variable may be there for other programs of kvcove.
        if (std::getenv(VariableOf(name, "run").c_str()) == nullptr) options->unfit = "--" + name;
        continue;
      }
      for (const std::string& value : option->results()) {
        options->passed_on.push_back(fmt::format("--{}={}", name, value));
      }
    }
    chosen = [options] { return Run(*options); };
  });
}

}  // namespace kvcove::cli
