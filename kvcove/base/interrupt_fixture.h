// SPDX-License-Identifier: Apache-2.0
// For tests: an Interrupt that counts how often it is asked.
#pragma once

#include <functional>
#include <utility>

#include "kvcove/base/interrupt.h"

namespace kvcove {

class AskedInterrupt final : public Interrupt {
 public:
  // Ends the call when it is asked for the `ends_at`th time; never for 0.
  explicit AskedInterrupt(int ends_at, std::function<void()> when_asked = {})
      : ends_at_(ends_at), when_asked_(std::move(when_asked)) {}
  int asked() const { return asked_; }

 private:
  bool Asks() override {
    if (when_asked_) when_asked_();
    return ++asked_ == ends_at_;
  }

  const int ends_at_;
  const std::function<void()> when_asked_;
  int asked_ = 0;
};

}  // namespace kvcove
