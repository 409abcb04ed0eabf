// SPDX-License-Identifier: Apache-2.0
#include "kvcove/kvevents/zmq.h"

#include <dlfcn.h>
#include <fmt/core.h>

namespace kvcove::kvevents::zmq {
namespace {

class ZmqFinder {
 public:
  explicit ZmqFinder(void* handle) : handle_(handle) {}
  template <typename F>
  void Find(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(handle_, name));  // NOLINT
    if (function == nullptr && missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }

 private:
  void* handle_;
  std::string missing_;
};

}  // namespace

Result<Functions> Functions::Open(const std::string& library) {
  // Never closed: a thread of the library may outlive its context by a moment.
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return Fail(Code::kUnavailable,
                fmt::format("KV events need ZeroMQ ({}); install it, on Debian and Ubuntu with "
                            "'apt-get install libzmq5', or leave --kv-events out",
                            dlerror()));
  }
  Functions f;
  ZmqFinder finder(handle);
  finder.Find(f.ctx_new, "zmq_ctx_new");
  finder.Find(f.ctx_set, "zmq_ctx_set");
  finder.Find(f.ctx_term, "zmq_ctx_term");
  finder.Find(f.socket, "zmq_socket");
  finder.Find(f.close, "zmq_close");
  finder.Find(f.setsockopt, "zmq_setsockopt");
  finder.Find(f.getsockopt, "zmq_getsockopt");
  finder.Find(f.bind, "zmq_bind");
  finder.Find(f.connect, "zmq_connect");
  finder.Find(f.send, "zmq_send");
  finder.Find(f.poll, "zmq_poll");
  finder.Find(f.msg_init, "zmq_msg_init");
  finder.Find(f.msg_init_data, "zmq_msg_init_data");
  finder.Find(f.msg_recv, "zmq_msg_recv");
  finder.Find(f.msg_send, "zmq_msg_send");
  finder.Find(f.msg_close, "zmq_msg_close");
  finder.Find(f.msg_more, "zmq_msg_more");
  finder.Find(f.msg_data, "zmq_msg_data");
  finder.Find(f.msg_size, "zmq_msg_size");
  finder.Find(f.error_number, "zmq_errno");
  finder.Find(f.error_text, "zmq_strerror");
  if (finder.missing().empty()) return f;
  return Fail(Code::kUnavailable, fmt::format("KV events need ZeroMQ 4.2 or later: {} has no {}",
                                              library, finder.missing()));
}

}  // namespace kvcove::kvevents::zmq
