// SPDX-License-Identifier: Apache-2.0
// The calls of owners, from the bytes of a request to the bytes of its answer: decodes, checks that
// the credential may act for that owner, and asks `Master`. No socket and no state, so the server
// and the simulation share it. Thread-safe.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "kvcove/master/master.h"
#include "kvcove/wire/frame.h"

namespace kvcove::master {

// Returns whether the caller may be an owner that serves this tenant alone (TenantTag; 0: an owner
// of all tenants).
using MayOwn = std::function<bool(std::uint64_t tenant)>;
// Answers one call. `method`: one of kOwnerHello, kRenew, kWatch, kRemovals, kOwnerGoodbye, kList.
// `connection`: the call's; while it is open, hello's owner counts as connected. `reply` is called
// once: for kRenew and kOwnerGoodbye before this returns, else perhaps later, from another thread.
// `may_own` is called before this returns. Errors: kCorrupt (close the connection), kDenied, and
// those of `Master`.
void AnswerOwner(Master& master, std::uint64_t connection, wire::Method method,
                 std::span<const std::byte> body, const MayOwn& may_own,
                 const Reply<std::string>& reply);

}  // namespace kvcove::master
