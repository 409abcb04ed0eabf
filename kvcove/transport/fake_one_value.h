// SPDX-License-Identifier: Apache-2.0
// For tests: an owner's data server with one value. A put replaces its first bytes, a get returns
// them; the head of either is their number.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/base/text.h"
#include "kvcove/transport/service.h"

namespace kvcove::transport {

class OneValue final : public Service {
 public:
  explicit OneValue(std::size_t bytes) : value(bytes) {}
  std::unique_ptr<Visit> Open() override { return std::make_unique<OneVisit>(*this); }

  std::vector<std::byte> value;
  // Not empty: what a put has beyond `first` bytes is received into it, in a step of its own.
  std::vector<std::byte> rest;
  std::uint64_t first = 0;
  std::atomic<int> served{0};  // exchanges that are not over
  std::atomic<std::uint64_t> most_at_once{0};

 private:
  class Put final : public Served {
   public:
    Put(OneValue& service, std::uint64_t bytes) : service_(service), bytes_(bytes) {
      ++service_.served;
    }
    ~Put() override { --service_.served; }
    Step Next() override {
      const bool split = !service_.rest.empty();
      const int step = steps_++;
      before_ += std::exchange(received_, 0);
      if (step == (split ? 2 : 1)) return ReplyStep(Code::kOk, std::to_string(before_));
      if (step == 1) {
        return {.kind = Step::Kind::kReceive,
                .into = {{service_.rest.data(), bytes_ - service_.first}}};
      }
      return {.kind = Step::Kind::kReceive,
              .into = {{service_.value.data(), split ? service_.first : bytes_}}};
    }
    void Received(std::uint64_t bytes) override {
      if (bytes - received_ > service_.most_at_once) service_.most_at_once = bytes - received_;
      received_ = bytes;
    }

   private:
    OneValue& service_;
    const std::uint64_t bytes_;
    std::uint64_t before_ = 0;    // received in earlier steps
    std::uint64_t received_ = 0;  // in this one
    int steps_ = 0;
  };
  class Get final : public Served {
   public:
    Get(OneValue& service, std::uint64_t bytes) : service_(service), bytes_(bytes) {
      ++service_.served;
    }
    ~Get() override { --service_.served; }
    Step Next() override {
      Step step = ReplyStep(Code::kOk, std::to_string(bytes_));
      step.out = {{service_.value.data(), bytes_}};
      return step;
    }
    void Received(std::uint64_t /*bytes*/) override {}

   private:
    OneValue& service_;
    const std::uint64_t bytes_;
  };
  class OneVisit final : public Visit {
   public:
    explicit OneVisit(OneValue& service) : service_(service) {}
    std::unique_ptr<Served> Begin(const rpc::Caller&, wire::Method method,
                                  std::span<const std::byte> head, std::int64_t, Wake) override {
      const std::uint64_t bytes =
          LeadingNumber({reinterpret_cast<const char*>(head.data()), head.size()});
      if (bytes > service_.value.size()) return nullptr;
      if (method == wire::Method::kDataGet) return std::make_unique<Get>(service_, bytes);
      return std::make_unique<Put>(service_, bytes);
    }

   private:
    OneValue& service_;
  };
};

}  // namespace kvcove::transport
