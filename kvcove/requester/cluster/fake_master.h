// SPDX-License-Identifier: Apache-2.0
// A master for the unit tests beside it, at a real socket: it gives the answers that a test sets,
// and counts the calls. It has one namespace in slot 3, and only the owners that the test names.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/rpc/leader.h"
#include "kvcove/rpc/server.h"
#include "kvcove/wire/cluster.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::requester {

class FakeMaster final : private rpc::Handler {
 public:
  static constexpr SlotId kSlot = 3;
  // The answers, and the calls that have arrived.
  struct State {
    std::uint64_t term = 1;
    std::vector<wire::OwnerStat> owners;
    Generation generation = 7;
    bool open = true;
    std::map<std::uint64_t, wire::Place> places;       // by the low half of the hash
    std::set<std::uint64_t> saves;                     // announced, as `places`
    std::map<wire::Method, Code> refused;              // methods that fail, with their codes
    std::map<wire::Method, std::string> elsewhere;     // methods for which another master leads
    std::map<wire::Method, int> asked;                 // number of calls
    std::vector<std::string> ended;                    // engines
    std::vector<std::string> registered;               // engine/version
    std::vector<wire::Method> decided;                 // registrations and resets, in their order
    std::array<std::uint64_t, kMissReasons> misses{};  // sum of all reports
    std::vector<wire::RequesterReport::Miss> recent;
  };

  FakeMaster() {
    rpc::ServerOptions options;
    options.listen.host = "127.0.0.1";
    auto server = rpc::Server::Open(options, *this);
    EXPECT_TRUE(server) << server.error().ToString();
    server_ = std::move(*server);
    EXPECT_TRUE(server_->Start());
  }
  ~FakeMaster() override { server_->Stop(); }

  rpc::Address address() const { return server_->address(); }
  template <typename Call>
  auto With(Call&& call) {
    const MutexLock lock(mutex_);
    return call(state_);
  }
  int Asked(wire::Method method) {
    return With([&](State& state) { return state.asked[method]; });
  }
  // Waits until `arrived` is true of the state, 10 s at most. False: it is not.
  bool Await(const std::function<bool(const State&)>& arrived) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    const MutexLock lock(mutex_);
    while (!arrived(state_)) {
      if (!changed_.WaitUntil(mutex_, until) && !arrived(state_)) return false;
    }
    return true;
  }
  // Lets look-ups find the key at owner `owner`.
  void List(std::string_view key, wire::OwnerNumber owner) {
    With([&](State& state) {
      state.places[DirectoryHash(kSlot, key).low] = {.size_bytes = 10, .owner = owner};
    });
  }

 private:
  void OnOpen(rpc::ConnectionId, const rpc::Peer&) override {}
  void OnClose(rpc::ConnectionId) override {}
  void OnProcessGone(std::uint64_t) override {}
  bool Admitted(rpc::ConnectionId) const override { return true; }
  void OnRequest(rpc::ConnectionId, wire::Method method, std::span<const std::byte> body,
                 std::int64_t /*deadline_ns*/, rpc::Responder respond) override {
    Result<std::string> reply = Fail(Code::kInternal, "");
    {
      const MutexLock lock(mutex_);
      ++state_.asked[method];
      const auto refused = state_.refused.find(method);
      const auto elsewhere = state_.elsewhere.find(method);
      if (refused != state_.refused.end()) {
        reply = Fail(refused->second, "the test says so");
      } else if (elsewhere != state_.elsewhere.end()) {
        reply = std::unexpected(rpc::NotTheLeader(elsewhere->second));
      } else {
        reply = Answer(method, body);
      }
      const bool decides = method == wire::Method::kRegister || method == wire::Method::kReset;
      if (reply && decides) state_.decided.push_back(method);
      changed_.NotifyAll();
    }
    if (!reply) return respond(rpc::ErrorReply(reply.error()));
    respond({.code = Code::kOk, .body = std::move(*reply), .fds = {}});
  }

  Result<std::string> Answer(wire::Method method, std::span<const std::byte> body)
      KVCOVE_REQUIRES(mutex_) {
    switch (method) {
      case wire::Method::kOwners: {
        KVCOVE_ASSIGN(const auto report, wire::DecodeReport(body));
        for (std::size_t i = 0; i < report.misses.size(); ++i) state_.misses[i] += report.misses[i];
        state_.recent.insert(state_.recent.end(), report.recent.begin(), report.recent.end());
        return wire::Encode(wire::OwnersReply{.owners = state_.owners, .term = state_.term});
      }
      case wire::Method::kRegister: {
        KVCOVE_ASSIGN(const auto call, wire::DecodeRegister(body));
        state_.registered.push_back(call.request.engine + "/" + call.request.version);
        return wire::Encode(wire::Registration{
            .slot = kSlot, .generation = state_.generation, .open = state_.open});
      }
      case wire::Method::kReset:
        ++state_.generation;
        return wire::Encode(wire::ResetOutcome{.raised = 1, .generation = state_.generation});
      case wire::Method::kEndEngine: {
        KVCOVE_ASSIGN(const auto engine, wire::DecodeEngineVersions(body));
        state_.ended.push_back(engine.engine);
        return std::string();
      }
      case wire::Method::kLookup: {
        KVCOVE_ASSIGN(const auto request, wire::DecodeLookup(body));
        if (request.token.generation != state_.generation) return Fail(Code::kStale, "old");
        std::vector<wire::Place> found;
        for (const Id128& hash : request.hashes) {
          const auto at = state_.places.find(hash.low);
          found.push_back(at != state_.places.end() ? at->second
                                                    : wire::Place{.reason = MissReason::kEvicted});
          found.back().under_way = at == state_.places.end() && state_.saves.contains(hash.low);
          if (request.notice == SaveNotice::kBegin) state_.saves.insert(hash.low);
          if (request.notice == SaveNotice::kEnd) state_.saves.erase(hash.low);
        }
        return wire::Encode(std::span<const wire::Place>(found));
      }
      case wire::Method::kLocate: {
        KVCOVE_ASSIGN(const auto request, wire::DecodeLookup(body));
        if (request.token.generation != state_.generation) return Fail(Code::kStale, "old");
        PrefixCount count;
        for (const Id128& hash : request.hashes) {
          const auto at = state_.places.find(hash.low);
          if (at == state_.places.end()) {
            count.End(MissReason::kEvicted);
            break;
          }
          const PrefixCount::Holder holder{at->second.owner, at->second.tier};
          count.Add({&holder, 1});
        }
        return wire::Encode(count.Shares());
      }
      case wire::Method::kRemoveEverywhere: {
        KVCOVE_ASSIGN(const auto request, wire::DecodeRemove(body));
        if (!request.pattern.empty()) return wire::EncodeCount(5);
        std::vector<Code> codes;
        for (const std::string& key : request.keys) {
          const auto at = state_.places.find(DirectoryHash(kSlot, key).low);
          codes.push_back(at == state_.places.end() ? Code::kMiss : Code::kOk);
        }
        return wire::Encode(std::span<const Code>(codes));
      }
      default:
        return std::string();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  State state_ KVCOVE_GUARDED_BY(mutex_);
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace kvcove::requester
