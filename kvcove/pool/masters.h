// SPDX-License-Identifier: Apache-2.0
// How a client finds the masters of its cluster: one address, a list, or etcd, where the leader has
// written who it is. docs/ha.md ("Clients that ask etcd") has the prose.
//
//   FindMasters: asks until a leader is named --> knows one --a call there fails--> doubts it
//                     |                             ^                                  |
//                     v deadline: an error          +--another is named, or 5 s pass---+
//
// While it knows one it asks nothing. While it doubts, a thread of its own (kvcove-masters) asks
// every 150 to 300 ms. Without etcd the leader that was known last stays.
#pragma once

#include <string_view>

#include "kvcove/base/clock.h"
#include "kvcove/rpc/leader.h"

namespace kvcove::pool {

// `text`: HOST:PORT (7400), several with commas, or etcd://H1:2379,H2:2379/PREFIX, the masters'
// --store. Then it waits for a leader until the deadline, asks as $KVCOVE_STORE_USER_FILE and over
// TLS with $KVCOVE_STORE_TLS_AUTHORITY (..._CERTIFICATE, ..._KEY), and starts a thread.
// Errors: kInvalid; of etcd kUnavailable (no leader in time, or etcd did not answer), kDenied,
// kIncompatible (members of two clusters), kCorrupt, kLimit (StartThread).
Result<rpc::Addresses> FindMasters(std::string_view text, std::int64_t deadline_ns,
                                   const Clock& clock);

}  // namespace kvcove::pool
