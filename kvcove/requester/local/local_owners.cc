// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/local/local_owners.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "kvcove/base/log.h"

namespace kvcove::requester {
namespace {

constexpr std::string_view kSuffix = ".sock";
constexpr std::int64_t kLookNs = kSecond;

// Returns stem and suffix: "kvcove" and ".sock" of "/run/kvcove.sock".
std::pair<std::string, std::string> Split(const std::string& socket) {
  const std::string name = std::filesystem::path(socket).filename();
  if (!name.ends_with(kSuffix)) return {name, ""};
  return {name.substr(0, name.size() - kSuffix.size()), std::string(kSuffix)};
}

// Natural order: "node2" before "node10".
bool Before(const std::string& a, const std::string& b) {
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

bool IsSocket(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_socket(path, ignored);
}

// Finds the sockets that servers give their owners, one a NUMA node, without listing the directory:
// members of --engine-group may only enter it.
std::vector<std::string> SocketsByNode(const std::string& socket) {
  std::vector<std::string> found;
  if (IsSocket(socket)) found.push_back(socket);
  for (std::size_t node = 0; node < LocalOwners::kMost; ++node) {
    std::string sibling = SiblingSocket(socket, fmt::format("node{}", node));
    if (IsSocket(sibling)) found.push_back(std::move(sibling));
  }
  return found;
}

}  // namespace

bool LocalOwners::Has(const std::string& socket) const {
  const auto end = owners_.begin() + static_cast<std::ptrdiff_t>(count());
  return std::find_if(owners_.begin(), end, [&](const One& one) { return one.socket == socket; }) !=
         end;
}

std::optional<std::size_t> LocalOwners::Usable(const std::string& socket) const {
  for (std::size_t i = 0; i < count(); ++i) {
    if (owners_[i].socket == socket && !owners_[i].host->refused()) return i;
  }
  return std::nullopt;
}

bool LocalOwners::AnyUsable() const {
  const auto end = owners_.begin() + static_cast<std::ptrdiff_t>(count());
  return std::any_of(owners_.begin(), end, [](const One& one) { return !one.host->refused(); });
}

bool LocalOwners::Add(One owner) {
  const MutexLock lock(add_mutex_);
  const std::size_t count = count_.load(std::memory_order_relaxed);
  if (count == kMost) return false;
  owners_[count] = std::move(owner);
  count_.store(count + 1, std::memory_order_release);
  return true;
}

std::string SiblingSocket(const std::string& socket, const std::string& word) {
  const auto [stem, suffix] = Split(socket);
  return std::filesystem::path(socket).replace_filename(stem + "." + word + suffix);
}

std::string SocketOfPool(const std::string& socket) {
  const auto [stem, suffix] = Split(socket);
  const std::size_t dot = stem.rfind('.');
  if (dot == std::string::npos || dot == 0) return {};
  return std::filesystem::path(socket).replace_filename(stem.substr(0, dot) + suffix);
}

std::string AdminSocket(const std::string& socket) {
  const std::filesystem::path path(socket);
  return std::filesystem::path(socket).replace_filename("admin-" + path.filename().string());
}

std::vector<std::string> SocketsOf(const std::string& socket) {
  const auto [stem, suffix] = Split(socket);
  const std::filesystem::path path(socket);
  const std::filesystem::path directory = path.has_parent_path() ? path.parent_path() : ".";
  std::vector<std::string> siblings;
  bool itself = false;
  std::error_code error;
  std::filesystem::directory_iterator at(directory, error);
  if (error == std::errc::permission_denied) return SocketsByNode(socket);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    std::error_code ignored;
    if (!at->is_socket(ignored)) continue;
    const std::string name = at->path().filename();
    if (name == path.filename()) {
      itself = true;
    } else if (name.starts_with(stem + ".") && name.ends_with(suffix) &&
               name.size() > stem.size() + 1 + suffix.size()) {
      siblings.push_back(path.parent_path() / name);
    }
  }
  std::ranges::sort(siblings, Before);
  if (itself) siblings.insert(siblings.begin(), socket);
  return siblings;
}

Result<std::shared_ptr<SocketOwners>> SocketOwners::Connect(const std::string& socket,
                                                            std::int64_t deadline_ns,
                                                            const Clock& clock,
                                                            const WarmOptions& warm) {
  std::shared_ptr<SocketOwners> owners(new SocketOwners(socket, clock, warm));
  const Status found = owners->Look(deadline_ns);
  if (owners->owners_.count() == 0) return std::unexpected(found.error());
  KVCOVE_ASSIGN(owners->thread_,
                StartThread("kvcove-owners", [raw = owners.get()] { raw->Watch(); }));
  return owners;
}

SocketOwners::~SocketOwners() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

Status SocketOwners::Look(std::int64_t deadline_ns) {
  std::vector<std::string> sockets = SocketsOf(socket_);
  // No socket exists: the error of connecting to this one is the best message.
  if (sockets.empty()) sockets.push_back(socket_);
  Status first;
  for (const std::string& socket : sockets) {
    if (owners_.Has(socket)) continue;
    auto host = SocketOwner::Connect(
        socket, deadline_ns, clock_, warm_,
        [this, socket](const std::string& authority) { return Accept(socket, authority); });
    if (host) {
      if (owners_.Add({.socket = socket, .host = std::move(*host)})) continue;
      return Fail(Code::kLimit, fmt::format("more than {} owners", LocalOwners::kMost));
    }
    if (first) first = std::unexpected(host.error());
  }
  return first;
}

// Called by the monitor of each SocketOwner, too. An owner that is not connected does not bind the
// others: all of them may have restarted with a new authority.
Status SocketOwners::Accept(const std::string& socket, const std::string& authority) {
  std::string other;
  {
    const MutexLock lock(mutex_);
    // The list of owners is being destroyed.
    if (stopping_) return Fail(Code::kUnavailable, "the pool is being closed");
    for (std::size_t i = 0; i < owners_.count() && other.empty(); ++i) {
      const LocalOwners::One& one = owners_.at(i);
      if (one.socket == socket || authorities_[one.socket] == authority) continue;
      const auto attachment = one.host->Current();
      if (attachment != nullptr && attachment->connected()) other = one.socket;
    }
    if (other.empty()) {
      authorities_[socket] = authority;
      return {};
    }
    if (std::exchange(logged_refused_, true)) other.clear();
  }
  const std::string why = fmt::format(
      "the owner at '{}' does not belong to the pool of the one at '{}': another master decides "
      "for it; give it another socket name",
      socket, other);
  if (!other.empty()) LogWarn("{}", why);
  return Fail(Code::kDenied, why);
}

void SocketOwners::Watch() {
  while (true) {
    {
      const MutexLock lock(mutex_);
      if (!stopping_) changed_.WaitFor(mutex_, std::chrono::nanoseconds(kLookNs));
      if (stopping_) return;
    }
    if (owners_.count() < LocalOwners::kMost) (void)Look(clock_.NowNs() + kLookNs);
  }
}

}  // namespace kvcove::requester
