// SPDX-License-Identifier: Apache-2.0
// A note of an owner's disks whose file system answers late.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "kvcove/owner/disk/known_disks.h"

namespace kvcove {

// No call of the note ends while this object holds it.
class HeldNote {
 public:
  explicit HeldNote(owner::KnownDisks& note)
      : thread_([this, &note] {
          (void)note.NoteIf({}, [this] {
            holds_ = true;
            while (!over_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            return false;
          });
        }) {
    while (!holds_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ~HeldNote() { End(); }
  HeldNote(const HeldNote&) = delete;
  HeldNote& operator=(const HeldNote&) = delete;

  void End() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> holds_{false};
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace kvcove
