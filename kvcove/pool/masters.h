// SPDX-License-Identifier: Apache-2.0
// Finds the masters of a cluster for a client: by one address, a list, or etcd, where the leader
// has stored its address. docs/ha.md ("Clients that ask etcd") explains it.
//
//   FindMasters: asks until a leader is named --> knows one --a call there fails--> doubts it
//                     |                             ^                                  |
//                     v deadline: an error          +--another is named, or 5 s pass---+
//
// While a client knows the leader it asks nothing. While it doubts, a thread of its own
// (kvcove-masters) asks every 150 to 300 ms. While etcd does not answer, the leader that was known
// last remains.
#pragma once

#include <string_view>

#include "kvcove/base/clock.h"
#include "kvcove/rpc/leader.h"

namespace kvcove::pool {

// Returns the addresses that `text` names: HOST:PORT (7400 by default), several with commas, or
// etcd://H1:2379,H2:2379/PREFIX, the masters' --store. With etcd it waits for a leader until the
// deadline, as the user of $KVCOVE_STORE_USER_FILE and over TLS with $KVCOVE_STORE_TLS_AUTHORITY
// (..._CERTIFICATE, ..._KEY), and starts a thread, which ends with the last copy of the result.
// Errors: kInvalid; with etcd kUnavailable (no leader in time, or etcd did not answer), kDenied,
// kIncompatible (members of two clusters), kCorrupt, kLimit (StartThread).
Result<rpc::Addresses> FindMasters(std::string_view text, std::int64_t deadline_ns,
                                   const Clock& clock);

}  // namespace kvcove::pool
