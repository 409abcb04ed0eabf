// SPDX-License-Identifier: Apache-2.0
// The functions that libibverbs exports. The header's other calls (posting, polling, arming) are
// inline: they call through the context's own table, which the device's driver has filled. Private
// to library.cc.
#pragma once

#include <infiniband/verbs.h>

#include <functional>
#include <string>
#include <string_view>

#include "kvcove/base/result.h"

namespace kvcove::transport::verbs {

// Immutable once it is filled.
struct Functions {
  decltype(&::ibv_get_device_list) get_device_list = nullptr;
  decltype(&::ibv_free_device_list) free_device_list = nullptr;
  decltype(&::ibv_get_device_name) get_device_name = nullptr;
  decltype(&::ibv_open_device) open_device = nullptr;
  decltype(&::ibv_close_device) close_device = nullptr;
  decltype(&::ibv_query_device) query_device = nullptr;
  decltype(&::ibv_query_port) query_port = nullptr;
  decltype(&::ibv_query_gid) query_gid = nullptr;
  decltype(&::ibv_get_async_event) get_async_event = nullptr;
  decltype(&::ibv_ack_async_event) ack_async_event = nullptr;
  decltype(&::ibv_alloc_pd) alloc_pd = nullptr;
  decltype(&::ibv_dealloc_pd) dealloc_pd = nullptr;
  decltype(&::ibv_reg_mr) reg_mr = nullptr;
  decltype(&::ibv_dereg_mr) dereg_mr = nullptr;
  decltype(&::ibv_create_comp_channel) create_comp_channel = nullptr;
  decltype(&::ibv_destroy_comp_channel) destroy_comp_channel = nullptr;
  decltype(&::ibv_create_cq) create_cq = nullptr;
  decltype(&::ibv_destroy_cq) destroy_cq = nullptr;
  decltype(&::ibv_get_cq_event) get_cq_event = nullptr;
  decltype(&::ibv_ack_cq_events) ack_cq_events = nullptr;
  decltype(&::ibv_create_qp) create_qp = nullptr;
  decltype(&::ibv_modify_qp) modify_qp = nullptr;
  decltype(&::ibv_destroy_qp) destroy_qp = nullptr;
  decltype(&::ibv_fork_init) fork_init = nullptr;

  // Opens a library, which is never closed. Errors: kUnavailable; it is missing, or lacks a
  // function.
  static Result<Functions> Open(const std::string& library);
};

// Returns whether a device has queue pairs as lanes need them: InfiniBand and RoCE. Those of iWARP
// need another way to connect; EFA and usNIC have none.
bool MakesLanes(const ibv_device& device);
// Prepares registered memory for forks of this process. At a fork a kernel before 5.12 lets the
// child keep the pages that the device has pinned, and gives the parent a copy with its next write:
// the device would move other bytes than the parent sees. `fork_init` (ibv_fork_init) keeps
// registered pages from children there; later kernels copy them for the child, and it is not
// called. `release`: the kernel's ("6.1.0-13-amd64"). Errors: kUnavailable; the library cannot do
// it any more.
Status PrepareForForks(const std::function<int()>& fork_init, std::string_view release);
// Returns the error of a call that has failed with this number of errno's.
std::unexpected<Error> FailVerbs(int number, const std::string& what);
// Returns ok for 0, else the call's error. Calls return errno's number, but some old drivers return
// -1 and set errno.
Status CheckVerbs(int result, const std::string& what);

}  // namespace kvcove::transport::verbs
