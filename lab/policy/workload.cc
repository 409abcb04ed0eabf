// SPDX-License-Identifier: Apache-2.0
#include "lab/policy/workload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numbers>
#include <queue>

#include "kvcove/base/keys.h"
#include "kvcove/base/random.h"

namespace kvcove::lab {
namespace {

constexpr std::array<std::string_view, 8> kNames = {"reversed", "shuffled", "scan",   "shift",
                                                    "loop",     "zipf",     "agents", "sessions"};
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

// The first number that no block of the trace has.
std::uint32_t Behind(std::span<const Chain> trace) {
  std::uint32_t behind = 0;
  for (const Chain& chain : trace) {
    for (const std::uint32_t block : chain) behind = std::max(behind, block + 1);
  }
  return behind;
}

std::vector<Chain> WithScans(std::span<const Chain> trace) {
  Blocks blocks(Behind(trace));
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

std::vector<Chain> Agents(Random& random, std::size_t count = kRequests) {
  struct Agent {
    Chain chain;
    std::size_t calls_left = 0;
  };
  Blocks blocks;
  std::array<Chain, 4> prompts;
  for (Chain& prompt : prompts) blocks.Append(prompt, 8);
  std::vector<Agent> agents(60);
  std::vector<Chain> requests;
  while (requests.size() < count) {
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

std::vector<Chain> Shift(std::span<const Chain> trace, Random& random) {
  const std::size_t half = trace.size() / 2;
  std::vector<Chain> requests(trace.begin(), trace.begin() + static_cast<std::ptrdiff_t>(half));
  const std::uint32_t behind = Behind(trace);
  for (Chain& chain : Agents(random, half)) {
    for (std::uint32_t& block : chain) block += behind;
    requests.push_back(std::move(chain));
  }
  requests.insert(requests.end(), trace.begin() + static_cast<std::ptrdiff_t>(half), trace.end());
  return requests;
}

// (0, 1]
double Uniform(Random& random) {
  constexpr std::uint64_t kSteps = 1 << 30;
  return static_cast<double>(random.Below(kSteps) + 1) / kSteps;
}

double LogNormal(Random& random, double median, double sigma) {
  const double normal =
      std::sqrt(-2 * std::log(Uniform(random))) * std::cos(2 * std::numbers::pi * Uniform(random));
  return median * std::exp(sigma * normal);
}

// Of a text with this median length, in blocks and parts of them, so most end within a block.
double TextBlocks(Random& random, double median) {
  return std::min(LogNormal(random, median, 1.1), 60.0);
}

std::vector<Chain> Sessions(Random& random) {
  struct Session {
    double next = 0;    // when its next turn comes, in seconds
    Chain whole;        // its full blocks
    double tokens = 0;  // in blocks, with the partial one
    bool operator>(const Session& other) const { return next > other.next; }
  };
  constexpr double kBetweenSessions = 0.6;  // seconds
  constexpr double kGoesOn = 0.68;          // after each turn
  Blocks blocks;
  std::vector<Chain> prompts(24);
  for (Chain& prompt : prompts) blocks.Append(prompt, random.Below(7));
  std::priority_queue<Session, std::vector<Session>, std::greater<>> waiting;
  std::vector<Chain> requests;
  double arrival = 0;
  while (requests.size() < kRequests) {
    Session session;
    if (waiting.empty() || waiting.top().next > arrival) {
      session.next = arrival;
      arrival += -std::log(Uniform(random)) * kBetweenSessions;
      // Applications are popular as 1 / rank, roughly.
      const auto rank = std::pow(static_cast<double>(prompts.size()), Uniform(random));
      session.whole = prompts[std::min(static_cast<std::size_t>(rank) - 1, prompts.size() - 1)];
      session.tokens = static_cast<double>(session.whole.size());
      if (random.OneIn(5)) session.tokens += TextBlocks(random, 18);
    } else {
      session = waiting.top();
      waiting.pop();
    }
    const auto fill = [&] {
      const auto full = static_cast<std::size_t>(session.tokens);
      blocks.Append(session.whole, full - std::min(full, session.whole.size()));
    };
    session.tokens += TextBlocks(random, 0.7);  // what the user says
    fill();
    Chain& request = requests.emplace_back(session.whole);
    blocks.Append(request, 1);                  // the partial one
    session.tokens += TextBlocks(random, 0.6);  // the answer
    fill();
    session.next += std::min(LogNormal(random, 60, 1.5), 3600.0);
    if (Uniform(random) < kGoesOn && session.tokens < 250) waiting.push(std::move(session));
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
  if (name == "shift") return Shift(trace, random);
  if (name == "loop") return Loop();
  if (name == "zipf") return Zipf(random);
  if (name == "agents") return Agents(random);
  if (name == "sessions") return Sessions(random);
  return UnknownKey("workload", name, kNames);
}

}  // namespace kvcove::lab
