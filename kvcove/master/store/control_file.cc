// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/store/control_file.h"

#include <fmt/core.h>

#include "kvcove/base/log.h"
#include "kvcove/master/store/control_format.h"

namespace kvcove::master {
namespace {

constexpr const char* kName = "control";
constexpr const char* kNewName = "control.new";
constexpr const char* kV1Name = "generations";
constexpr int kMaxAside = 8;

// Returns the name for a damaged file: `control.damaged`, `control.damaged.2`, ...
std::string AsideName(const std::string& name, int number) {
  return number == 1 ? name + ".damaged" : fmt::format("{}.damaged.{}", name, number);
}

std::uint64_t SnapshotBytes(const std::string& key, const Fact& fact) {
  return kFactBytes + key.size() + fact.value.size();
}

}  // namespace

Status ControlFile::Load(Opened& opened) {
  opened = {};
  KVCOVE_ASSIGN(const std::optional<std::string> bytes, disk_->Read(kName));
  if (!bytes) return LoadOlder(opened);
  Result<ControlImage> parsed = ParseControl(*bytes);
  if (!parsed && parsed.error().code == Code::kIncompatible) {
    return Fail(Code::kIncompatible,
                fmt::format("cannot use '{}': {}", path(), parsed.error().detail));
  }
  if (!parsed) {
    opened.damaged = true;
    return KeepAside(kName, parsed.error().detail);
  }
  file_number_ = parsed->file_number;
  // An earlier start rewrote the file, but its first transaction did not become durable. So the
  // rest of the directory decides, as it did then.
  if (parsed->revision == 0) return LoadOlder(opened);
  if (parsed->cut_short) {
    LogWarn("'{}': the last append was cut short; nobody knew of it, and it is dropped", path());
  }
  facts_ = std::move(parsed->facts);
  for (const auto& [key, fact] : facts_) facts_bytes_ += SnapshotBytes(key, fact);
  revision_ = parsed->revision;
  file_bytes_ = bytes->size();
  opened.facts = facts_;
  opened.revision = revision_;
  // If `generations` is still here, its records are facts already: an earlier process ended between
  // the commit and the renaming.
  if (const Status status = RetireV1(); !status) {
    LogWarn("'{}' is not needed any more, but stays: {}", disk_->PathOf(kV1Name),
            status.error().ToString());
  }
  return {};
}

Status ControlFile::LoadOlder(Opened& opened) {
  // The master that kept the damaged file aside may have died before its first commit. Records of
  // version 1 in the same directory are older than the lost facts, so they are not read either.
  KVCOVE_ASSIGN(opened.damaged, disk_->Exists(AsideName(kName, 1)));
  if (opened.damaged) return {};
  KVCOVE_ASSIGN(const std::optional<std::string> bytes, disk_->Read(kV1Name));
  if (!bytes) {
    KVCOVE_ASSIGN(opened.damaged, disk_->Exists(AsideName(kV1Name, 1)));
    opened.found_nothing = !opened.damaged;
    return {};
  }
  Result<Restored> parsed = ParseLog(*bytes);
  if (parsed) {
    opened.from_v1 = std::move(*parsed);
    return {};
  }
  if (parsed.error().code == Code::kIncompatible) {
    return Fail(Code::kIncompatible,
                fmt::format("cannot use '{}': {}", disk_->PathOf(kV1Name), parsed.error().detail));
  }
  opened.damaged = true;
  return KeepAside(kV1Name, parsed.error().detail);
}

Status ControlFile::KeepAside(const std::string& name, const std::string& why) {
  int number = 1;
  for (; number < kMaxAside; ++number) {
    KVCOVE_ASSIGN(const bool taken, disk_->Exists(AsideName(name, number)));
    if (!taken) break;
  }
  const std::string aside = AsideName(name, number);
  KVCOVE_TRY(disk_->Rename(name, aside));
  LogError(
      "'{}' is damaged ({}): no fact is read from it, and everything stored so far is void; "
      "kept as '{}'",
      disk_->PathOf(name), why, disk_->PathOf(aside));
  return {};
}

Status ControlFile::Rewrite() {
  const std::string bytes = EncodeControl(facts_, revision_, file_number_ + 1);
  KVCOVE_TRY(disk_->Write(kNewName, bytes));
  known_ = false;  // until the renaming is durable: a crash or an error may leave either file
  ++file_number_;  // not used again, even if the renaming fails: the new file may have the name
  KVCOVE_TRY(disk_->Rename(kNewName, kName));
  file_bytes_ = bytes.size();
  known_ = true;
  return {};
}

Status ControlFile::Append(const Transactions& transactions) {
  const std::string bytes =
      EncodeBatch(transactions, revision_ + 1, file_number_, file_bytes_ / kSectorBytes);
  known_ = false;  // until Sync: after an error, any part of the batch may be in the file
  KVCOVE_TRY(disk_->Append(kName, bytes));
  file_bytes_ += bytes.size();
  return {};
}

Result<std::uint64_t> ControlFile::Sync(Transactions transactions) {
  // The mirror changes only after the sync: Rewrite writes the mirror, which must have no facts of
  // a batch that failed.
  KVCOVE_TRY(disk_->Sync(kName));
  known_ = true;
  const std::uint64_t first = revision_ + 1;
  for (std::vector<FactChange>& changes : transactions) Apply(std::move(changes));
  return first;
}

void ControlFile::Apply(std::vector<FactChange> changes) {
  ++revision_;
  for (FactChange& change : changes) {
    const auto old = facts_.find(change.key);
    if (old != facts_.end()) {
      facts_bytes_ -= SnapshotBytes(old->first, old->second);
      facts_.erase(old);
    }
    if (!change.value) continue;
    const auto [fact, added] =
        facts_.emplace(std::move(change.key), Fact{std::move(*change.value), revision_});
    facts_bytes_ += SnapshotBytes(fact->first, fact->second);
  }
}

Status ControlFile::RetireV1() {
  KVCOVE_ASSIGN(const bool there, disk_->Exists(kV1Name));
  if (!there) return {};
  return disk_->Rename(kV1Name, std::string(kV1Name) + ".v1");
}

std::uint64_t ControlFile::live_bytes() const {
  return (1 + (facts_bytes_ + kPieceBytes - 1) / kPieceBytes) * kSectorBytes;
}

}  // namespace kvcove::master
