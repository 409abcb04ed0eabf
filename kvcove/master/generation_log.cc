// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/generation_log.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <type_traits>

#include "kvcove/base/directory.h"
#include "kvcove/base/hash.h"
#include "kvcove/base/log.h"

namespace kvcove::master {
namespace {

constexpr std::string_view kMagic = "kvcovegn";
constexpr std::uint32_t kFileVersion = 1;
constexpr std::size_t kHeaderBytes = 48;
constexpr std::uint8_t kCleanEnd = 255;
constexpr std::uint32_t kMaxRecordBytes = 4096;

template <typename T>
void PutNumber(std::string& out, T value) {
  static_assert(std::is_unsigned_v<T>);
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i));
}

// Reads little-endian fields; `ok` turns false at the end of the bytes and stays so.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <typename T>
  T Number() {
    T value = 0;
    const std::string_view field = Bytes(sizeof(T));
    for (std::size_t i = 0; i < field.size(); ++i) {
      value = static_cast<T>(
          value | static_cast<T>(static_cast<T>(static_cast<std::uint8_t>(field[i])) << (8 * i)));
    }
    return value;
  }
  std::string_view Bytes(std::size_t count) {
    if (count > bytes_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view field = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return field;
  }
  bool ok() const { return ok_; }
  std::size_t left() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

std::string Frame(const std::string& payload) {
  std::string out;
  PutNumber(out, static_cast<std::uint32_t>(payload.size()));
  PutNumber(out, static_cast<std::uint32_t>(Hash64(payload, payload.size())));
  return out + payload;
}

Result<Record> DecodeRecord(std::string_view payload) {
  Reader reader(payload);
  Record record;
  record.kind = static_cast<Record::Kind>(reader.Number<std::uint8_t>());
  record.slot = reader.Number<std::uint16_t>();
  record.generation = reader.Number<std::uint64_t>();
  record.reset_id.high = reader.Number<std::uint64_t>();
  record.reset_id.low = reader.Number<std::uint64_t>();
  record.name = reader.Bytes(reader.Number<std::uint16_t>());
  record.version = reader.Bytes(reader.Number<std::uint16_t>());
  const auto kind = static_cast<std::uint8_t>(record.kind);
  if (!reader.ok() || reader.left() != 0 || kind < 1 || kind > 6 || record.slot > kMaxSlots) {
    return Fail(Code::kCorrupt, "a record of the generation file has impossible fields");
  }
  return record;
}

Status WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return FailErrno(Code::kInternal, "writing the generation file");
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

// Another user may have left a file in the directory while it was still open to others.
Status CheckOwnFile(int fd, const std::string& path) {
  struct stat status{};
  if (fstat(fd, &status) != 0) return FailErrno(Code::kInternal, fmt::format("'{}'", path));
  if (!S_ISREG(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 0022) != 0) {
    return Fail(Code::kDenied,
                fmt::format("'{}' must be a file of this user's that no other may write to: "
                            "somebody else may have put it there; move it away or name another "
                            "data directory",
                            path));
  }
  return {};
}

Result<std::string> ReadAll(int fd) {
  std::string bytes;
  char buffer[65536];
  while (true) {
    const ssize_t count = read(fd, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FailErrno(Code::kInternal, "reading the generation file");
    if (count == 0) return bytes;
    bytes.append(buffer, static_cast<std::size_t>(count));
  }
}

}  // namespace

std::string EncodeHeader(Id128 incarnation, std::int64_t lease_ns) {
  std::string out(kMagic);
  PutNumber(out, kFileVersion);
  PutNumber(out, std::uint32_t{0});
  PutNumber(out, incarnation.high);
  PutNumber(out, incarnation.low);
  PutNumber(out, static_cast<std::uint64_t>(lease_ns));
  PutNumber(out, Hash64(out, 0));
  return out;
}

std::string EncodeRecord(const Record& record) {
  std::string payload;
  PutNumber(payload, static_cast<std::uint8_t>(record.kind));
  PutNumber(payload, record.slot);
  PutNumber(payload, record.generation);
  PutNumber(payload, record.reset_id.high);
  PutNumber(payload, record.reset_id.low);
  PutNumber(payload, static_cast<std::uint16_t>(record.name.size()));
  payload += record.name;
  PutNumber(payload, static_cast<std::uint16_t>(record.version.size()));
  payload += record.version;
  return Frame(payload);
}

std::string EncodeCleanEnd() { return Frame(std::string(1, static_cast<char>(kCleanEnd))); }

Result<Restored> ParseLog(std::string_view bytes) {
  Reader reader(bytes);
  const std::string_view header = bytes.substr(0, std::min(bytes.size(), kHeaderBytes));
  if (reader.Bytes(kMagic.size()) != kMagic) {
    return Fail(Code::kIncompatible, "it is no generation file of kvcove");
  }
  const auto version = reader.Number<std::uint32_t>();
  if (reader.ok() && version != kFileVersion) {
    return Fail(Code::kIncompatible,
                fmt::format("it has format version {}, this build reads {}; use the kvcove that "
                            "wrote it, or an empty directory",
                            version, kFileVersion));
  }
  reader.Number<std::uint32_t>();
  Restored restored;
  restored.incarnation.high = reader.Number<std::uint64_t>();
  restored.incarnation.low = reader.Number<std::uint64_t>();
  restored.running_lease_ns = static_cast<std::int64_t>(reader.Number<std::uint64_t>());
  const auto checksum = reader.Number<std::uint64_t>();
  if (!reader.ok() || checksum != Hash64(header.substr(0, kHeaderBytes - 8), 0)) {
    return Fail(Code::kCorrupt, "its header is damaged");
  }
  while (reader.left() > 0) {
    const auto length = reader.Number<std::uint32_t>();
    const auto sum = reader.Number<std::uint32_t>();
    if (!reader.ok() || length > reader.left())
      break;  // cut while it was appended: nobody knew of it
    const bool last = length == reader.left();
    const std::string_view payload = reader.Bytes(length);
    if (length > kMaxRecordBytes || static_cast<std::uint32_t>(Hash64(payload, length)) != sum) {
      if (last) break;
      return Fail(Code::kCorrupt, "a record in its middle is damaged");
    }
    if (length == 1 && static_cast<std::uint8_t>(payload[0]) == kCleanEnd) {
      restored.running_lease_ns = 0;
      continue;
    }
    KVCOVE_ASSIGN(Record record, DecodeRecord(payload));
    restored.records.push_back(std::move(record));
  }
  return restored;
}

Result<std::unique_ptr<FileLog>> FileLog::Open(const std::string& directory, std::int64_t lease_ns,
                                               Restored& restored) {
  KVCOVE_ASSIGN(UniqueFd opened, OpenOwnDirectory(directory, DirectoryUse::kData));
  std::unique_ptr<FileLog> log(new FileLog(std::move(opened), directory, lease_ns));
  const int at = log->directory_.get();
  log->lock_ = UniqueFd(openat(at, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!log->lock_.valid()) {
    return FailErrno(Code::kInternal, fmt::format("opening '{}/lock'", directory));
  }
  if (flock(log->lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return Fail(Code::kUnavailable, fmt::format("the data directory '{}' is in use by another "
                                                "kvcove; stop it or name another directory",
                                                directory));
  }
  const std::string path = directory + "/generations";
  restored = {.incarnation = RandomId(), .records = {}};
  const UniqueFd file(openat(at, "generations", O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (file.valid()) {
    KVCOVE_TRY(CheckOwnFile(file.get(), path));
    KVCOVE_ASSIGN(const std::string bytes, ReadAll(file.get()));
    Result<Restored> parsed = ParseLog(bytes);
    if (parsed) {
      restored = std::move(*parsed);
    } else if (parsed.error().code == Code::kIncompatible) {
      return Fail(Code::kIncompatible,
                  fmt::format("cannot use '{}': {}", path, parsed.error().detail));
    } else {
      const std::string aside = path + ".damaged";
      LogError("'{}' is damaged ({}): everything stored so far is void; kept as '{}'", path,
               parsed.error().detail, aside);
      renameat(at, "generations", at, "generations.damaged");
      restored.running_lease_ns = lease_ns;
    }
  } else if (errno != ENOENT) {
    return FailErrno(Code::kInternal, fmt::format("opening '{}'", path));
  }
  return log;
}

Status FileLog::Rewrite(Id128 incarnation, const std::vector<Record>& records) {
  const std::string fresh = path_ + "/generations.new";
  const int at = directory_.get();
  unlinkat(at, "generations.new", 0);  // left by a start that was killed
  UniqueFd file(openat(at, "generations.new",
                       O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_APPEND, 0600));
  if (!file.valid()) return FailErrno(Code::kInternal, fmt::format("creating '{}'", fresh));
  std::string bytes = EncodeHeader(incarnation, lease_ns_);
  for (const Record& record : records) bytes += EncodeRecord(record);
  KVCOVE_TRY(WriteAll(file.get(), bytes));
  if (fsync(file.get()) != 0) return FailErrno(Code::kInternal, fmt::format("syncing '{}'", fresh));
  if (renameat(at, "generations.new", at, "generations") != 0) {
    return FailErrno(Code::kInternal, fmt::format("renaming '{}'", fresh));
  }
  if (fsync(at) != 0) return FailErrno(Code::kInternal, fmt::format("syncing '{}'", path_));
  file_ = std::move(file);
  return {};
}

Status FileLog::Append(const std::vector<Record>& records) {
  std::string bytes;
  for (const Record& record : records) bytes += EncodeRecord(record);
  KVCOVE_TRY(WriteAll(file_.get(), bytes));
  if (fdatasync(file_.get()) != 0) {
    return FailErrno(Code::kInternal, "syncing the generation file");
  }
  return {};
}

Status FileLog::Close() {
  if (!file_.valid()) return {};
  KVCOVE_TRY(WriteAll(file_.get(), EncodeCleanEnd()));
  if (fdatasync(file_.get()) != 0) {
    return FailErrno(Code::kInternal, "syncing the generation file");
  }
  file_.Reset();
  return {};
}

}  // namespace kvcove::master
