// SPDX-License-Identifier: Apache-2.0
// Of tests: an owner's data server without an owner. Each get finds `value`, whatever its key; what
// is put lands in `taken`, one value behind the other.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/base/hash.h"
#include "kvcove/transport/service.h"
#include "kvcove/wire/cluster.h"

namespace kvcove::transport {

class FakeValues final : public Service {
 public:
  explicit FakeValues(std::string each) : value(std::move(each)) {}
  std::unique_ptr<Visit> Open() override { return std::make_unique<One>(*this); }

  const std::string value;
  std::string taken;
  std::atomic<int> served{0};  // exchanges that are not over

 private:
  class Exchanged final : public Served {
   public:
    Exchanged(FakeValues& values, Step first, Step then)
        : values_(values), first_(std::move(first)), then_(std::move(then)) {
      ++values_.served;
    }
    ~Exchanged() override { --values_.served; }
    Step Next() override {
      return std::exchange(begun_, true) ? std::move(then_) : std::move(first_);
    }
    void Received(std::uint64_t /*bytes*/) override {}

   private:
    FakeValues& values_;
    Step first_;
    Step then_;
    bool begun_ = false;
  };
  class One final : public Visit {
   public:
    explicit One(FakeValues& values) : values_(values) {}
    std::unique_ptr<Served> Begin(const rpc::Caller&, wire::Method method,
                                  std::span<const std::byte> head, std::int64_t, Wake) override {
      if (method == wire::Method::kDataGet) {
        const auto get = wire::DecodeDataGet(head);
        return get ? std::make_unique<Exchanged>(values_, values_.Send(get->keys.size()), Step())
                   : nullptr;
      }
      const auto put = wire::DecodeDataPut(head);
      if (!put) return nullptr;
      std::uint64_t bytes = 0;
      for (const wire::DataPutItem& item : put->items) bytes += item.size_bytes;
      const std::vector<Code> codes(put->items.size());
      return std::make_unique<Exchanged>(
          values_, values_.Take(bytes),
          ReplyStep(Code::kOk, wire::Encode(std::span<const Code>(codes))));
    }

   private:
    FakeValues& values_;
  };

  Step Send(std::size_t count) const {
    const std::vector<wire::DataValue> values(
        count, {.code = Code::kOk,
                .size_bytes = static_cast<std::uint32_t>(value.size()),
                .checksum = Hash64(std::string_view(value), 0)});
    Step step = ReplyStep(Code::kOk, wire::Encode(std::span(values)));
    step.out.resize(
        count, {.data = reinterpret_cast<const std::byte*>(value.data()), .size = value.size()});
    return step;
  }
  Step Take(std::uint64_t bytes) {
    taken.assign(bytes, '.');
    Step step{.kind = Step::Kind::kReceive};
    step.into = {{.data = reinterpret_cast<std::byte*>(taken.data()), .size = bytes}};
    return step;
  }
};

}  // namespace kvcove::transport
