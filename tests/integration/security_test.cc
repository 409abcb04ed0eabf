// SPDX-License-Identifier: Apache-2.0
// Who is let in, and what each may see: tenants, scopes, quotas, TLS. docs/security.md has the
// threats.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "kvcove/base/metrics.h"
#include "kvcove/master/server/admin.h"
#include "kvcove/master/server/tasks.h"
#include "kvcove/rpc/client.h"
#include "kvcove/rpc/gate.h"
#include "kvcove/transport/peer.h"
#include "kvcove/transport/pick/transports.h"
#include "kvcove/wire/master_stub.h"
#include "kvcove/wire/tasks.h"
#include "tests/becomes.h"
#include "tests/certificates.h"
#include "tests/integration/cluster_fixture.h"
#include "tests/slowness.h"

namespace kvcove {
namespace {

void WritePrivate(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::trunc) << text;
  chmod(path.c_str(), 0600);
}

std::int64_t Soon() { return SystemClock::Instance().NowNs() + 30 * kSecond; }

// A key of 16 bytes with the directory hash `wanted` in `slot`. XXH3-128 is no keyed hash: each of
// its steps for so short an input can be undone, whatever the seed.
std::string KeyWithHash(SlotId slot, const Id128& wanted) {
  using U64 = std::uint64_t;
  __extension__ using U128 = unsigned __int128;
  constexpr U64 kPrime1 = 0x9E3779B185EBCA87ULL;
  constexpr U64 kPrime2 = 0xC2B2AE3D27D4EB4FULL;
  constexpr U64 kPrime32 = 0x85EBCA77ULL;
  constexpr U64 kAvalanche = 0x165667919E3779F9ULL;
  // Of the public secret, bytes 32 to 63.
  constexpr U64 kSecret[] = {0x78e5c0cc4ee679cbULL, 0x2172ffcc7dd05a82ULL, 0x8e2443f7744608b8ULL,
                             0x4c263a81e69035e0ULL};
  const auto inverse = [](U64 odd) {
    U64 result = odd;
    for (int i = 0; i < 6; ++i) result *= 2 - odd * result;
    return result;
  };
  const auto unavalanche = [&](U64 value) {
    value ^= value >> 32;
    value *= inverse(kAvalanche);
    return value ^ (value >> 37);
  };
  const auto high_of = [](U64 a, U64 b) { return static_cast<U64>((U128{a} * b) >> 64); };
  const U64 seed = Mix64(slot);
  const U64 low = unavalanche(wanted.low) * inverse(kPrime2);
  const U64 high = (unavalanche(wanted.high) - high_of(low, kPrime2)) * inverse(kPrime2);
  const U64 mixed = ((low ^ __builtin_bswap64(high)) - (U64{15} << 54)) * inverse(kPrime1);
  const U64 sum = high - high_of(mixed, kPrime1);
  const U64 sum_low = (sum * inverse(kPrime32)) & 0xFFFFFFFF;
  const U64 second = (sum - sum_low * (kPrime32 - 1)) ^ ((kSecret[2] ^ kSecret[3]) + seed);
  const U64 first = mixed ^ second ^ ((kSecret[0] ^ kSecret[1]) - seed);
  std::string key(16, '\0');
  std::memcpy(key.data(), &first, 8);
  std::memcpy(key.data() + 8, &second, 8);
  return key;
}

// A master's first removal waits for leases of a predecessor that it cannot know of, for a second.
const CallOptions kFirstRemoval{.timeout = kCallTime};

class SecurityTest : public ClusterFixture {
 protected:
  void Prepare() override {
    for (const char* name : {"acme", "globex", "reader", "cluster", "prometheus"})
      tokens_[name] = rpc::NewToken();
    WriteCredentials();
    auto loaded = rpc::Credentials::Load(directory_ + "/credentials.toml");
    ASSERT_TRUE(loaded) << loaded.error().ToString();
    credentials_ = *loaded;
    for (const auto& [name, token] : tokens_) {
      WritePrivate(TokenFile(name), fmt::format("tenant = \"{}\"\ntoken = \"{}\"\n", name, token));
    }
  }
  void WriteCredentials() {
    std::string text;
    const auto add = [&](const std::string& name, const char* scopes, const char* more) {
      text += fmt::format("[tenants.{}]\ntokens = [\"{}\"]\nscopes = [{}]\n{}\n", name,
                          tokens_[name], scopes, more);
    };
    add("acme", acme_scopes_, "maximum = \"8MiB\"");
    add("globex", R"("read", "write", "reset")", "guaranteed = \"25%\"");
    add("reader", R"("read")", "");
    add("cluster", R"("owner", "admin")", "");
    add("prometheus", R"("metrics")", "");
    WritePrivate(directory_ + "/credentials.toml", text);
  }
  std::string TokenFile(const std::string& name) const { return directory_ + "/" + name + ".toml"; }
  std::unique_ptr<Pool> OpenAs(const std::string& tenant, const std::string& host = "elsewhere") {
    return Open(host, "&token=" + TokenFile(tenant));
  }
  rpc::Access AccessOf(const std::string& tenant) {
    return rpc::AccessWith({.tenant = tenant, .token = tokens_[tenant]}, tls_);
  }
  // As acme's, of which `token` is or is not one.
  static std::string HelloFrame(const std::string& token) {
    const std::string hello = wire::Encode(rpc::Greeting({.tenant = "acme", .token = token}));
    const auto head =
        wire::EncodeFrameHeader({.method = static_cast<std::uint16_t>(wire::Method::kHello),
                                 .body_bytes = static_cast<std::uint32_t>(hello.size()),
                                 .call = 1});
    return std::string(reinterpret_cast<const char*>(head.data()), head.size()) + hello;
  }
  rpc::Address DataAddress() { return Must(rpc::ParseAddress(owners_[0]->host().address(), 0)); }

  std::map<std::string, std::string> tokens_;
  const char* acme_scopes_ = R"("read", "write", "reset")";
};

TEST_F(SecurityTest, AStrangerMayDoNothing) {
  const std::string address = master_->address().ToString();
  auto pool = Pool::Open("kvcove://" + address, kCallTime);
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().code, Code::kDenied) << pool.error().ToString();
  EXPECT_THAT(pool.error().detail, testing::HasSubstr("token"));

  WritePrivate(directory_ + "/wrong.toml",
               fmt::format("tenant = \"acme\"\ntoken = \"{}\"\n", rpc::NewToken()));
  pool = Pool::Open("kvcove://" + address + "?token=" + directory_ + "/wrong.toml", kCallTime);
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().code, Code::kDenied);

  // Whatever is sent before the proof ends the connection, at the master and at an owner.
  for (const rpc::Address& door : {master_->address(), DataAddress()}) {
    std::int64_t soonest_ms = INT64_MAX;  // a busy machine may make any one of them late
    int denied = 0;
    for (const wire::Method method :
         {wire::Method::kOwners, wire::Method::kLookup, wire::Method::kReset, wire::Method::kProve,
          wire::Method::kDataGet, wire::Method::kInventory, wire::Method::kOwnerHello}) {
      UniqueFd fd = Must(rpc::ConnectTcp(door, Soon()));
      const std::int64_t began_ms = NowMs();
      const auto head = wire::EncodeFrameHeader(
          {.method = static_cast<std::uint16_t>(method), .body_bytes = 0, .call = 1});
      ASSERT_EQ(send(fd.get(), head.data(), head.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(head.size()));
      std::array<char, 512> answer;
      std::string got;
      while (true) {
        pollfd poller{.fd = fd.get(), .events = POLLIN, .revents = 0};
        ASSERT_GT(poll(&poller, 1, 60'000), 0) << "the connection stays open";
        const ssize_t count = recv(fd.get(), answer.data(), answer.size(), 0);
        if (count <= 0) break;
        got.append(answer.data(), static_cast<std::size_t>(count));
      }
      soonest_ms = std::min(soonest_ms, NowMs() - began_ms);
      if (got.size() >= wire::kFrameHeaderBytes) {
        const auto header = wire::DecodeFrameHeader(
            std::span<const std::byte, wire::kFrameHeaderBytes>(
                reinterpret_cast<const std::byte*>(got.data()), wire::kFrameHeaderBytes),
            1 << 20);
        ASSERT_TRUE(header);
        EXPECT_EQ(header->code, Code::kDenied);
        ++denied;
      }
    }
    EXPECT_LT(soonest_ms, 2000) << "before the deadline for a hello ends it";
    EXPECT_GT(denied, 0);
  }
}

TEST_F(SecurityTest, AWrongTokenIsAnsweredLateAndARightOneAtOnce) {
  const Clock& clock = SystemClock::Instance();
  // How long the challenge takes. One comes in both cases: it does not tell a stranger which
  // tenants there are.
  const auto ask = [&](const rpc::Address& door, const std::string& token) {
    UniqueFd fd = Must(rpc::ConnectTcp(door, Soon()));
    const std::int64_t asked = clock.NowNs();
    const std::string frame = HelloFrame(token);
    EXPECT_EQ(send(fd.get(), frame.data(), frame.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(frame.size()));
    pollfd poller{.fd = fd.get(), .events = POLLIN, .revents = 0};
    EXPECT_GT(poll(&poller, 1, 60'000), 0);
    const std::int64_t answered = clock.NowNs();
    std::array<char, 512> answer;
    EXPECT_GT(recv(fd.get(), answer.data(), answer.size(), 0), 0);
    return answered - asked;
  };
  for (const rpc::Address& door : {master_->address(), DataAddress()}) {
    EXPECT_GE(ask(door, rpc::NewToken()), rpc::kRefusalDelayNs);
    // The least of some, as the machine may be busy.
    std::int64_t least = rpc::kRefusalDelayNs;
    for (int i = 0; i < 50 && least >= rpc::kRefusalDelayNs; ++i)
      least = ask(door, tokens_["acme"]);
    EXPECT_LT(least, rpc::kRefusalDelayNs);
  }
}

TEST_F(SecurityTest, NobodyStaysByBeingBusyBeforeTheProof) {
  const std::string frame = HelloFrame(rpc::NewToken());
  for (const rpc::Address& door : {master_->address(), DataAddress()}) {
    UniqueFd fd = Must(rpc::ConnectTcp(door, Soon()));
    const Slowness slowness;
    const std::int64_t opened = SystemClock::Instance().NowNs();
    bool open = true;
    while (open && SystemClock::Instance().NowNs() < opened + 60 * kSecond) {
      open = send(fd.get(), frame.data(), frame.size(), MSG_NOSIGNAL) > 0;
      std::array<char, 4096> answer;
      while (open && recv(fd.get(), answer.data(), answer.size(), MSG_DONTWAIT) > 0) {
      }
      std::this_thread::sleep_for(milliseconds(200));
    }
    EXPECT_FALSE(open);
    EXPECT_LE(SystemClock::Instance().NowNs() - opened - slowness.ms() * kMillisecond, 7 * kSecond);
  }
}

TEST_F(SecurityTest, NoTokenCrossesTheWire) {
  // What both sides say, seen by a man in the middle.
  auto hello = rpc::Greeting({.tenant = "acme", .token = tokens_["acme"]});
  rpc::Gate gate(credentials_);
  rpc::Gate::Guest guest;
  const std::string first = wire::Encode(hello);
  const rpc::Reply reply = gate.Greet(guest, wire::Method::kHello, std::as_bytes(std::span(first)));
  ASSERT_EQ(reply.code, Code::kOk);
  const auto challenge = Must(wire::DecodeAuthChallenge(std::as_bytes(std::span(reply.body))));
  const auto proof =
      Must(rpc::Prove({.tenant = "acme", .token = tokens_["acme"]}, hello, challenge));
  const std::string second = wire::EncodeProof(proof);
  for (const std::string& said : {first, reply.body, second}) {
    EXPECT_EQ(said.find(tokens_["acme"]), std::string::npos);
  }
  // A proof is good once, for this challenge only.
  rpc::Gate::Guest replayed;
  ASSERT_EQ(gate.Greet(replayed, wire::Method::kHello, std::as_bytes(std::span(first))).code,
            Code::kOk);
  EXPECT_EQ(gate.Greet(replayed, wire::Method::kProve, std::as_bytes(std::span(second))).code,
            Code::kDenied);
  EXPECT_EQ(replayed.caller, nullptr);
  EXPECT_EQ(gate.Greet(guest, wire::Method::kProve, std::as_bytes(std::span(second))).code,
            Code::kOk);
  ASSERT_NE(guest.caller, nullptr);
  EXPECT_EQ(guest.caller->tenant, "acme");
  // A server that does not have the token is found out.
  EXPECT_EQ(rpc::Prove({.tenant = "acme", .token = rpc::NewToken()}, hello, challenge).error().code,
            Code::kDenied);
  // An unknown tenant is answered like a known one.
  const std::string unknown =
      wire::Encode(rpc::Greeting({.tenant = "nobody", .token = rpc::NewToken()}));
  rpc::Gate::Guest other;
  EXPECT_EQ(gate.Greet(other, wire::Method::kHello, std::as_bytes(std::span(unknown))).code,
            Code::kOk);
}

TEST_F(SecurityTest, TenantsDoNotSeeEachOther) {
  auto acme = OpenAs("acme");
  auto globex = OpenAs("globex");
  // The same name, and still not the same namespace.
  auto mine = OpenSession(*acme, "e1");
  auto theirs = OpenSession(*globex, "e1");
  EXPECT_EQ(Put(*mine, "secret", 5000), Code::kOk);
  EXPECT_TRUE(Get(*mine, "secret").ok());
  EXPECT_EQ(Exists(*theirs, "secret").code, Code::kMiss);
  EXPECT_EQ(Get(*theirs, "secret").code, Code::kMiss);
  EXPECT_EQ(Put(*theirs, "secret", 700), Code::kOk);
  EXPECT_TRUE(Get(*mine, "secret").ok());
  EXPECT_TRUE(Get(*theirs, "secret", 700).ok());
  const auto listed = theirs->List("", {.timeout = kCallTime});
  ASSERT_TRUE(listed) << listed.error().ToString();
  ASSERT_EQ(listed->size(), 1U);
  EXPECT_EQ(listed->front().size_bytes, 700U);
  EXPECT_EQ(Must(theirs->Count({.timeout = kCallTime})).objects, 1U);
  // Removal and reset stop at the fence.
  EXPECT_EQ(theirs->RemoveMatching("*", {.timeout = kCallTime}).value_or(99), 1U);
  EXPECT_TRUE(theirs->Reset({.timeout = kCallTime, .all_void = true}));
  EXPECT_TRUE(Get(*mine, "secret").ok());
  // A name that pretends to be another tenant's is refused.
  auto pretender = globex->OpenSession({.name = "acme\x1f"
                                                "acme/llama",
                                        .engine = "e"});
  EXPECT_FALSE(pretender);
}

TEST_F(SecurityTest, AKeyWithTheHashOfAnotherTenantsKeyIsAnotherKey) {
  auto acme = OpenAs("acme");
  auto theirs = OpenSession(*acme);
  ASSERT_EQ(Put(*theirs, "secret", 5000), Code::kOk);
  const Id128 hash = DirectoryHash(Must(theirs->Capture({.timeout = kCallTime})).slot, "secret");

  auto globex = OpenAs("globex");
  auto mine = OpenSession(*globex);
  ASSERT_EQ(Put(*mine, "warm", 100), Code::kOk);
  const Token token = Must(mine->Capture({.timeout = kCallTime}));
  const std::string twin = KeyWithHash(token.slot, hash);
  ASSERT_EQ(DirectoryHash(token.slot, twin), hash) << "the attack needs another inversion";
  const std::string_view keys[] = {twin};
  ItemResult result;
  for (const bool put_before : {false, true}) {
    if (put_before) {
      ASSERT_EQ(Put(*mine, twin, 5000), Code::kOk);
      EXPECT_TRUE(Get(*mine, twin).ok());
    }
    const Status removed = mine->Remove(keys, {&result, 1}, kFirstRemoval);
    ASSERT_TRUE(removed) << removed.error().ToString();
    EXPECT_TRUE(Exists(*theirs, "secret").ok()) << "another tenant removed it";
    EXPECT_TRUE(Get(*theirs, "secret").ok());
  }
  // Nor does a removal of one's own key make another tenant's listing stale.
  ASSERT_TRUE(mine->Remove(keys, {&result, 1}, {.timeout = kCallTime}));
  const std::string_view secret[] = {"secret"};
  ASSERT_TRUE(theirs->Remove(secret, {&result, 1}, {.timeout = kCallTime}));
  EXPECT_EQ(Put(*theirs, "secret", 5000), Code::kOk);
  EXPECT_TRUE(Get(*theirs, "secret").ok());
}

TEST_F(SecurityTest, NobodyLearnsWhatAnotherTenantHadNorChangesWhatItsOperatorIsTold) {
  auto acme = OpenAs("acme");
  auto theirs = OpenSession(*acme);
  ASSERT_EQ(Put(*theirs, "secret", 5000), Code::kOk);
  const SlotId slot = Must(theirs->Capture({.timeout = kCallTime})).slot;
  const Id128 hash = DirectoryHash(slot, "secret");
  const std::string_view keys[] = {"secret"};
  ItemResult result;
  ASSERT_TRUE(theirs->Remove(keys, {&result, 1}, {.timeout = kCallTime}));
  ASSERT_EQ(master_->master().directory().Find(slot, "secret").reason, MissReason::kRemoved);

  // A put asks whether the key is there: that is a miss of acme's own.
  const auto why = master_->master().directory().Why(slot, "secret");
  const std::uint32_t misses = why ? why->count : 0;

  auto globex = OpenAs("globex");
  auto mine = OpenSession(*globex);
  const Token token = Must(mine->Capture({.timeout = kCallTime}));
  rpc::TcpChannel channel(master_->address(), AccessOf("globex"));
  wire::MasterStub stub(channel);
  const auto places = stub.Lookup(token, {&hash, 1}, Soon());
  ASSERT_TRUE(places) << places.error().ToString();
  EXPECT_THAT(places->at(0).reason, testing::AnyOf(MissReason::kNeverPut, MissReason::kWarmingUp));
  ASSERT_TRUE(stub.Owners(
      Soon(), {.recent = {{.hash = hash, .slot = token.slot, .reason = MissReason::kDenied}}}));
  const auto after = master_->master().directory().Why(slot, "secret");
  EXPECT_EQ(after ? after->count : 0, misses) << "another tenant's misses are told as its own";
}

TEST_F(SecurityTest, AnotherTenantsSlotIsOfNoUse) {
  auto acme = OpenAs("acme");
  auto mine = OpenSession(*acme);
  const Token token = Must(mine->Capture({.timeout = kCallTime}));
  EXPECT_EQ(Put(*mine, "secret", 5000), Code::kOk);

  // By hand, with the right slot, generation and key, but as somebody else.
  rpc::TcpChannel master(master_->address(), AccessOf("globex"));
  wire::MasterStub stub(master);
  const Id128 hash = DirectoryHash(token.slot, "secret");
  EXPECT_EQ(stub.Lookup(token, {&hash, 1}, Soon()).error().code, Code::kStale);
  const std::string_view keys[] = {"secret"};
  EXPECT_FALSE(stub.Remove(token, keys, Soon()));
  EXPECT_FALSE(stub.RemoveMatching(token, "*", Soon()));
  for (const auto& owner : owners_) {
    const auto peer =
        transport::Preferred().Connect(Must(rpc::ParseAddress(owner->host().address(), 0)),
                                       {.access = AccessOf("globex")}, SystemClock::Instance());
    const auto objects = wire::MakeObjectStub(peer->channel());
    EXPECT_EQ(
        objects->Page({.at_most = 10, .slot = token.slot, .with_keys = true}, Soon()).error().code,
        Code::kDenied);
    EXPECT_EQ(objects->Page({.at_most = 10, .with_keys = true}, Soon()).error().code,
              Code::kInvalid);
    transport::Exchange get;
    get.to = peer.get();
    get.method = wire::Method::kDataGet;
    get.head = wire::Encode(wire::DataGet{.token = token, .keys = {"secret"}, .room = {1 << 20}});
    std::vector<wire::DataValue> values;
    get.on_reply = [&](std::span<const std::byte> body) -> Result<std::vector<transport::Piece>> {
      values = Must(wire::DecodeValues(body, 1));
      return std::vector<transport::Piece>();
    };
    transport::Exchange put;
    put.to = peer.get();
    put.method = wire::Method::kDataPut;
    put.head =
        wire::Encode(wire::DataPut{.token = token,
                                   .items = {{.key = "planted", .after = "", .size_bytes = 5}},
                                   .budget_ms = 500});
    std::string planted = "wrong";
    put.out = {
        {.data = reinterpret_cast<const std::byte*>(planted.data()), .size = planted.size()}};
    std::vector<Code> codes;
    put.on_reply = [&](std::span<const std::byte> body) -> Result<std::vector<transport::Piece>> {
      codes = Must(wire::DecodeCodes(body, 1));
      return std::vector<transport::Piece>();
    };
    std::vector<transport::Exchange> calls = {get, put};
    transport::Run(calls, Soon(), SystemClock::Instance());
    ASSERT_EQ(values.size(), 1U);
    EXPECT_EQ(values[0].code, Code::kMiss);
    EXPECT_EQ(values[0].reason, MissReason::kDenied);
    EXPECT_THAT(codes, testing::ElementsAre(Code::kDenied));
    EXPECT_EQ(wire::MakeObjectStub(peer->channel())->StatObjects(token, keys, Soon()).error().code,
              Code::kDenied);
    EXPECT_EQ(wire::MakeObjectStub(peer->channel())
                  ->Pin(token, keys, wire::PinKind::kHard, 0, Soon())
                  .error()
                  .code,
              Code::kDenied);
    EXPECT_EQ(wire::MakeObjectStub(peer->channel())->Stat(Soon()).error().code, Code::kDenied);
    // What tasks are made of is for the master alone.
    const std::string page = wire::Encode(wire::InventoryRequest{.at_most = 9});
    EXPECT_FALSE(
        peer->channel().Call(wire::Method::kInventory, std::as_bytes(std::span(page)), Soon()));
  }
  EXPECT_TRUE(Get(*mine, "secret").ok());
  EXPECT_EQ(Get(*mine, "planted", 5).code, Code::kMiss);
}

TEST_F(SecurityTest, WhatASharedOwnerCountedIsForItsOperatorOnly) {
  auto acme = OpenAs("acme");
  EXPECT_EQ(Put(*OpenSession(*acme), "secret", 5000), Code::kOk);
  const auto puts = [](const std::vector<wire::OwnerStat>& owners) {
    std::uint64_t sum = 0;
    for (const wire::OwnerStat& owner : owners) sum += owner.puts;
    return sum;
  };
  ASSERT_TRUE(Becomes([&] { return puts(master_->Stat().owners) > 0; })) << "owners tell it";

  rpc::TcpChannel master(master_->address(), AccessOf("globex"));
  const auto reply = wire::MasterStub(master).Owners(Soon());
  ASSERT_TRUE(reply) << reply.error().ToString();
  ASSERT_FALSE(reply->owners.empty());
  for (const wire::OwnerStat& owner : reply->owners) {
    EXPECT_EQ(owner.puts + owner.objects + owner.hits + owner.evictions + owner.stale_puts, 0U);
    EXPECT_GT(owner.free_bytes, 0U) << "globex's puts choose an owner by that";
  }
}

TEST_F(SecurityTest, ScopesAreKeptApart) {
  auto pool = OpenAs("reader");
  EXPECT_THAT(pool->Settings().scopes, testing::ElementsAre("read")) << "before anything is tried";
  EXPECT_THAT(OpenAs("acme")->Settings().scopes, testing::ElementsAre("read", "write", "reset"));
  auto session = OpenSession(*pool, "e", /*assume_weights=*/true);
  EXPECT_EQ(Put(*session, "a"), Code::kDenied);
  EXPECT_EQ(Get(*session, "a").code, Code::kMiss);
  EXPECT_EQ(session->RemoveMatching("*", {.timeout = kCallTime}).error().code, Code::kDenied);
  Status reset;
  EXPECT_TRUE(Becomes([&] {
    reset = session->Reset({.timeout = milliseconds(300)});
    return reset || reset.error().code == Code::kDenied;
  }));
  ASSERT_FALSE(reset);
  EXPECT_EQ(session->Prune("v1", {.timeout = kCallTime}).error().code, Code::kDenied);
  // An owner needs a scope of its own.
  rpc::TcpChannel channel(master_->address(), AccessOf("acme"));
  const std::string hello = wire::Encode(wire::OwnerHello{.owner = RandomId(), .address = "x:1"});
  EXPECT_EQ(
      channel.Call(wire::Method::kOwnerHello, std::as_bytes(std::span(hello)), Soon()).error().code,
      Code::kDenied);
}

// 'kvcove status' with $KVCOVE_POOL: the endpoint wants this scope alone.
TEST_F(SecurityTest, AnAdministratorLearnsWhereTheAdminEndpointIsAndReadsNothing) {
  auto pool = OpenAs("cluster");
  EXPECT_THAT(pool->Settings().scopes, testing::UnorderedElementsAre("admin", "owner"));
  const auto captured = OpenSession(*pool)->Capture({.timeout = kCallTime});
  ASSERT_FALSE(captured);
  EXPECT_EQ(captured.error().code, Code::kDenied) << captured.error().ToString();
}

TEST_F(SecurityTest, ATenantsBytesAreBounded) {
  auto acme = OpenAs("acme");
  auto globex = OpenAs("globex");
  auto greedy = OpenSession(*acme);
  auto modest = OpenSession(*globex);
  // Its share at each owner is 8 MiB: 40 MiB do not fit, and throw out nobody else's.
  for (int i = 0; i < 8; ++i) EXPECT_EQ(Put(*modest, fmt::format("m{}", i), 1 << 20), Code::kOk);
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(Put(*greedy, fmt::format("g{}", i), 1 << 20), Code::kOk);
  }
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(Get(*modest, fmt::format("m{}", i), 1 << 20).ok());
  }
  std::uint64_t bytes = 0;
  for (const auto& owner : owners_) {
    for (const wire::NamespaceStat& space : owner->host().owner().Stat().namespaces) {
      if (ReadableName(space.name) == "acme:") {
        EXPECT_LE(space.bytes, 8U << 20);
        bytes += space.bytes;
      }
    }
  }
  EXPECT_GE(bytes, 7U << 20);
}

TEST_F(SecurityTest, MemoryThatChangesTenantIsCleared) {
  auto acme = OpenAs("acme");
  auto globex = OpenAs("globex");
  auto first = OpenSession(*acme);
  auto second = OpenSession(*globex);
  owner::Owner& owner = owners_[0]->host().owner();
  const Token token = Must(first->Capture({.timeout = kCallTime}));
  const Token other = Must(second->Capture({.timeout = kCallTime}));
  auto grant = owner.memory().AddSession(getpid());
  ASSERT_TRUE(grant);
  const auto fill = [&](const Token& as, const std::string& key) {
    const wire::PutItem item{.key = key, .size_bytes = 3 << 20, .value = {}, .after = {}};
    const auto places = owner.data_side().Reserve(grant->number, as, {&item, 1});
    EXPECT_EQ(places[0].code, Code::kOk);
    return places[0];
  };
  // As many secrets as the tenant's 8 MiB allow at a time, then the same memory for another one.
  std::vector<wire::PutResult> secrets;
  for (int i = 0; i < 2; ++i) {
    secrets.push_back(fill(token, fmt::format("s{}", i)));
    for (const Extent& extent : secrets.back().extents) {
      std::ranges::fill(owner.memory().payload().At(extent), std::byte('s'));
    }
  }
  for (const auto& secret : secrets) {
    const wire::FinishItem give_up{.reservation = secret.reservation, .commit = false};
    owner.Finish(grant->number, {&give_up, 1}, Soon());
  }
  std::uint64_t changed = 0;  // granules that had a secret
  for (int i = 0; i < 5; ++i) {
    for (const Extent& extent : fill(other, fmt::format("o{}", i)).extents) {
      for (const auto& secret : secrets) {
        for (const Extent& was : secret.extents) {
          const std::uint32_t from = std::max(was.start, extent.start);
          const std::uint32_t to = std::min(was.start + was.count, extent.start + extent.count);
          changed += to > from ? to - from : 0;
        }
      }
      const bool clear = std::ranges::all_of(owner.memory().payload().At(extent),
                                             [](std::byte byte) { return byte == std::byte{0}; });
      EXPECT_TRUE(clear);
    }
  }
  EXPECT_GT(changed, 0U);
  owner.memory().EndSession(grant->number);
}

TEST_F(SecurityTest, OnlyAnOwnerOfOneTenantLendsItsMemory) {
  // Two tenants share it: no socket for mappings.
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/owner0/kvcove.sock"));
  StartOwner(64 << 20, "acme");
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/owner2/kvcove.sock"));
  auto acme = OpenAs("acme", "host2");
  auto session = OpenSession(*acme);
  EXPECT_EQ(Put(*session, "mine", 100'000), Code::kOk);
  EXPECT_EQ(owners_[2]->host().owner().Stat().objects, 1U);
  EXPECT_TRUE(Get(*session, "mine", 100'000).ok());
  // Others neither see it nor store there.
  auto globex = OpenAs("globex");
  auto other = OpenSession(*globex);
  for (int i = 0; i < 30; ++i) EXPECT_EQ(Put(*other, fmt::format("o{}", i)), Code::kOk);
  EXPECT_EQ(owners_[2]->host().owner().Stat().objects, 1U);
  rpc::TcpChannel channel(master_->address(), AccessOf("globex"));
  EXPECT_EQ(Must(wire::MasterStub(channel).Owners(Soon())).owners.size(), 2U);
}

// acme may have owners of its own, which know nobody else's token.
class TenantOwnerTest : public SecurityTest {
 protected:
  void Prepare() override {
    acme_scopes_ = R"("read", "write", "reset", "owner")";
    SecurityTest::Prepare();
    const std::string own = directory_ + "/acme-owner.toml";
    WritePrivate(own, fmt::format("[tenants.acme]\ntokens = [\"{}\"]\nscopes = [{}]\n",
                                  tokens_["acme"], acme_scopes_));
    auto loaded = rpc::Credentials::Load(own);
    ASSERT_TRUE(loaded) << loaded.error().ToString();
    acme_alone_ = *loaded;
  }
  // Tasks use the master until they end, also where a test has ended early.
  void TearDown() override {
    tasks_.reset();
    SecurityTest::TearDown();
  }
  std::string AddressOf(std::size_t owner) { return owners_[owner]->host().address(); }
  // The line of an owner's metrics that counts refused connections.
  std::string Refused(std::size_t owner) {
    Metrics metrics;
    owners_[owner]->host().Collect(metrics);
    const std::string text = metrics.Text();
    const std::size_t at = text.find("\nkvcove_owner_refused_connections_total");
    EXPECT_NE(at, std::string::npos);
    return at == std::string::npos ? "" : text.substr(at + 1, text.find('\n', at + 1) - at - 1);
  }
  master::TaskStat Run(const master::TaskRequest& request) {
    const auto id = tasks_->Start(request);
    EXPECT_TRUE(id) << id.error().ToString();
    for (int i = 0; id && i < 12'000; ++i) {
      for (const master::TaskStat& task : tasks_->List()) {
        if (task.id == *id && task.state > master::TaskState::kRunning) return task;
      }
      std::this_thread::sleep_for(milliseconds(10));
    }
    ADD_FAILURE() << "the task does not end";
    return {};
  }
  Code Ask(const std::string& tenant, wire::Method method, const std::string& body) {
    rpc::TcpChannel channel(master_->address(), AccessOf(tenant));
    const auto answer = channel.Call(method, std::as_bytes(std::span(body)), Soon());
    return answer ? Code::kOk : answer.error().code;
  }

  std::shared_ptr<rpc::Credentials> acme_alone_;
  std::unique_ptr<master::Tasks> tasks_;
};

TEST_F(TenantOwnerTest, AnOwnerOfOneTenantNeedsThatTenantsTokenOnly) {
  StartOwner(64 << 20, "acme", acme_alone_);
  auto near = OpenAs("acme", "host2");
  auto session = OpenSession(*near);
  EXPECT_EQ(Put(*session, "mine", 100'000), Code::kOk);
  EXPECT_EQ(owners_[2]->host().owner().Stat().objects, 1U);
  auto far = OpenAs("acme");
  EXPECT_TRUE(Get(*OpenSession(*far), "mine", 100'000).ok());
  EXPECT_TRUE(session->Reset({.timeout = kCallTime}));
  EXPECT_FALSE(Get(*session, "mine", 100'000).ok());
  auto globex = OpenAs("globex");
  auto other = OpenSession(*globex);
  for (int i = 0; i < 30; ++i) EXPECT_EQ(Put(*other, fmt::format("o{}", i)), Code::kOk);
  EXPECT_EQ(owners_[2]->host().owner().Stat().objects, 0U);
}

TEST_F(TenantOwnerTest, AnOperatorPinsValuesOfEachTenant) {
  StartOwner(64 << 20, "acme", acme_alone_);
  auto near = OpenAs("acme", "host2");
  auto globex = OpenAs("globex");
  auto mine = OpenSession(*near);
  auto theirs = OpenSession(*globex);
  ASSERT_EQ(Put(*mine, "k"), Code::kOk);
  ASSERT_EQ(Put(*theirs, "k"), Code::kOk);
  master::Tasks tasks(*master_, master::TaskOptions{}, SystemClock::Instance());
  const auto admin = Must(master::Admin::Open(
      *master_, tasks, {.listen = rpc::Address{.host = "127.0.0.1"}}, SystemClock::Instance()));
  int asked = 0;
  for (const master::SlotDescription& slot : master_->Namespaces()) {
    const std::string name = ReadableName(slot.name);
    for (const char* which : {R"("key":"k")", R"("prefix":"k")"}) {
      const auto answer = Must(http::Call(
          {.port = admin->address().port,
           .method = "POST",
           .target = "/v1/pin",
           .body = fmt::format(R"({{"namespace":"{}",{},"seconds":"600"}})", name, which),
           .timeout_ns = 60 * kSecond}));
      EXPECT_EQ(answer.status, 200) << answer.body;
      EXPECT_THAT(answer.body, testing::HasSubstr(R"("pinned":1)")) << name;
      ++asked;
    }
  }
  EXPECT_EQ(asked, 4);
  EXPECT_GT(owners_[2]->host().owner().Stat().timed_pin_bytes, 0U);
}

TEST_F(TenantOwnerTest, ATokenOfOneTenantIsNoOwnerOfOthers) {
  auto globex = OpenAs("globex");
  auto theirs = OpenSession(*globex);
  ASSERT_EQ(Put(*theirs, "secret"), Code::kOk);
  const Token token = Must(theirs->Capture({.timeout = kCallTime}));
  wire::OwnerHello hello{.owner = RandomId(),
                         .fresh = true,
                         .process = RandomId(),
                         .address = "127.0.0.1:1",
                         .host = "h",
                         .capacity_bytes = 1 << 20};
  for (const char* served : {"", "globex"}) {
    hello.tenant = served;
    EXPECT_EQ(Ask("acme", wire::Method::kOwnerHello, wire::Encode(hello)), Code::kDenied);
  }
  hello.tenant = "globex";
  EXPECT_EQ(Ask("globex", wire::Method::kOwnerHello, wire::Encode(hello)), Code::kDenied)
      << "without the scope";
  // As itself it lists no slot of others, and as others it does nothing.
  hello.tenant = "acme";
  rpc::TcpChannel channel(master_->address(), AccessOf("acme"));
  const std::string body = wire::Encode(hello);
  const auto reply =
      channel.Call(wire::Method::kOwnerHello, std::as_bytes(std::span(body)), Soon());
  ASSERT_TRUE(reply) << reply.error().ToString();
  const auto welcome = Must(wire::DecodeOwnerWelcome(std::as_bytes(std::span(*reply))));
  wire::ListRequest list{
      .number = welcome.number, .epoch = welcome.epoch, .sequence = 1, .items = {}};
  list.items.push_back({.hash = DirectoryHash(token.slot, "new"),
                        .generation = token.generation,
                        .size_bytes = 100,
                        .slot = token.slot});
  const std::string listing = wire::Encode(list);
  const auto listed = channel.Call(wire::Method::kList, std::as_bytes(std::span(listing)), Soon());
  ASSERT_TRUE(listed) << listed.error().ToString();
  EXPECT_EQ(Must(wire::DecodeListReply(std::as_bytes(std::span(*listed)), 1)).codes.at(0),
            Code::kDenied);
  EXPECT_EQ(Exists(*theirs, "new").code, Code::kMiss);
  for (const wire::OwnerStat& owner : master_->Owners()) {
    if (owner.number == welcome.number) continue;
    const std::string report = wire::Encode(wire::RenewRequest{.number = owner.number, .epoch = 1});
    for (const auto method :
         {wire::Method::kRenew, wire::Method::kWatch, wire::Method::kOwnerGoodbye}) {
      EXPECT_EQ(Ask("acme", method, report), Code::kDenied);
    }
    list.number = owner.number;
    EXPECT_EQ(Ask("acme", wire::Method::kList, wire::Encode(list)), Code::kDenied);
  }
  // Nor at the owners that all tenants share.
  rpc::TcpChannel shared(DataAddress(), AccessOf("acme"));
  const std::string page = wire::Encode(wire::InventoryRequest{.at_most = 10, .with_keys = true});
  EXPECT_FALSE(shared.Call(wire::Method::kInventory, std::as_bytes(std::span(page)), Soon()));
}

TEST_F(TenantOwnerTest, CopiesGoToAndFromAnOwnerOfOneTenant) {
  tasks_ = std::make_unique<master::Tasks>(
      *master_, master::TaskOptions{.repair_delay_ns = 3600 * kSecond}, SystemClock::Instance());
  EXPECT_TRUE(tasks_->Begin());
  for (int i = 0; i < 2; ++i) StartOwner(64 << 20, "acme", acme_alone_);
  auto acme = OpenAs("acme", "host2");
  auto session = OpenSession(*acme);
  for (int i = 0; i < 20; ++i) ASSERT_EQ(Put(*session, fmt::format("k{}", i)), Code::kOk);
  const auto objects = [&](std::size_t owner) {
    return owners_[owner]->host().owner().Stat().objects;
  };
  ASSERT_EQ(objects(2), 20U);
  // To another of the same tenant, and to one that all share.
  for (const auto& [from, to] : {std::pair(2U, 3U), std::pair(3U, 1U)}) {
    const auto task =
        Run({.kind = master::TaskKind::kMove, .from = AddressOf(from), .to = AddressOf(to)});
    EXPECT_EQ(task.copied, 20U) << task.message;
    EXPECT_EQ(objects(to), 20U);
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(Get(*session, fmt::format("k{}", i)).ok()) << i;
  }
  // And from there to one that does not know the cluster's token.
  rpc::TcpChannel shared(Must(rpc::ParseAddress(AddressOf(1), 0)), AccessOf("cluster"));
  const auto call = [&](wire::Method method, const std::string& body) {
    return shared.Call(method, std::as_bytes(std::span(body)), Soon());
  };
  const auto page = call(wire::Method::kInventory,
                         wire::Encode(wire::InventoryRequest{.at_most = 100, .with_keys = true}));
  ASSERT_TRUE(page) << page.error().ToString();
  const auto inventory = Must(wire::DecodeInventoryReply(std::as_bytes(std::span(*page))));
  ASSERT_EQ(inventory.objects.size(), 20U);
  wire::CopyRequest request{.to = AddressOf(2), .budget_ms = 2000};
  for (const auto& object : inventory.objects) {
    request.items.push_back({.id = object.id, .version = object.version});
  }
  const auto copied = call(wire::Method::kCopy, wire::Encode(request));
  ASSERT_TRUE(copied) << copied.error().ToString();
  EXPECT_THAT(Must(wire::DecodeCodes(std::as_bytes(std::span(*copied)), 20)),
              testing::Each(Code::kOk));
  EXPECT_EQ(objects(2), 20U);
  // From then on that owner is not shown the token that it has refused.
  const std::string refused = Refused(2);
  EXPECT_THAT(refused, testing::Not(testing::EndsWith(" 0")));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(call(wire::Method::kCopy, wire::Encode(request)));
  EXPECT_EQ(Refused(2), refused);
  tasks_.reset();
}

TEST_F(TenantOwnerTest, WithoutTheScopeItSaysWhatIsMissing) {
  WritePrivate(directory_ + "/weak.toml",
               fmt::format("[tenants.acme]\ntokens = [\"{}\"]\nscopes = [\"read\", \"write\"]\n",
                           tokens_["acme"]));
  const auto weak = Must(rpc::Credentials::Load(directory_ + "/weak.toml"));
  EXPECT_THAT(weak->OfOwner("acme").error().detail, testing::HasSubstr("\"owner\""));
  EXPECT_FALSE(weak->OfOwner("globex"));
  EXPECT_EQ(acme_alone_->OfOwner("acme")->front().tenant, "acme");
  EXPECT_FALSE(acme_alone_->OfCluster()) << "its token opens nothing but acme";
  EXPECT_EQ(credentials_->OfCluster()->front().tenant, "cluster");
  EXPECT_EQ(credentials_->OfOwner("globex")->front().tenant, "cluster") << "as before";
}

TEST_F(SecurityTest, ATokenCanBeExchangedAndStruckOffWithoutARestart) {
  auto acme = OpenAs("acme");
  auto session = OpenSession(*acme);
  EXPECT_EQ(Put(*session, "a"), Code::kOk);
  tokens_["acme"] = rpc::NewToken();
  WriteCredentials();
  std::this_thread::sleep_for(milliseconds(1100));  // the file is looked at once a second
  auto newer = Open("elsewhere", "&token=" + TokenFile("globex"));  // a hello reads it again
  // The old token is let in nowhere, and its connections end.
  EXPECT_FALSE(Pool::Open(
      "kvcove://" + master_->address().ToString() + "?token=" + TokenFile("acme"), kCallTime));
  EXPECT_NE(Get(*session, "never-seen").code, Code::kOk);
  EXPECT_NE(Put(*session, "b"), Code::kOk);
  WritePrivate(TokenFile("acme"),
               fmt::format("tenant = \"acme\"\ntoken = \"{}\"\n", tokens_["acme"]));
  auto again = OpenAs("acme");
  ASSERT_NE(again, nullptr);
  auto later = OpenSession(*again);
  EXPECT_TRUE(Get(*later, "a").ok());
  // A file with a mistake changes nothing.
  WritePrivate(directory_ + "/credentials.toml", "[tenants.acme]\ntokenz = 1\n");
  std::this_thread::sleep_for(milliseconds(1100));
  EXPECT_NE(OpenAs("acme"), nullptr);
}

TEST_F(SecurityTest, FilesThatOthersCanReadAreRefused) {
  chmod(TokenFile("acme").c_str(), 0644);
  auto pool = Pool::Open(
      "kvcove://" + master_->address().ToString() + "?token=" + TokenFile("acme"), kCallTime);
  ASSERT_FALSE(pool);
  EXPECT_THAT(pool.error().detail, testing::HasSubstr("chmod 600"));
  const std::pair<std::string, std::string> mistakes[] = {
      {"[tenants.a]\ntokens = [\"short\"]\nscopes = [\"read\"]\n", "at least 32"},
      {"[tenants.a]\ntokens = [\"" + rpc::NewToken() + "\"]\nscopes = [\"rad\"]\n", "read"},
      {"[tenants.a]\ntokens = [\"" + rpc::NewToken() + "\"]\n", "scopes"},
      {"[tenants.a]\ntokenz = []\n", "tokens"},
      {"[tenant.a]\n", "tenants"},
      {"[tenants.a\n", ":1:"},
      {"# k\n[tenants\xca\x9e]\n", ":2: a byte that is not ASCII"},
      {"", "no tenant"},
  };
  for (const auto& [text, says] : mistakes) {
    WritePrivate(directory_ + "/mistake.toml", text);
    const auto loaded = rpc::Credentials::Load(directory_ + "/mistake.toml");
    ASSERT_FALSE(loaded) << text;
    EXPECT_THAT(loaded.error().detail, testing::HasSubstr(says));
  }
}

TEST_F(SecurityTest, AClientWithATokenDoesNotTalkToAServerWithoutCredentials) {
  auto open = master::MasterServer::Open({.listen = {.host = "127.0.0.1", .port = 0}},
                                         SystemClock::Instance());
  ASSERT_TRUE(open);
  auto pool = Pool::Open(
      "kvcove://" + (*open)->address().ToString() + "?token=" + TokenFile("acme"), kCallTime);
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().code, Code::kDenied);
}

class TlsTest : public SecurityTest {
 protected:
  void Prepare() override {
    ASSERT_TRUE(MakeCertificates(directory_)) << "openssl could not make certificates";
    auto tls = rpc::Tls::Open(Files("good"));
    ASSERT_TRUE(tls) << tls.error().ToString();
    tls_ = *tls;
    SecurityTest::Prepare();
  }
  rpc::TlsFiles Files(const std::string& name) const {
    return {.authority = directory_ + "/good-ca.pem",
            .certificate = fmt::format("{}/{}.pem", directory_, name),
            .key = fmt::format("{}/{}.key", directory_, name)};
  }
  std::string Query(const std::string& name) const {
    return fmt::format(
        "&token={}&tls_authority={}/good-ca.pem&tls_certificate={}/{}.pem&tls_key={}/{}.key",
        TokenFile("acme"), directory_, directory_, name, directory_, name);
  }
};

TEST_F(TlsTest, EverythingWorksThroughIt) {
  auto pool = Open("elsewhere", Query("good"));
  ASSERT_NE(pool, nullptr);
  auto session = OpenSession(*pool);
  for (const std::size_t size : {1UL, 5000UL, 3'000'000UL}) {
    const std::string key = fmt::format("k{}", size);
    EXPECT_EQ(Put(*session, key, size), Code::kOk);
    EXPECT_TRUE(Get(*session, key, size).ok());
  }
  EXPECT_TRUE(session->Reset({.timeout = kCallTime}));
  EXPECT_EQ(Get(*session, "k1", 1).code, Code::kMiss);
}

// As Prometheus asks: with a certificate, and a bearer that is good for nothing else.
TEST_F(TlsTest, MonitoringReadsMetricsThroughIt) {
  master::Tasks tasks(*master_, master::TaskOptions{}, SystemClock::Instance());
  const auto admin = Must(master::Admin::Open(*master_, tasks,
                                              {.listen = std::nullopt,
                                               .metrics = rpc::Address{.host = "127.0.0.1"},
                                               .credentials = credentials_,
                                               .tls = tls_},
                                              SystemClock::Instance()));
  const rpc::Address& address = admin->metrics_address();
  const auto ask = [&](const std::string& path, const std::string& tenant) {
    const UniqueFd fd =
        Must(tls_->Connect(Must(rpc::ConnectTcp(address, Soon())), "127.0.0.1", Soon()));
    const std::string request = fmt::format(
        "GET {} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\n"
        "Authorization: Bearer {}\r\n\r\n",
        path, address.port, rpc::BearerOf({.tenant = tenant, .token = tokens_[tenant]}));
    EXPECT_EQ(send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    std::string answer;
    pollfd poller{.fd = fd.get(), .events = POLLIN, .revents = 0};
    char buffer[4096];
    while (poll(&poller, 1, 20'000) > 0) {
      const ssize_t got = recv(fd.get(), buffer, sizeof(buffer), 0);
      if (got <= 0) break;
      answer.append(buffer, static_cast<std::size_t>(got));
    }
    return answer;
  };
  // A client that shows another authority's certificate.
  const auto evil = Must(rpc::Tls::Open(Files("evil")));
  EXPECT_FALSE(rpc::Client::Connect(master_->address(), {.credentials = {}, .tls = evil}, Soon()));
  // Its connection ends a moment before the server's thread counts it.
  const std::int64_t until_ns = Soon();
  while (tls_->refused() == 0 && SystemClock::Instance().NowNs() < until_ns) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  const std::string metrics = ask("/metrics", "prometheus");
  EXPECT_THAT(metrics, testing::HasSubstr("kvcove_master_lookups_total"));
  EXPECT_THAT(metrics, testing::ContainsRegex("\nkvcove_master_tls_refused_total [1-9]"));
  EXPECT_THAT(metrics,
              testing::ContainsRegex("\nkvcove_master_tls_certificate_expiry_seconds [1-9]"));
  // The owner of this test has the same TLS.
  Metrics of_owner;
  owners_[0]->host().Collect(of_owner);
  EXPECT_THAT(of_owner.Text(), testing::ContainsRegex("\nkvcove_owner_tls_refused_total [1-9]"));
  EXPECT_THAT(of_owner.Text(),
              testing::ContainsRegex("\nkvcove_owner_tls_certificate_expiry_seconds [1-9]"));
  EXPECT_THAT(ask("/metrics", "acme"), testing::StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(ask("/v1/status", "cluster"), testing::StartsWith("HTTP/1.1 404"))
      << "an operator's path is not there";
  EXPECT_THAT(ask("/v1/status", "prometheus"), testing::StartsWith("HTTP/1.1 401"));
  // In the clear nobody is answered.
  const auto clear = http::Call({.port = address.port, .target = "/healthz"});
  EXPECT_FALSE(clear && clear->status == 200);
  // Nor does that token open the pool.
  auto pool = Pool::Open(fmt::format("kvcove://{}?host=h&token={}&tls_authority={}/good-ca.pem"
                                     "&tls_certificate={}/good.pem&tls_key={}/good.key",
                                     master_->address().ToString(), TokenFile("prometheus"),
                                     directory_, directory_, directory_),
                         kCallTime);
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().code, Code::kDenied);
  EXPECT_THAT(pool.error().detail, testing::HasSubstr("metrics"));
}

TEST_F(TlsTest, AHandshakeThatDoesNotEndIsClosed) {
  for (const rpc::Address& door : {master_->address(), DataAddress()}) {
    const UniqueFd fd = Must(rpc::ConnectTcp(door, Soon()));
    pollfd poller{.fd = fd.get(), .events = POLLIN, .revents = 0};
    ASSERT_GT(poll(&poller, 1, 60'000), 0) << "a silent client stays";
    char byte = 0;
    EXPECT_LE(recv(fd.get(), &byte, 1, MSG_DONTWAIT), 0);
  }
}

TEST_F(TlsTest, StrangersAreNotLetIn) {
  // Another authority's certificate, or none, or plain text.
  auto denied = Pool::Open(
      fmt::format("kvcove://{}?host=h{}", master_->address().ToString(), Query("evil")), kCallTime);
  ASSERT_FALSE(denied);
  auto plain = Pool::Open(
      fmt::format("kvcove://{}?token={}", master_->address().ToString(), TokenFile("acme")),
      milliseconds(1000));
  EXPECT_FALSE(plain);
  EXPECT_NE(Open("elsewhere", Query("good")), nullptr);
}

}  // namespace
}  // namespace kvcove
