// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/store.h"

#include "kvcove/base/log.h"
#include "kvcove/base/mutex.h"
#include "kvcove/transport/landing.h"

namespace kvcove::connector {
namespace {

class SessionStore final : public Store {
 public:
  SessionStore(std::shared_ptr<Session> session, std::shared_ptr<Pool> pool)
      : pool_(std::move(pool)), session_(std::move(session)) {}
  Result<Token> Capture(std::string_view version, std::chrono::milliseconds timeout) override {
    ExpectNoLock("a call of the pool");
    return session_->Capture({.timeout = timeout, .version = version});
  }
  Status Exists(std::span<const std::string_view> keys, std::span<ItemResult> results,
                const CallOptions& options) override {
    ExpectNoLock("a call of the pool");
    return session_->Exists(keys, results, options);
  }
  Status Put(const Token& token, std::span<const PutItem> items, std::span<ItemResult> results,
             const CallOptions& options) override {
    ExpectNoLock("a call of the pool");
    return Settled([&] { return session_->Put(token, items, results, options); });
  }
  Status Get(std::span<const GetItem> items, std::span<ItemResult> results,
             const CallOptions& options) override {
    ExpectNoLock("a call of the pool");
    return Settled([&] { return session_->Get(items, results, options); });
  }
  Status Remove(std::span<const std::string_view> keys, std::span<ItemResult> results,
                const CallOptions& options) override {
    ExpectNoLock("a call of the pool");
    return session_->Remove(keys, results, options);
  }
  Status Announce(const Token& token, std::span<const std::string_view> keys, SaveNotice notice,
                  const CallOptions& options) override {
    ExpectNoLock("a call of the pool");
    return session_->Announce(token, keys, notice, options);
  }
  Result<Borrowed> Borrow(std::span<const std::string_view> keys,
                          const CallOptions& options) override {
    ExpectNoLock("a call of the pool");
    return session_->Borrow(keys, options);
  }
  Result<Reserved> Reserve(const Token& token, std::span<const ReserveItem> items,
                           const CallOptions& options) override {
    ExpectNoLock("a call of the pool");
    return session_->Reserve(token, items, options);
  }
  Result<std::vector<SegmentRange>> Segments(const CallOptions& options) override {
    ExpectNoLock("a call of the pool");
    return session_->Segments(options);
  }
  Status Register(std::span<std::byte> memory) override {
    ExpectNoLock("a call of the pool");
    if (pool_ == nullptr) return {};
    KVCOVE_ASSIGN(auto registered, pool_->Register(memory));
    const MutexLock lock(mutex_);
    registered_.push_back(std::move(registered));
    return {};
  }
  Status Reset(const ResetOptions& options) override {
    ExpectNoLock("a call of the pool");
    return session_->Reset(options);
  }
  Status NameVersions(std::span<const std::string> versions,
                      std::chrono::milliseconds timeout) override {
    ExpectNoLock("a call of the pool");
    return session_->NameVersions(versions, {.timeout = timeout});
  }
  bool closed() const override { return session_->closed(); }

 private:
  // The engine's memory is used again once a call has returned.
  template <typename Call>
  static Status Settled(Call&& call) {
    Status status;
    const auto busy = transport::Settle(transport::kSettle, [&] { status = call(); });
    if (busy != nullptr) {
      LogError("an RDMA transfer does not end; the KV memory that it moves may still change");
    }
    return status;
  }

  const std::shared_ptr<Pool> pool_;
  const std::shared_ptr<Session> session_;
  Mutex mutex_;
  std::vector<std::shared_ptr<void>> registered_ KVCOVE_GUARDED_BY(mutex_);  // ends first
};

constexpr const char* kNotHere = "this store has no memory of this host";

}  // namespace

Result<Borrowed> Store::Borrow(std::span<const std::string_view> /*keys*/,
                               const CallOptions& /*options*/) {
  return Fail(Code::kUnavailable, kNotHere);
}

Result<Reserved> Store::Reserve(const Token& /*token*/, std::span<const ReserveItem> /*items*/,
                                const CallOptions& /*options*/) {
  return Fail(Code::kUnavailable, kNotHere);
}

Result<std::vector<SegmentRange>> Store::Segments(const CallOptions& /*options*/) {
  return std::vector<SegmentRange>();
}

std::unique_ptr<Store> StoreOf(std::shared_ptr<Session> session, std::shared_ptr<Pool> pool) {
  return std::make_unique<SessionStore>(std::move(session), std::move(pool));
}

}  // namespace kvcove::connector
