// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/copier.h"

#include "kvcove/base/size.h"
#include "kvcove/owner/pieces.h"
#include "kvcove/wire/cluster.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::owner {
namespace {

constexpr std::uint64_t kBatchBytes = 32 * kMiB;
constexpr std::size_t kBatchItems = 512;
constexpr std::size_t kMaxPeers = 1024;

}  // namespace

// Objects that travel together: same generation, same number of copies.
struct Copier::Batch {
  std::uint64_t copied_at = 0;
  std::uint64_t bytes = 0;
  std::vector<CopyLoan> loans;
  std::vector<std::size_t> which;  // items of the request
};

std::shared_ptr<transport::tcp::Peer> Copier::PeerAt(const rpc::Address& address,
                                                     const rpc::Access& access) {
  const MutexLock lock(mutex_);
  if (peers_.size() > kMaxPeers) peers_.clear();
  const std::string tenant = access.credential ? access.credential->tenant : std::string();
  std::shared_ptr<transport::tcp::Peer>& peer = peers_[address.ToString() + " " + tenant];
  if (peer == nullptr) peer = std::make_shared<transport::tcp::Peer>(address, access, clock_);
  return peer;
}

std::shared_ptr<transport::tcp::Peer> Copier::Run(const rpc::Address& to, SlotId slot,
                                                  transport::Exchange& call,
                                                  std::int64_t deadline_ns) {
  auto peer = PeerAt(to, access_);
  call.to = peer.get();
  transport::Run({&call, 1}, deadline_ns, clock_);
  if (call.status || call.status.error().code != Code::kDenied || credentials_ == nullptr) {
    return peer;
  }
  rpc::Access access = access_;
  access.credential = credentials_->OfTenantOwner(owner_.TenantOfSlot(slot));
  if (!access.credential) return peer;
  peer = PeerAt(to, access);
  call.to = peer.get();
  transport::Run({&call, 1}, deadline_ns, clock_);
  return peer;
}

Result<std::vector<Code>> Copier::Copy(const wire::CopyRequest& request) {
  KVCOVE_ASSIGN(const rpc::Address to, rpc::ParseAddress(request.to, 0));
  const std::int64_t deadline_ns =
      clock_.NowNs() + std::clamp<std::int64_t>(request.budget_ms, 1, 60'000) * kMillisecond;
  const std::shared_ptr<transport::tcp::Peer> peer = PeerAt(to, access_);
  if (peer->broken()) peer->Probe();
  std::vector<Code> codes(request.items.size(), Code::kTimeout);
  std::size_t at = 0;
  while (at < request.items.size() && clock_.NowNs() < deadline_ns && !stopping_) {
    // What is applied is read before the values: each removal up to it is applied already.
    Batch batch{.copied_at = owner_.applied(), .loans = {}, .which = {}};
    if (batch.copied_at == 0) return Fail(Code::kUnavailable, "this owner follows no master yet");
    while (at < request.items.size() && batch.loans.size() < kBatchItems) {
      auto loan = std::move(owner_.LendForCopy(std::span(request.items).subspan(at, 1)).front());
      if (!loan) {
        codes[at++] = Code::kMiss;
        continue;
      }
      const bool fits =
          batch.loans.empty() ||
          (batch.bytes + loan->loan.size_bytes <= kBatchBytes &&
           batch.loans.front().token == loan->token && batch.loans.front().copies == loan->copies);
      if (!fits) {
        owner_.Return({&loan->loan, 1});
        break;
      }
      batch.bytes += loan->loan.size_bytes;
      batch.which.push_back(at++);
      batch.loans.push_back(std::move(*loan));
    }
    if (!batch.loans.empty()) Send(to, batch, deadline_ns, codes);
    std::vector<wire::CopyRequest::Item> moved;
    for (std::size_t i = 0; i < batch.loans.size(); ++i) {
      owner_.Return({&batch.loans[i].loan, 1});
      const Code code = codes[batch.which[i]];
      if (request.move && (code == Code::kOk || code == Code::kExists)) {
        moved.push_back(request.items[batch.which[i]]);
      }
    }
    owner_.DropObjects(moved);
  }
  return codes;
}

void Copier::Send(const rpc::Address& to, const Batch& batch, std::int64_t deadline_ns,
                  std::vector<Code>& codes) {
  const std::int64_t left_ms = (deadline_ns - clock_.NowNs()) / kMillisecond;
  wire::DataPut put{.token = batch.loans.front().token,
                    .items = {},
                    .no_checksum = !checksum_,
                    .budget_ms = static_cast<std::uint32_t>(std::max<std::int64_t>(left_ms, 1)),
                    .copies = batch.loans.front().copies,
                    .no_evict = true,
                    .copied_at = batch.copied_at};
  transport::Exchange call;
  for (const CopyLoan& copy : batch.loans) {
    const Loan& loan = copy.loan;
    put.items.push_back(
        {.key = copy.key,
         .after = {},
         .size_bytes = loan.size_bytes,
         .checksum = !checksum_ ? 0
                     : loan.has_checksum
                         ? loan.checksum
                         : ChecksumOf(owner_.payload(), loan.extents, loan.size_bytes),
         .group = copy.group});
    ForEachPiece(owner_.payload(), loan.extents, loan.size_bytes,
                 [&](std::byte* data, std::uint64_t bytes) {
                   call.out.push_back({.data = data, .size = bytes});
                 });
  }
  call.method = wire::Method::kDataPut;
  call.head = wire::Encode(put);
  std::vector<Code> answers;
  call.on_reply = [&](std::span<const std::byte> body) -> Result<std::vector<transport::Piece>> {
    KVCOVE_ASSIGN(answers, wire::DecodeCodes(body, batch.loans.size()));
    return std::vector<transport::Piece>();
  };
  const auto peer = Run(to, put.token.slot, call, deadline_ns);
  std::vector<std::string_view> pinned;
  for (std::size_t i = 0; i < batch.loans.size(); ++i) {
    const Code code = call.status ? answers[i] : call.status.error().code;
    codes[batch.which[i]] = code;
    if (code == Code::kOk && batch.loans[i].hard_pinned) pinned.push_back(batch.loans[i].key);
  }
  if (pinned.empty()) return;
  (void)wire::MakeObjectStub(peer->channel())
      ->Pin(put.token, pinned, PinKind::kHard, 0, deadline_ns);
}

}  // namespace kvcove::owner
