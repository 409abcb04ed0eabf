// SPDX-License-Identifier: Apache-2.0
// Opens and closes a GPU; its host memory, marks and tickets. submit.cc moves bytes.
#include "kvcove/transport/cuda/device.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/size.h"
#include "kvcove/transport/cuda/kernels_ptx.h"

namespace kvcove::transport::cuda {
namespace {

constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
// CU_MEMHOSTALLOC_PORTABLE and _DEVICEMAP, and those of CU_MEMHOSTREGISTER_.
constexpr unsigned kPortableMapped = 3;
constexpr CuResult kNoMemory = 2;

std::unexpected<Error> FailPinning(CuResult result, std::uint64_t bytes) {
  return Fail(
      result == kNoMemory ? Code::kLimit : Code::kInternal,
      fmt::format("the GPU's driver answers {} when it shall pin {} of host memory; look at "
                  "the host's free memory and at `ulimit -l` (memlock), which containers "
                  "limit: --ulimit memlock=-1",
                  result, FormatSize(bytes)));
}

}  // namespace

Result<std::unique_ptr<Device>> Device::Open(const Driver& driver, int ordinal,
                                             const DeviceOptions& options) {
  std::unique_ptr<Device> device(new Device(driver, ordinal, options));
  KVCOVE_TRY(device->Start());
  return device;
}

Status Device::Start() {
  // Called here and not when the library is opened: a process that only asks whether memory is a
  // GPU's (Driver::Owns) may still choose its GPUs by CUDA_VISIBLE_DEVICES, and fork children that
  // use them.
  if (const CuResult begun = driver_.init(0); begun != kSuccess) {
    return Fail(Code::kUnavailable, fmt::format("the GPU's driver answers {} to cuInit", begun));
  }
  const CuResult found = driver_.device_get(&handle_, ordinal_);
  if (found != kSuccess) {
    return Fail(Code::kUnavailable,
                fmt::format("the GPU's driver answers {} for GPU {}", found, ordinal_));
  }
  KVCOVE_TRY(CheckResult(driver_.retain(&context_, handle_),
                         fmt::format("the primary context of GPU {}", ordinal_)));
  retained_ = true;
  const Scope scope(driver_, context_);
  KVCOVE_TRY(scope.status());
  events_ = std::make_shared<Events>(driver_, context_, Events::kForHost);
  inner_ = std::make_shared<Events>(driver_, context_, Events::kBetweenStreams);
  int least = 0;
  int greatest = 0;
  KVCOVE_TRY(CheckResult(driver_.priorities(&least, &greatest), "the range of priorities"));
  LoadKernels();
  KVCOVE_TRY(StartChannel(Of(DeviceWay::kLoad), greatest, options_.load_slots));
  KVCOVE_TRY(StartChannel(Of(DeviceWay::kSave), least, options_.save_slots));
  if (scatter_ == nullptr) {
    threshold_ = 0;
  } else if (options_.threshold != DeviceOptions::kProbe) {
    threshold_ = options_.threshold;
    why_ = "as set";
  } else {
    Probe();
  }
  return {};
}

// Fails nothing: without kernels each run is copied by itself, which is slower where runs are
// small.
void Device::LoadKernels() {
  const Driver& d = driver_;
  if (d.module_load == nullptr || d.module_function == nullptr || d.launch == nullptr ||
      d.module_unload == nullptr) {
    why_ = "the driver runs no kernels";
    return;
  }
  const CuResult loaded = d.module_load(&module_, kKernelsPtx);
  if (loaded != kSuccess) {
    why_ = fmt::format("the driver answers {} to the kernels", loaded);
    module_ = nullptr;
    return;
  }
  if (d.module_function(&scatter_, module_, "kvcove_scatter") == kSuccess &&
      d.module_function(&gather_, module_, "kvcove_gather") == kSuccess) {
    return;
  }
  why_ = "the kernels have other names";
  scatter_ = gather_ = nullptr;
}

Status Device::StartChannel(Channel& channel, int priority, std::uint32_t slots) {
  for (CuStream* stream : {&channel.copy, &channel.kernel}) {
    KVCOVE_TRY(
        CheckResult(driver_.stream_create(stream, kNonBlocking, priority), "a stream of its own"));
  }
  if (scatter_ == nullptr) return {};
  const std::uint64_t bytes = std::uint64_t{options_.block_runs} * sizeof(MoveRun);
  const MutexLock lock(channel.mutex);
  KVCOVE_ASSIGN(const std::span<std::byte> lists, AllocateHost(options_.run_blocks * bytes));
  for (std::uint32_t i = 0; i < options_.run_blocks; ++i) {
    std::byte* const list = lists.data() + i * bytes;
    channel.staging.blocks.push_back({.host = reinterpret_cast<MoveRun*>(list),  // NOLINT
                                      .device = DeviceAddressOf(list)});
  }
  for (std::uint32_t i = 0; i < slots && options_.slot_bytes > 0; ++i) {
    Slot slot;
    // Allocated apart from the list: the driver rounds large pieces up to 2 MiB, so a list at the
    // end of a slot's piece would cost 2 MiB.
    if (driver_.alloc(&slot.memory, options_.slot_bytes) != kSuccess) break;
    if (driver_.alloc(&slot.runs, bytes) != kSuccess) {
      (void)driver_.free(slot.memory);
      break;
    }
    // Added before its events are made: if one fails, the destructor frees the slot's memory.
    Slot& added = channel.staging.slots.emplace_back(slot);
    KVCOVE_ASSIGN(added.filled, inner_->Take());
    KVCOVE_ASSIGN(added.free, inner_->Take());
  }
  channel.slots = channel.staging.slots.size();
  return {};
}

std::string Device::Describe() const {
  std::uint64_t slots = 0;
  for (const Channel& channel : channels_) slots += channel.slots;
  if (scatter_ == nullptr) return fmt::format("GPU {}: every run by itself ({})", ordinal_, why_);
  return fmt::format(
      "GPU {}: runs below {} by a kernel, {} ({})", ordinal_, FormatSize(threshold_),
      slots > 0 ? fmt::format("by way of {} on the device", FormatSize(slots * options_.slot_bytes))
                : "over the link, as the device has no memory left for staging",
      why_);
}

Result<std::span<std::byte>> Device::AllocateHost(std::uint64_t bytes) {
  const Scope scope(driver_, context_);
  KVCOVE_TRY(scope.status());
  void* memory = nullptr;
  const CuResult result = driver_.host_alloc(&memory, bytes, kPortableMapped);
  if (result != kSuccess) return FailPinning(result, bytes);
  CuPointer device = 0;
  const Status mapped =
      CheckResult(driver_.host_pointer(&device, memory, 0), "the device's address of host memory");
  if (!mapped) {
    (void)driver_.host_free(memory);
    return std::unexpected<Error>(mapped.error());
  }
  auto* const data = static_cast<std::byte*>(memory);
  AddPinned(data, {.bytes = bytes, .device = device});
  return std::span(data, bytes);
}

// Off the list first: a transfer that is planned now must not find the device's address of memory
// that is about to end.
void Device::FreeHost(std::span<std::byte> memory) {
  DropPinned(memory.data());
  const Scope scope(driver_, context_);
  (void)driver_.host_free(memory.data());
}

class Device::HostRegistration final : public Registered {
 public:
  HostRegistration(Device& device, std::byte* memory) : device_(device), memory_(memory) {}
  ~HostRegistration() override {
    device_.DropPinned(memory_);
    const Scope scope(device_.driver_, device_.context_);
    (void)device_.driver_.host_unregister(memory_);
  }
  HostRegistration(const HostRegistration&) = delete;
  HostRegistration& operator=(const HostRegistration&) = delete;

 private:
  Device& device_;
  std::byte* memory_;
};

Result<std::unique_ptr<Registered>> Device::RegisterHost(std::span<std::byte> memory) {
  const Scope scope(driver_, context_);
  KVCOVE_TRY(scope.status());
  const CuResult result = driver_.host_register(memory.data(), memory.size(), kPortableMapped);
  if (result != kSuccess) return FailPinning(result, memory.size());
  CuPointer device = 0;
  const Status mapped = CheckResult(driver_.host_pointer(&device, memory.data(), 0),
                                    "the device's address of host memory");
  if (!mapped) {
    (void)driver_.host_unregister(memory.data());
    return std::unexpected<Error>(mapped.error());
  }
  AddPinned(memory.data(), {.bytes = memory.size(), .device = device, .registered = true});
  return std::unique_ptr<Registered>(new HostRegistration(*this, memory.data()));
}

void Device::AddPinned(std::byte* memory, const Pinned& pinned) {
  const MutexLock lock(mutex_);
  pinned_[memory] = pinned;
  FindSeams();
}

void Device::DropPinned(const std::byte* memory) {
  const MutexLock lock(mutex_);
  pinned_.erase(memory);
  FindSeams();
}

void Device::FindSeams() {
  // Pieces that touch are one extent for callers, but the driver copies nothing across the border
  // of two registrations, so transfers are cut there.
  auto seams = std::make_shared<Seams>();
  const std::byte* end = nullptr;
  for (const auto& [memory, pinned] : pinned_) {
    if (memory == end) seams->push_back(memory);
    end = memory + pinned.bytes;
  }
  seams_ = std::move(seams);
}

std::shared_ptr<const Device::Seams> Device::SeamsNow() const {
  const MutexLock lock(mutex_);
  return seams_;
}

CuPointer Device::DeviceAddressOf(const std::byte* host) const {
  const MutexLock lock(mutex_);
  auto at = pinned_.upper_bound(host);
  if (at == pinned_.begin()) return 0;
  --at;
  const auto offset = static_cast<std::uint64_t>(host - at->first);
  return offset < at->second.bytes ? at->second.device + offset : 0;
}

Result<std::shared_ptr<const DeviceMark>> Device::RecordStep(StreamHandle handle) {
  const Scope scope(driver_, context_);
  KVCOVE_TRY(scope.status());
  auto* const stream = reinterpret_cast<CuStream>(handle);  // NOLINT
  int capturing = 0;
  KVCOVE_TRY(CheckResult(driver_.is_capturing(stream, &capturing), "a stream of the engine"));
  if (capturing != 0) {
    // The event would become a node of the graph, and would never mark this step.
    return Fail(Code::kUnavailable, "the engine's stream is being captured into a graph");
  }
  KVCOVE_ASSIGN(CuEvent event, events_->Take());
  const Status recorded =
      CheckResult(driver_.event_record(event, stream), "an event in the engine's stream");
  if (!recorded) {
    events_->Give(event);
    return std::unexpected<Error>(recorded.error());
  }
  return std::shared_ptr<const DeviceMark>(std::make_shared<EventMark>(events_, event));
}

Result<bool> Device::Reached(const DeviceMark& mark) {
  const Scope scope(driver_, context_);
  KVCOVE_TRY(scope.status());
  const CuResult result = driver_.event_query(static_cast<const EventMark&>(mark).event());
  if (result == kNotReady) return false;
  KVCOVE_TRY(CheckResult(result, "the engine's own work"));
  return true;
}

// Numbers are never used again, so a late Poll() finds no other caller's ticket.
DeviceTicket Device::Keep(Ticket ticket) {
  const MutexLock lock(mutex_);
  tickets_.emplace(next_ticket_, std::move(ticket));
  return next_ticket_++;
}

void Device::Release(Ticket& ticket) {
  if (ticket.done != nullptr) events_->Give(ticket.done);
  if (ticket.blocks.empty()) return;
  Channel& channel = Of(ticket.way);
  const MutexLock lock(channel.mutex);
  for (const RunBlock& block : ticket.blocks) channel.staging.blocks.push_back(block);
}

void Device::ForgetTickets() {
  decltype(tickets_) left;
  {
    const MutexLock lock(mutex_);
    left.swap(tickets_);
  }
  // Behind the unlock, as in Poll(): a channel's lock comes before `mutex_`.
  for (auto& [id, ticket] : left) Release(ticket);
}

Result<bool> Device::Poll(DeviceTicket id) {
  const Scope scope(driver_, context_);
  KVCOVE_TRY(scope.status());
  Ticket over;
  CuResult result = kSuccess;
  {
    // Held over the query, which does not wait. Else another Poll of the ticket could return the
    // event, and a new ticket record it again, before this query asks for it.
    const MutexLock lock(mutex_);
    const auto at = tickets_.find(id);
    if (at == tickets_.end()) return Fail(Code::kInvalid, "there is no such ticket");
    const CuEvent done = at->second.done;
    result = done != nullptr ? driver_.event_query(done) : QueryStreams(Of(at->second.way));
    if (result == kNotReady) return false;
    over = std::move(at->second);
    tickets_.erase(at);
  }
  // Takes the channel's lock, which comes before `mutex_`, so it is called after the unlock.
  Release(over);
  KVCOVE_TRY(CheckResult(result, "copies that were under way"));
  KVCOVE_TRY(over.enqueued);
  return true;
}

Status Device::StreamWait(StreamHandle stream, DeviceTicket id) {
  const Scope scope(driver_, context_);
  KVCOVE_TRY(scope.status());
  const MutexLock lock(mutex_);  // as in Poll
  // A ticket without an event has an error, so its bytes are void, whether the stream waits or not.
  const auto at = tickets_.find(id);
  if (at == tickets_.end() || at->second.done == nullptr) return {};
  return CheckResult(
      driver_.stream_wait(reinterpret_cast<CuStream>(stream), at->second.done, 0),  // NOLINT
      "a wait of the engine's stream");
}

// A stream that has failed counts as idle: its error ends the context, and the GPU then runs none
// of its work any more.
CuResult Device::QueryStreams(const Channel& channel) const {
  for (CuStream stream : {channel.copy, channel.kernel}) {
    if (stream != nullptr && driver_.stream_query(stream) == kNotReady) return kNotReady;
  }
  return kSuccess;
}

bool Device::Close(std::int64_t deadline_ns) {
  const auto busy = [this] {
    const Scope scope(driver_, context_);
    return std::ranges::any_of(
        channels_, [this](const Channel& channel) { return QueryStreams(channel) == kNotReady; });
  };
  while (busy()) {
    if (SystemClock::Instance().NowNs() >= deadline_ns) {
      // The GPU may write to this memory at any later time, so nothing of it is ever freed.
      kept_ = true;
      events_->Keep();
      inner_->Keep();
      return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

Device::~Device() {
  // Needs a Close() that returned true, unless Open has failed: no stream of ours has work left.
  if (!retained_ || kept_) return;
  {
    const Scope scope(driver_, context_);
    for (Channel& channel : channels_) {
      const MutexLock held(channel.mutex);
      for (const Slot& slot : channel.staging.slots) {
        (void)driver_.free(slot.memory);
        (void)driver_.free(slot.runs);
        for (CuEvent event : {slot.filled, slot.free}) {
          if (event != nullptr) inner_->Give(event);
        }
      }
      for (CuStream stream : {channel.copy, channel.kernel}) {
        if (stream != nullptr) (void)driver_.stream_destroy(stream);
      }
    }
    ForgetTickets();
    const MutexLock lock(mutex_);
    for (const auto& [memory, pinned] : pinned_) {
      auto* const data = const_cast<std::byte*>(memory);
      (void)(pinned.registered ? driver_.host_unregister(data) : driver_.host_free(data));
    }
    if (module_ != nullptr) (void)driver_.module_unload(module_);
  }
  // Events end in the context, so they end before it is released.
  events_.reset();
  inner_.reset();
  (void)driver_.release(handle_);
}

}  // namespace kvcove::transport::cuda
