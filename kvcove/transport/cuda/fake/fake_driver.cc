// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/cuda/fake/fake_driver.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kvcove/transport/cuda/driver.h"
#include "kvcove/transport/cuda/kernels.h"

namespace {

using kvcove::transport::cuda::CuCopyAttributes;
using kvcove::transport::cuda::Driver;
using kvcove::transport::cuda::Lane;
using kvcove::transport::cuda::MoveRun;
using Address = std::uint64_t;

constexpr Address kBase = 0x7000000000000000ULL;
constexpr Address kAllocated = 0x7100000000000000ULL;
constexpr std::uint64_t kBytes = 64U << 20;
constexpr int kHandle = 11;
void* const kContext = reinterpret_cast<void*>(0x1234);  // NOLINT
void* const kDefault = nullptr;
constexpr int kInvalid = 1;
constexpr int kNoMemory = 2;
constexpr int kNotInitialized = 3;
constexpr int kBroken = 700;
constexpr int kPoison = 0xDD;

std::atomic<bool> begun{false};  // cuInit was called

Address AddressOf(const void* pointer) { return reinterpret_cast<Address>(pointer); }  // NOLINT

struct Event {
  bool host = false;
  std::uint64_t recorded = 0;  // of its records, the newest that was enqueued
  std::uint64_t done = 0;      // and the newest that ran
  int error = 0;               // the number of an error that it tells
};

struct Copy {
  Address to = 0;
  Address from = 0;
  std::uint64_t bytes = 0;
};

struct Operation {
  enum class Kind { kCopies, kKernel, kRecord, kWait, kFill, kGate } kind = Kind::kCopies;
  std::uint64_t number = 0;
  std::vector<Copy> copies;
  std::shared_ptr<Event> event;
  std::uint64_t version = 0;
  Address runs = 0;
  unsigned count = 0;
  unsigned grid = 0;
  int value = 0;
};

struct Stream {
  bool blocking = false;
  int priority = 0;
  bool capturing = false;
  int error = 0;
  std::deque<Operation> work;
};

struct Released {
  void operator()(char* memory) const { std::free(memory); }
};
struct Memory {
  std::uint64_t bytes = 0;
  std::unique_ptr<char, Released> shadow;  // of the device's
};

class Gpu {
 public:
  void Reset(std::uint64_t seed) {
    random_.seed(seed);
    streams_.clear();
    told_.clear();
    streams_[kDefault].blocking = true;
    events_.clear();
    device_.clear();
    host_.clear();
    for (void* memory : allocated_) std::free(memory);
    allocated_.clear();
    graveyard_.clear();
    manual = by_priority = false;
    batch = 2;
    kernels = true;
    free_bytes = pinnable_bytes = ~std::uint64_t{0};
    good_operations = -1;
    fail_enqueue = no_events = no_waits = false;
    counts = {};
    violation.clear();
    auto& kv = device_[kBase];
    kv.bytes = kBytes;
    kv.shadow.reset(static_cast<char*>(std::calloc(1, kBytes)));  // no page before it is touched
    next_address_ = kAllocated;
    next_handle_ = 0x10000;
    started = true;
  }

  void Violate(const std::string& what) {
    ++counts.violations;
    if (violation.empty()) violation = what;
  }

  // ---- memory

  char* Shadow(Address address, std::uint64_t bytes) {
    auto at = device_.upper_bound(address);
    if (at == device_.begin()) return nullptr;
    --at;
    const Address offset = address - at->first;
    if (offset > at->second.bytes || bytes > at->second.bytes - offset) return nullptr;
    return at->second.shadow.get() + offset;
  }
  bool OnDevice(Address address) { return Shadow(address, 1) != nullptr; }
  bool Pinned(Address address, std::uint64_t bytes) {
    auto at = host_.upper_bound(address);
    if (at == host_.begin()) return false;
    --at;
    return address - at->first <= at->second && bytes <= at->second - (address - at->first);
  }
  // Any of it.
  bool AnyPinned(Address address, std::uint64_t bytes) {
    const auto behind = host_.lower_bound(address + bytes);
    if (behind == host_.begin()) return false;
    const auto last = std::prev(behind);
    return last->first + last->second > address;
  }
  // Where an operation that runs now finds memory; pinned host memory is where it is. All of it in
  // one piece, as the real driver refuses a copy that goes on into another registration.
  char* Resolve(Address address, std::uint64_t bytes) {
    if (char* shadow = Shadow(address, bytes)) return shadow;
    if (address >= kBase) {
      Violate("an operation runs on device memory that is not there any more");
      return nullptr;
    }
    if (!Pinned(address, bytes)) {
      Violate("an operation runs on host memory that is not pinned any more");
      return nullptr;
    }
    return reinterpret_cast<char*>(address);  // NOLINT
  }
  int Allocate(Address* address, std::uint64_t bytes) {
    if (counts.device_bytes + bytes > free_bytes) return kNoMemory;
    counts.device_bytes += bytes;
    Memory memory{
        .bytes = bytes,
        .shadow = std::unique_ptr<char, Released>(static_cast<char*>(std::malloc(bytes)))};
    std::memset(memory.shadow.get(), kPoison, bytes);
    *address = next_address_;
    next_address_ += bytes + (1 << 20);
    device_[*address] = std::move(memory);
    return 0;
  }
  int Free(Address address) {
    const auto at = device_.find(address);
    if (at == device_.end() || address == kBase) return kInvalid;
    counts.device_bytes -= at->second.bytes;
    std::memset(at->second.shadow.get(), kPoison, at->second.bytes);
    graveyard_.push_back(std::move(at->second));
    device_.erase(at);
    return 0;
  }
  int Pin(Address address, std::uint64_t bytes) {
    if (counts.pinned_bytes + bytes > pinnable_bytes) return kNoMemory;
    counts.pinned_bytes += bytes;
    host_[address] = bytes;
    return 0;
  }
  int AllocateHost(void*& memory, std::size_t bytes) {
    memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    allocated_.push_back(memory);
    return Pin(AddressOf(memory), bytes);
  }
  int Unpin(Address address, bool free) {
    const auto at = host_.find(address);
    if (at == host_.end()) return kInvalid;
    counts.pinned_bytes -= at->second;
    if (free) {
      std::memset(reinterpret_cast<void*>(address), kPoison, at->second);  // NOLINT
    }
    host_.erase(at);
    return 0;
  }

  // ---- streams and events

  Stream* Of(void* stream) {
    const auto at = streams_.find(stream);
    return at == streams_.end() ? nullptr : &at->second;
  }
  void* NewStream(bool blocking, int priority) {
    auto* const handle = reinterpret_cast<void*>(++next_handle_);  // NOLINT
    streams_[handle].blocking = blocking;
    streams_[handle].priority = priority;
    return handle;
  }
  int DropStream(void* stream) {
    if (!Of(stream)->work.empty()) Violate("a stream that still has work is destroyed");
    streams_.erase(stream);
    return 0;
  }
  void* NewEvent(unsigned flags) {
    auto* const handle = reinterpret_cast<void*>(++next_handle_);  // NOLINT
    events_[handle] = std::make_shared<Event>();
    events_[handle]->host = (flags & 1U) != 0;
    ++counts.events;
    return handle;
  }
  std::shared_ptr<Event> EventOf(void* event) {
    const auto at = events_.find(event);
    return at == events_.end() ? nullptr : at->second;
  }
  int DropEvent(void* event) {
    if (events_.erase(event) == 0) return kInvalid;
    --counts.events;
    return 0;
  }
  int Enqueue(void* stream, Operation operation) {
    Stream* const at = Of(stream);
    if (at == nullptr) return kInvalid;
    if (at->capturing) Violate("work of our own in a stream that is being captured");
    operation.number = ++next_number_;
    at->work.push_back(std::move(operation));
    return 0;
  }

  bool MayRun(void* handle, const Stream& stream) {
    if (stream.work.empty()) return false;
    const Operation& operation = stream.work.front();
    if (operation.kind == Operation::Kind::kGate) return operation.value != 0;
    if (operation.kind == Operation::Kind::kWait && operation.event->done < operation.version) {
      return false;
    }
    // The default stream and those that wait for it go by the order of their calls.
    for (const auto& [other, each] : streams_) {
      if (other == handle || each.work.empty() || !stream.blocking || !each.blocking) continue;
      if (handle != kDefault && other != kDefault) continue;
      if (each.work.front().number < operation.number) return false;
    }
    return true;
  }
  bool RunOne() {
    std::vector<Stream*> may;
    int best = 0;
    for (auto& [handle, stream] : streams_) {
      if (!MayRun(handle, stream)) continue;
      if (by_priority && !may.empty() && stream.priority < best) may.clear();
      if (by_priority && !may.empty() && stream.priority > best) continue;
      best = stream.priority;
      may.push_back(&stream);
    }
    if (may.empty()) return false;
    Stream& stream = *may[random_() % may.size()];
    const Operation operation = std::move(stream.work.front());
    stream.work.pop_front();
    Run(stream, operation);
    return true;
  }
  std::uint64_t RunSome(std::uint64_t most) {
    std::uint64_t ran = 0;
    while (ran < most && RunOne()) ++ran;
    return ran;
  }
  // What a query lets happen.
  void Progress() {
    if (!manual) (void)RunSome(random_() % 4);
  }

  bool manual = false;
  bool by_priority = false;
  int batch = 2;
  bool kernels = true;
  std::uint64_t free_bytes = 0;
  std::uint64_t pinnable_bytes = 0;
  long good_operations = -1;
  bool fail_enqueue = false;
  bool no_events = false;
  bool no_waits = false;
  bool started = false;
  FakeCounts counts{};
  std::string violation;
  std::mutex mutex;

 private:
  // Whether an operation that moves bytes fails now.
  bool Fails(Stream& stream) {
    if (stream.error != 0) return true;  // not done, as what was before it failed
    if (good_operations == 0) {
      stream.error = ++errors_;
      return true;
    }
    if (good_operations > 0) --good_operations;
    return false;
  }

  void Run(Stream& stream, const Operation& operation) {
    if (told_.contains(stream.error)) stream.error = 0;
    switch (operation.kind) {
      case Operation::Kind::kCopies:
        for (const Copy& copy : operation.copies) RunCopy(stream, copy);
        return;
      case Operation::Kind::kKernel:
        return RunKernel(stream, operation);
      case Operation::Kind::kRecord:
        operation.event->done = std::max(operation.event->done, operation.version);
        operation.event->error = stream.error;
        if (operation.event->host) {
          if (stream.error != 0) told_.insert(stream.error);
          stream.error = 0;
        }
        return;
      case Operation::Kind::kWait:
        // What a stream waits for has failed, so it goes on in vain, unless somebody was told.
        if (operation.event->error != 0 && !told_.contains(operation.event->error)) {
          stream.error = operation.event->error;
        }
        return;
      case Operation::Kind::kFill:
        if (char* to = Resolve(operation.runs, operation.copies[0].bytes)) {
          std::memset(to, operation.value, operation.copies[0].bytes);
        }
        return;
      case Operation::Kind::kGate:
        return;
    }
  }
  void RunCopy(Stream& stream, const Copy& copy) {
    if (Fails(stream)) return;
    ++counts.copies;
    char* const to = Resolve(copy.to, copy.bytes);
    const char* const from = Resolve(copy.from, copy.bytes);
    if (to != nullptr && from != nullptr) std::memcpy(to, from, copy.bytes);
  }
  void RunKernel(Stream& stream, const Operation& operation) {
    if (Fails(stream)) return;
    ++counts.launches;
    counts.most_grid = std::max<std::uint64_t>(counts.most_grid, operation.grid);
    const char* const list = Resolve(operation.runs, operation.count * sizeof(MoveRun));
    if (list == nullptr) return;
    std::vector<MoveRun> runs(operation.count);
    std::memcpy(runs.data(), list, runs.size() * sizeof(MoveRun));
    std::uint64_t bytes = 0;
    for (MoveRun& run : runs) {
      bytes += run.bytes;
      char* const from = Resolve(run.from, run.bytes);
      char* const to = Resolve(run.to, run.bytes);
      if (from == nullptr || to == nullptr) run.bytes = 0;
      run.from = reinterpret_cast<Address>(from);  // NOLINT
      run.to = reinterpret_cast<Address>(to);      // NOLINT
    }
    counts.most_launch_bytes = std::max(counts.most_launch_bytes, bytes);
    // A few threads stand for all: the twin's steps are what the threads divide among them.
    const unsigned threads = 1 + static_cast<unsigned>(random_() % 4);
    for (unsigned block = 0; block < operation.grid; ++block) {
      for (unsigned thread = 0; thread < threads; ++thread) {
        MoveRuns(
            Lane{.thread = thread, .threads = threads, .block = block, .blocks = operation.grid},
            runs.data(), operation.count);
      }
    }
  }

  std::mt19937_64 random_;
  std::map<void*, Stream> streams_;
  std::map<void*, std::shared_ptr<Event>> events_;
  std::map<Address, Memory> device_;
  std::map<Address, std::uint64_t> host_;  // pinned
  // Host memory of the driver's own, also what it was told to free, which is poisoned: given back
  // by Reset. A device that does not end in time never tells.
  std::vector<void*> allocated_;
  std::vector<Memory> graveyard_;
  Address next_address_ = kAllocated;
  std::uintptr_t next_handle_ = 0x10000;
  std::uint64_t next_number_ = 0;
  int errors_ = 0;
  std::set<int> told_;
};

Gpu& TheGpu() {
  static auto* const gpu = new Gpu();  // threads may outlive a test's main
  return *gpu;
}

thread_local int depth = 0;
thread_local int mode = 0;  // CU_STREAM_CAPTURE_MODE_GLOBAL

// Every call: one at a time, in the context, and safe beside a capture.
class Call {
 public:
  explicit Call(bool safe = true, bool needs_context = true) : lock_(gpu.mutex) {
    if (!gpu.started) gpu.Reset(1);
    if (needs_context && depth < 1) status = 201;
    if (!safe && mode != 2 && capturing > 0) {
      gpu.Violate("a call that voids the capture of a graph");
    }
  }
  Gpu& gpu = TheGpu();
  int status = 0;
  static inline int capturing = 0;

 private:
  std::unique_lock<std::mutex> lock_;
};

int EnqueueCopies(Gpu& gpu, void* stream, std::vector<Copy> copies) {
  if (gpu.fail_enqueue) return kBroken;
  for (const Copy& copy : copies) {
    for (const Address end : {copy.to, copy.from}) {
      if (end >= kBase) {
        if (gpu.Shadow(end, copy.bytes) == nullptr) return kInvalid;
      } else if (!gpu.Pinned(end, copy.bytes)) {
        ++gpu.counts.pageable;
        gpu.Violate("a copy of host memory that is not pinned");
      }
    }
  }
  return gpu.Enqueue(stream, {.kind = Operation::Kind::kCopies, .copies = std::move(copies)});
}

int Batch(Address* to, Address* from, std::size_t* bytes, std::size_t count, void* stream,
          int form) {
  Call call;
  if (call.status != 0) return call.status;
  if (call.gpu.batch != form) return 801;
  if (stream == kDefault || count == 0) return kInvalid;
  ++call.gpu.counts.batches;
  std::vector<Copy> copies(count);
  for (std::size_t i = 0; i < count; ++i) copies[i] = {to[i], from[i], bytes[i]};
  // In no order among each other.
  return EnqueueCopies(call.gpu, stream, std::move(copies));
}

}  // namespace

extern "C" {

void fake_reset(std::uint64_t seed) {
  Gpu& gpu = TheGpu();
  const std::lock_guard<std::mutex> lock(gpu.mutex);
  Call::capturing = 0;
  gpu.Reset(seed);
}
std::uint64_t fake_base() { return kBase; }
std::uint64_t fake_bytes() { return kBytes; }
void* fake_shadow(std::uint64_t address) {
  Call call(true, false);
  return call.gpu.Shadow(address, 1);
}
void fake_manual(int manual) { Call(true, false).gpu.manual = manual != 0; }
void fake_by_priority(int by_priority) { Call(true, false).gpu.by_priority = by_priority != 0; }
std::uint64_t fake_run(std::uint64_t most) { return Call(true, false).gpu.RunSome(most); }
void fake_features(int batch, int kernels, std::uint64_t free_bytes, std::uint64_t pinnable_bytes) {
  Call call(true, false);
  call.gpu.batch = batch;
  call.gpu.kernels = kernels != 0;
  call.gpu.free_bytes = free_bytes;
  call.gpu.pinnable_bytes = pinnable_bytes;
}
void fake_fail_after(long operations) { Call(true, false).gpu.good_operations = operations; }
void fake_no_events(int none) { Call(true, false).gpu.no_events = none != 0; }
void fake_no_waits(int none) { Call(true, false).gpu.no_waits = none != 0; }
void fake_fail(int fail) { Call(true, false).gpu.fail_enqueue = fail != 0; }
void* fake_stream(int non_blocking) {
  return Call(true, false).gpu.NewStream(non_blocking == 0, 0);
}
void fake_fill(void* stream, std::uint64_t address, int value, std::uint64_t bytes) {
  Call call(true, false);
  (void)call.gpu.Enqueue(stream, {.kind = Operation::Kind::kFill,
                                  .copies = {{.bytes = bytes}},
                                  .runs = address,
                                  .value = value});
}
void fake_gate(void* stream) {
  (void)Call(true, false).gpu.Enqueue(stream, {.kind = Operation::Kind::kGate});
}
void fake_open(void* stream) {
  Call call(true, false);
  for (Operation& operation : call.gpu.Of(stream)->work) {
    if (operation.kind == Operation::Kind::kGate) operation.value = 1;
  }
}
void fake_capture(void* stream, int capturing) {
  Call call(true, false);
  call.gpu.Of(stream)->capturing = capturing != 0;
  Call::capturing += capturing != 0 ? 1 : -1;
}
FakeCounts fake_counts() { return Call(true, false).gpu.counts; }
const char* fake_violation() { return Call(true, false).gpu.violation.c_str(); }
int fake_begun() { return begun ? 1 : 0; }

// ---- the driver

int cuInit(unsigned) {
  begun = true;
  return Call(true, false), 0;
}
int cuPointerGetAttribute(void* data, int attribute, Address pointer) {
  if (!begun) return kNotInitialized;
  Call call(true, false);
  if (!call.gpu.OnDevice(pointer)) return kInvalid;
  if (attribute == 2) *static_cast<unsigned*>(data) = 2;
  if (attribute == 1) *static_cast<void**>(data) = nullptr;
  if (attribute == 9) *static_cast<int*>(data) = 1;
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  if (!begun) return kNotInitialized;
  *device = kHandle - 1 + ordinal;
  return ordinal == 1 ? 0 : 101;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  if (device != kHandle) return 101;
  *context = kContext;
  ++Call(true, false).gpu.counts.retained;
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  if (device != kHandle) return 101;
  --Call(true, false).gpu.counts.retained;
  return 0;
}
int cuCtxPushCurrent_v2(void* context) {
  if (context != kContext) return 201;
  ++depth;
  return 0;
}
int cuCtxPopCurrent_v2(void** context) {
  if (depth < 1) return 201;
  *context = kContext;
  --depth;
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int* other) {
  std::swap(*other, mode);
  return 0;
}
int cuStreamIsCapturing(void* stream, int* status) {
  Call call;
  Stream* const at = call.gpu.Of(stream);
  if (at == nullptr) return kInvalid;
  *status = at->capturing ? 1 : 0;
  return call.status;
}
int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return depth < 1 ? 201 : 0;
}
int cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  Call call(false);
  if (call.status == 0) *stream = call.gpu.NewStream((flags & 1U) == 0, priority);
  return call.status;
}
int cuStreamDestroy_v2(void* stream) {
  Call call(false);
  return call.status != 0 ? call.status : call.gpu.DropStream(stream);
}
int cuStreamQuery(void* stream) {
  Call call(false);
  call.gpu.Progress();
  return call.gpu.Of(stream)->work.empty() ? 0 : 600;
}
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  Call call;
  const auto at = call.gpu.EventOf(event);
  if (call.status != 0 || at == nullptr) return kInvalid;
  if (call.gpu.no_waits) return kBroken;
  if (at->recorded == 0) return 0;
  return call.gpu.Enqueue(stream,
                          {.kind = Operation::Kind::kWait, .event = at, .version = at->recorded});
}
int cuEventCreate(void** event, unsigned flags) {
  Call call(true);
  if (call.gpu.no_events) return kNoMemory;
  if (call.status == 0) *event = call.gpu.NewEvent(flags);
  return call.status;
}
int cuEventDestroy_v2(void* event) { return Call().gpu.DropEvent(event); }
int cuEventRecord(void* event, void* stream) {
  Call call;
  const auto at = call.gpu.EventOf(event);
  if (call.status != 0 || at == nullptr) return kInvalid;
  return call.gpu.Enqueue(
      stream, {.kind = Operation::Kind::kRecord, .event = at, .version = ++at->recorded});
}
int cuEventQuery(void* event) {
  Call call(false);
  const auto at = call.gpu.EventOf(event);
  if (call.status != 0 || at == nullptr) return kInvalid;
  call.gpu.Progress();
  return at->done < at->recorded ? 600 : at->error == 0 ? 0 : kBroken;
}
int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  Call call(false);
  if (call.status != 0) return call.status;
  return call.gpu.AllocateHost(*memory, bytes);
}
int cuMemFreeHost(void* memory) {
  Call call(false);
  return call.status != 0 ? call.status : call.gpu.Unpin(AddressOf(memory), true);
}
int cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned) {
  Call call(false);
  if (call.status != 0) return call.status;
  constexpr int kAlreadyRegistered = 712;
  if (call.gpu.AnyPinned(AddressOf(memory), bytes)) return kAlreadyRegistered;
  return call.gpu.Pin(AddressOf(memory), bytes);
}
int cuMemHostUnregister(void* memory) {
  Call call(false);
  return call.status != 0 ? call.status : call.gpu.Unpin(AddressOf(memory), false);
}
int cuMemHostGetDevicePointer_v2(Address* pointer, void* memory, unsigned) {
  Call call;
  if (!call.gpu.Pinned(AddressOf(memory), 1)) return kInvalid;
  *pointer = AddressOf(memory);
  return call.status;
}
int cuMemAlloc_v2(Address* pointer, std::size_t bytes) {
  Call call(false);
  return call.status != 0 ? call.status : call.gpu.Allocate(pointer, bytes);
}
int cuMemFree_v2(Address pointer) {
  Call call(false);
  return call.status != 0 ? call.status : call.gpu.Free(pointer);
}
int cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, void* stream) {
  Call call;
  if (call.status != 0) return call.status;
  return EnqueueCopies(call.gpu, stream, {{to, AddressOf(from), bytes}});
}
int cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, void* stream) {
  Call call;
  if (call.status != 0) return call.status;
  return EnqueueCopies(call.gpu, stream, {{AddressOf(to), from, bytes}});
}
int cuMemcpyBatchAsync(Address* to, Address* from, std::size_t* bytes, std::size_t count,
                       CuCopyAttributes*, std::size_t*, std::size_t, std::size_t*, void* stream) {
  return Batch(to, from, bytes, count, stream, 1);
}
int cuMemcpyBatchAsync_v2(Address* to, Address* from, std::size_t* bytes, std::size_t count,
                          CuCopyAttributes*, std::size_t*, std::size_t, void* stream) {
  return Batch(to, from, bytes, count, stream, 2);
}
int cuModuleLoadData(void** module, const void* image) {
  Call call(false);
  if (call.status != 0) return call.status;
  if (!call.gpu.kernels || std::strstr(static_cast<const char*>(image), ".version") == nullptr) {
    return 218;  // CUDA_ERROR_INVALID_PTX
  }
  *module = reinterpret_cast<void*>(1);  // NOLINT
  return 0;
}
int cuModuleUnload(void*) { return Call().status; }
int cuModuleGetFunction(void** function, void*, const char* name) {
  *function = std::strcmp(name, "kvcove_scatter") == 0  ? reinterpret_cast<void*>(2)  // NOLINT
              : std::strcmp(name, "kvcove_gather") == 0 ? reinterpret_cast<void*>(3)  // NOLINT
                                                        : nullptr;
  return *function == nullptr ? 500 : 0;
}
int cuLaunchKernel(void* function, unsigned grid, unsigned, unsigned, unsigned threads, unsigned,
                   unsigned, unsigned, void* stream, void** arguments, void**) {
  Call call;
  if (call.status != 0) return call.status;
  if (function == nullptr || grid == 0 || threads == 0) return kInvalid;
  if (call.gpu.fail_enqueue) return kBroken;
  return call.gpu.Enqueue(stream, {.kind = Operation::Kind::kKernel,
                                   .runs = *static_cast<Address*>(arguments[0]),
                                   .count = *static_cast<unsigned*>(arguments[1]),
                                   .grid = grid});
}

// For tests in Python, at once and past all streams.
int cuMemcpyDtoH_v2(void* to, Address from, std::size_t bytes) {
  Call call(true, false);
  const char* const shadow = call.gpu.Shadow(from, bytes);
  if (shadow == nullptr) return kInvalid;
  std::memcpy(to, shadow, bytes);
  return 0;
}
int cuMemcpyHtoD_v2(Address to, const void* from, std::size_t bytes) {
  Call call(true, false);
  char* const shadow = call.gpu.Shadow(to, bytes);
  if (shadow == nullptr) return kInvalid;
  std::memcpy(shadow, from, bytes);
  return 0;
}

}  // extern "C"

// A call through a pointer of another type than its function's is undefined: each function has the
// type with which driver.h calls it.
namespace {
template <typename Called>
constexpr bool HasTypeOf(Called, Called) {
  return true;
}
constexpr Driver kDriver;
static_assert(HasTypeOf(kDriver.init, cuInit));
static_assert(HasTypeOf(kDriver.pointer_attribute, cuPointerGetAttribute));
static_assert(HasTypeOf(kDriver.device_get, cuDeviceGet));
static_assert(HasTypeOf(kDriver.retain, cuDevicePrimaryCtxRetain));
static_assert(HasTypeOf(kDriver.release, cuDevicePrimaryCtxRelease_v2));
static_assert(HasTypeOf(kDriver.push, cuCtxPushCurrent_v2));
static_assert(HasTypeOf(kDriver.pop, cuCtxPopCurrent_v2));
static_assert(HasTypeOf(kDriver.capture_mode, cuThreadExchangeStreamCaptureMode));
static_assert(HasTypeOf(kDriver.is_capturing, cuStreamIsCapturing));
static_assert(HasTypeOf(kDriver.priorities, cuCtxGetStreamPriorityRange));
static_assert(HasTypeOf(kDriver.stream_create, cuStreamCreateWithPriority));
static_assert(HasTypeOf(kDriver.stream_destroy, cuStreamDestroy_v2));
static_assert(HasTypeOf(kDriver.stream_query, cuStreamQuery));
static_assert(HasTypeOf(kDriver.stream_wait, cuStreamWaitEvent));
static_assert(HasTypeOf(kDriver.event_create, cuEventCreate));
static_assert(HasTypeOf(kDriver.event_destroy, cuEventDestroy_v2));
static_assert(HasTypeOf(kDriver.event_record, cuEventRecord));
static_assert(HasTypeOf(kDriver.event_query, cuEventQuery));
static_assert(HasTypeOf(kDriver.host_alloc, cuMemHostAlloc));
static_assert(HasTypeOf(kDriver.host_free, cuMemFreeHost));
static_assert(HasTypeOf(kDriver.host_register, cuMemHostRegister_v2));
static_assert(HasTypeOf(kDriver.host_unregister, cuMemHostUnregister));
static_assert(HasTypeOf(kDriver.host_pointer, cuMemHostGetDevicePointer_v2));
static_assert(HasTypeOf(kDriver.alloc, cuMemAlloc_v2));
static_assert(HasTypeOf(kDriver.free, cuMemFree_v2));
static_assert(HasTypeOf(kDriver.to_device, cuMemcpyHtoDAsync_v2));
static_assert(HasTypeOf(kDriver.to_host, cuMemcpyDtoHAsync_v2));
static_assert(HasTypeOf(kDriver.batch, cuMemcpyBatchAsync));
static_assert(HasTypeOf(kDriver.batch_v2, cuMemcpyBatchAsync_v2));
static_assert(HasTypeOf(kDriver.module_load, cuModuleLoadData));
static_assert(HasTypeOf(kDriver.module_unload, cuModuleUnload));
static_assert(HasTypeOf(kDriver.module_function, cuModuleGetFunction));
static_assert(HasTypeOf(kDriver.launch, cuLaunchKernel));
}  // namespace
