// SPDX-License-Identifier: Apache-2.0
// Any bytes as the file `control`: a start never crashes, and what it accepts is there after a
// commit and another start. The first byte chooses between raw bytes and bodies that get right
// checksums; without these nothing would come through.
// Fuzzes: kvcove/master/store
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "kvcove/base/log.h"
#include "kvcove/master/store/control_format.h"
#include "kvcove/master/store/file_store.h"
#include "tests/sim/fake_disk.h"

namespace {

using namespace kvcove;
using namespace kvcove::master;

void Check(bool holds) {
  if (!holds) std::abort();
}

// A header from the first bytes; then bodies: a byte for the length, with its top bit for the kind,
// and the bytes.
std::string Framed(std::string_view data) {
  const auto byte = [&] {
    if (data.empty()) return std::uint8_t{0};
    const auto first = static_cast<std::uint8_t>(data.front());
    data.remove_prefix(1);
    return first;
  };
  ControlHeader header;
  header.file_number = byte();
  header.revision = byte();
  header.snapshot_sectors = byte();
  header.snapshot_facts = byte();
  std::string bytes = EncodeControlHeader(header);
  while (!data.empty()) {
    const std::uint8_t first = byte();
    const auto kind = (first & 128) != 0 ? BodyKind::kSnapshot : BodyKind::kBatch;
    const std::string_view body = data.substr(0, (first & 127) * 8);
    data.remove_prefix(body.size());
    bytes += FrameBody(body, kind, header.file_number, bytes.size() / kSectorBytes);
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  SetLogLevel(LogLevel::kOff);
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data + 1), size - 1);
  const FakeClock clock;
  const FileStoreOptions options{.clock = &clock};
  sim::FakeDisk disk(1);
  disk.Put("control", data[0] % 2 == 0 ? std::string(rest) : Framed(rest));
  Opened opened;
  auto store = FileStore::Open(disk.Attach(), options, opened);
  if (!store) return 0;
  Check(!opened.damaged || opened.facts.empty());
  std::uint64_t revision = 0;
  (*store)->Commit({{"key", "value"}}, [&](const Result<std::uint64_t>& done) {
    Check(done.has_value());
    revision = *done;
  });
  while ((*store)->Work()) {
  }
  Check(revision == opened.revision + 1);
  Facts expected = std::move(opened.facts);
  expected.insert_or_assign("key", Fact{"value", revision});
  disk.CutPower(sim::Loss::kAll);
  Check(FileStore::Open(disk.Attach(), options, opened).has_value());
  Check(!opened.damaged && opened.revision == revision && opened.facts == expected);
  return 0;
}
