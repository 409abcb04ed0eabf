// SPDX-License-Identifier: Apache-2.0
// The name of a listening Unix socket. It may be removed while the socket listens: by a cleaner of
// /tmp, or with its directory. Nobody can connect then, and another process may bind the name.
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
  // Notes that the file with this name is this process's socket: after bind, or where a predecessor
  // has handed it over.
  void Take();
  // Returns whether the name still is that file.
  bool Mine() const;
  // Removes the name, unless it is another process's by now.
  void Remove() const;

 private:
  const std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  // Time of the bind, because file systems use the number of a removed inode again at once.
  timespec bound_{};
};

}  // namespace kvcove::rpc
