// SPDX-License-Identifier: Apache-2.0
// The device's code: one block of threads moves a run after the other. This source is compiled
// twice: by clang for the GPU (scripts/ptx.sh makes kernels_ptx.h of it), and as plain C++, its
// twin, which the fake driver runs. So it needs no header of CUDA, and no library on either side.
//
// A run's two addresses are in whatever memory the caller means: staging on the device, a KV block,
// or pinned host memory. Words of 16 bytes move where both ends allow it, else of 4, else bytes;
// the ends of a run that is aligned alike but not to its words go by bytes.
#pragma once

namespace kvcove::transport::cuda {

struct MoveRun {
  unsigned long long from;
  unsigned long long to;
  unsigned long long bytes;
};

// Where a thread stands in its launch, and how many there are.
struct Lane {
  unsigned thread;
  unsigned threads;
  unsigned block;
  unsigned blocks;
};

inline constexpr unsigned kMoveThreads = 256;

// The memory behind has other types.
typedef unsigned Word16 __attribute__((vector_size(16), may_alias));  // NOLINT(modernize-use-using)
typedef unsigned Word4 __attribute__((may_alias));                    // NOLINT(modernize-use-using)

template <typename Word>
inline void MoveWords(Lane lane, unsigned long long from, unsigned long long to,
                      unsigned long long words) {
  const Word* in = (const Word*)from;  // NOLINT
  Word* out = (Word*)to;               // NOLINT
  // Four at a time, so that as many reads are on their way before the first write.
  unsigned long long at = lane.thread;
  for (; at + 3ULL * lane.threads < words; at += 4ULL * lane.threads) {
    const Word a = in[at];
    const Word b = in[at + lane.threads];
    const Word c = in[at + 2ULL * lane.threads];
    const Word d = in[at + 3ULL * lane.threads];
    out[at] = a;
    out[at + lane.threads] = b;
    out[at + 2ULL * lane.threads] = c;
    out[at + 3ULL * lane.threads] = d;
  }
  for (; at < words; at += lane.threads) out[at] = in[at];
}

template <typename Word>
inline void MoveAligned(Lane lane, unsigned long long from, unsigned long long to,
                        unsigned long long bytes) {
  constexpr unsigned long long kSize = sizeof(Word);
  unsigned long long head = (kSize - from % kSize) % kSize;
  if (head > bytes) head = bytes;
  const unsigned long long words = (bytes - head) / kSize;
  const unsigned long long tail = head + words * kSize;
  MoveWords<unsigned char>(lane, from, to, head);
  MoveWords<Word>(lane, from + head, to + head, words);
  MoveWords<unsigned char>(lane, from + tail, to + tail, bytes - tail);
}

inline void MoveRuns(Lane lane, const MoveRun* runs, unsigned count) {
  for (unsigned i = lane.block; i < count; i += lane.blocks) {
    const unsigned long long from = runs[i].from;
    const unsigned long long to = runs[i].to;
    const unsigned long long bytes = runs[i].bytes;
    const unsigned long long apart = from ^ to;
    if (apart % 16 == 0) {
      MoveAligned<Word16>(lane, from, to, bytes);
    } else if (apart % 4 == 0) {
      MoveAligned<Word4>(lane, from, to, bytes);
    } else {
      MoveWords<unsigned char>(lane, from, to, bytes);
    }
  }
}

}  // namespace kvcove::transport::cuda

#ifdef __NVPTX__
// Two names for one thing, so that a profiler shows which way bytes go.
#define KVCOVE_KERNEL(name)                                                                  \
  extern "C" [[clang::nvptx_kernel]] void name(const kvcove::transport::cuda::MoveRun* runs, \
                                               unsigned count) {                             \
    const kvcove::transport::cuda::Lane lane{                                                \
        .thread = static_cast<unsigned>(__nvvm_read_ptx_sreg_tid_x()),                       \
        .threads = static_cast<unsigned>(__nvvm_read_ptx_sreg_ntid_x()),                     \
        .block = static_cast<unsigned>(__nvvm_read_ptx_sreg_ctaid_x()),                      \
        .blocks = static_cast<unsigned>(__nvvm_read_ptx_sreg_nctaid_x())};                   \
    kvcove::transport::cuda::MoveRuns(lane, runs, count);                                    \
  }
KVCOVE_KERNEL(kvcove_scatter)
KVCOVE_KERNEL(kvcove_gather)
#endif
