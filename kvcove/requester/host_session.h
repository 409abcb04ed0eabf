// SPDX-License-Identifier: Apache-2.0
// A session of a pool of one host. A look-up or a get asks nobody: it reads the segment's index and
// copies out of its memory. docs/requester.md has the prose.
#pragma once

#include <memory>
#include <thread>

#include "kvcove/requester/attachment.h"
#include "kvcove/requester/calls.h"
#include "kvcove/requester/recent_versions.h"
#include "kvcove/requester/reset_keeper.h"
#include "kvcove/requester/session.h"

namespace kvcove::requester {

class HostSession final : public Session {
 public:
  HostSession(std::shared_ptr<Host> host, SessionOptions options, const Clock& clock);
  ~HostSession() override;

  using Session::Put;  // without a token
  Result<Token> Capture(const CallOptions& options) override;
  Status Put(const Token& token, std::span<const PutItem> items, std::span<ItemResult> results,
             const CallOptions& options) override;
  Status Get(std::span<const GetItem> items, std::span<ItemResult> results,
             const CallOptions& options) override;
  Status Exists(std::span<const std::string_view> keys, std::span<ItemResult> results,
                const CallOptions& options) override;
  Result<std::size_t> LongestPrefix(std::span<const std::string_view> keys,
                                    const CallOptions& options) override;
  Status Pin(std::span<const std::string_view> keys, PinKind kind,
             std::chrono::milliseconds duration, std::span<ItemResult> results,
             const CallOptions& options) override;
  Status Unpin(std::span<const std::string_view> keys, std::span<ItemResult> results,
               const CallOptions& options) override;
  Status Remove(std::span<const std::string_view> keys, std::span<ItemResult> results,
                const CallOptions& options) override;
  Result<std::uint64_t> RemoveMatching(std::string_view pattern,
                                       const CallOptions& options) override;
  Result<std::vector<std::optional<ObjectStat>>> Stat(std::span<const std::string_view> keys,
                                                      const CallOptions& options) override;
  Result<std::vector<StoredObject>> List(std::string_view prefix,
                                         const CallOptions& options) override;
  Result<ObjectCount> Count(const CallOptions& options) override;
  Result<std::vector<std::vector<std::string>>> Where(std::span<const std::string_view> keys,
                                                      const CallOptions& options) override;
  Status Reset(const ResetOptions& options) override;
  Status NameVersions(std::span<const std::string> versions, const CallOptions& options) override;
  bool closed() const override { return resets_.closed(); }
  // A reset is proven: what was known of generations is old, and the next call registers again.
  void ForgetBindings(const wire::ResetOutcome& outcome);

 private:
  // What this session knows of one weight version.
  struct Binding {
    std::uint64_t attachment = 0;  // its number
    Id128 incarnation;
    SlotId slot = 0;
    Generation generation = 0;
    bool open = false;
    std::int64_t ask_again_ns = 0;  // when closed: another process of this engine may have reset
  };
  struct Scope {
    std::shared_ptr<Attachment> attachment;
    segment::ReadScope read;
    MissReason refused = MissReason::kNone;  // nothing may be found
  };
  class Copier;

  Result<Binding> Bind(Attachment& attachment, std::string_view version, std::int64_t deadline_ns);
  // What a look-up may read now; errors only for invalid names.
  Result<Scope> Enter(const CallOptions& options, std::int64_t deadline_ns);
  // What calls that change objects mean: the generation that this session is bound to.
  Result<Token> TokenOf(const CallOptions& options, std::int64_t deadline_ns,
                        std::shared_ptr<Attachment>& attachment);
  void GetWindow(const Scope& scope, std::span<const GetItem> items, std::span<ItemResult> results,
                 std::chrono::milliseconds hold, std::int64_t deadline_ns);
  Status PutInline(Attachment& attachment, const Token& token, std::span<const PutItem> items,
                   std::span<const std::string_view> afters, std::span<const std::size_t> which,
                   std::span<ItemResult> results, std::int64_t deadline_ns);
  Status PutReserved(Attachment& attachment, const Token& token, std::span<const PutItem> items,
                     std::span<const std::string_view> afters, std::span<const std::size_t> which,
                     std::span<ItemResult> results, std::int64_t deadline_ns);
  bool CopyIn(Attachment& attachment, const PutItem& item, std::span<const Extent> extents,
              std::int64_t deadline_ns) const;
  void CountMisses(Attachment& attachment, std::span<const ItemResult> results) const;
  Status CodesCall(std::span<const std::string_view> keys, std::span<ItemResult> results,
                   const CallOptions& options,
                   const std::function<Result<std::vector<Code>>(Attachment&, const Token&,
                                                                 std::int64_t)>& call);
  Status TryReset(const wire::ResetRequest& request, std::int64_t deadline_ns);

  const std::shared_ptr<Host> host_;  // a session may outlive its pool
  const SessionOptions options_;
  const Clock& clock_;

  Mutex bindings_mutex_;
  RecentVersions<Binding> bindings_ KVCOVE_GUARDED_BY(bindings_mutex_){kSessionVersions};
  wire::ResetOutcome reset_to_ KVCOVE_GUARDED_BY(bindings_mutex_);  // the last one that was proven

  ResetKeeper resets_;
};

}  // namespace kvcove::requester
