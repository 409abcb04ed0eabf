// SPDX-License-Identifier: Apache-2.0
// Who was let in goes to a successor's process, which looks anew whether that still counts.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "kvcove/base/carry_over.h"
#include "kvcove/rpc/gate.h"

namespace kvcove::rpc {
namespace {

class GateCarryTest : public testing::Test {
 protected:
  GateCarryTest() {
    std::string name = "/tmp/kvcove-gate-XXXXXX";
    directory_ = mkdtemp(name.data());
  }
  ~GateCarryTest() override { std::filesystem::remove_all(directory_); }
  std::shared_ptr<Credentials> With(const std::string& token, const std::string& scopes) const {
    const std::string path = directory_ + "/tenants.toml";
    std::ofstream(path) << "[tenants.acme]\ntokens = [\"" << token << "\"]\nscopes = [" << scopes
                        << "]\n";
    chmod(path.c_str(), 0600);
    return *Credentials::Load(path);
  }
  static Gate::Guest LetIn(Gate& gate, const std::string& token) {
    const Credential credential{.tenant = "acme", .token = token};
    const wire::AuthHello hello = Greeting(credential);
    Gate::Guest guest;
    const std::string first = wire::Encode(hello);
    const Reply challenge =
        gate.Greet(guest, wire::Method::kHello, std::as_bytes(std::span(first)));
    const auto decoded = wire::DecodeAuthChallenge(std::as_bytes(std::span(challenge.body)));
    const std::string second = wire::EncodeProof(*Prove(credential, hello, *decoded));
    EXPECT_EQ(gate.Greet(guest, wire::Method::kProve, std::as_bytes(std::span(second))).code,
              Code::kOk);
    return guest;
  }
  std::string directory_;
  const std::string token_ = NewToken();
};

TEST_F(GateCarryTest, AGuestStaysWhoItIsUnderTheSuccessorsCredentials) {
  Gate before(With(token_, "\"read\", \"write\""));
  Gate::Guest guest = LetIn(before, token_);
  Gate::Guest carried;
  CarryOver(guest, carried);
  Gate after(With(token_, "\"read\""));
  ASSERT_TRUE(after.Admitted(carried));
  EXPECT_EQ(carried.caller->tenant, "acme");
  EXPECT_EQ(carried.caller->tag, guest.caller->tag);
  EXPECT_FALSE(carried.caller->Has(Scope::kWrite)) << "the new file says so";
  EXPECT_TRUE(guest.caller->Has(Scope::kWrite));
}

TEST_F(GateCarryTest, ATokenThatTheSuccessorDoesNotKnowIsWorthNothing) {
  Gate before(With(token_, "\"read\""));
  Gate::Guest guest = LetIn(before, token_);
  Gate::Guest carried;
  CarryOver(guest, carried);
  Gate after(With(NewToken(), "\"read\""));
  EXPECT_FALSE(after.Admitted(carried));
}

TEST_F(GateCarryTest, AGuestOfAServerWithoutCredentialsIsNoneOfOneWithThem) {
  Gate before(nullptr);
  Gate::Guest guest;
  ASSERT_EQ(before.Greet(guest, wire::Method::kHello, {}).code, Code::kOk);
  Gate::Guest carried;
  CarryOver(guest, carried);
  Gate open(nullptr);
  EXPECT_TRUE(open.Admitted(carried));
  Gate after(With(token_, "\"read\""));
  EXPECT_FALSE(after.Admitted(carried));
}

}  // namespace
}  // namespace kvcove::rpc
