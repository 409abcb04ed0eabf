// SPDX-License-Identifier: Apache-2.0
// Pools whose masters etcd names: Pool::Open("kvcove://etcd://H1:2379,H2:2379/PREFIX"), with the
// masters' --store. docs/ha.md ("Clients that ask etcd") has the prose.
//
//   opening a pool: asks until a leader is named --> knows one --a call there fails--> doubts it
//                     |                               ^                                  |
//                     v deadline: an error            +--another is named, or 5 s pass---+
//
// While it knows one it asks nothing. While it doubts, a thread of its own (kvcove-masters) asks
// every 150 to 300 ms. Without etcd the leader that was known last stays.
#pragma once

namespace kvcove::server {

// Makes such addresses known to this process, from now on. Opening a pool then waits for a leader
// until its deadline, asks as $KVCOVE_STORE_USER_FILE and over TLS with
// $KVCOVE_STORE_TLS_AUTHORITY (..._CERTIFICATE, ..._KEY), and starts a thread.
// Errors of opening: kInvalid; of etcd kUnavailable (no leader in time, or etcd did not answer),
// kDenied, kIncompatible (members of two clusters), kCorrupt, kLimit (no thread).
void UseEtcd();

}  // namespace kvcove::server
