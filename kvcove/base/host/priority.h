// SPDX-License-Identifier: Apache-2.0
// More than its share of a busy host, for moments in which others wait for one thread.
#pragma once

namespace kvcove {

// From its construction to its end the calling thread, which owns it, goes before threads of usual
// priority (nice -10). Threads that are started meanwhile do not. Where the host does not allow it
// (it takes root, CAP_SYS_NICE, or LimitNICE= of systemd's), nothing changes.
class RaisedPriority {
 public:
  RaisedPriority();
  ~RaisedPriority();
  RaisedPriority(const RaisedPriority&) = delete;
  RaisedPriority& operator=(const RaisedPriority&) = delete;
  // Whether the host allowed it.
  bool raised() const { return raised_; }

 private:
  int before_ = 0;
  bool raised_ = false;
};

}  // namespace kvcove
