// SPDX-License-Identifier: Apache-2.0
// The device's code: 32 threads move a run, or a part of one. This source is compiled twice: by
// clang for the GPU (scripts/ptx.sh makes kernels_ptx.h of it), and as plain C++, its twin, which
// the fake driver runs. So it needs no header of CUDA, and no library on either side.
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

// A thread's place in its launch.
struct Lane {
  unsigned thread;
  unsigned threads;
  unsigned block;
  unsigned blocks;
};

inline constexpr unsigned kMoveThreads = 256;  // threads of a block
inline constexpr unsigned kMoveWidth = 32;     // threads that move one run together

// may_alias: the memory that these words read and write has other types.
typedef unsigned Word16 __attribute__((vector_size(16), may_alias));  // NOLINT(modernize-use-using)
typedef unsigned Word4 __attribute__((may_alias));                    // NOLINT(modernize-use-using)

// Moves `kMany` words of each thread at a time, so that as many reads are under way before the
// first write. Returns the first word of the thread that is left.
template <typename Word, unsigned kMany>
inline unsigned long long MoveMany(Lane lane, const Word* in, Word* out, unsigned long long at,
                                   unsigned long long words) {
  for (; at + (kMany - 1ULL) * lane.threads < words; at += 1ULL * kMany * lane.threads) {
    Word held[kMany];
    for (unsigned i = 0; i < kMany; ++i) held[i] = in[at + 1ULL * i * lane.threads];
    for (unsigned i = 0; i < kMany; ++i) out[at + 1ULL * i * lane.threads] = held[i];
  }
  return at;
}

template <typename Word>
inline void MoveWords(Lane lane, unsigned long long from, unsigned long long to,
                      unsigned long long words) {
  const Word* in = (const Word*)from;  // NOLINT
  Word* out = (Word*)to;               // NOLINT
  unsigned long long at = lane.thread;
  if constexpr (sizeof(Word) == 16) at = MoveMany<Word, 8>(lane, in, out, at, words);
  at = MoveMany<Word, 4>(lane, in, out, at, words);
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

inline void MovePart(Lane lane, unsigned long long from, unsigned long long to,
                     unsigned long long bytes) {
  const unsigned long long apart = from ^ to;
  if (apart % 16 == 0) {
    MoveAligned<Word16>(lane, from, to, bytes);
  } else if (apart % 4 == 0) {
    MoveAligned<Word4>(lane, from, to, bytes);
  } else {
    MoveWords<unsigned char>(lane, from, to, bytes);
  }
}

inline void MoveRuns(Lane lane, const MoveRun* runs, unsigned count) {
  if (count == 0) return;
  const unsigned width = lane.threads < kMoveWidth ? lane.threads : kMoveWidth;
  const unsigned groups = lane.threads / width;
  if (lane.thread >= groups * width) return;
  const unsigned group = lane.block * groups + lane.thread / width;
  const unsigned all = lane.blocks * groups;
  const Lane own{.thread = lane.thread % width, .threads = width, .block = 0, .blocks = 1};
  // Few runs are cut, so that no group of threads is idle.
  const unsigned parts = count < all ? all / count : 1;
  for (unsigned i = group; i < count * parts; i += all) {
    const MoveRun run = runs[i / parts];
    // Cut at multiples of 16, so that a part is aligned as its run is.
    const unsigned long long size = parts == 1 ? run.bytes : (run.bytes / parts + 15) / 16 * 16;
    const unsigned long long begin = size * (i % parts);
    if (begin >= run.bytes) continue;
    const bool last = i % parts + 1 == parts || run.bytes - begin < size;
    MovePart(own, run.from + begin, run.to + begin, last ? run.bytes - begin : size);
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
