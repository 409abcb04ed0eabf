// SPDX-License-Identifier: Apache-2.0
// The name of a listening Unix socket. It may be removed while the socket listens: by a cleaner of
// /tmp, or with its directory. Then nobody can connect any more, and another process may bind the
// name.
#pragma once

#include <sys/types.h>

#include <ctime>
#include <string>

namespace kvcove::rpc {

// Belongs to one thread at a time.
class SocketFile {
 public:
  explicit SocketFile(std::string path) : path_(std::move(path)) {}
  const std::string& path() const { return path_; }
  // What has the name now is this process's: after bind, or where a predecessor handed it over.
  void Take();
  // Whether the name is still that.
  bool Mine() const;
  // Removes the name, unless it is another process's by now.
  void Remove() const;

 private:
  const std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  // File systems give an inode's number again at once.
  timespec bound_{};
};

}  // namespace kvcove::rpc
