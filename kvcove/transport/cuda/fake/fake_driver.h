// SPDX-License-Identifier: Apache-2.0
// A GPU's driver for tests, under the names of the real one's calls: a library of its own, which
// Driver::Open opens, and which a test links to steer it. It includes nothing of kvcove but the
// kernels' source, whose twin it runs.
//
//   Memory     of the GPU with ordinal 1, at addresses that nobody can touch. fake_base() on it is
//              mapped (cuMemMap), as an engine's is that can sleep: it has no context of its own.
//   Work       lies in streams until it is run: in a random order that the streams, the events and
//              the default stream's rules allow. A copy reads host memory when it runs.
//   It runs    with each query of an event or a stream: a few operations. In manual mode only by
//              fake_run. By priority (fake_by_priority): of what may run, the highest priority's.
//   Released   memory is filled with 0xDD and kept, so that a late reader finds wrong bytes and a
//              late operation is a violation.
//   An error   of an operation is told by the first event behind it that the host looks at (made
//              with CU_EVENT_BLOCKING_SYNC); what lies between is not done.
//   Captures   of graphs end, as a violation, when a thread makes a call that is not safe then
//              without having said that its mode is relaxed.
//
// Thread-safe. A violation is a mistake of the caller that a real driver might not notice.
#pragma once

#include <cstdint>

extern "C" {

// Begins anew: no memory, no streams, no settings. The seed gives the order.
void fake_reset(std::uint64_t seed);
// Whether anybody in this process has called cuInit.
int fake_begun(void);
std::uint64_t fake_base(void);
std::uint64_t fake_bytes(void);
// Where the host finds what the device has at `address`.
void* fake_shadow(std::uint64_t address);

void fake_manual(int manual);
void fake_by_priority(int by_priority);
// Runs up to so many operations; returns how many ran.
std::uint64_t fake_run(std::uint64_t most);

// What the driver has: each 0 switches off; `batch` is 0, 1 or 2 for cuMemcpyBatchAsync's form.
void fake_features(int batch, int kernels, std::uint64_t free_bytes, std::uint64_t pinnable_bytes);
// So many more copies and kernels succeed when they run; -1: all.
void fake_fail_after(long operations);
// 1: every copy fails when it is enqueued.
void fake_fail(int fail);
// 1: no event is made any more.
void fake_no_events(int none);
// 1: waits of streams for events are refused.
void fake_no_waits(int none);

// A stream of an engine: one that waits for the default stream, or not. An operation that writes
// `value` to `bytes` at `address` when it runs.
void* fake_stream(int non_blocking);
void fake_fill(void* stream, std::uint64_t address, int value, std::uint64_t bytes);
// An operation that nothing gets past before fake_open: a forward pass that takes long.
void fake_gate(void* stream);
void fake_open(void* stream);
void fake_capture(void* stream, int capturing);

struct FakeCounts {
  std::uint64_t violations;
  std::uint64_t pageable;  // copies of host memory that was not pinned
  std::uint64_t copies;    // that ran, each of a batch
  std::uint64_t batches;   // calls
  std::uint64_t launches;
  std::uint64_t most_grid;          // blocks of one launch
  std::uint64_t most_launch_bytes;  // that one launch moved
  std::uint64_t retained;
  std::uint64_t events;  // made, and not destroyed
  std::uint64_t pinned_bytes;
  std::uint64_t device_bytes;
};
FakeCounts fake_counts(void);
const char* fake_violation(void);  // the first one

}  // extern "C"
