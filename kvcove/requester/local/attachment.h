// SPDX-License-Identifier: Apache-2.0
// The connection to one life of an owner: mappings, session page and calls. When the owner ends,
// its attachment is disconnected for ever. The memory stays mapped while the attachment lives, and
// an owner that restarts gets another attachment.
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
  // `staging`: null if values are sent without staging. `node`: NUMA node of the owner's memory;
  // -1: bound to none.
  Attachment(segment::HeaderView header, std::byte* payload, segment::SessionPage* page,
             segment::Staging* staging = nullptr, int node = -1)
      : header_(header),
        payload_{.data = payload, .granule = header.granule()},
        page_(page),
        staging_(staging),
        node_(node),
        readers_(page, page == nullptr ? 0 : header.header().payload_bytes) {}
  virtual ~Attachment() = default;

  // Returns a number that no other attachment of this process has. An address is no such number,
  // because the next attachment may get it.
  std::uint64_t number() const { return number_; }
  const segment::HeaderView& header() const { return header_; }
  const segment::Payload& payload() const { return payload_; }
  segment::SessionPage& page() const { return *page_; }
  int node() const { return node_; }
  std::uint64_t payload_bytes() const { return header_.header().payload_bytes; }
  // True if the extent is inside the payload. The requester does not trust the owner's grants.
  bool Holds(const Extent& extent) const {
    return payload_.granule.BytesOf(std::uint64_t{extent.start} + extent.count) <= payload_bytes();
  }

  virtual wire::HostService& service() = 0;
  // Returns the owner's number of this session; 0 if it has none.
  virtual SessionNumber session() const { return 0; }
  // False once the owner is known to have ended: this memory must not be read any more.
  bool connected() const { return connected_.load(std::memory_order_acquire); }
  void Disconnect() { connected_.store(false, std::memory_order_release); }

  // Returns the lanes and slots of this process's readers.
  ReaderSlots& readers() { return readers_; }

  // Returns the staging area, for this thread alone until GiveStagingBack; null while another
  // thread has it.
  segment::Staging* TakeStaging();
  void GiveStagingBack() { staging_taken_.store(false, std::memory_order_release); }

  // Appends events to the ring of the session page.
  void PushEvents(const std::vector<segment::Event>& events);

  // Notes a reservation that is given up, and whose end the owner does not know yet.
  void Abandon(std::uint64_t reservation);
  // Ends the noted reservations at the owner. If the call fails, they remain noted.
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

// Copies the values of one put into the staging area, if that is free. Not thread-safe.
class StagedValues {
 public:
  explicit StagedValues(Attachment& attachment);
  ~StagedValues();
  StagedValues(const StagedValues&) = delete;
  StagedValues& operator=(const StagedValues&) = delete;

  // Copies a value, and returns its place; sequence 0 if there is no room.
  wire::StagedAt Add(std::span<const ConstBuffer> pieces, std::uint64_t bytes);

 private:
  Attachment& attachment_;
  segment::Staging* const staging_;
  std::uint64_t sequence_ = 0;
  std::uint64_t used_ = 0;
};

// An owner of this host through all of its lives; provides the current attachment. Thread-safe.
class OwnerTie {
 public:
  virtual ~OwnerTie() = default;
  // Returns the current attachment; null while there is none.
  virtual std::shared_ptr<Attachment> Current() = 0;
  // True if the owner's memory cannot be mapped by this process: the owner is then reached over
  // TCP, like owners of other hosts.
  virtual bool refused() const { return false; }

  // Count the sessions of an engine in a namespace. DropSession is true for the last one, with
  // which the engine ends.
  void AddSession(const std::string& name, const std::string& engine);
  bool DropSession(const std::string& name, const std::string& engine);

 private:
  Mutex sessions_mutex_;
  std::map<std::pair<std::string, std::string>, std::size_t> sessions_
      KVCOVE_GUARDED_BY(sessions_mutex_);
};

}  // namespace kvcove::requester
