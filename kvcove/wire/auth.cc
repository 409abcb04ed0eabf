// SPDX-License-Identifier: Apache-2.0
#include "kvcove/wire/auth.h"

#include <cstring>

#include "kvcove/wire/cluster_flat.h"

namespace kvcove::wire {
namespace {

flatbuffers::Offset<flatbuffers::Vector<std::uint8_t>> Add(Builder& builder,
                                                           const AuthBytes& bytes) {
  return builder.CreateVector(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

Result<AuthBytes> From(const flatbuffers::Vector<std::uint8_t>* bytes) {
  AuthBytes out;
  if (SizeOf(bytes) != out.size()) return Fail(Code::kCorrupt, "a proof of the wrong length");
  std::memcpy(out.data(), bytes->data(), out.size());
  return out;
}

}  // namespace

std::string Encode(const AuthHello& message) {
  Builder builder;
  const auto tenant = Text(builder, message.tenant);
  const auto nonce = Add(builder, message.nonce);
  return Done(builder, fb::CreateAuthHello(builder, tenant, message.key_id, nonce));
}

Result<AuthHello> DecodeAuthHello(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::AuthHello>(body));
  KVCOVE_ASSIGN(const AuthBytes nonce, From(root->nonce()));
  return AuthHello{.tenant = Str(root->tenant()), .key_id = root->key_id(), .nonce = nonce};
}

std::string Encode(const AuthChallenge& message) {
  Builder builder;
  const auto nonce = Add(builder, message.nonce);
  const auto proof = Add(builder, message.proof);
  return Done(builder, fb::CreateAuthChallenge(builder, nonce, proof));
}

Result<AuthChallenge> DecodeAuthChallenge(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::AuthChallenge>(body));
  KVCOVE_ASSIGN(const AuthBytes nonce, From(root->nonce()));
  KVCOVE_ASSIGN(const AuthBytes proof, From(root->proof()));
  return AuthChallenge{.nonce = nonce, .proof = proof};
}

std::string EncodeProof(const AuthBytes& proof) {
  Builder builder;
  const auto bytes = Add(builder, proof);
  return Done(builder, fb::CreateAuthProof(builder, bytes));
}

Result<AuthBytes> DecodeProof(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::AuthProof>(body));
  return From(root->proof());
}

}  // namespace kvcove::wire
