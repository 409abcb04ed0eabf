// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/verbs/functions.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "kvcove/base/text.h"

namespace kvcove::transport::verbs {
namespace {

// Finds functions by their version: the structures of IBVERBS_1.1 are those of the header. (The
// channel's calls have not changed since 1.0.) A later version of a function might take others.
class Finder {
 public:
  explicit Finder(void* handle) : handle_(handle) {}
  template <typename F>
  void Find(F& function, const char* name, const char* version = "IBVERBS_1.1") {
    function = reinterpret_cast<F>(dlvsym(handle_, name, version));  // NOLINT
    if (function == nullptr && missing_.empty()) missing_ = fmt::format("{}@{}", name, version);
  }
  const std::string& missing() const { return missing_; }

 private:
  void* handle_;
  std::string missing_;
};

void FindVerbs(Functions& f, Finder& finder) {
  finder.Find(f.get_device_list, "ibv_get_device_list");
  finder.Find(f.free_device_list, "ibv_free_device_list");
  finder.Find(f.get_device_name, "ibv_get_device_name");
  finder.Find(f.open_device, "ibv_open_device");
  finder.Find(f.close_device, "ibv_close_device");
  finder.Find(f.query_device, "ibv_query_device");
  finder.Find(f.query_port, "ibv_query_port");
  finder.Find(f.query_gid, "ibv_query_gid");
  finder.Find(f.get_async_event, "ibv_get_async_event");
  finder.Find(f.ack_async_event, "ibv_ack_async_event");
  finder.Find(f.alloc_pd, "ibv_alloc_pd");
  finder.Find(f.dealloc_pd, "ibv_dealloc_pd");
  finder.Find(f.reg_mr, "ibv_reg_mr");
  finder.Find(f.dereg_mr, "ibv_dereg_mr");
  finder.Find(f.create_comp_channel, "ibv_create_comp_channel", "IBVERBS_1.0");
  finder.Find(f.destroy_comp_channel, "ibv_destroy_comp_channel", "IBVERBS_1.0");
  finder.Find(f.create_cq, "ibv_create_cq");
  finder.Find(f.destroy_cq, "ibv_destroy_cq");
  finder.Find(f.get_cq_event, "ibv_get_cq_event");
  finder.Find(f.ack_cq_events, "ibv_ack_cq_events");
  finder.Find(f.create_qp, "ibv_create_qp");
  finder.Find(f.modify_qp, "ibv_modify_qp");
  finder.Find(f.destroy_qp, "ibv_destroy_qp");
  finder.Find(f.fork_init, "ibv_fork_init");
}

// Returns the first two numbers of a release; 0.0 for one that has none.
std::pair<unsigned, unsigned> VersionOf(std::string_view release) {
  const std::size_t dot = release.find('.');
  if (dot == std::string_view::npos) return {0, 0};
  const auto major = NumberOf<unsigned>(release.substr(0, dot));
  const std::string_view rest = release.substr(dot + 1);
  const auto minor = NumberOf<unsigned>(rest.substr(0, rest.find_first_not_of("0123456789")));
  return major && minor ? std::pair{*major, *minor} : std::pair{0U, 0U};
}

}  // namespace

Result<Functions> Functions::Open(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Fail(Code::kUnavailable, dlerror());
  Functions functions;
  Finder finder(handle);
  FindVerbs(functions, finder);
  if (finder.missing().empty()) return functions;
  return Fail(Code::kUnavailable, fmt::format("{} has no {}", library, finder.missing()));
}

bool MakesLanes(const ibv_device& device) {
  return device.transport_type == IBV_TRANSPORT_IB && device.node_type == IBV_NODE_CA;
}

Status PrepareForForks(const std::function<int()>& fork_init, std::string_view release) {
  if (VersionOf(release) >= std::pair{5U, 12U}) return {};
  const int result = fork_init();
  if (result == 0) return {};
  return Fail(Code::kUnavailable,
              fmt::format("this kernel ({}) needs ibv_fork_init before the first RDMA registration "
                          "of the process, which fails now ({}): open kvcove first, set "
                          "RDMAV_FORK_SAFE=1, or use a kernel from 5.12 on",
                          release, std::strerror(result < 0 ? errno : result)));
}

std::unexpected<Error> FailVerbs(int number, const std::string& what) {
  errno = number;
  // By what a caller can do. No room: payload takes TCP, and a later try may succeed. A mistake,
  // such as memory that is mapped read-only (EFAULT): the same call fails again. Else the device is
  // gone.
  switch (number) {
    case ENOMEM:
    case EAGAIN:
    case EMFILE:
      return FailErrno(Code::kLimit, what);
    case EINVAL:
    case EFAULT:
      return FailErrno(Code::kInvalid, what);
    default:
      return FailErrno(Code::kUnavailable, what);
  }
}

Status CheckVerbs(int result, const std::string& what) {
  if (result == 0) return {};
  return FailVerbs(result < 0 ? errno : result, what);
}

}  // namespace kvcove::transport::verbs
