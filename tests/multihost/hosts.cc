// SPDX-License-Identifier: Apache-2.0
#include "tests/multihost/hosts.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "kvcove/base/posix.h"

namespace kvcove::multihost {
namespace {

bool Shell(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

// What a run that was killed has left behind.
void RemoveOld() {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/var/run/netns", ignored)) {
    const std::string name = entry.path().filename().string();
    int pid = 0;
    if (!name.starts_with("kvt-")) continue;
    std::from_chars(name.data() + 4, name.data() + name.size(), pid);
    if (pid > 0 && kill(pid, 0) != 0) Shell("ip netns del " + name);
  }
}

}  // namespace

Hosts::Hosts(int count) : name_(fmt::format("kvt-{}", getpid())), count_(count) {}
Hosts::Hosts(Hosts&& other) noexcept : name_(std::move(other.name_)), count_(other.count_) {
  other.count_ = -1;
}

std::string Hosts::NameOf(int host) const {
  return host < 0 ? name_ + "-s" : fmt::format("{}-{}", name_, host);
}
std::string Hosts::AddressOf(int host, int network) {
  return fmt::format("10.77.{}.{}", network, host + 1);
}
std::string Hosts::SwitchAddress() { return "10.77.0.254"; }

Result<Hosts> Hosts::Make(int count, int networks) {
  RemoveOld();
  Hosts hosts(count);
  const std::string sw = hosts.NameOf(-1);
  bool made = Shell("ip netns add " + sw) && Shell(fmt::format("ip -n {} link set lo up", sw));
  for (int i = 0; made && i < count; ++i) {
    const std::string ns = hosts.NameOf(i);
    made = Shell("ip netns add " + ns) && Shell(fmt::format("ip -n {} link set lo up", ns));
  }
  for (int n = 0; made && n < networks; ++n) {
    made = Shell(fmt::format("ip -n {} link add br{} type bridge", sw, n)) &&
           (n > 0 || Shell(fmt::format("ip -n {} addr add {}/24 dev br0", sw, SwitchAddress()))) &&
           Shell(fmt::format("ip -n {} link set br{} up", sw, n));
    for (int i = 0; made && i < count; ++i) {
      const std::string ns = hosts.NameOf(i);
      made = Shell(fmt::format("ip link add eth{} netns {} type veth peer name p{}-{} netns {}", n,
                               ns, n, i, sw)) &&
             Shell(fmt::format("ip -n {} addr add {}/24 dev eth{}", ns, AddressOf(i, n), n)) &&
             Shell(fmt::format("ip -n {} link set eth{} up", ns, n)) &&
             Shell(fmt::format("ip -n {} link set p{}-{} master br{} up", sw, n, i, n));
    }
  }
  if (made) return hosts;
  return Fail(Code::kUnavailable,
              "this machine does not let this user make network namespaces with 'ip'");
}

Hosts::~Hosts() {
  if (count_ < 0) return;
  for (int i = -1; i < count_; ++i) Shell("ip netns del " + NameOf(i));
}

std::vector<std::string> Hosts::Prefix(int host) const {
  return {"/usr/bin/env", "ip", "netns", "exec", NameOf(host)};
}

Status Hosts::Enter(int host) const {
  const UniqueFd fd(open(("/var/run/netns/" + NameOf(host)).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() || setns(fd.get(), CLONE_NEWNET) != 0) {
    return FailErrno(Code::kUnavailable, "entering a network namespace");
  }
  return {};
}

void Hosts::SetLink(int host, bool up, int network) const {
  Shell(fmt::format("ip -n {} link set p{}-{} {}", NameOf(-1), network, host, up ? "up" : "down"));
}

}  // namespace kvcove::multihost
