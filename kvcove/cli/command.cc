// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/command.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>
#include <thread>

#include "kvcove/base/keys.h"
#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/size.h"
#include "kvcove/base/text.h"
#include "kvcove/cli/container.h"
#include "kvcove/cli/health.h"
#include "kvcove/cli/help.h"
#include "kvcove/master/store/control_format.h"
#include "kvcove/net/devices/gid.h"
#include "kvcove/pool/pool.h"
#include "kvcove/segment/layout.h"
#include "kvcove/server/etcd_masters.h"
#include "kvcove/uring/uring.h"
#include "kvcove/version.h"
#include "kvcove/wire/frame.h"

namespace kvcove::cli {
namespace {

// The numbers that two processes, or a process and a file, must agree on.
std::string Version() {
  return fmt::format("kvcove {} (protocol {}, segment layout {}, control store {})",
                     kvcove::Version(), wire::kProtocolVersion, segment::kLayoutVersion,
                     master::kControlVersion);
}

// The parser's name for the beginning of a section of the configuration file.
constexpr std::string_view kSectionBegins = "++";

std::string UnknownSection(const CLI::App& app, const std::string& section) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  const std::vector<std::string_view> known(names.begin(), names.end());
  const std::string_view nearest = NearestKey(section, known);
  return fmt::format("the configuration file has a section [{}], and no command has that name{}",
                     section, nearest.empty() ? "" : fmt::format("; did you mean [{}]?", nearest));
}

// Names what is there instead of a command: the parser only says that there is none.
std::string NoCommand(const std::string& of, const std::vector<std::string>& extras) {
  if (extras.empty()) return fmt::format("'{}' needs a command", of);
  const bool option = extras.front().starts_with('-');
  return fmt::format("'{}' is no {} of '{}'", extras.front(), option ? "option" : "command", of);
}

// Says what an option wants. Only numbers and flags can fail so: the parser takes any text for a
// text.
std::string WrongValue(const CLI::App& command, const std::string& name, const std::string& value) {
  const CLI::Option* const option = command.get_option_no_throw(name);
  const std::string type = option == nullptr ? "" : option->get_type_name();
  const bool digits = !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
  if (digits) return fmt::format("{}: {} is too large", name, value);
  const std::string_view wanted = type.empty()               ? "true or false"
                                  : type.starts_with("UINT") ? "a whole number, 0 or more"
                                  : type.starts_with("INT")  ? "a whole number"
                                                             : "a number";
  return fmt::format("{}: '{}' is not {}", name, value, wanted);
}

// What the parser did not know, with the nearest thing that it does.
std::string Explain(const CLI::App& app, const CLI::Error& error) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  std::vector<std::string> names;
  for (const CLI::Option* option : at->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* subcommand : at->get_subcommands([](const CLI::App*) { return true; })) {
    if (!subcommand->get_group().empty()) names.push_back(subcommand->get_name());
  }
  const std::vector<std::string_view> known(names.begin(), names.end());
  std::string path;
  for (const CLI::App* part = at; part != &app; part = part->get_parent()) {
    path.insert(0, " " + part->get_name());
  }
  path.insert(0, "kvcove");
  const bool command = at->get_require_subcommand_min() > 0;
  std::string text = error.what();
  if (command && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    text = NoCommand(path, app.remaining(/*recurse=*/true));
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    // The parser's own text has them in reverse.
    text = fmt::format("not expected: {}", fmt::join(app.remaining(/*recurse=*/true), " "));
  }
  constexpr std::string_view kWrong = "Could not convert: ";
  if (const std::size_t equals = text.find(" = ");
      text.starts_with(kWrong) && equals != std::string::npos) {
    text = WrongValue(*at, text.substr(kWrong.size(), equals - kWrong.size()),
                      text.substr(equals + 3));
  }
  constexpr std::string_view kUnknown = "INI was not able to parse ";
  if (text.starts_with(kUnknown)) {
    const std::string key = text.substr(kUnknown.size());
    const std::string name = key.substr(key.rfind('.') + 1);
    if (name == kSectionBegins) return UnknownSection(app, key.substr(0, key.rfind('.')));
    const std::string_view nearest = NearestKey("--" + name, known);
    text = fmt::format("the configuration file has an unknown key '{}'", key);
    if (!nearest.empty()) text += fmt::format("; did you mean '{}'?", nearest.substr(2));
    return text;
  }
  for (const std::string& extra : app.remaining(/*recurse=*/true)) {
    if (extra.empty() || (!command && extra[0] != '-')) continue;
    const std::string_view nearest = NearestKey(extra.substr(0, extra.find('=')), known);
    if (!nearest.empty()) text += fmt::format("\n  '{}': did you mean '{}'?", extra, nearest);
  }
  return text + fmt::format("\nRun '{} --help' for {}.", path,
                            command ? "the list of commands" : "what there is");
}

}  // namespace

std::string VariableOf(const std::string& option, const std::string& command) {
  constexpr std::string_view kServers[] = {"master", "owner", "serve", "run"};
  if (option == "admin" && std::ranges::find(kServers, command) != std::end(kServers)) {
    return "KVCOVE_ADMIN_LISTEN";
  }
  std::string variable = "KVCOVE_" + option;
  for (char& letter : variable) {
    letter = letter == '-' ? '_' : ToUpper(letter);
  }
  return variable;
}

namespace {

// The arguments, last one first as the parser wants them, with what the environment says in between
// flags and file: $KVCOVE_MEMORY stands for --memory where no such flag is given.
std::vector<std::string> WithEnvironment(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  // What stands behind -- is another command's.
  const auto end = std::ranges::find(arguments, "--");
  const std::vector<std::string> behind(end, arguments.end());
  arguments.erase(end, arguments.end());
  const CLI::App* chosen = nullptr;
  for (const std::string& argument : arguments) {
    for (const CLI::App* known : app.get_subcommands([](const CLI::App*) { return true; })) {
      if (chosen == nullptr && known->get_name() == argument) chosen = known;
    }
  }
  if (chosen != nullptr) {
    for (const CLI::Option* option : chosen->get_options()) {
      if (option->get_lnames().empty() || option->get_group().empty()) continue;
      if (option->get_group() == kOfThisCall || option->get_group() == kEndpointTls) continue;
      const std::string& name = option->get_lnames().front();
      const char* value = std::getenv(VariableOf(name, chosen->get_name()).c_str());
      const std::string flag = "--" + name;
      const bool given = std::ranges::any_of(arguments, [&](const std::string& argument) {
        return argument == flag || argument.starts_with(flag + "=");
      });
      if (value == nullptr || *value == '\0' || given) continue;
      arguments.push_back(flag + "=" + value);
    }
  }
  arguments.insert(arguments.end(), behind.begin(), behind.end());
  std::ranges::reverse(arguments);
  return arguments;
}

struct LogOptions {
  std::string level = "info";
  std::string format = "text";
  std::string file;
};

void AddLogOptions(CLI::App& app, LogOptions& options) {
  app.add_option("--log", options.level,
                 "least level of log lines, which go to stderr: debug, info, warn, error or off; "
                 "SIGHUP makes a server read it from the file of --config again")
      ->capture_default_str();
  app.add_option("--log-format", options.format,
                 "log lines are text, or json: an object a line, with time, level, pid and message")
      ->capture_default_str();
  app.add_option("--log-file", options.file,
                 "of master, owner and serve: append stderr to this file, which SIGHUP opens again "
                 "(for logrotate)");
}

std::unexpected<Error> WrongOption(std::string_view option, const Error& error) {
  return Fail(error.code, fmt::format("{}: {}", option, error.detail));
}

Status UseLogLines(const LogOptions& options) {
  const Result<LogLevel> level = ParseLogLevel(options.level);
  if (!level) return WrongOption("--log", level.error());
  const Result<LogFormat> format = ParseLogFormat(options.format);
  if (!format) return WrongOption("--log-format", format.error());
  SetLogLevel(*level);
  SetLogFormat(*format);
  return {};
}

// Whether an option was given with the command, instead of in the file of --config.
bool Given(const std::vector<std::string>& arguments, std::string_view option) {
  return std::ranges::any_of(arguments, [&](std::string_view argument) {
    return argument.starts_with(option) &&
           (argument.size() == option.size() || argument[option.size()] == '=');
  });
}

// The commands that SIGTERM ends, and for which SIGHUP is no end.
bool IsServer(std::string_view command) {
  return command == "master" || command == "owner" || command == "serve";
}

Status UseLogFile(const LogOptions& options, const std::string& command, bool given) {
  if (options.file.empty()) return {};
  // stderr of other commands is a person's, or that of the engine that `run` starts. They may share
  // the file of --config with a server.
  if (!IsServer(command)) {
    if (!given) return {};
    return Fail(Code::kInvalid,
                "--log-file: only for master, owner and serve; here 2>FILE does it");
  }
  const Status opened = LogToFile(options.file);
  return opened ? Status() : WrongOption("--log-file", opened.error());
}

// Reads the log's level from the file of --config again. Without the key it is that of a start.
Status ReadLogLevel(const CLI::App& app) {
  const auto path = app.get_config_ptr()->as<std::string>();
  std::string name = LogOptions().level;
  // A pipe has nothing for a second reader, and opening one may wait for ever.
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return Fail(Code::kInvalid, fmt::format("--config {}: no regular file", path));
  }
  try {
    for (const CLI::ConfigItem& item : app.get_config_formatter()->from_file(path)) {
      const bool sets = item.parents.empty() && item.name == "log" && item.inputs.size() == 1;
      if (sets) name = item.inputs.front();
    }
  } catch (const std::exception& thrown) {
    return Fail(Code::kInvalid, fmt::format("--config {}: {}", path, thrown.what()));
  }
  const Result<LogLevel> level = ParseLogLevel(name);
  if (!level) {
    return Fail(level.error().code,
                fmt::format("--config {}: log: {}", path, level.error().detail));
  }
  SetLogLevel(*level);
  return {};
}

sigset_t SetOf(std::initializer_list<int> members) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : members) sigaddset(&signals, signal);
  return signals;
}

// What SIGHUP does about the log's level. Set by Main, called by StopSignal in the same thread.
std::function<Status()>& RereadLogLevel() {
  static std::function<Status()> reread;
  return reread;
}

// The file comes first, so that what follows is in the new one.
void RereadLog() {
  const Status file = ReopenLogFile();
  const Status level = RereadLogLevel() ? RereadLogLevel()() : Status();
  LogInfo("SIGHUP: looking at the files of tokens and certificates, at the log's file and level");
  if (!file) LogError("the log's file remains the same: {}", file.error().detail);
  if (!level) LogError("the log's level remains the same: {}", level.error().detail);
}

// Returns the options of a server in one line, without those that are empty.
std::string OptionsInForce(const CLI::App& command) {
  std::istringstream lines(command.config_to_str(/*default_also=*/true,
                                                 /*write_description=*/false));
  std::string text = fmt::format("kvcove {} {}:", kvcove::Version(), command.get_name());
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.ends_with("=\"\"")) continue;
    text += " " + WithoutPasswords(line);
  }
  return text;
}

// The kernel drops a signal for process 1 of a container where the process has neither a handler
// nor blocks it. So without handlers SIGTERM and Ctrl-C would not end a command that waits, such as
// an owner until etcd names a leader.
void EndOnSignalsAsFirstProcess() {
  if (getpid() != 1) return;
  for (const int signal : {SIGTERM, SIGINT}) {
    std::signal(signal, [](int number) { _exit(128 + number); });
  }
}

// Runs the command. An endpoint may answer as another version does, so the commands look up what
// they print with at(), which throws. So does fmt where stdout takes no more.
Result<int> Checked(const Action& chosen) {
  try {
    return chosen();
  } catch (const std::system_error& error) {
    // The reader of a pipe has what it wanted, as `head` does. SIGPIPE would end the command so.
    if (error.code().value() == EPIPE) return 128 + SIGPIPE;
    return Fail(Code::kInternal, error.what());
  } catch (const nlohmann::json::exception& error) {
    return Fail(
        Code::kIncompatible,
        fmt::format("the answer is none that kvcove {} can print, so the endpoint may be of "
                    "another version (--json prints the answer as it is): {}",
                    kvcove::Version(), error.what()));
  }
}

// Whether the option has no place beside those that are in force. In a file of --config even its
// empty value would be refused beside them.
bool IsExcluded(const CLI::Option& option) {
  if (option.count() > 0 || option.get_excludes().empty()) return false;
  const auto given = [](const CLI::Option* other) { return other->count() > 0; };
  return option.get_default_str().empty() || std::ranges::any_of(option.get_excludes(), given);
}

// Prints the options of a command that are in force, as a file that --config reads.
void PrintConfig(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (IsExcluded(*option)) option->configurable(false);
  }
  fmt::print("[{}]\n{}", command.get_name(),
             command.config_to_str(/*default_also=*/true, /*write_description=*/false));
}

}  // namespace

int Main(int argc, char** argv, std::span<const AddCommand> more) {
  OpenStandardStreams();
  EndOnSignalsAsFirstProcess();
  uring::UseUring();
  server::UseEtcd();
  CLI::App app("A tiered, shared pool for the KV cache of LLM inference engines.", "kvcove");
  app.formatter(WrappedHelp());
  app.set_version_flag("--version", Version());
  LogOptions log;
  AddLogOptions(app, log);
  app.set_config("--config", "",
                 "TOML file of options, with a section for each command, such as [owner]");
  app.allow_config_extras(CLI::config_extras_mode::error);
  bool print_config = false;
  app.add_flag("--print-config", print_config,
               "print the options that are in force as TOML, and stop")
      ->configurable(false);
  bool log_config = false;
  app.add_flag("--log-config", log_config,
               "of master, owner and serve: begin the log with the options that are in force, in "
               "one line; other commands ignore it")
      ->configurable(false);
  app.require_subcommand(1);
  app.fallthrough();
  Action chosen;
  AddServe(app, chosen);
  AddMaster(app, chosen);
  AddOwner(app, chosen);
  AddRun(app, chosen);
  AddEngine(app, chosen);
  AddToken(app, chosen);
  AddStatus(app, chosen);
  AddPoolCommands(app, chosen);
  AddPrefix(app, chosen);
  AddWhyNot(app, chosen);
  AddAdmin(app, chosen);
  AddTop(app, chosen);
  AddDoctor(app, chosen);
  AddHealth(app, chosen);
  AddDisk(app, chosen);
  AddStore(app, chosen);
  for (const AddCommand add : more) add(app, chosen);
  std::vector<std::string> arguments = WithEnvironment(app, argc, argv);
  const bool level_given = Given(arguments, "--log");
  const bool file_given = Given(arguments, "--log-file");
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    WriteStderr(fmt::format("kvcove: {}", Explain(app, error)));
    return 2;
  }
  if (const Status used = UseLogLines(log); !used) {
    WriteStderr(fmt::format("kvcove: {}", used.error().detail));
    return 2;
  }
  CLI::App& used = *app.get_subcommands().front();
  if (print_config) {
    PrintConfig(used);
    return 0;
  }
  // Once there is a log file, there may be a SIGHUP of logrotate: it waits for StopSignal, which a
  // server makes when it has found its masters.
  const sigset_t hangup = SetOf({SIGHUP});
  if (IsServer(used.get_name())) pthread_sigmask(SIG_BLOCK, &hangup, nullptr);
  if (const Status opened = UseLogFile(log, used.get_name(), file_given); !opened) {
    WriteStderr(fmt::format("kvcove: {}", opened.error().detail));
    return 2;
  }
  if (log_config && IsServer(used.get_name())) LogInfo("{}", OptionsInForce(used));
  RereadLogLevel() = [&app, level_given]() -> Status {
    // A flag goes over the file, now as at the start.
    if (level_given || app.get_config_ptr()->count() == 0) return {};
    return ReadLogLevel(app);
  };
  std::signal(SIGPIPE, SIG_IGN);
  // A disk's file at the limit of file sizes fails as a full device does; memory goes on.
  std::signal(SIGXFSZ, SIG_IGN);
  // A connection is a descriptor: as many as this process may have.
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  const Result<int> status = Checked(chosen);
  if (status) return *status;
  WriteStderr(fmt::format("kvcove: {}", status.error().ToString()));
  return 2;
}

Result<std::uint64_t> SizeOption::Bytes(std::string_view option) const {
  Result<std::uint64_t> bytes = ParseSize(text);
  if (!bytes) return Fail(Code::kInvalid, fmt::format("{}: {}", option, bytes.error().detail));
  return bytes;
}

Result<SecurityOptions::Loaded> SecurityOptions::Load() const {
  Loaded loaded;
  if (!credentials.empty()) {
    KVCOVE_ASSIGN(loaded.credentials, rpc::Credentials::Load(credentials));
  }
  if (!tls.empty()) {
    KVCOVE_ASSIGN(loaded.tls, rpc::Tls::Open(tls));
  }
  return loaded;
}

void AddSecurityOptions(CLI::App& app, SecurityOptions& options) {
  app.add_option(
      "--credentials", options.credentials,
      "file of mode 0600 with the tokens, scopes and shares of tenants (see 'kvcove token')");
  app.add_option(
      "--tls-authority", options.tls.authority,
      "mutual TLS: PEM file with the authority that signs the certificates of servers and clients");
  app.add_option("--tls-certificate", options.tls.certificate,
                 "mutual TLS: PEM file with this process's certificate");
  app.add_option("--tls-key", options.tls.key,
                 "mutual TLS: PEM file of mode 0600 with the key of this process's certificate");
  app.add_flag("--insecure", options.insecure,
               "allow an address that other hosts reach without credentials: any client may do "
               "everything");
}

LimitOptions::LimitOptions(const rpc::CallLimitsOptions& defaults)
    : limits(defaults),
      connection_bytes(FormatSize(defaults.connection.bytes)),
      tenant_bytes(FormatSize(defaults.tenant.bytes)),
      total_bytes(FormatSize(defaults.all.bytes)) {}

Result<rpc::CallLimitsOptions> LimitOptions::Load() const {
  rpc::CallLimitsOptions loaded = limits;
  KVCOVE_ASSIGN(loaded.connection.bytes, connection_bytes.Bytes("--max-connection-bytes"));
  KVCOVE_ASSIGN(loaded.tenant.bytes, tenant_bytes.Bytes("--max-tenant-bytes"));
  KVCOVE_ASSIGN(loaded.all.bytes, total_bytes.Bytes("--max-total-bytes"));
  return loaded;
}

void AddLimitOptions(CLI::App& app, LimitOptions& options) {
  const auto number = [&app](const char* name, std::uint64_t& value, const char* help) {
    app.add_option(name, value, help)->capture_default_str()->group("Limits (0: none)");
  };
  const auto size = [&app](const char* name, SizeOption& value, const char* help) {
    app.add_option(name, value.text, help)->capture_default_str()->group("Limits (0: none)");
  };
  number("--max-connection-calls", options.limits.connection.calls_per_second,
         "calls a second of one connection; further calls are answered \"busy, ask again\"");
  number("--max-tenant-calls", options.limits.tenant.calls_per_second,
         "calls a second of one tenant, unless --credentials has another limit");
  number(
      "--max-total-calls", options.limits.all.calls_per_second,
      "calls a second of all callers; an eighth is reserved for owners' leases and administrators");
  size("--max-connection-bytes", options.connection_bytes,
       "bytes of requests and answers that are under way for one connection; a call of an "
       "owner moves at most so much, and at most 512MiB in any case");
  size("--max-tenant-bytes", options.tenant_bytes,
       "bytes under way of one tenant, unless --credentials has another limit");
  size("--max-total-bytes", options.total_bytes,
       "bytes under way of all callers; an eighth is reserved for owners' leases and "
       "administrators");
  number("--max-tenant-connections", options.limits.tenant.connections,
         "connections of one tenant, unless --credentials has another limit");
}

Result<rpc::Address> ListenOption(const std::string& text, std::uint16_t default_port,
                                  const SecurityOptions& security) {
  KVCOVE_ASSIGN(rpc::Address address, rpc::ParseAddress(text, default_port));
  if (rpc::IsLoopback(address)) return address;
  if (!security.credentials.empty()) {
    if (security.tls.empty()) {
      LogInfo(
          "listening on {} with credentials but without TLS: an attacker who reads or changes what "
          "crosses the network reads or changes values",
          text);
    }
    return address;
  }
  if (!security.insecure) {
    return Fail(Code::kInvalid,
                fmt::format("--listen {}: other hosts reach this address, and any client of theirs "
                            "may read, store, remove and reset everything. Name tenants with "
                            "--credentials FILE ('kvcove token' makes one), listen on a loopback "
                            "address, or say --insecure if the network keeps strangers out",
                            text));
  }
  LogWarn("listening on {} without credentials: any client may do everything", text);
  return address;
}

Result<std::optional<int>> GidIndexOption(const std::string& text) {
  if (!text.empty()) return net::ParseGidIndex("--gid-index", text);
  const char* index = std::getenv("MC_GID_INDEX");
  return net::ParseGidIndex("MC_GID_INDEX", index == nullptr ? "" : index);
}

Result<std::optional<rpc::Address>> AdminOption(const std::string& text,
                                                const SecurityOptions& security) {
  if (text == "off") return std::nullopt;
  KVCOVE_ASSIGN(rpc::Address address, rpc::ParseAddress(text, 0));
  if (!rpc::IsLoopback(address) && !security.insecure) {
    return Fail(Code::kInvalid,
                fmt::format("--admin {}: the admin endpoint is plain HTTP: keep it on a loopback "
                            "address and reach it through SSH or a proxy of your own, or say "
                            "--insecure if the network keeps strangers out",
                            text));
  }
  return address;
}

Result<std::optional<rpc::Address>> HostAdminOption(const std::string& text,
                                                    const SecurityOptions& security) {
  if (text == "off") return std::nullopt;
  KVCOVE_ASSIGN(rpc::Address address, rpc::ParseAddress(text, 0));
  const bool protects = !security.credentials.empty() && !security.tls.empty();
  if (!rpc::IsLoopback(address) && !protects && !security.insecure) {
    return Fail(Code::kInvalid,
                fmt::format("--admin {}: other hosts reach this address, and who asks there may "
                            "remove and reset everything. Name tokens with --credentials FILE "
                            "('kvcove token NAME --scopes admin' makes one) and certificates with "
                            "--tls-authority, --tls-certificate and --tls-key, listen on a "
                            "loopback address, or say --insecure if the network keeps strangers "
                            "out",
                            text));
  }
  return address;
}

Result<std::optional<rpc::Address>> MetricsOption(const std::string& text,
                                                  const SecurityOptions& security) {
  if (text == "off") return std::nullopt;
  KVCOVE_ASSIGN(rpc::Address address, rpc::ParseAddress(text, 0));
  if (rpc::IsLoopback(address) || security.insecure) return address;
  if (security.credentials.empty()) {
    return Fail(
        Code::kInvalid,
        fmt::format("--metrics {}: other hosts reach this address, and namespaces' names are "
                    "in the metrics. Name tokens with --credentials FILE ('kvcove token "
                    "NAME --scopes metrics' makes one), listen on a loopback address, or say "
                    "--insecure if the network keeps strangers out",
                    text));
  }
  if (security.tls.empty()) {
    LogInfo(
        "metrics at {} with credentials but without TLS: an attacker who reads what crosses the "
        "network reads them, and the bearer with which they are asked for; give monitoring a token "
        "of the scope metrics alone",
        text);
  }
  return address;
}

void LogMetrics(const rpc::Address& address, const SecurityOptions::Loaded& security) {
  LogInfo("metrics at {}://{}/metrics", security.tls == nullptr ? "http" : "https",
          address.ToString());
}

void SecurityOptions::Loaded::Refresh() const {
  if (credentials != nullptr) credentials->Refresh(/*now=*/true);
  if (tls != nullptr) tls->Refresh();
}

namespace {

sigset_t ServedSignals() { return SetOf({SIGTERM, SIGINT, SIGHUP}); }

}  // namespace

StopSignal::StopSignal(SecurityOptions::Loaded security) : security_(std::move(security)) {
  const sigset_t signals = ServedSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

bool StopSignal::FollowParent() {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  // Process 1 gets the children of a parent that has ended. In a container it may be the parent.
  return getppid() != 1 || OwnNamespace("pid").value_or(false);
}

void StopSignal::Wait() {
  while (!WaitFor(std::chrono::hours(1))) {
  }
}

bool StopSignal::WaitFor(std::chrono::milliseconds duration) {
  const sigset_t signals = ServedSignals();
  const timespec wait{.tv_sec = duration.count() / 1000,
                      .tv_nsec = duration.count() % 1000 * 1'000'000};
  const int signal = sigtimedwait(&signals, nullptr, &wait);
  if (signal < 0) return false;
  if (signal == SIGHUP) {
    RereadLog();
    security_.Refresh();
    return false;
  }
  LogInfo("stopping on {}", signal == SIGTERM ? "SIGTERM" : "SIGINT");
  return true;
}

std::string SelfPath() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::string("kvcove") : path.string();
}

Result<TemporaryDirectory> TemporaryDirectory::Make() {
  const char* base = std::getenv("TMPDIR");
  std::string path = fmt::format("{}/kvcove-XXXXXX", base == nullptr ? "/tmp" : base);
  if (mkdtemp(path.data()) == nullptr) {
    return FailErrno(Code::kInternal, fmt::format("making a directory '{}'", path));
  }
  // The first one takes the signals; threads and processes that start later inherit that they are
  // blocked, and end with this process.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &signals, &before);
  auto waits = StartThread("kvcove-signals", [path, signals] {
    int signal = 0;
    sigwait(&signals, &signal);
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
    _exit(128 + signal);
  });
  if (!waits) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
    return std::unexpected(waits.error());
  }
  waits->detach();
  return TemporaryDirectory(std::move(path));
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

Result<std::unique_ptr<ServeProcess>> ServeProcess::Start(
    const std::string& socket_path, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {
      SelfPath(), "--log", "warn", "serve", "--socket", socket_path, "--exit-with-parent"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  KVCOVE_ASSIGN(Process started, Process::Start({.words = std::move(words)}));
  std::unique_ptr<ServeProcess> process(new ServeProcess(socket_path, std::move(started)));
  for (int tries = 0; tries < 1000; ++tries) {
    if (Pool::Open(process->address())) return process;
    if (process->process_.Status()) {
      return Fail(Code::kUnavailable, "'kvcove serve' ended at once; its message is above");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return Fail(Code::kTimeout, "'kvcove serve' did not answer within 10 s");
}

}  // namespace kvcove::cli
