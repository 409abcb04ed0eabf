// SPDX-License-Identifier: Apache-2.0
// Whether one disk is used, and whether the owner's note names it.
//
// clang-format off
//  from        SetOn  Use(kOn)  Use(kTelling)  SetOnTold  SetAside  Void     Unmount     Pause
//
//  kOpening    kOn    kOn       kTelling       -          kAside    kVoided  kUnmounted  kOpening
//  kReopening  -      kOn       kTelling       -          kAside    kVoided  kUnmounted  kReopening
//  kOn         -      -         -              -          kAside    kVoided  kUnmounted  kOpening
//  kTelling    -      -         -              kOn        kAside    kVoided  kUnmounted  kReopening
//  kAside      -      kOn       kTelling       -          -         kVoided  kUnmounted  -
//  kVoided     -      -         -              -          -         kVoided  kUnmounted  -
//  kUnmounted  -      -         -              -          -         -        kUnmounted  -
// clang-format on
//
// UseAnew makes kVoided kAside, and changes no other state.
// What is `-` changes nothing, and the call says so: another thread has changed the state in
// between.
//
//   kOpening     The disk is opened for the first time, or again after a pause for an upgrade of
//                the process (docs/upgrade.md): nothing is found on it. Removals wait for its log,
//                and what is stored is remembered. So an owner may serve its memory before its disk
//                is open.
//
//   kReopening   As kOpening, of a disk that was paused while it was kTelling: what it holds must
//                be reported anew.
//
//   kOn          Values are demoted to it and promoted from it.
//
//   kTelling     In a cluster. The disk works again, its log is open and removals reach it, but
//                nothing is found on it and nothing is demoted before the master has accepted what
//                it holds.
//
//   kAside       The disk has failed, and is tried again from time to time.
//
//   kVoided      What it holds counts no more. It is not tried again before UseAnew: an attempt to
//                open it that began before must fail.
//
//   kUnmounted   The disk is not tried again by this process.
//
// An era is the time for which a disk is used, or opened, without an end in between. Whatever was
// begun in an era that is over has no effect on the disk's next one.
//
// The owner's note (owner/disk/known_disks.h) says which disks the next start may use. Should this
// process be killed, no older value may replace one that was stored while the disk was not on. So
// values are stored over what a disk holds only while the note does not name it:
//
//   from       when                                                                   to
//
//   kNamed     it is not on, and a key that it holds is put: the answer is `exists`   kMustBeStruck
//              until the note is written
//   kNamed,    the note is written without it, or the master has stored that the     kStruck
//   kMustBe..  disks are void; it is handed over to a successor's process
//   kMustBe..  it is used again                                                       kNamed
//   kStruck    it is on again, the puts that began before are over, and what was      kNamed
//              replaced is removed from it durably; or it is empty
//
// A value: needs the lock of its holder, and a copy shows one moment. No I/O.
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
    kTelling,
    kAside,
    kVoided,
    kUnmounted
  };
  enum class Note : std::uint8_t { kStruck, kNamed, kMustBeStruck };

  State state() const { return state_; }
  Note note() const { return note_; }
  std::uint64_t era() const { return era_; }
  // Why it is set aside: the first reason.
  const std::string& why() const { return why_; }

  bool on() const { return state_ == State::kOn; }
  bool telling() const { return state_ == State::kTelling; }
  bool opening() const { return state_ == State::kOpening || state_ == State::kReopening; }
  bool aside() const { return state_ >= State::kAside; }
  // The master must hear what it holds before it is on, unless it is empty.
  bool away() const { return aside() || telling() || state_ == State::kReopening; }
  bool may_open() const { return state_ < State::kVoided; }
  bool tries_again() const { return state_ != State::kUnmounted; }
  // A put of what it holds waits until it is struck from the note.
  bool must_be_struck() const { return note_ == Note::kMustBeStruck; }
  // The era in which it is being reported, else nothing.
  std::optional<std::uint64_t> telling_in() const;
  // The era in which it is on while the note does not name it, else nothing.
  std::optional<std::uint64_t> unnoted_in() const;

  // ---- transitions; false: nothing has changed
  // Its objects are known for the first time.
  bool SetOn();
  // Its objects are known again, or it is empty. `as`: kOn or kTelling.
  bool Use(State as);
  // The master has accepted what was reported in that era.
  bool SetOnTold(std::uint64_t era);
  // The first reason is kept. True where this ends an era, as for the next two.
  bool SetAside(const std::string& why);
  bool Void(const std::string& why);
  bool Unmount(const std::string& why);
  // After Void: it is tried again.
  bool UseAnew();
  // Its thread has ended, and another one opens it again.
  bool Pause();

  // ---- the note
  void Name();
  // The note is written without it.
  void Strike() { note_ = Note::kStruck; }
  // A key that it holds is put while it is not on. False: the note does not name it, so the put may
  // replace the value.
  bool Cover();

 private:
  bool EndEra(State next, const std::string& why);

  State state_ = State::kOpening;
  Note note_ = Note::kStruck;
  std::uint64_t era_ = 0;
  std::string why_;
};

}  // namespace kvcove::owner
