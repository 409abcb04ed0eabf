// SPDX-License-Identifier: Apache-2.0
// Objects that no look-up finds any more, but that readers may still be reading. No I/O. Not
// thread-safe: needs the core's lock.
//
//   fresh (Add) -> a scan finds that nothing protects it -> its memory may be used again
//               -> else it waits until Recheck scans again, or until its last loan is returned
//
// A transfer protects an object by a loan; a reader of this host by a slot in its session's page
// (segment/reader.h has the protocol and its fences). Sessions of other hosts have no page, so a
// scan costs nothing for them. Settle skips waiting objects, so that an eviction costs steps for
// its own victims alone, however much a stopped process protects.
//
// A session protects at most 1/16 of the payload, or one object. One that keeps more is at fault,
// but its protection never ends early: slots are read one after the other, so a scan can not prove
// that they were all in use at once, and freeing a slot by mistake would hand wrong bytes to a
// correct reader. Instead, the bytes beyond the bound count as reserved by the session: it stores
// less, and others lose nothing else. `Stat` shows each session's protected objects with its pid.
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
    std::uint64_t kept_bytes = 0;  // of waiting objects that it protects, as of the last Recheck
  };

  Withdrawn(std::uint64_t payload_bytes, segment::Granule granule, Steps& steps)
      : bound_bytes_(payload_bytes / 16), granule_(granule), steps_(steps) {}

  // `page` must stay mapped until RemovePage.
  void AddPage(SessionNumber session, segment::SessionPage* page) { pages_[session] = {page}; }
  void RemovePage(SessionNumber session) { pages_.erase(session); }
  const std::map<SessionNumber, Page>& pages() const { return pages_; }
  // Returns the bytes that the session keeps beyond its bound, as of the last Recheck.
  std::uint64_t ExcessBytes(SessionNumber session) const;

  void Lend(Place place) { ++lent_[place]; }
  // Ends one loan. True when it was the last one of a withdrawn object: call Settle to free it.
  bool Return(Place place);

  void Add(Place place, std::uint32_t size_bytes);
  // Returns the places added since the last call that nothing protects; the others wait from now
  // on. Valid until the next call of Settle or Recheck.
  const std::vector<Place>& Settle();
  // Returns the waiting places that nothing protects any more. O(waiting objects).
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
  std::map<Place, std::uint32_t> lent_;  // by place: the number of transfers
  std::vector<Object> fresh_;
  std::map<Place, std::uint32_t> waiting_;  // sizes
  std::uint64_t bytes_ = 0;
  std::vector<Place> protected_;  // result of the last scan, sorted
  std::vector<Place> free_;       // the last answer of Settle or Recheck
};

}  // namespace kvcove::owner
