// SPDX-License-Identifier: Apache-2.0
// A process of an engine in a simulated cluster: the real `Locator` over the real `MasterStub`. It
// reads its own host's memory in two steps, and asks the owners of others.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/requester/cluster/locator.h"
#include "kvcove/wire/master_stub.h"
#include "tests/sim/sim_oracle.h"
#include "tests/sim/sim_owner.h"

namespace kvcove::sim {

class SimRequester final : public wire::Channel, public requester::LookupService {
 public:
  // The owner's process that runs at a place now; null: none.
  using OwnerAt = std::function<SimOwner*(Place)>;
  struct Options {
    std::string tenant;
    Place local = -1;  // the owner whose memory it maps; -1: none
    int owners = 0;    // at places 0 to this
    OwnerRules rules;
  };
  SimRequester(World& world, SimMaster& master, Oracle& oracle, Place place, const Options& options,
               OwnerAt owner_at);
  ~SimRequester() override;
  void Start();
  Place place() const { return place_; }
  const std::string& tenant() const { return options_.tenant; }

  // ---- calls; each runs in this process, and may block it
  struct Stored {
    Oracle::Serial serial = 0;
    Code code = Code::kTimeout;
    Place owner = -1;
    std::uint64_t life = 0;  // of that owner's process
    Token token;
  };
  using StoredDone = std::function<void(const Stored&)>;
  // To `owner`, `delay_ns` after its token was captured. `done` is called with the owner's answer,
  // or when the call has ended without one.
  void Put(int space, const std::string& key, std::size_t words, Place owner, std::int64_t delay_ns,
           const StoredDone& done);
  // The put that was found; 0 for a miss.
  using ReadDone = std::function<void(Oracle::Serial)>;
  void GetLocal(int space, const std::string& key, const ReadDone& done);
  void GetRemote(int space, const std::string& key, const ReadDone& done);
  // `keys`, or what matches `prefix` + "*" when there are none.
  void Remove(int space, const std::vector<std::string>& keys, const std::string& prefix,
              const std::function<void(bool proven)>& done);
  void Reset(int family, std::optional<int> space, bool by_engine,
             const std::function<void(bool proven)>& done);
  // Before the version of `space`.
  void Prune(int space, const std::function<void(bool proven)>& done);
  void NameVersions(int family, const std::vector<std::string>& versions);
  void EndEngine(int family);
  void Pin(int space, const std::string& key, wire::PinKind kind);
  // The owner's memory of its host, whichever it maps now.
  const std::shared_ptr<Segment>& mapped() const { return mapped_; }
  void Attach();
  void Detach() { mapped_ = nullptr; }
  // The token that this process has for it now, without asking anybody.
  requester::Locator& locator(int space) { return *locators_.at(Family(space)); }

  static std::vector<std::uint64_t> WordsOf(const Segment& segment, std::span<const Extent> extents,
                                            std::uint64_t size);

  // ---- wire::Channel, LookupService
  Result<std::string> Call(wire::Method method, std::span<const std::byte> body,
                           std::int64_t deadline_ns) override;
  Result<wire::Registration> Register(const wire::RegisterRequest& request,
                                      std::int64_t deadline_ns) override;
  Result<std::vector<wire::Place>> Lookup(const Token& token, std::span<const Id128> hashes,
                                          std::int64_t deadline_ns) override;

 private:
  int Family(int space) const { return oracle_.spaces()[space].family; }
  const std::string& Version(int space) const { return oracle_.spaces()[space].version; }
  void Async(wire::Method method, const std::function<void(wire::MasterStub&, std::int64_t)>& make,
             std::int64_t timeout_ns, SimMaster::Done done);
  // One without a call.
  SimConnection& Borrow();
  void Refresh();
  void RefreshEvery();
  std::optional<Place> PlaceOf(wire::OwnerNumber number) const;
  void Fetch(const requester::Locator::Found& found, bool second, const Oracle::Reading& reading,
             const ReadDone& done);
  void FetchFrom(Place owner, const Token& token, const Oracle::Reading& reading,
                 const ReadDone& done);
  void RemoveUnder(int space, const Token& token, const std::vector<std::string>& keys,
                   const std::string& prefix, const std::function<void(Result<std::string>)>& done);
  // One exchange with an owner; `done` keeps what it uses.
  void Exchange(Place owner, transport::Exchange& exchange, std::int64_t timeout_ns,
                const std::function<void()>& begun, std::function<void()> done);
  std::int64_t ShortPause();

  World& world_;
  SimMaster& master_;
  Oracle& oracle_;
  const Place place_;
  const Options options_;
  const OwnerAt owner_at_;
  const Id128 process_;
  wire::MasterStub stub_;
  std::map<int, std::unique_ptr<requester::Locator>> locators_;  // by family
  // They end with this process, and with them the calls under way.
  std::vector<std::unique_ptr<SimConnection>> connections_;
  std::vector<SimConnection*> idle_;
  std::map<wire::OwnerNumber, std::string> addresses_;
  std::map<Place, std::unique_ptr<SimEndpoint>> endpoints_;
  std::shared_ptr<Segment> mapped_;
};

}  // namespace kvcove::sim
