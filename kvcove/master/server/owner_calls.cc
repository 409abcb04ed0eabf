// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/owner_calls.h"

namespace kvcove::master {
namespace {

// Returns a reply that encodes the answer, or passes the error on.
template <typename T>
Reply<T> Encoded(const Reply<std::string>& reply) {
  return [reply](const Result<T>& answer) {
    if (!answer) return reply(std::unexpected(answer.error()));
    reply(wire::Encode(*answer));
  };
}

}  // namespace

void AnswerOwner(Master& master, std::uint64_t connection, wire::Method method,
                 std::span<const std::byte> body, const MayOwn& may_own,
                 const Reply<std::string>& reply) {
  const auto fail = [&](const Error& error) { reply(std::unexpected(error)); };
  // A number proves nothing about its sender, so the owner's tenant is compared with the credential
  // at each call: an owner of one tenant must not renew, list or end in the name of another's.
  // Acquire: pairs with the release with which the control shows the owner's standing.
  const auto denied = [&](OwnerNumber number) {
    const std::uint64_t tenant =
        number < wire::kMaxOwners
            ? master.standings().owner(number).tenant.load(std::memory_order_acquire)
            : 0;
    if (may_own(tenant)) return false;
    fail({Code::kDenied, "this credential is not that owner's"});
    return true;
  };
  switch (method) {
    case wire::Method::kOwnerHello: {
      const auto hello = wire::DecodeOwnerHello(body);
      if (!hello) return fail(hello.error());
      if (!may_own(TenantTag(hello->tenant))) {
        return fail(
            {Code::kDenied, "this credential may have owners of its own tenant only (--tenant)"});
      }
      return master.control().Hello(*hello, connection, Encoded<wire::OwnerWelcome>(reply));
    }
    case wire::Method::kRenew: {
      const auto request = wire::DecodeRenew(body);
      if (!request) return fail(request.error());
      if (denied(request->number)) return;
      return Encoded<wire::RenewReply>(reply)(master.control().Renew(*request));
    }
    case wire::Method::kRemovals: {
      const auto request = wire::DecodeRemovalsRequest(body);
      if (!request) return fail(request.error());
      if (denied(request->number)) return;
      return master.control().Removals(*request, Encoded<wire::RemovalsPage>(reply));
    }
    case wire::Method::kList: {
      const auto request = wire::DecodeList(body);
      if (!request) return fail(request.error());
      if (denied(request->number)) return;
      return master.List(*request, Encoded<wire::ListReply>(reply));
    }
    case wire::Method::kWatch: {
      const auto request = wire::DecodeWatch(body);
      if (!request) return fail(request.error());
      if (denied(request->number)) return;
      return master.control().Watch(*request, Encoded<wire::Changes>(reply));
    }
    case wire::Method::kOwnerGoodbye: {
      const auto request = wire::DecodeWatch(body);
      if (!request) return fail(request.error());
      if (denied(request->number)) return;
      master.control().Goodbye(*request);
      return reply(std::string());
    }
    default:
      return fail({Code::kCorrupt, "not an owner's call"});
  }
}

}  // namespace kvcove::master
