// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link/membership.h"

#include "kvcove/base/clock.h"

namespace kvcove::owner {
namespace {

constexpr std::int64_t kFollowNs = kSecond;  // at least, between two positions that are kept

}  // namespace

bool PositionPace::Take(std::uint64_t revision, std::int64_t now_ns) {
  if (revision == kept_ || now_ns < next_ns_) return false;
  kept_ = revision;
  next_ns_ = now_ns + kFollowNs;
  return true;
}

Membership::Membership(const std::optional<OwnerFacts>& before) {
  if (!before || before->seen.term == 0) return;
  fresh_ = false;
  pool_ = before->pool;
  incarnation_ = before->incarnation;
  seen_ = before->seen;
}

OwnerFacts Membership::Facts(const Id128& identity) const {
  return {.identity = identity, .pool = pool_, .incarnation = incarnation_, .seen = seen_};
}

// ---- hello

void Membership::SayHelloAgain(bool new_epoch) {
  hello_due_ = true;
  new_epoch_wanted_ = new_epoch_wanted_ || new_epoch;
  wait_ns_ = 0;
}

void Membership::NamePredecessor(const Id128& predecessor) {
  predecessor_ = predecessor;
  SayHelloAgain(/*new_epoch=*/false);
}

wire::OwnerHello Membership::Hello(const LinkIdentity& identity) {
  sent_predecessor_ = predecessor_;
  sent_seen_ = seen_;
  return {.pool = pool_,
          .incarnation = incarnation_,
          .seen = sent_seen_,
          .owner = identity.owner,
          .fresh = fresh_,
          .process = identity.process,
          .predecessor = sent_predecessor_,
          .number = number_,
          .epoch = new_epoch_wanted_ ? 0 : epoch_,
          .address = identity.address,
          .socket = identity.socket,
          .host = identity.host,
          .tenant = identity.tenant,
          .disk = identity.disk};
}

void Membership::Answered() {
  if (predecessor_ == sent_predecessor_) predecessor_ = {};
}

bool Membership::Follows(const wire::OwnerWelcome& welcome) const {
  return welcome.incarnation == incarnation_ && welcome.position.term == seen_.term &&
         welcome.position.tag == seen_.tag;
}

void Membership::Welcomed(const wire::OwnerWelcome& welcome) {
  // The lease of another incarnation vouches for another history.
  if (welcome.incarnation != incarnation_) leased_until_ns_ = 0;
  fresh_ = false;
  hello_due_ = predecessor_ != Id128{};  // it was named after this hello
  new_epoch_wanted_ = false;
  pool_ = welcome.pool;
  incarnation_ = welcome.incarnation;
  seen_ = welcome.position;
  number_ = welcome.number;
  epoch_ = welcome.epoch;
}

void Membership::Forgotten(const wire::OwnerWelcome& welcome) {
  fresh_ = true;
  pool_ = welcome.pool;
  incarnation_ = welcome.incarnation;
  seen_ = {};
  number_ = wire::kNoOwner;
  epoch_ = 0;
  SayHelloAgain(/*new_epoch=*/false);
}

void Membership::EndEpoch() {
  epoch_ = 0;
  SayHelloAgain(/*new_epoch=*/true);
}

// ---- the lease's lane

bool Membership::BeginCall(std::int64_t now_ns) {
  sent_ns_ = now_ns;
  saying_hello_ = hello_due_;
  return saying_hello_;
}

}  // namespace kvcove::owner
