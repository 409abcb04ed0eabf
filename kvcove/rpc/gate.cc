// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/gate.h"

#include <algorithm>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/model/ids.h"

namespace kvcove::rpc {
namespace {

std::string Transcript(std::string_view side, const wire::AuthHello& hello,
                       const wire::AuthBytes& server_nonce) {
  std::string text(side);
  text.append(reinterpret_cast<const char*>(hello.nonce.data()), hello.nonce.size());
  text.append(reinterpret_cast<const char*>(server_nonce.data()), server_nonce.size());
  return text + hello.tenant;
}

// Returns the token that the client's key id names; null: the tenant has none such.
const std::string* TokenOf(const std::optional<Tenant>& tenant, std::uint64_t key_id) {
  if (!tenant) return nullptr;
  const auto token = std::ranges::find(tenant->tokens, key_id, KeyIdOf);
  return token == tenant->tokens.end() ? nullptr : &*token;
}

constexpr std::string_view kSayHelloFirst = "say hello first";
constexpr const char* kMetricsOnly =
    "this token has the scope \"metrics\" alone, which is good for GET /metrics and nothing else";

}  // namespace

Reply SayHelloFirst() {
  return ErrorReply({Code::kDenied, std::string(kSayHelloFirst)}, /*close=*/true);
}

bool IsSayHelloFirst(const Error& error) {
  return error.code == Code::kDenied && error.detail == kSayHelloFirst;
}

Gate::Gate(std::shared_ptr<Credentials> credentials)
    : credentials_(std::move(credentials)), decoy_(NewToken()) {}

void Gate::NoteRefused(const std::string& tenant) {
  refused_.fetch_add(1, std::memory_order_relaxed);
  if (const auto lines = refusals_.Due(SystemClock::Instance().NowNs()); lines > 0) {
    LogWarn("refused a connection that calls itself '{}' ({} times)", tenant.substr(0, 64), lines);
  }
}

Reply Gate::Greet(Guest& guest, wire::Method method, std::span<const std::byte> body) {
  if (guest.caller != nullptr) return {};  // a repeated greeting
  if (credentials_ == nullptr) {
    if (method != wire::Method::kHello || !body.empty()) {
      return ErrorReply({Code::kDenied,
                         "this server has no credentials and cannot prove itself; start it with "
                         "--credentials, or connect without a token"},
                        /*close=*/true);
    }
    guest.caller = std::make_shared<const Caller>();
    return {};
  }
  if (method == wire::Method::kHello) {
    if (body.empty()) {
      refused_.fetch_add(1, std::memory_order_relaxed);
      return ErrorReply({Code::kDenied,
                         "this server asks for credentials; name a token file (--token, "
                         "$KVCOVE_TOKEN, or token= in the pool's address)"},
                        /*close=*/true);
    }
    Result<wire::AuthHello> hello = wire::DecodeAuthHello(body);
    if (!hello) return ErrorReply(hello.error(), /*close=*/true);
    credentials_->Refresh();
    guest.hello = std::move(*hello);
    guest.nonce = RandomAuthBytes();
    guest.challenged = true;
    std::optional<Tenant> tenant = credentials_->Find(guest.hello.tenant);
    const std::string* token = TokenOf(tenant, guest.hello.key_id);
    if (token == nullptr) {
      // The token may have been added within the last second, since Refresh looked at the file.
      credentials_->Refresh(/*now=*/true);
      tenant = credentials_->Find(guest.hello.tenant);
      token = TokenOf(tenant, guest.hello.key_id);
    }
    const wire::AuthChallenge challenge{
        .nonce = guest.nonce,
        .proof = Mac(token == nullptr ? decoy_ : *token,
                     Transcript("kvcove server", guest.hello, guest.nonce))};
    Reply reply{.code = Code::kOk, .body = wire::Encode(challenge), .fds = {}};
    if (token == nullptr) {
      // The challenge already shows a caller that its guess was wrong, so this answer is delayed,
      // and not that to kProve, which a guesser need not send.
      NoteRefused(guest.hello.tenant);
      reply.delay_ns = kRefusalDelayNs;
    }
    return reply;
  }
  // A nonce is good for one proof: a second kProve needs a new kHello.
  if (!std::exchange(guest.challenged, false)) {
    return SayHelloFirst();
  }
  const Result<wire::AuthBytes> proof = wire::DecodeProof(body);
  if (!proof) return ErrorReply(proof.error(), /*close=*/true);
  // The version is read before the entry: a change in between makes Admitted look again. The other
  // way round it would keep a token that was removed.
  guest.version = credentials_->version();
  const std::optional<Tenant> tenant = credentials_->Find(guest.hello.tenant);
  const std::string* token = TokenOf(tenant, guest.hello.key_id);
  if (token == nullptr ||
      !EqualBytes(*proof, Mac(*token, Transcript("kvcove client", guest.hello, guest.nonce)))) {
    if (token != nullptr) NoteRefused(guest.hello.tenant);
    return ErrorReply({Code::kDenied, "this server does not know this tenant with this token"},
                      /*close=*/true);
  }
  if (OnlyMetrics(tenant->scopes)) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    return ErrorReply({Code::kDenied, kMetricsOnly}, /*close=*/true);
  }
  guest.caller = std::make_shared<const Caller>(Caller{.tenant = guest.hello.tenant,
                                                       .tag = TenantTag(guest.hello.tenant),
                                                       .scopes = tenant->scopes});
  return {};
}

LimitedCaller Gate::Describe(const Guest& guest) const {
  if (guest.caller == nullptr) return {};
  const Caller& caller = *guest.caller;
  LimitedCaller described{.tenant = caller.tenant, .may_own = caller.IsOwner()};
  if (credentials_ == nullptr) return described;
  // The cluster's own entry administers. An entry that may also read or write is an engine's, whose
  // data calls must not draw from the reserve.
  described.administers =
      caller.Has(Scope::kAdmin) && !caller.Has(Scope::kRead) && !caller.Has(Scope::kWrite);
  if (const auto tenant = credentials_->Find(caller.tenant)) described.own = tenant->limit;
  return described;
}

bool Gate::Admitted(Guest& guest) const {
  if (guest.caller == nullptr) return false;
  if (credentials_ == nullptr || guest.version == credentials_->version()) return true;
  guest.version = credentials_->version();
  const std::optional<Tenant> tenant = credentials_->Find(guest.hello.tenant);
  if (TokenOf(tenant, guest.hello.key_id) == nullptr || OnlyMetrics(tenant->scopes)) {
    guest.caller = nullptr;
    return false;
  }
  if (tenant->scopes != guest.caller->scopes) {
    Caller changed = *guest.caller;
    changed.scopes = tenant->scopes;
    guest.caller = std::make_shared<const Caller>(std::move(changed));
  }
  return true;
}

wire::AuthHello Greeting(const Credential& credential) {
  return {
      .tenant = credential.tenant, .key_id = KeyIdOf(credential.token), .nonce = RandomAuthBytes()};
}

Result<wire::AuthBytes> Prove(const Credential& credential, const wire::AuthHello& hello,
                              const wire::AuthChallenge& challenge) {
  if (!EqualBytes(challenge.proof,
                  Mac(credential.token, Transcript("kvcove server", hello, challenge.nonce)))) {
    return Fail(
        Code::kDenied,
        fmt::format(
            "the server does not know the tenant '{}' with this token; is {} right?",
            credential.tenant,
            credential.file.empty() ? "it" : fmt::format("the token in '{}'", credential.file)));
  }
  return Mac(credential.token, Transcript("kvcove client", hello, challenge.nonce));
}

}  // namespace kvcove::rpc
