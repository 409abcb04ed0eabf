// SPDX-License-Identifier: Apache-2.0
// Hosts of a test: network namespaces of this machine, joined by veth pairs to a switch that is a
// namespace of its own. There may be several networks, each with a link of every host: what is said
// over one of them can be cut off alone. Links can be taken down. Needs root and `ip`.
#pragma once

#include <string>
#include <vector>

#include "kvcove/base/result.h"

namespace kvcove::multihost {

class Hosts {
 public:
  // Errors: kUnavailable where this machine does not allow it.
  static Result<Hosts> Make(int count, int networks = 1);
  Hosts(Hosts&& other) noexcept;
  Hosts& operator=(Hosts&&) = delete;
  ~Hosts();

  int count() const { return count_; }
  // "10.77.<network>.<host + 1>".
  static std::string AddressOf(int host, int network = 0);
  // Of the switch, where a fault proxy listens.
  static std::string SwitchAddress();
  // Words before a command that make it run on a host.
  std::vector<std::string> Prefix(int host) const;
  // The calling thread, and what it starts from now on, is on that host; -1: on the switch.
  Status Enter(int host) const;
  void SetLink(int host, bool up, int network = 0) const;

 private:
  explicit Hosts(int count);
  std::string NameOf(int host) const;
  std::string name_;
  int count_;
};

}  // namespace kvcove::multihost
