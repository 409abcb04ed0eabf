// SPDX-License-Identifier: Apache-2.0
// A GPU's driver for tests: its memory is at addresses that nobody can read, and copies are counted.
// The memory is mapped (cuMemMap), as an engine's is that can sleep: it has no context of its own.
// It lies on the GPU with ordinal 1, whose primary context is the only one that copies work in.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BASE 0x7000000000000000ULL
#define SIZE (64u << 20)

static char* memory;
static int fail_copies;
static long good_copies = -1;  // so many more succeed; -1: all
long fake_copies;
long fake_retained;

static char* at(uint64_t pointer) { return memory + (pointer - BASE); }
static int ours(uint64_t pointer) { return pointer >= BASE && pointer < BASE + SIZE; }

uint64_t fake_base(void) { return BASE; }
void fake_fail(int fail) { fail_copies = fail; }
void fake_fail_after(long copies) { good_copies = copies; }

int cuInit(unsigned flags) {
  (void)flags;
  if (memory == NULL) memory = calloc(1, SIZE);
  return 0;
}
int cuPointerGetAttribute(void* data, int attribute, uint64_t pointer) {
  if (!ours(pointer)) return 1;
  if (attribute == 2) *(unsigned*)data = 2;
  if (attribute == 1) *(void**)data = NULL;
  if (attribute == 9) *(int*)data = 1;
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = 10 + ordinal;
  return ordinal == 1 ? 0 : 101;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  if (device != 11) return 101;
  *context = (void*)0x1234;
  fake_retained += 1;
  return 0;
}
static _Thread_local int depth;
int cuCtxPushCurrent_v2(void* context) {
  if (context != (void*)0x1234) return 201;
  depth += 1;
  return 0;
}
int cuCtxPopCurrent_v2(void** context) {
  *context = (void*)0x1234;
  depth -= 1;
  return 0;
}
static int refused(uint64_t device, size_t size) {
  if (fail_copies || depth < 1 || !ours(device + size - 1)) return 1;
  if (good_copies == 0) return 1;
  if (good_copies > 0) good_copies -= 1;
  return 0;
}
int cuMemcpyDtoH_v2(void* host, uint64_t device, size_t size) {
  if (refused(device, size)) return 700;
  memcpy(host, at(device), size);
  fake_copies += 1;
  return 0;
}
int cuMemcpyHtoD_v2(uint64_t device, const void* host, size_t size) {
  if (refused(device, size)) return 700;
  memcpy(at(device), host, size);
  fake_copies += 1;
  return 0;
}
