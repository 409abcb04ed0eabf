// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/fake_disk.h"

#include <algorithm>

namespace kvcove::sim {
namespace {

constexpr std::size_t kHistory = 16;
constexpr std::size_t kSectorBytes = 512;  // a disk writes them whole

std::unexpected<Error> Dark() { return Fail(Code::kInternal, "the power is off"); }

}  // namespace

class FakeDisk::Attached final : public master::FileSystem {
 public:
  Attached(FakeDisk& disk, std::uint64_t process) : disk_(disk), process_(process) {}

  bool Ready() override {
    MutexLock lock(disk_.mutex_);
    return !disk_.hangs_after_ || *disk_.hangs_after_ > 0;
  }
  Result<std::optional<std::string>> Read(const std::string& name) override {
    MutexLock lock(disk_.mutex_);
    KVCOVE_TRY(disk_.CheckLocked(process_));
    const auto found = disk_.names_.find(name);
    if (found == disk_.names_.end()) return std::nullopt;
    return found->second->content;
  }
  Result<bool> Exists(const std::string& name) override {
    MutexLock lock(disk_.mutex_);
    KVCOVE_TRY(disk_.CheckLocked(process_));
    return disk_.names_.contains(name);
  }
  Status Append(const std::string& name, std::string_view bytes) override {
    MutexLock lock(disk_.mutex_);
    KVCOVE_TRY(disk_.CheckLocked(process_));
    const bool fails = disk_.FailsLocked();
    const auto found = disk_.names_.find(name);
    if (found == disk_.names_.end()) return Fail(Code::kInternal, "no such file: " + name);
    ++disk_.counts_.appends;
    return disk_.AppendLocked(*found->second, bytes, fails);
  }
  Status Sync(const std::string& name) override {
    MutexLock lock(disk_.mutex_);
    KVCOVE_TRY(disk_.CheckLocked(process_));
    const bool fails = disk_.FailsLocked();
    const auto found = disk_.names_.find(name);
    if (found == disk_.names_.end()) return Fail(Code::kInternal, "no such file: " + name);
    ++disk_.counts_.syncs;
    return disk_.SyncLocked(name, *found->second, fails);
  }
  Status Write(const std::string& name, std::string_view bytes) override {
    MutexLock lock(disk_.mutex_);
    KVCOVE_TRY(disk_.CheckLocked(process_));
    const bool fails = disk_.FailsLocked();
    ++disk_.counts_.writes;
    if (disk_.StepLocked(1) == 0) return Dark();
    const auto file = std::make_shared<File>();
    disk_.names_[name] = file;
    KVCOVE_TRY(disk_.AppendLocked(*file, bytes, fails));
    return disk_.SyncLocked(name, *file, false);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    MutexLock lock(disk_.mutex_);
    KVCOVE_TRY(disk_.CheckLocked(process_));
    return disk_.RenameLocked(from, to);
  }
  std::string PathOf(const std::string& name) const override { return "fake/" + name; }

 private:
  FakeDisk& disk_;
  const std::uint64_t process_;
};

std::unique_ptr<master::FileSystem> FakeDisk::Attach() {
  MutexLock lock(mutex_);
  return std::make_unique<Attached>(*this, ++process_);
}

Status FakeDisk::CheckLocked(std::uint64_t process) const {
  if (process != process_) return Fail(Code::kInternal, "this process is gone");
  return {};
}

bool FakeDisk::FailsLocked() {
  if (hangs_after_ && *hangs_after_ > 0) --*hangs_after_;
  if (failures_ == 0) return false;
  if (fails_after_ > 0) {
    --fails_after_;
    return false;
  }
  --failures_;
  return true;
}

std::uint64_t FakeDisk::StepLocked(std::uint64_t wanted) {
  if (steps_left_) {
    wanted = std::min(wanted, *steps_left_);
    *steps_left_ -= wanted;
  }
  counts_.steps += wanted;
  return wanted;
}

Status FakeDisk::AppendLocked(File& file, std::string_view bytes, bool fails) {
  std::uint64_t count = bytes.size();
  if (fails || full_) count = random_.Below(bytes.size() + 1);
  const std::uint64_t steps = StepLocked(count);
  file.content += bytes.substr(0, steps);
  if (steps < count || (steps_left_ && *steps_left_ == 0)) return Dark();
  if (full_) return Fail(Code::kInternal, "No space left on device");
  if (fails) return Fail(Code::kInternal, "Input/output error");
  return {};
}

Status FakeDisk::SyncLocked(const std::string& name, File& file, bool fails) {
  if (StepLocked(1) == 0) return Dark();
  if (fails) {
    file.lost = true;
    return Fail(Code::kInternal, "Input/output error");
  }
  if (file.lost) return {};
  file.synced = file.content.size();
  std::vector<std::string>& versions = history_[name];
  versions.push_back(file.content);
  if (versions.size() > kHistory) versions.erase(versions.begin());
  return {};
}

Status FakeDisk::RenameLocked(const std::string& from, const std::string& to) {
  const bool fails = FailsLocked();
  ++counts_.renames;
  const auto found = names_.find(from);
  if (found == names_.end()) return Fail(Code::kInternal, "no such file: " + from);
  // Half of the failed ones are renames that worked, with a sync of the directory that did not.
  if (fails && random_.OneIn(2)) return Fail(Code::kInternal, "Input/output error");
  if (StepLocked(1) == 0) return Dark();
  const std::shared_ptr<File> file = found->second;
  names_.erase(found);
  names_[to] = file;
  history_[to].push_back(file->content.substr(0, file->synced));
  if (fails) return Fail(Code::kInternal, "Input/output error");
  if (StepLocked(1) == 0) return Dark();
  synced_names_ = names_;
  return {};
}

void FakeDisk::CutPowerAfter(std::uint64_t steps) {
  MutexLock lock(mutex_);
  steps_left_ = steps;
}

void FakeDisk::LoseLocked(File& file, Loss loss) {
  const std::size_t unsynced = file.content.size() - file.synced;
  std::size_t size = file.synced + (loss == Loss::kAll ? 0 : random_.Below(unsynced + 1));
  std::size_t grown = size;
  if (loss == Loss::kZeros) {
    size = std::max(file.synced, size - size % kSectorBytes);
    grown = file.content.size();
  }
  file.content.resize(size);
  file.content.resize(grown, '\0');
  file.synced = grown;
  file.lost = false;
}

void FakeDisk::CutPower(Loss loss) {
  MutexLock lock(mutex_);
  ++process_;
  steps_left_.reset();
  failures_ = 0;
  hangs_after_.reset();
  if (loss == Loss::kNone) return;
  if (loss == Loss::kAll || random_.OneIn(2)) names_ = synced_names_;
  for (const auto& [name, file] : names_) LoseLocked(*file, loss);
  synced_names_ = names_;
}

void FakeDisk::FailNext(std::uint64_t operations, std::uint64_t after) {
  MutexLock lock(mutex_);
  fails_after_ = after;
  failures_ = operations;
}

void FakeDisk::SetFull(bool full) {
  MutexLock lock(mutex_);
  full_ = full;
}

void FakeDisk::SetHanging(bool hanging) {
  MutexLock lock(mutex_);
  hangs_after_.reset();
  if (hanging) hangs_after_ = 0;
}

void FakeDisk::HangAfter(std::uint64_t operations) {
  MutexLock lock(mutex_);
  hangs_after_ = operations;
}

bool FakeDisk::RollBack(const std::string& name, std::size_t versions) {
  MutexLock lock(mutex_);
  const auto found = names_.find(name);
  const std::vector<std::string>& known = history_[name];
  if (found == names_.end() || versions >= known.size()) return false;
  File& file = *found->second;
  file.content = known[known.size() - 1 - versions];
  file.synced = file.content.size();
  return true;
}

void FakeDisk::FlipBit(const std::string& name, std::uint64_t bit) {
  MutexLock lock(mutex_);
  const auto found = names_.find(name);
  if (found == names_.end() || found->second->content.empty()) return;
  std::string& content = found->second->content;
  char& byte = content[bit / 8 % content.size()];
  byte = static_cast<char>(byte ^ (1 << (bit % 8)));
}

void FakeDisk::Put(const std::string& name, std::string bytes) {
  MutexLock lock(mutex_);
  const auto file = std::make_shared<File>();
  file->content = std::move(bytes);
  file->synced = file->content.size();
  names_[name] = file;
  synced_names_[name] = file;
}

std::optional<std::string> FakeDisk::Content(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto found = names_.find(name);
  if (found == names_.end()) return std::nullopt;
  return found->second->content;
}

std::vector<std::string> FakeDisk::Names() const {
  MutexLock lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, file] : names_) names.push_back(name);
  return names;
}

FakeDisk::Counts FakeDisk::counts() const {
  MutexLock lock(mutex_);
  return counts_;
}

}  // namespace kvcove::sim
