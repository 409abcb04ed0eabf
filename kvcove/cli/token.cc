// SPDX-License-Identifier: Apache-2.0
// `kvcove token`: makes a tenant's token, and the two files that hold it.
#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "kvcove/base/posix.h"
#include "kvcove/cli/command.h"

namespace kvcove::cli {
namespace {

struct TokenOptions {
  std::string tenant;
  std::vector<std::string> scopes = {"read", "write", "reset"};
  std::string credentials;
  std::string output;
  std::string bearer;
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

Result<int> Run(const TokenOptions& options) {
  if (!options.bearer.empty()) {
    KVCOVE_ASSIGN(const rpc::Credential credential, rpc::LoadCredential(options.bearer));
    fmt::print("{}\n", rpc::BearerOf(credential));
    return 0;
  }
  if (options.tenant.empty()) return Fail(Code::kInvalid, "name a tenant: kvcove token TENANT");
  KVCOVE_TRY(rpc::ParseScopes(options.scopes));
  const std::string token = rpc::NewToken();
  const std::string server =
      fmt::format("\n[tenants.\"{}\"]\ntokens = [\"{}\"]\nscopes = [\"{}\"]\n", options.tenant,
                  token, fmt::join(options.scopes, "\", \""));
  const std::string client =
      fmt::format("tenant = \"{}\"\ntoken = \"{}\"\n", options.tenant, token);
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
                  fmt::format("'{0}' knows the tenant '{1}' already; to exchange its token, add a "
                              "new one ('kvcove token {1}' prints it) to its 'tokens'",
                              options.credentials, options.tenant));
    }
  }
  KVCOVE_TRY(Append(options.output, client, O_EXCL));
  // The client's file is read back: a name that is not allowed shows before servers read theirs.
  if (const auto readable = rpc::LoadCredential(options.output); !readable) {
    unlink(options.output.c_str());
    return std::unexpected(readable.error());
  }
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
  token->add_option("tenant", options->tenant, "the tenant's name");
  token
      ->add_option("--scopes", options->scopes,
                   "of read, write, reset, admin, metrics (GET /metrics) and owner (beside read, "
                   "write or reset: of this tenant only)")
      ->delimiter(',')
      ->capture_default_str();
  token->add_option("--credentials", options->credentials,
                    "add the tenant to this file of the servers (default: print all)");
  token->add_option("--output", options->output, "write the client's file, which must not exist");
  token->add_option("--bearer", options->bearer,
                    "print what the token in this client's file stands for at the admin port");
  token->callback([options, &chosen] { chosen = [options] { return Run(*options); }; });
}

}  // namespace kvcove::cli
