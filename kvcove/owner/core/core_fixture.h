// SPDX-License-Identifier: Apache-2.0
// For the tests of an owner's core and its parts: a segment in private memory, and short calls.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <memory>
#include <string>

#include "kvcove/owner/core/core.h"

namespace kvcove::owner {

// Zeroed, and only what is touched takes memory.
class ZeroedMemory {
 public:
  explicit ZeroedMemory(std::size_t size)
      : size_(size),
        data_(static_cast<std::byte*>(mmap(nullptr, size, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {}
  ~ZeroedMemory() { munmap(data_, size_); }
  ZeroedMemory(const ZeroedMemory&) = delete;
  ZeroedMemory& operator=(const ZeroedMemory&) = delete;
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  const std::size_t size_;
  std::byte* const data_;
};

struct TestSegment {
  TestSegment(std::uint64_t max_objects, std::uint64_t payload_bytes,
              std::uint64_t granule_bytes = 0)
      : sizes{.max_objects = max_objects,
              .payload_bytes = payload_bytes,
              .granule_bytes = granule_bytes},
        header(segment::HeaderFileBytes(sizes)),
        payload(payload_bytes) {
    EXPECT_TRUE(
        segment::FormatHeader(header.data(), sizes, {.high = 1, .low = 2}, /*hash_seed=*/3));
    view = *segment::HeaderView::Open(header.data(), header.size());
  }
  const segment::HeaderSizes sizes;
  const ZeroedMemory header;
  const ZeroedMemory payload;
  segment::HeaderView view;
};

struct TestPage {
  TestPage() : memory(sizeof(segment::SessionPage)) { segment::FormatSessionPage(memory.data()); }
  segment::SessionPage& operator*() {
    return *reinterpret_cast<segment::SessionPage*>(memory.data());
  }
  segment::SessionPage* get() { return &**this; }
  const ZeroedMemory memory;
};

inline constexpr Id128 kTestIncarnation{.high = 1, .low = 1};
// Generations that follow each other.
inline constexpr Generation kFirst = 1ULL << 24;
inline constexpr Generation kLater = 2ULL << 24;

// A core over a segment of its own with one local session.
struct TestCore {
  explicit TestCore(const CoreOptions& options, std::uint64_t granule_bytes = 0)
      : segment(options.max_objects, options.payload_bytes, granule_bytes),
        core(*Core::Open(options, segment.view, segment.payload.data(), clock)) {
    core->AddPayloadBelow(options.payload_bytes);
    core->RenewLease(clock.NowNs() + kSecond);
    session = core->AddSession(page.get(), 1);
  }

  void SetSlot(SlotId slot, Generation generation, const std::string& name = "m",
               bool named = true) {
    core->SetSlots(kTestIncarnation,
                   {{.slot = slot, .generation = generation, .name = name, .named = named}});
  }
  Token TokenOf(SlotId slot) const {
    return {.incarnation = kTestIncarnation, .generation = core->GenerationOf(slot), .slot = slot};
  }
  // Begins a put.
  PutResult Reserve(SessionNumber by, SlotId slot, const std::string& key, std::uint32_t size,
                    bool evict = true) {
    const PutItem item{.key = key, .size_bytes = size, .value = {}, .after = {}};
    return core->Put(by, TokenOf(slot), {&item, 1}, evict).front();
  }
  Code Finish(SessionNumber by, std::uint64_t reservation, bool commit = true) {
    const FinishItem item{.reservation = reservation, .commit = commit};
    return core->Finish(by, {&item, 1}).front();
  }
  // A whole put, listed where that is needed.
  Code Put(SlotId slot, const std::string& key, std::uint32_t size = 64) {
    const PutResult result = Reserve(session, slot, key, size);
    if (result.code != Code::kOk) return result.code;
    const Code code = Finish(session, result.reservation);
    for (const Pending& pending : core->TakePending()) {
      EXPECT_EQ(core->FinishListing(pending, Code::kOk), Code::kOk);
    }
    return code;
  }
  bool Has(SlotId slot, const std::string& key) const {
    return core->StatObject(slot, key).has_value();
  }
  segment::Found Find(SlotId slot, const std::string& key) const {
    return segment.view.Find(slot, {.key = key, .hash = segment.view.HashKey(slot, key)});
  }

  FakeClock clock;
  TestSegment segment;
  TestPage page;
  std::unique_ptr<Core> core;
  SessionNumber session = 0;
};

}  // namespace kvcove::owner
