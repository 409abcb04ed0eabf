// SPDX-License-Identifier: Apache-2.0
// The functions of libzmq (ZeroMQ 4.2 or later), opened at run time: who publishes no events needs
// no library. Its ABI is stable; what is used of it is declared here, so that the build needs no
// header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kvcove/base/result.h"

namespace kvcove::kvevents::zmq {

struct alignas(void*) Message {
  unsigned char opaque[64];
};
struct PollItem {
  void* socket = nullptr;
  int fd = 0;
  short events = 0;
  short revents = 0;
};

inline constexpr int kSub = 2;
inline constexpr int kDealer = 5;
inline constexpr int kRouter = 6;
inline constexpr int kXpub = 9;

inline constexpr int kSubscribe = 6;
inline constexpr int kLinger = 17;
inline constexpr int kMaxMessageBytes = 22;
inline constexpr int kSendHighWater = 23;
inline constexpr int kReceiveHighWater = 24;
inline constexpr int kLastEndpoint = 32;
inline constexpr int kRouterMandatory = 33;
inline constexpr int kIpv6 = 42;
inline constexpr int kXpubVerboser = 78;
inline constexpr int kContextBlocky = 70;

inline constexpr int kDontWait = 1;
inline constexpr int kMore = 2;
inline constexpr short kPollIn = 1;
inline constexpr short kPollOut = 2;

inline constexpr const char* kLibrary = "libzmq.so.5";

struct Functions {
  // Errors: kUnavailable, with the package to install.
  static Result<Functions> Open(const std::string& library = kLibrary);

  void* (*ctx_new)() = nullptr;
  int (*ctx_set)(void* context, int option, int value) = nullptr;
  int (*ctx_term)(void* context) = nullptr;
  void* (*socket)(void* context, int type) = nullptr;
  int (*close)(void* socket) = nullptr;
  int (*setsockopt)(void* socket, int option, const void* value, std::size_t bytes) = nullptr;
  int (*getsockopt)(void* socket, int option, void* value, std::size_t* bytes) = nullptr;
  int (*bind)(void* socket, const char* endpoint) = nullptr;
  int (*connect)(void* socket, const char* endpoint) = nullptr;
  int (*send)(void* socket, const void* data, std::size_t bytes, int flags) = nullptr;
  int (*poll)(PollItem* items, int count, long timeout_ms) = nullptr;
  int (*msg_init)(Message* message) = nullptr;
  int (*msg_init_data)(Message* message, void* data, std::size_t bytes,
                       void (*free)(void* data, void* hint), void* hint) = nullptr;
  int (*msg_recv)(Message* message, void* socket, int flags) = nullptr;
  int (*msg_send)(Message* message, void* socket, int flags) = nullptr;
  int (*msg_close)(Message* message) = nullptr;
  int (*msg_more)(const Message* message) = nullptr;
  void* (*msg_data)(Message* message) = nullptr;
  std::size_t (*msg_size)(const Message* message) = nullptr;
  int (*error_number)() = nullptr;
  const char* (*error_text)(int number) = nullptr;
};

}  // namespace kvcove::kvevents::zmq
