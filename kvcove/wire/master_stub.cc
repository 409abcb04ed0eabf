// SPDX-License-Identifier: Apache-2.0
#include "kvcove/wire/master_stub.h"

#include "kvcove/base/clock.h"

namespace kvcove::wire {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace

MasterStub::MasterStub(Channel& channel, const Id128& holder, const Clock& clock)
    : channel_(channel), clock_(clock), generations_(MakeGenerationStub(channel, holder, clock)) {}

Result<Registration> MasterStub::Register(const RegisterRequest& request,
                                          std::int64_t deadline_ns) {
  return generations_->Register(request, deadline_ns);
}
Result<ResetOutcome> MasterStub::Reset(const ResetRequest& request, std::int64_t deadline_ns) {
  return generations_->Reset(request, deadline_ns);
}
Status MasterStub::NameVersions(std::string_view name, std::string_view engine,
                                std::span<const std::string> versions, std::int64_t deadline_ns) {
  return generations_->NameVersions(name, engine, versions, deadline_ns);
}
Status MasterStub::EndEngine(std::string_view name, std::string_view engine,
                             std::int64_t deadline_ns) {
  return generations_->EndEngine(name, engine, deadline_ns);
}
Result<PruneOutcome> MasterStub::Prune(const PruneRequest& request, std::int64_t deadline_ns) {
  return generations_->Prune(request, deadline_ns);
}

Result<std::vector<Code>> MasterStub::Remove(const Token& token,
                                             std::span<const std::string_view> keys,
                                             std::int64_t deadline_ns) {
  const RemoveRequest request{.token = token,
                              .keys = {keys.begin(), keys.end()},
                              .pattern = {},
                              .budget_ns = deadline_ns - clock_.NowNs()};
  KVCOVE_ASSIGN(const std::string reply,
                channel_.Call(Method::kRemoveEverywhere, Bytes(Encode(request)), deadline_ns));
  return DecodeCodes(Bytes(reply), keys.size());
}

Result<std::uint64_t> MasterStub::RemoveMatching(const Token& token, std::string_view pattern,
                                                 std::int64_t deadline_ns) {
  const RemoveRequest request{.token = token,
                              .keys = {},
                              .pattern = std::string(pattern),
                              .budget_ns = deadline_ns - clock_.NowNs()};
  KVCOVE_ASSIGN(const std::string reply,
                channel_.Call(Method::kRemoveEverywhere, Bytes(Encode(request)), deadline_ns));
  return DecodeCount(Bytes(reply));
}

Result<std::vector<Place>> MasterStub::Lookup(const Token& token, std::span<const Id128> hashes,
                                              std::int64_t deadline_ns, SaveNotice notice) {
  const std::string request = EncodeLookup(token, hashes, notice);
  KVCOVE_ASSIGN(const std::string reply,
                channel_.Call(Method::kLookup, Bytes(request), deadline_ns));
  return DecodePlaces(Bytes(reply), hashes.size());
}

Result<PrefixShares> MasterStub::Locate(const Token& token, std::span<const Id128> hashes,
                                        std::int64_t deadline_ns) {
  const auto reply =
      channel_.Call(Method::kLocate, Bytes(EncodeLookup(token, hashes)), deadline_ns);
  if (!reply) {
    const Error& error = reply.error();
    if (error.code != Code::kCorrupt || !error.answered) return std::unexpected(error);
    // A master of an earlier build does not know the method.
    return Fail(Code::kIncompatible,
                "the master is of an earlier version, which cannot locate prefixes; update it");
  }
  KVCOVE_ASSIGN(PrefixShares shares, DecodePrefixShares(Bytes(*reply)));
  if (shares.keys > hashes.size())
    return Fail(Code::kCorrupt, "a prefix longer than was asked for");
  return shares;
}

Result<OwnersReply> MasterStub::Owners(std::int64_t deadline_ns, const RequesterReport& report) {
  KVCOVE_ASSIGN(const std::string reply,
                channel_.Call(Method::kOwners, Bytes(Encode(report)), deadline_ns));
  return DecodeOwners(Bytes(reply));
}

}  // namespace kvcove::wire
