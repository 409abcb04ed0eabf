// SPDX-License-Identifier: Apache-2.0
// Pool and Session as Python sees them. The GIL is released while a call runs.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "results.h"

namespace kvcove::python {

// Refuses with a clear message what a forked child may not do.
class ForkGuard {
 public:
  ForkGuard();
  // True in the process that made it.
  bool Here() const;
  // Raises ForkedError elsewhere.
  void Check() const;

 private:
  unsigned forks_;
};

struct PyPool {
  ForkGuard guard;
  std::shared_ptr<Pool> pool;  // null once it is closed

  // A call keeps it: another thread may close it meanwhile.
  std::shared_ptr<Pool> Get() const;
};

struct PySession {
  ForkGuard guard;
  std::shared_ptr<Session> session;  // null once it is closed
  std::string name;

  std::shared_ptr<Session> Get() const;
};

// What a caller gives as a token, nothing for None. Raises InvalidError for anything else.
std::optional<Token> TokenOf(nb::handle token);

// What says which chunk comes before the first item of a batch, or before each of them.
struct After {
  explicit After(nb::handle after);
  Keys each;  // none, or one an item
  std::string first;
};
// One for each item, from None, one for all, or a sequence.
std::vector<Hints> HintsOf(nb::handle hints, std::size_t items);

// What a call works on, in the pool's terms: made with the GIL, used without it.
struct PutWork {
  PutWork(nb::handle keys, nb::handle values, nb::handle after, nb::handle hints);
  Keys keys;
  Buffers values;
  After after;
  std::vector<PutItem> items;
};
struct GetWork {
  GetWork(nb::handle keys, nb::handle buffers);
  Keys keys;
  Buffers buffers;
  std::vector<GetItem> items;
};

// What GetValues makes, and how it deals with values on a disk.
struct ValuesWanted {
  bool writable = false;         // bytearray instead of bytes
  std::int64_t patience_ns = 0;  // see GetPatiently
  std::uint64_t from_disk = 0;   // answers how many a disk had
};
// Values as bytes, None for what is not there. With the GIL, which it releases while it waits.
nb::list GetValues(Session& session, std::span<const std::string_view> keys,
                   const CallOptions& options, ValuesWanted* wanted = nullptr);

void BindSession(nb::module_& module);
// Behind BindSession.
void BindBorrow(nb::module_& module);
void BindQueue(nb::module_& module);
void BindStore(nb::module_& module);
void BindOwner(nb::module_& module);
void BindConnector(nb::module_& module);

}  // namespace kvcove::python
