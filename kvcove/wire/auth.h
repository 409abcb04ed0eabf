// SPDX-License-Identifier: Apache-2.0
// The first messages of a connection: they prove the client's tenant. rpc/gate.h has the prose.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "kvcove/base/result.h"

namespace kvcove::wire {

using AuthBytes = std::array<std::byte, 32>;

struct AuthHello {
  std::string tenant;
  std::uint64_t key_id = 0;  // which of the tenant's tokens
  AuthBytes nonce{};
};

struct AuthChallenge {
  AuthBytes nonce{};
  AuthBytes proof{};  // that the server has the token, too
};

std::string Encode(const AuthHello& message);
std::string Encode(const AuthChallenge& message);
std::string EncodeProof(const AuthBytes& proof);

// Errors: kCorrupt.
Result<AuthHello> DecodeAuthHello(std::span<const std::byte> body);
Result<AuthChallenge> DecodeAuthChallenge(std::span<const std::byte> body);
Result<AuthBytes> DecodeProof(std::span<const std::byte> body);

}  // namespace kvcove::wire
