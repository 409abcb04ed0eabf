// SPDX-License-Identifier: Apache-2.0
#include "regions.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <memory>

namespace kvcove::python {
namespace {

// Of ranges that have no byte in common, the last one that begins before the range ends is also the
// one that reaches furthest.
template <typename Map, typename SizeOf>
auto LastTouched(Map& ranges, std::uintptr_t address, std::size_t size, SizeOf&& size_of) {
  auto at = ranges.lower_bound(address + size);
  if (at == ranges.begin()) return ranges.end();
  --at;
  return at->first + size_of(at->second) > address ? at : ranges.end();
}

bool IsRange(std::uintptr_t address, std::size_t size) {
  return address != 0 && size != 0 && address + size >= address;
}

}  // namespace

Mappings Mappings::Read() {
  Mappings read;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps(
      std::fopen("/proc/self/maps", "re"), [](std::FILE* file) { return std::fclose(file); });
  char line[512];
  while (maps != nullptr && std::fgets(line, sizeof(line), maps.get()) != nullptr) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char rights[5] = {};
    if (std::sscanf(line, "%lx-%lx %4s", &begin, &end, rights) != 3) continue;  // NOLINT
    if (rights[0] != 'r') continue;
    read.mappings_.push_back({.begin = begin, .end = end, .writable = rights[1] == 'w'});
  }
  return read;
}

bool Mappings::Has(std::uintptr_t address, std::size_t size, bool writable) const {
  const std::uintptr_t end = address + size;
  for (auto at = std::ranges::upper_bound(mappings_, address, {}, &Mapping::end);
       at != mappings_.end() && at->begin <= address && (at->writable || !writable); ++at) {
    address = at->end;
    if (address >= end) return true;
  }
  return false;
}

Status Regions::Add(std::uintptr_t address, std::size_t size) {
  if (!IsRange(address, size)) return Fail(Code::kInvalid, "no memory to register");
  Region region{.size = size, .kind = Kind::kHost};
  if (const Device* device = Device::Get(); device != nullptr && device->Owns(address)) {
    region.kind = Kind::kDevice;
    region.writable = true;
    // Refused now with one message rather than at every call.
    std::byte byte{};
    KVCOVE_TRY(device->ToHost(&byte, address, 1));
  } else {
    const Mappings mappings = Mappings::Read();
    if (!mappings.Has(address, size, /*writable=*/false)) {
      return Fail(Code::kInvalid, fmt::format("{} bytes at {:#x} are not all mapped with the right "
                                              "to read them",
                                              size, address));
    }
    region.writable = mappings.Has(address, size, /*writable=*/true);
  }
  const MutexLock lock(mutex_);
  if (const auto at = Touched(address, size); at != regions_.end()) {
    return AddPart(at->first, regions_.at(at->first), address, size);
  }
  regions_.emplace(address, std::move(region));
  return {};
}

Status Regions::AddAllocation(std::uintptr_t address, std::size_t size) {
  if (!IsRange(address, size)) return Fail(Code::kInvalid, "no memory to register");
  const MutexLock lock(mutex_);
  if (Touched(address, size) != regions_.end()) {
    return Fail(Code::kInvalid, fmt::format("of {:#x} a part is registered already", address));
  }
  regions_.emplace(address,
                   Region{.size = size, .kind = Kind::kHost, .writable = true, .allocation = true});
  return {};
}

Status Regions::AddPart(std::uintptr_t at, Region& region, std::uintptr_t address,
                        std::size_t size) {
  if (!region.allocation || address < at || at + region.size < address + size) {
    return Fail(Code::kInvalid, fmt::format("of {:#x} a part is registered already", address));
  }
  if (address == at && size == region.size) return {};
  const auto part = LastTouched(region.parts, address, size, [](std::size_t n) { return n; });
  if (part == region.parts.end()) {
    region.parts.emplace(address, size);
    return {};
  }
  if (part->first == address && part->second == size) return {};
  return Fail(Code::kInvalid, fmt::format("of {:#x} a part is registered already", address));
}

Status Regions::Remove(std::uintptr_t address) {
  const MutexLock lock(mutex_);
  if (const auto at = address + 1 == 0 ? regions_.end() : Touched(address, 1);
      at != regions_.end() && at->second.allocation) {
    Region& region = regions_.at(at->first);
    if (region.parts.erase(address) == 1 || at->first == address) return {};
  } else if (at != regions_.end() && at->first == address) {
    regions_.erase(at);
    return {};
  }
  return Fail(Code::kInvalid, fmt::format("{:#x} is not registered", address));
}

Regions::Map::const_iterator Regions::Touched(std::uintptr_t address, std::size_t size) const {
  return LastTouched(regions_, address, size, [](const Region& region) { return region.size; });
}

std::uintptr_t Regions::EndOf(const Map::value_type& region, std::uintptr_t address) {
  const auto part =
      LastTouched(region.second.parts, address, 1, [](std::size_t size) { return size; });
  return part == region.second.parts.end() ? region.first + region.second.size
                                           : part->first + part->second;
}

std::size_t Regions::Room(std::uintptr_t address) const {
  const MutexLock lock(mutex_);
  const auto at = address + 1 == 0 ? regions_.end() : Touched(address, 1);
  return at == regions_.end() ? 0 : EndOf(*at, address) - address;
}

Regions::Kind Regions::Lookup::Of(std::uintptr_t address, std::size_t size) {
  if (!IsRange(address, size)) return Kind::kNone;
  if (last_.begin <= address && address + size <= last_.end) return last_kind_;
  {
    const MutexLock lock(regions_.mutex_);
    if (const auto at = regions_.Touched(address, size); at != regions_.regions_.end()) {
      const Region& region = at->second;
      if (address < at->first || EndOf(*at, address) < address + size) return Kind::kNone;
      if (writable_ && !region.writable) return Kind::kNone;
      // The next piece may begin in another part.
      if (region.parts.empty()) {
        last_ = {.begin = at->first, .end = at->first + region.size};
        last_kind_ = region.kind;
      }
      return region.kind;
    }
  }
  if (const Device* device = Device::Get(); device != nullptr && device->Owns(address)) {
    return Kind::kDevice;
  }
  if (!mappings_) mappings_ = Mappings::Read();
  return mappings_->Has(address, size, writable_) ? Kind::kHost : Kind::kNone;
}

}  // namespace kvcove::python
