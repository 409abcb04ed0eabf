// SPDX-License-Identifier: Apache-2.0
#include "regions.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

namespace kvcove::python {
namespace {

// Whether every page of a range is mapped. msync() with MS_ASYNC writes nothing: it looks at the
// mappings, and says so where one is missing.
bool IsMapped(std::uintptr_t address, std::size_t size) {
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t begin = address / page * page;
  return msync(reinterpret_cast<void*>(begin), address + size - begin, MS_ASYNC) == 0;  // NOLINT
}

}  // namespace

Status Regions::Add(std::uintptr_t address, std::size_t size) {
  if (address == 0 || size == 0 || address + size < address) {
    return Fail(Code::kInvalid, "no memory to register");
  }
  Kind kind = Kind::kHost;
  if (const Device* device = Device::Get(); device != nullptr && device->Owns(address)) {
    kind = Kind::kDevice;
    // Refused now with one message rather than at every call.
    std::byte byte{};
    KVCOVE_TRY(device->ToHost(&byte, address, 1));
  } else if (!IsMapped(address, size)) {
    return Fail(Code::kInvalid, fmt::format("{} bytes at {:#x} are not all mapped", size, address));
  }
  const MutexLock lock(mutex_);
  if (Touched(address, size) != regions_.end()) {
    return Fail(Code::kInvalid, fmt::format("of {:#x} a part is registered already", address));
  }
  regions_.emplace(address, Region{.size = size, .kind = kind});
  return {};
}

Status Regions::Remove(std::uintptr_t address) {
  const MutexLock lock(mutex_);
  if (regions_.erase(address) == 0) {
    return Fail(Code::kInvalid, fmt::format("{:#x} is not registered", address));
  }
  return {};
}

// Of buffers that have no byte in common, the last one that begins before the range ends is also
// the one that reaches furthest.
Regions::Map::const_iterator Regions::Touched(std::uintptr_t address, std::size_t size) const {
  auto at = regions_.lower_bound(address + size);
  if (at == regions_.begin()) return regions_.end();
  --at;
  return at->first + at->second.size > address ? at : regions_.end();
}

std::size_t Regions::Room(std::uintptr_t address) const {
  const MutexLock lock(mutex_);
  const auto at = address + 1 == 0 ? regions_.end() : Touched(address, 1);
  return at == regions_.end() ? 0 : at->first + at->second.size - address;
}

Regions::Kind Regions::Lookup::Of(std::uintptr_t address, std::size_t size) {
  if (address == 0 || size == 0 || address + size < address) return Kind::kNone;
  if (last_.begin <= address && address + size <= last_.end) return last_kind_;
  {
    const MutexLock lock(regions_.mutex_);
    if (const auto at = regions_.Touched(address, size); at != regions_.regions_.end()) {
      const Range buffer{.begin = at->first, .end = at->first + at->second.size};
      if (address < buffer.begin || buffer.end < address + size) return Kind::kNone;
      last_ = buffer;
      last_kind_ = at->second.kind;
      return last_kind_;
    }
  }
  if (const Device* device = Device::Get(); device != nullptr && device->Owns(address)) {
    return Kind::kDevice;
  }
  return Mapped(address, size) ? Kind::kHost : Kind::kNone;
}

bool Regions::Lookup::Mapped(std::uintptr_t address, std::size_t size) {
  if (!read_maps_) {
    read_maps_ = true;
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps(
        std::fopen("/proc/self/maps", "re"), [](std::FILE* file) { return std::fclose(file); });
    char line[512];
    while (maps != nullptr && std::fgets(line, sizeof(line), maps.get()) != nullptr) {
      std::uintptr_t begin = 0;
      std::uintptr_t end = 0;
      char rights[5] = {};
      if (std::sscanf(line, "%lx-%lx %4s", &begin, &end, rights) != 3) continue;  // NOLINT
      if (rights[0] != 'r' || (writable_ && rights[1] != 'w')) continue;
      if (!mapped_.empty() && mapped_.back().end == begin) {
        mapped_.back().end = end;
      } else {
        mapped_.push_back({.begin = begin, .end = end});
      }
    }
  }
  for (const Range& range : mapped_) {
    if (range.begin <= address && address + size <= range.end) return true;
  }
  return false;
}

}  // namespace kvcove::python
