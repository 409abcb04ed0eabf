// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/socket_file.h"

#include <sys/stat.h>
#include <unistd.h>

namespace kvcove::rpc {

void SocketFile::Take() {
  struct stat status{};
  if (lstat(path_.c_str(), &status) != 0) return;
  device_ = status.st_dev;
  inode_ = status.st_ino;
  bound_ = status.st_mtim;
}

bool SocketFile::Mine() const {
  struct stat status{};
  return lstat(path_.c_str(), &status) == 0 && status.st_dev == device_ &&
         status.st_ino == inode_ && status.st_mtim.tv_sec == bound_.tv_sec &&
         status.st_mtim.tv_nsec == bound_.tv_nsec;
}

void SocketFile::Remove() const {
  if (Mine()) unlink(path_.c_str());
}

}  // namespace kvcove::rpc
