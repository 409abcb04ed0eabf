// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/verbs/library.h"

#include <endian.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "kvcove/transport/verbs/functions.h"

namespace kvcove::transport::verbs {
namespace {

class LibraryRegion final : public MemoryRegion {
 public:
  LibraryRegion(const Functions& f, ibv_mr* region) : f_(f), region_(region) {}
  ~LibraryRegion() override { (void)Deregister(); }
  std::uint32_t local_key() const override { return local_key_; }
  std::uint32_t remote_key() const override { return remote_key_; }
  Status Deregister() override {
    if (region_ == nullptr) return {};
    KVCOVE_TRY(CheckVerbs(f_.dereg_mr(region_), "the end of a memory registration"));
    region_ = nullptr;
    return {};
  }

 private:
  const Functions& f_;
  ibv_mr* region_;
  // Copies: the structure is freed with the registration, and a late reader gets a key that is
  // void.
  const std::uint32_t local_key_ = region_->lkey;
  const std::uint32_t remote_key_ = region_->rkey;
};

CompletionStatus StatusOf(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return CompletionStatus::kOk;
    case IBV_WC_WR_FLUSH_ERR:
      return CompletionStatus::kFlushed;
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
      return CompletionStatus::kRefused;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return CompletionStatus::kUnreachable;
    default:
      return CompletionStatus::kFailed;
  }
}

class LibraryQueue final : public CompletionQueue {
 public:
  LibraryQueue(const Functions& f, ibv_comp_channel* channel, ibv_cq* queue)
      : f_(f), channel_(channel), queue_(queue) {}
  ~LibraryQueue() override { (void)Destroy(); }
  ibv_cq* queue() const { return queue_; }

  Result<std::size_t> Poll(std::span<Completion> into) override {
    ibv_wc found[kBatch];
    const std::size_t most = std::min<std::size_t>(into.size(), kBatch);
    const int count = ibv_poll_cq(queue_, static_cast<int>(most), found);
    if (count < 0) return FailVerbs(EIO, "the poll of a completion queue");
    for (int i = 0; i < count; ++i) into[i] = CompletionOf(found[i]);
    return static_cast<std::size_t>(count);
  }
  Status Arm() override {
    return CheckVerbs(ibv_req_notify_cq(queue_, 0), "the arming of a completion queue");
  }
  int descriptor() const override { return channel_->fd; }
  void TakeEvents() override {
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    // The descriptor does not block. Each event is acknowledged: the queue's end waits for that.
    while (f_.get_cq_event(channel_, &queue, &context) == 0) f_.ack_cq_events(queue, 1);
  }
  // The library refuses the end of a channel that has a queue.
  Status Destroy() override {
    if (queue_ != nullptr) {
      KVCOVE_TRY(CheckVerbs(f_.destroy_cq(queue_), "the end of a completion queue"));
      queue_ = nullptr;
    }
    if (channel_ != nullptr) {
      KVCOVE_TRY(CheckVerbs(f_.destroy_comp_channel(channel_), "the end of a completion channel"));
      channel_ = nullptr;
    }
    return {};
  }

 private:
  static constexpr std::size_t kBatch = 16;

  static Completion CompletionOf(const ibv_wc& found) {
    Completion completion{.id = found.wr_id, .status = StatusOf(found.status)};
    if (found.status != IBV_WC_SUCCESS) return completion;  // the other fields are undefined
    if ((found.opcode & IBV_WC_RECV) != 0) completion.bytes = found.byte_len;
    if ((found.wc_flags & IBV_WC_WITH_IMM) != 0) completion.immediate = be32toh(found.imm_data);
    return completion;
  }

  const Functions& f_;
  ibv_comp_channel* channel_;
  ibv_cq* queue_;
};

ibv_wr_opcode OpcodeOf(Operation operation) {
  switch (operation) {
    case Operation::kSend:
      return IBV_WR_SEND;
    case Operation::kWrite:
      return IBV_WR_RDMA_WRITE;
    case Operation::kWriteWithImmediate:
      return IBV_WR_RDMA_WRITE_WITH_IMM;
    case Operation::kRead:
      return IBV_WR_RDMA_READ;
  }
  std::unreachable();
}

ibv_sge ElementOf(const LocalSegment& segment) {
  return {.addr = reinterpret_cast<std::uintptr_t>(segment.data),
          .length = segment.bytes,
          .lkey = segment.key};
}

class LibraryPair final : public QueuePair {
 public:
  LibraryPair(const Functions& f, ibv_qp* pair) : f_(f), pair_(pair), number_(pair->qp_num) {}
  ~LibraryPair() override { (void)Destroy(); }
  std::uint32_t number() const override { return number_; }

  Status ToInit(const Route& route, Access peer_may) override {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = route.port;
    // A device permits what both the queue pair and the region permit. An owner's pairs permit
    // nothing, so that no key to its memory is of any use to a peer.
    if (peer_may == Access::kRemote) {
      attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    }
    return Modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                  "INIT");
  }
  Status ToReceive(const Route& route, const PairAddress& own, const PairAddress& peer) override {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = static_cast<ibv_mtu>(std::min(own.mtu, peer.mtu));
    attributes.dest_qp_num = peer.number;
    attributes.rq_psn = peer.first_packet;
    attributes.max_dest_rd_atomic = own.reads;
    attributes.min_rnr_timer = kReceiverWait;
    ibv_ah_attr& path = attributes.ah_attr;
    path.dlid = peer.lid;
    path.sl = route.service_level;
    path.port_num = route.port;
    // Ethernet has no LIDs, and needs GIDs; within a subnet of InfiniBand the LID is enough.
    path.is_global = peer.lid == 0 ? 1 : 0;
    std::memcpy(path.grh.dgid.raw, peer.gid.data(), peer.gid.size());
    path.grh.sgid_index = route.gid_index;
    path.grh.hop_limit = kHops;
    path.grh.traffic_class = route.traffic_class;
    return Modify(attributes,
                  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                  "RTR");
  }
  Status ToSend(const Route& route, const PairAddress& own, const PairAddress& peer) override {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = route.timeout;
    attributes.retry_cnt = route.retries;
    attributes.rnr_retry = route.retries;
    attributes.sq_psn = own.first_packet;
    attributes.max_rd_atomic = peer.reads;
    return Modify(attributes,
                  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                  "RTS");
  }
  Status ToError() override {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    return Modify(attributes, IBV_QP_STATE, "ERR");
  }

  Posted Post(std::span<const Work> works) override {
    ibv_send_wr requests[kBatch]{};
    ibv_sge elements[kBatch]{};
    Posted posted;
    while (posted.count < works.size()) {
      const std::size_t count = std::min(works.size() - posted.count, kBatch);
      for (std::size_t i = 0; i < count; ++i) {
        Fill(requests[i], elements[i], works[posted.count + i]);
        requests[i].next = i + 1 < count ? &requests[i + 1] : nullptr;
      }
      ibv_send_wr* refused = nullptr;
      posted.status = CheckVerbs(ibv_post_send(pair_, requests, &refused), "a work request");
      if (!posted.status) {
        // All before the one that is refused are with the device. A driver that does not name it
        // may have taken all: they count, so that the lane waits for them.
        posted.count += refused == nullptr ? count : static_cast<std::size_t>(refused - requests);
        return posted;
      }
      posted.count += count;
    }
    return posted;
  }
  Status PostReceive(std::uint64_t id, const LocalSegment& into) override {
    ibv_sge element = ElementOf(into);
    ibv_recv_wr request{
        .wr_id = id, .next = nullptr, .sg_list = &element, .num_sge = into.bytes > 0 ? 1 : 0};
    ibv_recv_wr* refused = nullptr;
    return CheckVerbs(ibv_post_recv(pair_, &request, &refused), "a receive");
  }
  Status Destroy() override {
    if (pair_ == nullptr) return {};
    KVCOVE_TRY(CheckVerbs(f_.destroy_qp(pair_), "the end of a queue pair"));
    pair_ = nullptr;
    return {};
  }

 private:
  static constexpr std::size_t kBatch = 16;
  static constexpr std::uint8_t kHops = 64;
  static constexpr std::uint8_t kReceiverWait = 12;  // 0.64 ms: a peer without a receive is late

  Status Modify(ibv_qp_attr& attributes, int mask, const char* state) {
    return CheckVerbs(f_.modify_qp(pair_, &attributes, mask),
                      fmt::format("a queue pair's way to {}", state));
  }
  static void Fill(ibv_send_wr& request, ibv_sge& element, const Work& work) {
    element = ElementOf(work.local);
    request.wr_id = work.id;
    request.sg_list = &element;
    request.num_sge = work.local.bytes > 0 ? 1 : 0;
    request.opcode = OpcodeOf(work.operation);
    // Each, although fewer would do for room in the queue: a lane is drained when each work request
    // has its completion, and it reports bytes to hash as they arrive.
    request.send_flags = IBV_SEND_SIGNALED;
    request.imm_data = htobe32(work.immediate);
    request.wr.rdma.remote_addr = work.remote;
    request.wr.rdma.rkey = work.remote_key;
  }

  const Functions& f_;
  ibv_qp* pair_;
  const std::uint32_t number_;
};

DeviceEvent EventOf(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_DEVICE_FATAL:
      return DeviceEvent::kGone;
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
      return DeviceEvent::kPort;
    default:
      return DeviceEvent::kOther;
  }
}

Status DoNotBlock(int descriptor, const std::string& what) {
  const int flags = fcntl(descriptor, F_GETFL);
  if (flags >= 0 && fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) == 0) return {};
  return FailVerbs(errno, what);
}

class LibraryContext final : public Context {
 public:
  LibraryContext(const Functions& f, std::string device, ibv_context* context, ibv_pd* domain)
      : f_(f), device_(std::move(device)), context_(context), domain_(domain) {}
  ~LibraryContext() override {
    if (domain_ != nullptr) (void)f_.dealloc_pd(domain_);
    (void)f_.close_device(context_);
  }
  const std::string& device() const override { return device_; }

  Result<Limits> QueryLimits() override {
    ibv_device_attr attributes{};
    KVCOVE_TRY(CheckVerbs(f_.query_device(context_, &attributes), device_ + "'s limits"));
    const auto reads = [](int number) {
      return static_cast<std::uint8_t>(std::clamp(number, 0, kMostReads));
    };
    return Limits{.work_requests = static_cast<std::uint32_t>(std::max(attributes.max_qp_wr, 0)),
                  .reads_answered = reads(attributes.max_qp_rd_atom),
                  .reads_begun = reads(attributes.max_qp_init_rd_atom)};
  }
  Result<PortState> QueryPort(std::uint8_t port) override {
    // The exported function fills the beginning of the structure only, which has all of these.
    ibv_port_attr attributes{};
    KVCOVE_TRY(CheckVerbs(
        f_.query_port(context_, port, reinterpret_cast<_compat_ibv_port_attr*>(&attributes)),
        fmt::format("{}'s port {}", device_, port)));
    return PortState{.active = attributes.state == IBV_PORT_ACTIVE,
                     .ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET,
                     .lid = attributes.lid,
                     .mtu = static_cast<std::uint8_t>(attributes.active_mtu),
                     .gids = static_cast<std::uint32_t>(std::max(attributes.gid_tbl_len, 0))};
  }
  Result<GidEntry> QueryGid(std::uint8_t port, std::uint8_t index) override {
    ibv_gid gid{};
    KVCOVE_TRY(CheckVerbs(f_.query_gid(context_, port, index, &gid),
                          fmt::format("{}'s GID {} of port {}", device_, index, port)));
    GidEntry entry;
    std::memcpy(entry.gid.data(), gid.raw, entry.gid.size());
    // The library exports no call for the type that all of its releases have.
    std::ifstream type(
        fmt::format("/sys/class/infiniband/{}/ports/{}/gid_attrs/types/{}", device_, port, index));
    std::string text;
    entry.v2 = std::getline(type, text) && text == "RoCE v2";
    return entry;
  }
  std::optional<DeviceEvent> TakeEvent() override {
    ibv_async_event event{};
    // The descriptor does not block.
    if (f_.get_async_event(context_, &event) != 0) return std::nullopt;
    const ibv_event_type type = event.event_type;
    // At once: the end of the object that an event is about waits for that.
    f_.ack_async_event(&event);
    return EventOf(type);
  }
  int descriptor() const override { return context_->async_fd; }
  Result<std::unique_ptr<MemoryRegion>> Register(std::span<std::byte> memory,
                                                 Access access) override {
    // Local writes also for memory of peers: the library asks for that with remote writes. Never
    // IBV_ACCESS_RELAXED_ORDERING: bytes could become visible behind the immediate that announces
    // them.
    int flags = IBV_ACCESS_LOCAL_WRITE;
    if (access == Access::kRemote) flags |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    ibv_mr* const region = f_.reg_mr(domain_, memory.data(), memory.size(), flags);
    if (region == nullptr) {
      const int number = errno;
      return FailVerbs(number,
                       fmt::format("{} does not register {} bytes{}", device_, memory.size(),
                                   number == ENOMEM ? " (is `ulimit -l` too small?)" : ""));
    }
    return std::make_unique<LibraryRegion>(f_, region);
  }
  Result<std::unique_ptr<CompletionQueue>> CreateQueue(std::uint32_t completions) override {
    ibv_comp_channel* const channel = f_.create_comp_channel(context_);
    if (channel == nullptr) return FailVerbs(errno, device_ + " makes no completion channel");
    ibv_cq* const queue = f_.create_cq(context_, static_cast<int>(completions), nullptr, channel,
                                       /*comp_vector=*/0);
    if (queue == nullptr) {
      const int number = errno;
      (void)f_.destroy_comp_channel(channel);
      return FailVerbs(number, device_ + " makes no completion queue");
    }
    // Before the next call, so that its failure ends both.
    auto made = std::make_unique<LibraryQueue>(f_, channel, queue);
    KVCOVE_TRY(DoNotBlock(channel->fd, device_ + "'s completion channel"));
    return made;
  }
  Result<std::unique_ptr<QueuePair>> CreatePair(CompletionQueue& queue,
                                                const PairSizes& sizes) override {
    ibv_cq* const completions = static_cast<LibraryQueue&>(queue).queue();
    ibv_qp_init_attr attributes{};
    attributes.send_cq = completions;
    attributes.recv_cq = completions;
    attributes.cap.max_send_wr = sizes.sends;
    attributes.cap.max_recv_wr = sizes.receives;
    attributes.cap.max_send_sge = 1;
    attributes.cap.max_recv_sge = 1;
    attributes.qp_type = IBV_QPT_RC;
    ibv_qp* const pair = f_.create_qp(domain_, &attributes);
    if (pair == nullptr) return FailVerbs(errno, device_ + " makes no queue pair");
    return std::make_unique<LibraryPair>(f_, pair);
  }

 private:
  static constexpr int kMostReads = 16;

  const Functions& f_;
  const std::string device_;
  ibv_context* const context_;
  ibv_pd* const domain_;
};

class Library final : public Verbs {
 public:
  explicit Library(const Functions& functions) : f_(functions) {}

  Result<std::vector<std::string>> Devices() override {
    std::vector<std::string> names;
    KVCOVE_TRY(ForEach([&](ibv_device* device) {
      if (MakesLanes(*device)) names.emplace_back(f_.get_device_name(device));
    }));
    return names;
  }
  Result<std::shared_ptr<Context>> Open(const std::string& name) override {
    bool found = false;
    bool fits = false;
    int number = 0;
    ibv_context* context = nullptr;
    KVCOVE_TRY(ForEach([&](ibv_device* device) {
      if (found || name != f_.get_device_name(device)) return;
      found = true;
      fits = MakesLanes(*device);
      if (fits) context = f_.open_device(device);
      number = errno;  // the end of the list may set another
    }));
    if (!found) return Fail(Code::kUnavailable, "no RDMA device " + name);
    if (!fits) return Fail(Code::kUnavailable, name + " is neither InfiniBand nor RoCE");
    if (context == nullptr) return FailVerbs(number, name + " cannot be opened");
    ibv_pd* const domain = f_.alloc_pd(context);
    number = errno;
    auto opened = std::make_shared<LibraryContext>(f_, name, context, domain);
    if (domain == nullptr) return FailVerbs(number, name + " makes no protection domain");
    KVCOVE_TRY(DoNotBlock(opened->descriptor(), name + "'s channel of events"));
    return opened;
  }

 private:
  template <typename F>
  Status ForEach(F&& act) {
    int count = 0;
    ibv_device** const devices = f_.get_device_list(&count);
    if (devices == nullptr && errno == ENOSYS) {
      return Fail(Code::kUnavailable,
                  "this host has no RDMA device, or no driver of one is loaded");
    }
    if (devices == nullptr) return FailVerbs(errno, "the list of RDMA devices");
    for (int i = 0; i < count; ++i) act(devices[i]);
    f_.free_device_list(devices);
    return {};
  }

  const Functions f_;
};

}  // namespace

Result<Verbs*> OpenLibrary(const std::string& name) {
  KVCOVE_ASSIGN(const Functions functions, Functions::Open(name));
  utsname kernel{};
  (void)uname(&kernel);
  KVCOVE_TRY(PrepareForForks(functions.fork_init, kernel.release));
  return new Library(functions);  // never freed, as the library is never closed
}

Result<Verbs*> VerbsOfProcess() {
  static const Result<Verbs*> opened = OpenLibrary("libibverbs.so.1");
  return opened;
}

}  // namespace kvcove::transport::verbs
