// SPDX-License-Identifier: Apache-2.0
// `kvcove token`: makes a tenant's token and the two files that hold it, and exchanges it.
#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <filesystem>

#include "kvcove/base/durable_file.h"
#include "kvcove/base/posix.h"
#include "kvcove/cli/command.h"
#include "kvcove/rpc/token_exchange.h"

namespace kvcove::cli {
namespace {

struct TokenOptions {
  std::string tenant;
  std::vector<std::string> scopes = {"read", "write", "reset"};
  std::string credentials;
  std::string output;
  std::string bearer;
  bool exchange = false;
  bool strike = false;
};

// Made closed to others if it is new; appended to otherwise.
Status Append(const std::string& path, const std::string& text, int extra_flags) {
  const UniqueFd fd(
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | extra_flags, 0600));
  if (!fd.valid()) return FailErrno(Code::kInvalid, fmt::format("writing '{}'", path));
  if (write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      fsync(fd.get()) != 0) {
    return FailErrno(Code::kInternal, fmt::format("writing '{}'", path));
  }
  return {};
}

std::string ClientText(const std::string& tenant, const std::string& token) {
  return fmt::format("tenant = \"{}\"\ntoken = \"{}\"\n", tenant, token);
}

// Writes the client's file, which must be a new one.
Status WriteClientFile(const std::string& path, const std::string& text) {
  KVCOVE_TRY(Append(path, text, O_EXCL));
  // It is read back: a name that is not allowed shows before servers read theirs.
  const auto readable = rpc::LoadCredential(path);
  if (readable) return {};
  unlink(path.c_str());
  return std::unexpected(readable.error());
}

// Puts a new text in the place of the servers' file, whole, so that no server reads half of it.
// A link stays one.
Status ReplaceServersFile(const std::string& path, const std::string& text) {
  std::error_code failed;
  const std::filesystem::path file = std::filesystem::canonical(path, failed);
  if (failed) return Fail(Code::kInvalid, fmt::format("'{}': {}", path, failed.message()));
  return ReplaceFile(file.parent_path(), file.filename(), text);
}

// Both steps of docs/security.md, "Exchanging a token", that change a servers' file.
Result<int> Exchange(const TokenOptions& options) {
  if (options.tenant.empty() || options.credentials.empty()) {
    return Fail(Code::kInvalid,
                "--exchange and --strike need a tenant and the servers' file: "
                "kvcove token TENANT --exchange --credentials FILE");
  }
  const std::string& path = options.credentials;
  KVCOVE_ASSIGN(const std::string text, rpc::ReadPrivateFile(path));
  if (options.strike) {
    KVCOVE_ASSIGN(const std::string left, rpc::WithLastToken(text, path, options.tenant));
    KVCOVE_TRY(ReplaceServersFile(path, left));
    fmt::print(
        "'{}' has one token in {}, the last of the list; what stood before it opens nothing\n",
        options.tenant, path);
    return 0;
  }
  const std::string token = rpc::NewToken();
  KVCOVE_ASSIGN(const std::string added, rpc::WithTokenAdded(text, path, options.tenant, token));
  if (!options.output.empty()) {
    KVCOVE_TRY(WriteClientFile(options.output, ClientText(options.tenant, token)));
  }
  if (const Status replaced = ReplaceServersFile(path, added); !replaced) {
    if (!options.output.empty()) unlink(options.output.c_str());
    return std::unexpected(replaced.error());
  }
  fmt::print(
      "'{}' has one token more in {}{}\nNext: give every server this file, then {}. Then: "
      "kvcove token {} --strike --credentials {}\n",
      options.tenant, path,
      options.output.empty() ? "" : fmt::format("; it is in {}", options.output),
      options.output.empty() ? "every client the new token"
                             : fmt::format("every client {}", options.output),
      options.tenant, path);
  return 0;
}

Result<int> Run(const TokenOptions& options) {
  if (!options.bearer.empty()) {
    KVCOVE_ASSIGN(const rpc::Credential credential, rpc::LoadCredential(options.bearer));
    fmt::print("{}\n", rpc::BearerOf(credential));
    return 0;
  }
  if (options.exchange || options.strike) return Exchange(options);
  if (options.tenant.empty()) return Fail(Code::kInvalid, "name a tenant: kvcove token TENANT");
  KVCOVE_TRY(rpc::ParseScopes(options.scopes));
  const std::string token = rpc::NewToken();
  const std::string server =
      fmt::format("\n[tenants.\"{}\"]\ntokens = [\"{}\"]\nscopes = [\"{}\"]\n", options.tenant,
                  token, fmt::join(options.scopes, "\", \""));
  const std::string client = ClientText(options.tenant, token);
  if (options.credentials.empty()) {
    fmt::print("# for the servers' file (--credentials){}\n# for the client's file (--token)\n{}",
               server, client);
    return 0;
  }
  if (options.output.empty()) {
    return Fail(Code::kInvalid, "--credentials: say with --output where the client's file goes");
  }
  if (access(options.credentials.c_str(), F_OK) == 0) {
    KVCOVE_ASSIGN(const auto known, rpc::Credentials::Load(options.credentials));
    if (known->Find(options.tenant)) {
      return Fail(Code::kInvalid,
                  fmt::format("'{}' knows the tenant '{}' already; --exchange adds a new token",
                              options.credentials, options.tenant));
    }
  }
  KVCOVE_TRY(WriteClientFile(options.output, client));
  KVCOVE_TRY(Append(options.credentials, server, 0));
  fmt::print("added '{}' to {}; its token is in {}\n", options.tenant, options.credentials,
             options.output);
  return 0;
}

}  // namespace

void AddToken(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<TokenOptions>();
  CLI::App* token = app.add_subcommand(
      "token", "Make a tenant's token, for the servers' credentials file and the client's.");
  token->add_option("tenant", options->tenant, "name of the tenant");
  token
      ->add_option(
          "--scopes", options->scopes,
          "scopes of the tenant: read, write, reset, admin, metrics (GET /metrics) and owner "
          "(beside read, write or reset: of this tenant only)")
      ->delimiter(',')
      ->capture_default_str();
  token->add_option("--credentials", options->credentials,
                    "servers' credentials file to which the tenant is added (default: print all)");
  token->add_option("--output", options->output, "write the client's file, which must not exist");
  CLI::Option* exchange =
      token->add_flag("--exchange", options->exchange,
                      "add a new token beside the ones that the tenant has in --credentials, and "
                      "write it to --output");
  token
      ->add_flag(
          "--strike", options->strike,
          "remove all tokens of the tenant but the last from --credentials, once clients have it")
      ->excludes(exchange);
  token->add_option(
      "--bearer", options->bearer,
      "print the bearer of the token in this client's file, for the admin endpoint and its page");
  token->callback([options, &chosen] { chosen = [options] { return Run(*options); }; });
}

}  // namespace kvcove::cli
