// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/call_limits.h"

#include <algorithm>
#include <utility>

#include "kvcove/base/clock.h"

namespace kvcove::rpc {
namespace {

// These numbers order no other memory: each stands for itself, and its changes are atomic.
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr std::int64_t kLimitedNs = kSecond;  // a tenant counts as limited so long after a refusal
// Bytes have no rate from which a time follows: most that are in flight now have ended by then.
constexpr std::int64_t kBytesRetryNs = 20 * kMillisecond;

std::uint64_t PartOf(std::uint64_t whole, double share) {
  if (whole == 0) return 0;
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(static_cast<double>(whole) * share));
}

}  // namespace

std::string_view RefusalName(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNone:
      return "none";
    case Refusal::kConnectionCalls:
      return "connection calls";
    case Refusal::kTenantCalls:
      return "tenant calls";
    case Refusal::kAllCalls:
      return "all calls";
    case Refusal::kConnectionBytes:
      return "connection bytes";
    case Refusal::kTenantBytes:
      return "tenant bytes";
    case Refusal::kAllBytes:
      return "all bytes";
    case Refusal::kTenantConnections:
      return "tenant connections";
    case Refusal::kAllConnections:
      return "all connections";
  }
  return "unknown";
}

// ---- one rate, one sum of bytes

void CallLimits::Rate::Set(std::uint64_t per_second) {
  const auto rate = static_cast<std::int64_t>(std::min<std::uint64_t>(per_second, kSecond));
  interval_ns_.store(rate == 0 ? 0 : kSecond / rate, kRelaxed);
}

bool CallLimits::Rate::Take(std::int64_t now_ns) {
  const std::int64_t interval_ns = interval_ns_.load(kRelaxed);
  if (interval_ns == 0) return true;
  std::int64_t full_at_ns = full_at_ns_.load(kRelaxed);
  std::int64_t next_ns = 0;
  do {
    // A bucket that has been full for long has still one burst only.
    next_ns = std::max(full_at_ns, now_ns) + interval_ns;
    if (next_ns - now_ns > kBurstNs) return false;
  } while (!full_at_ns_.compare_exchange_weak(full_at_ns, next_ns, kRelaxed));
  return true;
}

bool CallLimits::Rate::Whole(std::int64_t now_ns) const {
  return full_at_ns_.load(kRelaxed) <= now_ns;
}

void CallLimits::Rate::PutBack() { full_at_ns_.fetch_sub(interval_ns_.load(kRelaxed), kRelaxed); }

// Moves on by one interval for each refused caller, so that they return one after the other at the
// rate's pace. Bounded by the longest wait: callers beyond it are refused once more.
std::int64_t CallLimits::Rate::RetryAfterNs(std::int64_t now_ns) {
  const std::int64_t interval_ns = interval_ns_.load(kRelaxed);
  std::int64_t last_ns = next_retry_ns_.load(kRelaxed);
  std::int64_t next_ns = 0;
  do {
    next_ns =
        std::min(std::max(last_ns, now_ns) + interval_ns, now_ns + kMostRetryMs * kMillisecond);
  } while (!next_retry_ns_.compare_exchange_weak(last_ns, next_ns, kRelaxed));
  return next_ns - now_ns;
}

bool CallLimits::Bytes::Take(std::uint64_t bytes, std::uint64_t mine) {
  const std::uint64_t limit = most.load(kRelaxed);
  std::uint64_t now = in_flight.load(kRelaxed);
  do {
    if (limit != 0 && now > mine && now + bytes > limit) return false;
  } while (!in_flight.compare_exchange_weak(now, now + bytes, kRelaxed));
  return true;
}

// ---- tenants and connections

CallLimits::CallLimits(const CallLimitsOptions& options) : options_(options) {
  const double reserve = std::clamp(options.reserve, 0.0, 0.9);
  others_calls_.Set(PartOf(options.all.calls_per_second, 1 - reserve));
  reserve_calls_.Set(PartOf(options.all.calls_per_second, reserve));
  others_bytes_.most = PartOf(options.all.bytes, 1 - reserve);
  reserve_bytes_.most = PartOf(options.all.bytes, reserve);
  SetConnections(options.all.connections);
}

CallLimits::~CallLimits() = default;

void CallLimits::SetConnections(std::uint64_t most) {
  most_others_.store(PartOf(most, 1 - std::clamp(options_.reserve, 0.0, 0.9)), kRelaxed);
}

void CallLimits::SetLimit(Tenant& tenant, const CallLimit& own) const {
  const CallLimit& common = options_.tenant;
  const auto pick = [](std::uint64_t mine, std::uint64_t all) { return mine != 0 ? mine : all; };
  tenant.limit = {.calls_per_second = pick(own.calls_per_second, common.calls_per_second),
                  .bytes = pick(own.bytes, common.bytes),
                  .connections = pick(own.connections, common.connections)};
  tenant.calls.Set(tenant.limit.calls_per_second);
  tenant.bytes.most.store(tenant.limit.bytes, kRelaxed);
  tenant.most_connections.store(tenant.limit.connections, kRelaxed);
}

bool CallLimits::CountOther() {
  const std::uint64_t most = most_others_.load(kRelaxed);
  std::uint64_t now = others_.load(kRelaxed);
  do {
    if (most != 0 && now >= most) return false;
  } while (!others_.compare_exchange_weak(now, now + 1, kRelaxed));
  return true;
}

std::unique_ptr<CallLimits::Account> CallLimits::Enter(const LimitedCaller& caller) {
  std::shared_ptr<Tenant> tenant;
  bool one_too_many = false;
  if (!caller.tenant.empty()) {
    const MutexLock lock(mutex_);
    std::shared_ptr<Tenant>& entry = tenants_[caller.tenant];
    if (entry == nullptr) entry = std::make_shared<Tenant>();
    // Set again for each connection, because the credentials may have changed since the last one.
    SetLimit(*entry, caller.own);
    tenant = entry;
    const std::uint64_t most = tenant->most_connections.load(kRelaxed);
    // Counted also if it is one too many: Leave() counts each account.
    const std::uint64_t before = tenant->connections.fetch_add(1, kRelaxed);
    one_too_many = most != 0 && before >= most && !caller.may_own && !caller.administers;
  }
  std::unique_ptr<Account> account(new Account(*this, caller.tenant, std::move(tenant)));
  account->may_own_ = caller.may_own;
  account->administers_ = caller.administers;
  account->one_too_many_ = one_too_many;
  account->calls_.Set(options_.connection.calls_per_second);
  // A caller that may be an owner shows with its first call whether it is one: Begin counts it
  // then.
  if (!caller.may_own && !caller.administers) account->counted_ = CountOther();
  return account;
}

void CallLimits::Leave(const std::string& name, std::int64_t last_ns) {
  const MutexLock lock(mutex_);
  const auto at = tenants_.find(name);
  if (at == tenants_.end()) return;
  Tenant& tenant = *at->second;
  if (tenant.connections.fetch_sub(1, kRelaxed) == 1 && !std::exchange(tenant.departed, true)) {
    departed_.push_back({.at_ns = last_ns, .tenant = name});
  }
  Forget(last_ns);
}

// Looks at an entry once `kBurstNs` have passed since the last call of the connection that ended:
// the bucket is whole by then, unless other connections have called later. Then the entry is looked
// at again after as long.
void CallLimits::Forget(std::int64_t now_ns) const {
  while (!departed_.empty() && departed_.front().at_ns + kBurstNs < now_ns) {
    const Departed departed = std::move(departed_.front());
    departed_.pop_front();
    const auto at = tenants_.find(departed.tenant);
    if (at->second->connections.load(kRelaxed) > 0) {
      at->second->departed = false;  // it is back
    } else if (at->second->calls.Whole(now_ns)) {
      tenants_.erase(at);
    } else {
      departed_.push_back({.at_ns = now_ns, .tenant = departed.tenant});
    }
  }
}

CallLimits::Stat CallLimits::Count(std::int64_t now_ns) const {
  Stat stat;
  for (std::size_t i = 0; i < kRefusals; ++i) stat.refused[i] = refused_[i].load(kRelaxed);
  stat.bytes = others_bytes_.in_flight.load(kRelaxed) + reserve_bytes_.in_flight.load(kRelaxed);
  stat.reserved_calls = reserved_calls_.load(kRelaxed);
  const MutexLock lock(mutex_);
  Forget(now_ns);
  for (const auto& [name, tenant] : tenants_) {
    if (tenant->connections.load(kRelaxed) == 0) continue;
    const std::int64_t refused_at_ns = tenant->refused_at_ns.load(kRelaxed);
    stat.tenants.push_back({.tenant = name,
                            .connections = tenant->connections.load(kRelaxed),
                            .bytes = tenant->bytes.in_flight.load(kRelaxed),
                            .refused = tenant->refused.load(kRelaxed),
                            .limited = refused_at_ns != 0 && refused_at_ns + kLimitedNs > now_ns,
                            .limit = tenant->limit});
  }
  return stat;
}

// ---- one connection

CallLimits::Account::~Account() {
  if (in_flight_ > 0) End(in_flight_);
  if (counted_) all_.others_.fetch_sub(1, kRelaxed);
  if (tenant_ != nullptr) all_.Leave(name_, last_ns_);
}

Traffic CallLimits::Account::Drawn(Traffic traffic) const {
  if (administers_) return Traffic::kAdmin;
  return traffic == Traffic::kOwner && may_own_ ? Traffic::kOwner : Traffic::kOther;
}

CallLimits::Verdict CallLimits::Account::Refuse(Refusal refusal, std::int64_t retry_ns,
                                                std::int64_t now_ns) {
  all_.refused_[static_cast<std::size_t>(refusal)].fetch_add(1, kRelaxed);
  if (tenant_ != nullptr) {
    tenant_->refused.fetch_add(1, kRelaxed);
    tenant_->refused_at_ns.store(now_ns, kRelaxed);
  }
  const std::int64_t retry_ms =
      std::clamp((retry_ns + kMillisecond - 1) / kMillisecond, kLeastRetryMs, kMostRetryMs);
  return {.refusal = refusal,
          .retry_after_ms = static_cast<std::uint32_t>(retry_ms),
          .close = refusal == Refusal::kTenantConnections || refusal == Refusal::kAllConnections};
}

CallLimits::Verdict CallLimits::Account::TakeCall(Traffic traffic, std::int64_t now_ns) {
  if (!calls_.Take(now_ns)) {
    return Refuse(Refusal::kConnectionCalls, calls_.RetryAfterNs(now_ns), now_ns);
  }
  if (traffic != Traffic::kOther) {
    if (all_.reserve_calls_.Take(now_ns) || all_.others_calls_.Take(now_ns)) {
      all_.reserved_calls_.fetch_add(1, kRelaxed);
      return {};
    }
    calls_.PutBack();
    return Refuse(Refusal::kAllCalls, all_.reserve_calls_.RetryAfterNs(now_ns), now_ns);
  }
  if (tenant_ != nullptr && !tenant_->calls.Take(now_ns)) {
    calls_.PutBack();
    return Refuse(Refusal::kTenantCalls, tenant_->calls.RetryAfterNs(now_ns), now_ns);
  }
  if (all_.others_calls_.Take(now_ns)) return {};
  // A call that a later limit refuses must not use up the limits before it.
  calls_.PutBack();
  if (tenant_ != nullptr) tenant_->calls.PutBack();
  return Refuse(Refusal::kAllCalls, all_.others_calls_.RetryAfterNs(now_ns), now_ns);
}

CallLimits::Verdict CallLimits::Account::TakeBytes(std::uint64_t bytes, std::int64_t now_ns) {
  // Calls that draw from the reserve count for no tenant.
  const bool counts = tenant_ != nullptr && !reserved_;
  if (counts && !tenant_->bytes.Take(bytes, in_flight_)) {
    return Refuse(Refusal::kTenantBytes, kBytesRetryNs, now_ns);
  }
  if (!Pot().Take(bytes, in_flight_)) {
    if (counts) tenant_->bytes.Give(bytes);
    return Refuse(Refusal::kAllBytes, kBytesRetryNs, now_ns);
  }
  in_flight_ += bytes;
  return {};
}

CallLimits::Verdict CallLimits::Account::Begin(Traffic asked, std::uint64_t bytes,
                                               std::int64_t now_ns) {
  const Traffic traffic = Drawn(asked);
  last_ns_ = now_ns;
  if (one_too_many_) {
    return Refuse(Refusal::kTenantConnections, kMostRetryMs * kMillisecond, now_ns);
  }
  if (traffic == Traffic::kOther && !counted_ && !(counted_ = all_.CountOther())) {
    return Refuse(Refusal::kAllConnections, kMostRetryMs * kMillisecond, now_ns);
  }
  const std::uint64_t most = all_.options_.connection.bytes;
  if (most != 0 && in_flight_ != 0 && in_flight_ + bytes > most) {
    return Refuse(Refusal::kConnectionBytes, kBytesRetryNs, now_ns);
  }
  const Verdict call = TakeCall(traffic, now_ns);
  if (!call.admitted()) return call;
  // Chosen only while nothing is in flight: End() returns all bytes to the pot that is named here,
  // so a change in between would return them to the wrong one.
  if (in_flight_ == 0) reserved_ = traffic != Traffic::kOther;
  return TakeBytes(bytes, now_ns);
}

CallLimits::Verdict CallLimits::Account::More(std::uint64_t bytes, std::int64_t now_ns) {
  return TakeBytes(bytes, now_ns);
}

void CallLimits::Account::Hold(std::uint64_t bytes) {
  if (tenant_ != nullptr && !reserved_) tenant_->bytes.Add(bytes);
  Pot().Add(bytes);
  in_flight_ += bytes;
}

void CallLimits::Account::End(std::uint64_t bytes) {
  if (tenant_ != nullptr && !reserved_) tenant_->bytes.Give(bytes);
  Pot().Give(bytes);
  in_flight_ -= bytes;
}

}  // namespace kvcove::rpc
