// SPDX-License-Identifier: Apache-2.0
// One tie to one life of an owner: its mappings, its session page and its calls. When the owner
// goes, the attachment stays valid as memory, tells so, and another one takes its place.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/requester/local/reader_slots.h"
#include "kvcove/requester/types.h"
#include "kvcove/segment/reader.h"
#include "kvcove/wire/messages.h"

namespace kvcove::requester {

// Thread-safe.
class Attachment {
 public:
  // `staging`: null where values reach the owner without being staged. `node`: NUMA, of the
  // owner's memory; -1: it is bound to none.
  Attachment(segment::HeaderView header, std::byte* payload, segment::SessionPage* page,
             segment::Staging* staging = nullptr, int node = -1)
      : header_(header),
        payload_{.data = payload, .granule = header.granule()},
        page_(page),
        staging_(staging),
        node_(node),
        readers_(page, page == nullptr ? 0 : header.header().payload_bytes) {}
  virtual ~Attachment() = default;

  // Tells it from every other one of this process. Its address does not: the next one may get it.
  std::uint64_t number() const { return number_; }
  const segment::HeaderView& header() const { return header_; }
  const segment::Payload& payload() const { return payload_; }
  segment::SessionPage& page() const { return *page_; }
  int node() const { return node_; }
  std::uint64_t payload_bytes() const { return header_.header().payload_bytes; }
  // Whether the owner named a piece of this segment.
  bool Holds(const Extent& extent) const {
    return payload_.granule.BytesOf(std::uint64_t{extent.start} + extent.count) <= payload_bytes();
  }

  virtual wire::HostService& service() = 0;
  // The owner's number of this tie; 0 where it has none.
  virtual SessionNumber session() const { return 0; }
  // False once the owner is known to be gone: nothing may be read from this memory any more.
  bool connected() const { return connected_.load(std::memory_order_acquire); }
  void Disconnect() { connected_.store(false, std::memory_order_release); }

  // What this process's readers protect there.
  ReaderSlots& readers() { return readers_; }

  // The staging area, for the one thread that gets it; null while another one has it.
  segment::Staging* TakeStaging();
  void GiveStagingBack() { staging_taken_.store(false, std::memory_order_release); }

  void PushEvents(const std::vector<segment::Event>& events);

  // Reservations whose end could not be told to the owner in time.
  void Abandon(std::uint64_t reservation);
  // Tells the owner about them; keeps what could not be told.
  void FlushAbandoned(std::int64_t deadline_ns);

 private:
  static std::uint64_t NextNumber() {
    static std::atomic<std::uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  const std::uint64_t number_ = NextNumber();
  const segment::HeaderView header_;
  const segment::Payload payload_;
  segment::SessionPage* const page_;
  segment::Staging* const staging_;
  const int node_;
  std::atomic<bool> staging_taken_{false};
  std::atomic<bool> connected_{true};
  ReaderSlots readers_;

  Mutex ring_mutex_;
  Mutex abandoned_mutex_;
  std::vector<wire::FinishItem> abandoned_ KVCOVE_GUARDED_BY(abandoned_mutex_);
};

// Lays the values of one put into the staging area, if it is free. For one thread.
class StagedValues {
 public:
  explicit StagedValues(Attachment& attachment);
  ~StagedValues();
  StagedValues(const StagedValues&) = delete;
  StagedValues& operator=(const StagedValues&) = delete;

  // Nothing (sequence 0) where there is no room.
  wire::StagedAt Add(std::span<const ConstBuffer> pieces, std::uint64_t bytes);

 private:
  Attachment& attachment_;
  segment::Staging* const staging_;
  std::uint64_t sequence_ = 0;
  std::uint64_t used_ = 0;
};

// Where the current attachment comes from. Thread-safe.
class OwnerTie {
 public:
  virtual ~OwnerTie() = default;
  // Null while there is none.
  virtual std::shared_ptr<Attachment> Current() = 0;
  // There is an owner, whose memory this process cannot map: it is reached as owners elsewhere are.
  virtual bool refused() const { return false; }

  // How many sessions of this process an engine has in a namespace: it ends with the last one.
  void AddSession(const std::string& name, const std::string& engine);
  bool DropSession(const std::string& name, const std::string& engine);

 private:
  Mutex sessions_mutex_;
  std::map<std::pair<std::string, std::string>, std::size_t> sessions_
      KVCOVE_GUARDED_BY(sessions_mutex_);
};

}  // namespace kvcove::requester
