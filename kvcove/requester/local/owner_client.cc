// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/local/owner_client.h"

#include <algorithm>

namespace kvcove::requester {
namespace {

constexpr std::int64_t kAskAgainNs = 50 * kMillisecond;

std::unexpected<Error> NotLeased() {
  return Fail(Code::kUnavailable,
              "the owner's lease has run out, so nothing proves which generation is current; it is "
              "renewed once the owner reaches the master again");
}

}  // namespace

OwnerClient::OwnerClient(std::shared_ptr<OwnerTie> host, SessionOptions options, const Clock& clock)
    : host_(std::move(host)),
      options_(std::move(options)),
      clock_(clock),
      borrow_budget_(std::make_shared<BorrowBudget>(options_.borrow_bytes)) {
  host_->AddSession(options_.name, options_.engine);
}

OwnerClient::~OwnerClient() {
  // The last session of an engine in this process ends the engine there. Waits 100 ms at most.
  if (!host_->DropSession(options_.name, options_.engine)) return;
  const std::shared_ptr<Attachment> attachment = host_->Current();
  if (attachment != nullptr && attachment->connected()) {
    (void)attachment->service().EndEngine(options_.name, options_.engine,
                                          clock_.NowNs() + 100 * kMillisecond);
  }
}

// ---- binding

Result<OwnerClient::Binding> OwnerClient::Bind(Attachment& attachment, std::string_view version,
                                               std::int64_t deadline_ns) {
  wire::RegisterRequest request;
  {
    const MutexLock lock(bindings_mutex_);
    // A binding is valid as long as the header shows its generation: the owner publishes a new one
    // before a reset is proven. A closed binding is asked for again every 50 ms.
    const Binding* const known = bindings_.Find(version);
    if (known != nullptr && known->attachment == attachment.number() &&
        known->generation == attachment.header().generation(known->slot) &&
        (known->open || clock_.NowNs() < known->ask_again_ns)) {
      return *known;
    }
    request = RegistrationOf(options_, version, reset_to_);
    // It starts once; a new master must not open it again.
    if (known != nullptr) request.assume_weights = false;
    // After a restart of the owner: if the generation is still current, the master leaves the
    // engine open; else the engine must reset, as another one may have done so meanwhile.
    if (known != nullptr && known->attachment != attachment.number() && known->open) {
      request.last_incarnation = known->incarnation;
      request.last_generation = known->generation;
    }
  }
  KVCOVE_ASSIGN(const wire::Registration registration,
                attachment.service().Register(request, deadline_ns));
  const Binding binding{.attachment = attachment.number(),
                        .incarnation = registration.incarnation,
                        .slot = registration.slot,
                        .generation = registration.generation,
                        .open = registration.open,
                        .ask_again_ns = clock_.NowNs() + kAskAgainNs};
  const MutexLock lock(bindings_mutex_);
  bindings_.Set(version, binding);
  return binding;
}

Result<OwnerClient::Scope> OwnerClient::Enter(const CallOptions& options,
                                              std::int64_t deadline_ns) {
  Scope scope;
  scope.attachment = host_->Current();
  if (scope.attachment == nullptr || !scope.attachment->connected()) {
    scope.refused = MissReason::kUnavailable;
    return scope;
  }
  // Checked before Bind: an owner whose lease has run out may be stopped, and a registration would
  // then wait until the deadline.
  if (!scope.attachment->header().LeaseHolds(clock_.NowNs())) {
    scope.refused = MissReason::kLease;
    return scope;
  }
  const Result<Binding> binding = Bind(*scope.attachment, options.version, deadline_ns);
  if (!binding) {
    if (binding.error().code == Code::kInvalid || binding.error().code == Code::kLimit) {
      return std::unexpected(binding.error());
    }
    scope.refused = UnansweredReason(binding.error());
    return scope;
  }
  scope.read = {.slot = binding->slot, .generation = binding->generation};
  scope.incarnation = binding->incarnation;
  if (!binding->open) scope.refused = MissReason::kClosed;
  return scope;
}

Result<std::shared_ptr<Attachment>> OwnerClient::Attached() const {
  std::shared_ptr<Attachment> attachment = host_->Current();
  if (attachment == nullptr || !attachment->connected()) return NotConnected();
  return attachment;
}

bool OwnerClient::HoldsLease() const {
  const auto attachment = Attached();
  return attachment && (*attachment)->header().LeaseHolds(clock_.NowNs());
}

Result<Token> OwnerClient::Capture(const CallOptions& options) {
  KVCOVE_ASSIGN(const auto attachment, Attached());
  // As Enter does: a registration at a stopped owner would wait until the deadline.
  if (options.leased && !attachment->header().LeaseHolds(clock_.NowNs())) return NotLeased();
  KVCOVE_ASSIGN(const Binding binding,
                Bind(*attachment, options.version, DeadlineOf(clock_, options.timeout)));
  // After Bind has read the generation: the owner writes generations first, then the deadline.
  if (options.leased && !attachment->header().LeaseHolds(clock_.NowNs())) return NotLeased();
  if (!binding.open) return MustReset();
  return Token{
      .incarnation = binding.incarnation, .generation = binding.generation, .slot = binding.slot};
}

// ---- the rest

Result<Token> OwnerClient::TokenOf(const CallOptions& options, std::int64_t deadline_ns,
                                   std::shared_ptr<Attachment>& attachment) {
  KVCOVE_ASSIGN(attachment, Attached());
  KVCOVE_ASSIGN(const Binding binding, Bind(*attachment, options.version, deadline_ns));
  return Token{
      .incarnation = binding.incarnation, .generation = binding.generation, .slot = binding.slot};
}

Status OwnerClient::CodesCall(
    std::span<const std::string_view> keys, std::span<ItemResult> results,
    const CallOptions& options,
    const std::function<Result<std::vector<Code>>(Attachment&, const Token&, std::int64_t)>& call) {
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  std::shared_ptr<Attachment> attachment;
  const Result<Token> token = TokenOf(options, deadline_ns, attachment);
  Result<std::vector<Code>> codes =
      token ? call(*attachment, *token, deadline_ns) : std::unexpected(token.error());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    results[i] = {.code = codes ? (*codes)[i] : codes.error().code};
    if (results[i].code == Code::kMiss && token) {
      results[i].reason = AbsentReason(attachment->header(), token->slot, keys[i]);
    }
  }
  if (!codes) return std::unexpected(codes.error());
  return {};
}

Status OwnerClient::Pin(std::span<const std::string_view> keys, PinKind kind,
                        std::chrono::milliseconds duration, std::span<ItemResult> results,
                        const CallOptions& options) {
  return CodesCall(keys, results, options,
                   [&](Attachment& attachment, const Token& token, std::int64_t deadline_ns) {
                     return attachment.service().Pin(token, keys, kind, PinNs(duration),
                                                     deadline_ns);
                   });
}

Status OwnerClient::Unpin(std::span<const std::string_view> keys, std::span<ItemResult> results,
                          const CallOptions& options) {
  return CodesCall(keys, results, options,
                   [&](Attachment& attachment, const Token& token, std::int64_t deadline_ns) {
                     return attachment.service().Pin(token, keys, std::nullopt, 0, deadline_ns);
                   });
}

Status OwnerClient::Remove(std::span<const std::string_view> keys, std::span<ItemResult> results,
                           const CallOptions& options) {
  return CodesCall(keys, results, options,
                   [&](Attachment& attachment, const Token& token, std::int64_t deadline_ns) {
                     return attachment.service().Remove(token, keys, deadline_ns);
                   });
}

Result<std::uint64_t> OwnerClient::RemoveMatching(std::string_view pattern,
                                                  const CallOptions& options) {
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  std::shared_ptr<Attachment> attachment;
  KVCOVE_ASSIGN(const Token token, TokenOf(options, deadline_ns, attachment));
  return attachment->service().RemoveMatching(token, pattern, deadline_ns);
}

Result<std::vector<StoredObject>> OwnerClient::List(std::string_view prefix,
                                                    const CallOptions& options) {
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  std::shared_ptr<Attachment> attachment;
  KVCOVE_ASSIGN(const Token token, TokenOf(options, deadline_ns, attachment));
  std::map<std::string, StoredObject> objects;
  KVCOVE_TRY(ListFrom(attachment->service(), token.slot, prefix, deadline_ns, objects));
  return ValuesOf(std::move(objects));
}

Result<ObjectCount> OwnerClient::Count(const CallOptions& options) {
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  std::shared_ptr<Attachment> attachment;
  KVCOVE_ASSIGN(const Token token, TokenOf(options, deadline_ns, attachment));
  return CountFrom(attachment->service(), token.slot, deadline_ns);
}

Result<std::vector<std::optional<ObjectStat>>> OwnerClient::Stat(
    std::span<const std::string_view> keys, const CallOptions& options) {
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  std::shared_ptr<Attachment> attachment;
  KVCOVE_ASSIGN(const Token token, TokenOf(options, deadline_ns, attachment));
  return attachment->service().StatObjects(token, keys, deadline_ns);
}

Status OwnerClient::NameVersions(std::span<const std::string> versions,
                                 const CallOptions& options) {
  KVCOVE_ASSIGN(const auto attachment, Attached());
  return attachment->service().NameVersions(options_.name, options_.engine, versions,
                                            DeadlineOf(clock_, options.timeout));
}

// ---- reset

Result<wire::ResetOutcome> OwnerClient::AskReset(const wire::ResetRequest& request, bool known,
                                                 std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const auto attachment, Attached());
  return AttemptReset(attachment->service(), options_, request, known, deadline_ns);
}

Result<wire::PruneOutcome> OwnerClient::AskPrune(std::string_view before,
                                                 std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const auto attachment, Attached());
  return attachment->service().Prune({.name = options_.name, .before = std::string(before)},
                                     deadline_ns);
}

bool OwnerClient::KnowsVersion(std::string_view version) {
  if (version.empty()) return false;
  const MutexLock lock(bindings_mutex_);
  const Binding* const known = bindings_.Find(version);
  return known != nullptr && known->generation != 0;
}

// Keeps the entries, but not open and with generation 0: a later call registers again, and
// KnowsVersion is false until then.
void OwnerClient::ForgetBindings(const wire::ResetOutcome& outcome) {
  const MutexLock lock(bindings_mutex_);
  reset_to_ = outcome;
  bindings_.ForEach([](Binding& binding) {
    binding.generation = 0;
    binding.open = false;
  });
}

}  // namespace kvcove::requester
