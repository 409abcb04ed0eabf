// SPDX-License-Identifier: Apache-2.0
// What an owner asks the master, from the bytes of the call to the bytes of its answer. No socket:
// the server and the simulation share it.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "kvcove/master/master.h"
#include "kvcove/wire/frame.h"

namespace kvcove::master {

// `method`: one of kOwnerHello, kRenew, kWatch, kRemovals, kOwnerGoodbye, kList. `connection`: over
// which it came. `reply` is called once, perhaps later. Errors: kCorrupt (the connection is to be
// closed), kDenied, and those of `Master`. `may_own`: whether the caller may be an owner of this
// tenant's alone (its tag; 0: an owner of all).
using MayOwn = std::function<bool(std::uint64_t tenant)>;
void AnswerOwner(Master& master, std::uint64_t connection, wire::Method method,
                 std::span<const std::byte> body, const MayOwn& may_own,
                 const Reply<std::string>& reply);

}  // namespace kvcove::master
