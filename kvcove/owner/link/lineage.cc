// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link/lineage.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>

#include "kvcove/base/clock.h"

namespace kvcove::owner {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".owner";
// Engines that run notice the owner's death in milliseconds and close its segment; a frozen engine
// may keep it open for hours.
constexpr std::int64_t kFirstPauseNs = 50 * kMillisecond;
constexpr std::int64_t kLongestPauseNs = kSecond;

std::string PathOf(const std::string& place, const Id128& identity) {
  return fmt::format("{}.{}{}", place, ToHex(identity), kSuffix);
}

// Returns the identity in the file's name; nothing for another kind of file.
std::optional<Id128> IdentityIn(const std::string& place, const fs::path& path) {
  const std::string name = path.filename().string();
  const std::string prefix = fs::path(place).filename().string() + ".";
  if (name.size() < prefix.size() + kSuffix.size() || !name.starts_with(prefix) ||
      !name.ends_with(kSuffix)) {
    return std::nullopt;
  }
  return IdFromHex(
      std::string_view(name).substr(prefix.size(), name.size() - prefix.size() - kSuffix.size()));
}

// Returns whether `path` still names the open file `fd`.
bool Names(const std::string& path, int fd) {
  struct stat at{};
  struct stat opened{};
  return stat(path.c_str(), &at) == 0 && fstat(fd, &opened) == 0 && at.st_dev == opened.st_dev &&
         at.st_ino == opened.st_ino;
}

}  // namespace

Lineage::Lineage(std::string place, std::string path, UniqueFd fd)
    : place_(std::move(place)), fd_(std::move(fd)), path_(std::move(path)) {}

Lineage::~Lineage() { Stop(); }

// Created and locked under a name that Look skips, then renamed: if another owner could find the
// file between open and flock, it would get the lock and report a living owner as ended.
Result<std::unique_ptr<Lineage>> Lineage::Open(const std::string& place, const Id128& identity) {
  const std::string path = PathOf(place, identity);
  const std::string unlocked = path + "-new";
  UniqueFd fd(open(unlocked.c_str(), O_RDONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.valid()) return FailErrno(Code::kUnavailable, fmt::format("making '{}'", unlocked));
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0 || rename(unlocked.c_str(), path.c_str()) != 0) {
    auto failed = FailErrno(Code::kUnavailable, fmt::format("locking '{}'", unlocked));
    unlink(unlocked.c_str());
    return failed;
  }
  return std::unique_ptr<Lineage>(new Lineage(place, path, std::move(fd)));
}

std::unique_ptr<Lineage> Lineage::Adopt(const std::string& place, const Id128& identity,
                                        UniqueFd fd) {
  return std::unique_ptr<Lineage>(new Lineage(place, PathOf(place, identity), std::move(fd)));
}

Status Lineage::Watch(std::function<bool(const Id128&)> report) {
  report_ = std::move(report);
  {
    const MutexLock lock(mutex_);
    stopping_ = false;
  }
  KVCOVE_ASSIGN(thread_, StartThread("kvcove-lineage", [this] { Run(); }));
  return {};
}

void Lineage::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Lineage::Rename(const Id128& identity) {
  std::string path = PathOf(place_, identity);
  if (rename(path_.c_str(), path.c_str()) == 0) path_ = std::move(path);
}

void Lineage::Remove() {
  if (Names(path_, fd_.get())) unlink(path_.c_str());
}

void Lineage::Run() {
  std::int64_t pause_ns = kFirstPauseNs;
  while (true) {
    std::size_t others = 0;
    for (const Ended& ended : Look(others)) {
      if (report_(ended.identity)) {
        // Only after the master knows: if this process were killed between, no file would be left
        // by which a later owner can prove the end.
        unlink(ended.path.c_str());
      } else {
        ++others;
      }
    }
    if (others == 0) return;
    const MutexLock lock(mutex_);
    if (!stopping_) changed_.WaitFor(mutex_, std::chrono::nanoseconds(pause_ns));
    if (stopping_) return;
    pause_ns = std::min(pause_ns * 2, kLongestPauseNs);
  }
}

std::vector<Lineage::Ended> Lineage::Look(std::size_t& others) const {
  std::vector<Ended> ended;
  std::error_code error;
  const fs::path directory = fs::path(place_).parent_path();
  for (fs::directory_iterator at(directory.empty() ? "." : directory, error), end;
       !error && at != end; at.increment(error)) {
    const auto identity = IdentityIn(place_, at->path());
    if (!identity) continue;
    const std::string path = at->path().string();
    UniqueFd fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd.valid() || Names(path, fd_.get())) continue;
    if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      ++others;
    } else if (Names(path, fd.get())) {
      // Checked after the lock: another owner at this place may have reported the identity and
      // removed the file since this one opened it.
      ended.push_back({.identity = *identity, .path = path, .lock = std::move(fd)});
    }
  }
  return ended;
}

}  // namespace kvcove::owner
