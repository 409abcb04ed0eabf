// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/workload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "kvcove/base/keys.h"
#include "kvcove/base/random.h"

namespace kvcove::policy {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"reversed", "shuffled", "scan",
                                                    "loop",     "zipf",     "agents"};
constexpr std::size_t kRequests = 12'000;

// Gives out block numbers that nothing else has.
class Blocks {
 public:
  explicit Blocks(std::uint32_t first = 0) : next_(first) {}
  void Append(Chain& chain, std::size_t count) {
    for (; count > 0; --count) chain.push_back(next_++);
  }

 private:
  std::uint32_t next_;
};

std::vector<Chain> Shuffled(std::span<const Chain> trace, Random& random) {
  std::vector<Chain> requests(trace.begin(), trace.end());
  for (std::size_t i = requests.size(); i > 1; --i) {
    std::swap(requests[i - 1], requests[random.Below(i)]);
  }
  return requests;
}

std::vector<Chain> WithScans(std::span<const Chain> trace) {
  std::uint32_t most = 0;
  for (const Chain& chain : trace) {
    for (const std::uint32_t block : chain) most = std::max(most, block);
  }
  Blocks blocks(most + 1);
  std::vector<Chain> requests;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    requests.push_back(trace[i]);
    if (i % 10 == 9) blocks.Append(requests.emplace_back(), 200);
  }
  return requests;
}

std::vector<Chain> Loop() {
  std::vector<Chain> chains(2000);
  Blocks blocks;
  for (Chain& chain : chains) blocks.Append(chain, 16);
  std::vector<Chain> requests;
  for (std::size_t i = 0; i < kRequests; ++i) requests.push_back(chains[i % chains.size()]);
  return requests;
}

std::vector<Chain> Zipf(Random& random) {
  std::vector<Chain> chains(5000);
  Blocks blocks;
  std::vector<double> sums;
  for (std::size_t rank = 0; rank < chains.size(); ++rank) {
    blocks.Append(chains[rank], 4 + random.Below(61));
    sums.push_back((sums.empty() ? 0 : sums.back()) + 1 / static_cast<double>(rank + 1));
  }
  std::vector<Chain> requests;
  constexpr std::uint64_t kSteps = 1 << 30;
  for (std::size_t i = 0; i < kRequests; ++i) {
    const double at = sums.back() * static_cast<double>(random.Below(kSteps)) / kSteps;
    const auto found = std::upper_bound(sums.begin(), sums.end(), at);
    requests.push_back(chains[static_cast<std::size_t>(found - sums.begin())]);
  }
  return requests;
}

std::vector<Chain> Agents(Random& random) {
  struct Agent {
    Chain chain;
    std::size_t calls_left = 0;
  };
  Blocks blocks;
  std::array<Chain, 4> prompts;
  for (Chain& prompt : prompts) blocks.Append(prompt, 8);
  std::vector<Agent> agents(60);
  std::vector<Chain> requests;
  while (requests.size() < kRequests) {
    Agent& agent = agents[random.Below(agents.size())];
    if (agent.calls_left == 0) {
      const Chain before = std::move(agent.chain);
      agent.chain = prompts[random.Below(prompts.size())];
      // Every fourth one goes on from the middle of what its predecessor did.
      if (random.OneIn(4) && before.size() > 16) {
        agent.chain.assign(before.begin(),
                           before.begin() + static_cast<std::ptrdiff_t>(before.size() / 2));
      }
      agent.calls_left = 4 + random.Below(37);
    }
    --agent.calls_left;
    blocks.Append(agent.chain, 1 + random.Below(6));
    requests.push_back(agent.chain);
  }
  return requests;
}

}  // namespace

std::vector<std::string_view> WorkloadNames() { return {kNames.begin(), kNames.end()}; }

Result<std::vector<Chain>> MakeWorkload(std::string_view name, std::span<const Chain> trace,
                                        std::uint64_t seed) {
  Random random(seed);
  if (name == "reversed") return std::vector<Chain>(trace.rbegin(), trace.rend());
  if (name == "shuffled") return Shuffled(trace, random);
  if (name == "scan") return WithScans(trace);
  if (name == "loop") return Loop();
  if (name == "zipf") return Zipf(random);
  if (name == "agents") return Agents(random);
  return UnknownKey("workload", name, kNames);
}

}  // namespace kvcove::policy
