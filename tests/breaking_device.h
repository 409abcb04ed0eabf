// SPDX-License-Identifier: Apache-2.0
// A disk that fails on command.
#pragma once

#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "kvcove/disklog/device.h"

namespace kvcove {

// Every operation fails while it is broken, and so does opening it.
class BreakingDevice : public disklog::Device {
 public:
  BreakingDevice(std::unique_ptr<disklog::Device> device, const std::atomic<bool>& broken)
      : device_(std::move(device)), broken_(broken) {}
  std::uint64_t size_bytes() const override { return device_->size_bytes(); }
  std::string kind() const override { return device_->kind(); }
  void Read(std::uint64_t offset, std::span<std::byte> into, Done done) override {
    device_->Read(offset, into, Broken(std::move(done)));
  }
  void Write(std::uint64_t offset, std::span<const std::byte> from, Done done) override {
    if (broken_) return device_->Sync(Broken(std::move(done)));
    device_->Write(offset, from, std::move(done));
  }
  void Sync(Done done) override { device_->Sync(Broken(std::move(done))); }
  std::size_t Poll(std::int64_t wait_ns) override { return device_->Poll(wait_ns); }
  void Wake() override { device_->Wake(); }
  std::size_t in_flight() const override { return device_->in_flight(); }

 private:
  Done Broken(Done done) const {
    return [done = std::move(done), broken = broken_.load()](int error) {
      done(broken ? EIO : error);
    };
  }
  const std::unique_ptr<disklog::Device> device_;
  const std::atomic<bool>& broken_;
};

}  // namespace kvcove
