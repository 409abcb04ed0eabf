// SPDX-License-Identifier: Apache-2.0
// Objects that nobody finds any more and that may still be read. No I/O. Needs a lock.
//
//   fresh (Add) -> a scan finds that nothing protects it -> its memory may be used again
//               -> else it waits, and is looked at again by Recheck, or when its last loan returns
//
// A transfer protects an object by a loan; a reader of this host by a slot in its session's page
// (segment/reader.h has the protocol and its fences). Sessions of other hosts have no page, so a
// scan costs nothing for them. What waits is not looked at by Settle: an eviction costs its own
// victims, however much a stopped process keeps.
//
// A session protects at most 1/16 of the payload, or one object. One that keeps more is at fault,
// but its protection never ends early: slots are read one after the other, so a scan can not prove
// that they were all in use at once, and freeing a slot by mistake would hand wrong bytes to a
// correct reader. Instead, what it keeps beyond the bound counts as reserved by it: it stores less,
// and others lose nothing else. `Stat` shows it with its process.
#pragma once

#include <map>
#include <vector>

#include "kvcove/owner/core/core_types.h"
#include "kvcove/segment/payload.h"
#include "kvcove/segment/reader.h"

namespace kvcove::owner {

class Withdrawn {
 public:
  struct Page {
    segment::SessionPage* page = nullptr;
    std::uint64_t kept_bytes = 0;  // of waiting objects, as of the last Recheck
  };

  Withdrawn(std::uint64_t payload_bytes, segment::Granule granule, Steps& steps)
      : bound_bytes_(payload_bytes / 16), granule_(granule), steps_(steps) {}

  // `page` must stay mapped until RemovePage.
  void AddPage(SessionNumber session, segment::SessionPage* page) { pages_[session] = {page}; }
  void RemovePage(SessionNumber session) { pages_.erase(session); }
  const std::map<SessionNumber, Page>& pages() const { return pages_; }
  // What the session keeps beyond its bound.
  std::uint64_t ExcessBytes(SessionNumber session) const;

  void Lend(Place place) { ++lent_[place]; }
  // True when this was the last loan of an object that is withdrawn: Settle may free it.
  bool Return(Place place);

  void Add(Place place, std::uint32_t size_bytes);
  // Of what was added since the last call, the places that nothing protects.
  const std::vector<Place>& Settle();
  // The same for all that waits.
  const std::vector<Place>& Recheck();
  bool lent() const { return !lent_.empty(); }
  bool waiting() const { return !waiting_.empty(); }
  std::uint64_t bytes() const { return bytes_; }  // whole granules

  // Nothing is lent while a state is carried; pages are added again.
  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, fresh_, waiting_, bytes_);
  }

 private:
  struct Object {
    Place place = 0;
    std::uint32_t size_bytes = 0;
  };
  void Scan();
  bool Protected(Place place) const;
  void Free(const Object& object);

  const std::uint64_t bound_bytes_;
  const segment::Granule granule_;
  Steps& steps_;
  std::map<SessionNumber, Page> pages_;
  std::map<Place, std::uint32_t> lent_;  // to how many transfers
  std::vector<Object> fresh_;
  std::map<Place, std::uint32_t> waiting_;  // sizes
  std::uint64_t bytes_ = 0;
  std::vector<Place> protected_;  // of the last scan, sorted
  std::vector<Place> free_;       // the last answer
};

}  // namespace kvcove::owner
