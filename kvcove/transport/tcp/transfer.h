// SPDX-License-Identifier: Apache-2.0
// One exchange over one connection. Private to this folder.
//
//   sockets only   kFrame -> kHead -> kPayload -> ended
//   a get by lane  kFrame -> kHead -> kLanding: the owner writes into the pieces -> ended
//   a put by lane  kFrame: the owner reads out of the pieces, then answers -> kHead -> ended
//   an exchange that fails while the owner may reach its memory: -> kQuieting, until the lane is
//   gone -> ended, or begun anew over sockets
#pragma once

#include <poll.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/transport/tcp/parts.h"
#include "kvcove/transport/tcp/peer.h"
#include "kvcove/wire/frame.h"

namespace kvcove::transport::tcp {

class SocketTransfer final : public Transfer {
 public:
  SocketTransfer(Peer& peer, Exchange& exchange, Peer::Line line);
  ~SocketTransfer() override;

  bool done() const override { return done_; }
  bool Advance() override;
  // The socket is closed before Abort() returns: only this thread receives from it, so no late byte
  // of the answer can be written to the caller's memory, and the connection is not used again. A
  // lane by which the owner may reach that memory ends later.
  bool Abort() override;

  // Adds the descriptors for which it waits. False: it has moved meanwhile; do not sleep.
  bool AddWaits(std::vector<pollfd>& waits);

 private:
  enum class Stage { kFrame, kHead, kPayload, kLanding, kQuieting };

  // The end of a lane, shared with the reaper. An eventfd wakes the thread that waits for it.
  class Quiet {
   public:
    Result<void> Open();
    int descriptor() const { return event_.get(); }
    bool now() const;
    void Now();
    // Returns true if it is quiet already; else `then` is called when it is.
    bool OrThen(std::function<void()> then);

   private:
    UniqueFd event_;
    mutable Mutex mutex_;
    bool quiet_ KVCOVE_GUARDED_BY(mutex_) = false;
    std::function<void()> then_ KVCOVE_GUARDED_BY(mutex_);
  };

  // A put is answered when the master has listed it, so its latency says nothing about the owner's.
  bool teaches() const { return exchange_.method == wire::Method::kDataGet; }
  void End(Status status);
  void Fail(Error error);
  bool ByLane() const;
  void KeepLine();
  void DropLane();
  void Begin();
  void BeginLane();
  void AddFrame(wire::Method method, std::array<std::byte, wire::kFrameHeaderBytes>& frame,
                const std::string& body);
  void Lost(Error error);
  void StartQuieting();
  bool Quieted();
  void BeginAnew();
  bool Send();
  bool Receive(bool& heard);
  bool Landed();
  void Arrived();
  void FrameArrived();
  void HeadArrived();
  void ExpectFrame();

  Peer& peer_;
  Exchange& exchange_;
  UniqueFd fd_;
  const rpc::Breaker::Pass pass_;
  bool kept_;  // was idle before, and has received nothing in this exchange
  std::unique_ptr<verbs::RequesterEnd> lane_;
  std::uint64_t number_ = 0;  // of this exchange; the lane announces it
  bool by_lane_ = false;      // the peer is to expect no payload on the socket
  bool held_ = false;         // the peer waits for the pieces of its reply
  bool exposed_ = false;      // the owner has keys for this exchange, and may use them
  bool sleeping_ = false;     // the lane's descriptor may be readable
  std::shared_ptr<Quiet> quiet_;
  Error failure_;       // kQuieting: how the exchange ends then
  bool again_ = false;  // kQuieting: it begins anew instead
  std::array<std::byte, wire::kFrameHeaderBytes> head_;
  std::array<std::byte, wire::kFrameHeaderBytes> pieces_frame_;
  std::string pieces_;
  std::array<std::byte, wire::kFrameHeaderBytes> reply_frame_;
  std::vector<std::byte> reply_;
  Parts out_;
  Parts in_;
  Stage stage_ = Stage::kFrame;
  Code code_ = Code::kOk;
  std::uint64_t payload_bytes_ = 0;
  bool done_ = false;
};

}  // namespace kvcove::transport::tcp
