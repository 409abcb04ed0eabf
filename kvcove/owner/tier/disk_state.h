// SPDX-License-Identifier: Apache-2.0
// Whether one disk is used, and whether the owner's note names it.
//
// clang-format off
//  from        SetOn  Use(kOn)  Use(kReporting)  SetOnReported  SetAside  Void     Unmount     Pause
//
//  kOpening    kOn    kOn       kReporting       -              kAside    kVoided  kUnmounted  kOpening
//  kReopening  -      kOn       kReporting       -              kAside    kVoided  kUnmounted  kReopening
//  kOn         -      -         -                -              kAside    kVoided  kUnmounted  kOpening
//  kReporting  -      -         -                kOn            kAside    kVoided  kUnmounted  kReopening
//  kAside      -      kOn       kReporting       -              -         kVoided  kUnmounted  -
//  kVoided     -      -         -                -              -         kVoided  kUnmounted  -
//  kUnmounted  -      -         -                -              -         -        kUnmounted  -
// clang-format on
//
// UseAnew changes kVoided to kAside, and no other state.
// `-`: the call changes nothing and returns false, because another thread has changed the state in
// between.
//
//   kOpening     The disk is being opened for the first time, or again after a pause for an upgrade
//                of the process (docs/upgrade.md). No key is found on it, removals wait for its
//                log, and stored keys are remembered. So an owner may serve its memory before its
//                disk is open.
//
//   kReopening   As kOpening, for a disk that was paused while it was kReporting: its contents have
//                to be reported again.
//
//   kOn          Values are demoted to it and promoted from it.
//
//   kReporting   In a cluster: the disk works again and its contents are being reported. Its log is
//                open and removals reach it, but no key is found on it and no value is demoted to
//                it before the master has accepted its contents.
//
//   kAside       The disk has failed. The owner tries it again from time to time.
//
//   kVoided      The contents of the disk are void. The owner does not try it again before UseAnew:
//                an attempt to open the disk that began earlier must fail.
//
//   kUnmounted   This process does not try the disk again.
//
// An era is a time in which the disk is used, or opened, without interruption. Work that began in
// one era has no effect in the next.
//
// The owner's note (owner/disk/known_disks.h) names the disks that the next start may use. After a
// kill of this process, no older value may replace one that was stored while the disk was not on.
// So a value is stored over a key of the disk only while the note does not name the disk:
//
//   from       when                                                                   to
//
//   kNamed     the disk is not on, and a key on it is put: the answer is `exists`     kMustBeStruck
//              until the note is written
//   kNamed,    the note is written without the disk, or the master has stored that    kStruck
//   kMustBe..  the disks are void; the disk is handed over to a successor's process
//   kMustBe..  the disk is used again                                                 kNamed
//   kStruck    the note cannot be written at the start, and may have an earlier name     kNamed
//   kStruck    the disk is on again, the puts that began before have ended, and the   kNamed
//              values that they replaced are removed durably; or the disk is empty
//
// Needs the lock of its holder; a copy shows one moment. Does no I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvcove::owner {

class DiskState {
 public:
  enum class State : std::uint8_t {
    kOpening,
    kReopening,
    kOn,
    kReporting,
    kAside,
    kVoided,
    kUnmounted
  };
  enum class Note : std::uint8_t { kStruck, kNamed, kMustBeStruck };

  State state() const { return state_; }
  Note note() const { return note_; }
  std::uint64_t era() const { return era_; }
  // Returns the first reason for which the disk was set aside.
  const std::string& why() const { return why_; }

  bool on() const { return state_ == State::kOn; }
  bool reporting() const { return state_ == State::kReporting; }
  bool opening() const { return state_ == State::kOpening || state_ == State::kReopening; }
  bool aside() const { return state_ >= State::kAside; }
  // Returns true if the master must accept the contents of the disk before the disk is on, unless
  // it is empty.
  bool away() const { return aside() || reporting() || state_ == State::kReopening; }
  bool may_open() const { return state_ < State::kVoided; }
  bool tries_again() const { return state_ != State::kUnmounted; }
  // Returns true if a put of a key on the disk waits until the disk is struck from the note.
  bool must_be_struck() const { return note_ == Note::kMustBeStruck; }
  // Returns true if the disk is away and the note may name it: the next process would use what it
  // holds, so no other owner may store its keys yet.
  bool unstruck() const { return away() && state_ != State::kVoided && note_ != Note::kStruck; }
  // Returns true if the disk is away, and others may store its keys.
  bool away_and_struck() const { return away() && !unstruck(); }
  // Returns the era in which the disk is being reported, or nothing.
  std::optional<std::uint64_t> reporting_in() const;
  // Returns the era in which the disk is on while the note does not name it, or nothing.
  std::optional<std::uint64_t> unnoted_in() const;

  // ---- transitions; false: nothing has changed
  // Puts the disk on: its objects are known for the first time.
  bool SetOn();
  // Uses the disk: its objects are known again, or it is empty. `as`: kOn or kReporting.
  bool Use(State as);
  // Puts the disk on: the master has accepted the contents that were reported in that era.
  bool SetOnReported(std::uint64_t era);
  // SetAside, Void and Unmount keep the first reason. True: the call has ended an era.
  bool SetAside(const std::string& why);
  bool Void(const std::string& why);
  bool Unmount(const std::string& why);
  // Lets the owner try a voided disk again.
  bool UseAnew();
  // Ends the era: the disk's thread has ended, and another one opens the disk again.
  bool Pause();

  // ---- the note
  // Notes that the note names the disk.
  void Name();
  // Notes that the note is written without the disk.
  void Strike() { note_ = Note::kStruck; }
  // Reports a put of a key on the disk while the disk is not on. True: the put must wait until the
  // disk is struck from the note. False: the note does not name the disk, so the put may replace
  // the value.
  bool Cover();

 private:
  bool EndEra(State next, const std::string& why);

  State state_ = State::kOpening;
  Note note_ = Note::kStruck;
  std::uint64_t era_ = 0;
  std::string why_;
};

}  // namespace kvcove::owner
