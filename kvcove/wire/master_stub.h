// SPDX-License-Identifier: Apache-2.0
// The master's calls over frames, for owners and requesters. Bytes only, no socket.
#pragma once

#include <memory>
#include <vector>

#include "kvcove/wire/cluster.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::wire {

// Thread-safe; the channel outlives it.
class MasterStub final : public ControlService {
 public:
  // `holder`: see MakeGenerationStub.
  explicit MasterStub(Channel& channel, const Id128& holder = {},
                      const Clock& clock = SystemClock::Instance());

  Result<Registration> Register(const RegisterRequest& request, std::int64_t deadline_ns) override;
  Result<ResetOutcome> Reset(const ResetRequest& request, std::int64_t deadline_ns) override;
  Status NameVersions(std::string_view name, std::string_view engine,
                      std::span<const std::string> versions, std::int64_t deadline_ns) override;
  Status EndEngine(std::string_view name, std::string_view engine,
                   std::int64_t deadline_ns) override;
  Result<PruneOutcome> Prune(const PruneRequest& request, std::int64_t deadline_ns) override;
  Result<std::vector<Code>> Remove(const Token& token, std::span<const std::string_view> keys,
                                   std::int64_t deadline_ns) override;
  Result<std::uint64_t> RemoveMatching(const Token& token, std::string_view pattern,
                                       std::int64_t deadline_ns) override;

  // Errors: kStale when the token's generation is not the current one.
  Result<std::vector<Place>> Lookup(const Token& token, std::span<const Id128> hashes,
                                    std::int64_t deadline_ns,
                                    SaveNotice notice = SaveNotice::kNone);
  // Returns how much of a prefix each owner has. Errors: as Lookup; kIncompatible: the master is of
  // an earlier version.
  Result<PrefixShares> Locate(const Token& token, std::span<const Id128> hashes,
                              std::int64_t deadline_ns);
  Result<OwnersReply> Owners(std::int64_t deadline_ns, const RequesterReport& report = {});

 private:
  Channel& channel_;
  const Clock& clock_;
  const std::unique_ptr<GenerationService> generations_;  // these calls have the host's form
};

}  // namespace kvcove::wire
