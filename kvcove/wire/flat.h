// SPDX-License-Identifier: Apache-2.0
// What the encoders of this module share. Private to it.
#pragma once

#include <flatbuffers/flatbuffers.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/result.h"
#include "kvcove/model/ids.h"

namespace kvcove::wire {

using Builder = flatbuffers::FlatBufferBuilder;

inline std::span<const std::byte> BytesOf(const Builder& builder) {
  return {reinterpret_cast<const std::byte*>(builder.GetBufferPointer()), builder.GetSize()};
}

inline std::string StringOf(const Builder& builder) {
  return {reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize()};
}

// The table in `body`, checked: every offset lies inside.
template <typename Table>
Result<const Table*> Root(std::span<const std::byte> body) {
  flatbuffers::Verifier verifier(reinterpret_cast<const std::uint8_t*>(body.data()), body.size(),
                                 /*max_depth=*/16, /*max_tables=*/kMaxBatch + 16);
  if (!verifier.VerifyBuffer<Table>(nullptr)) {
    return Fail(Code::kCorrupt, "a message does not have its method's form");
  }
  return flatbuffers::GetRoot<Table>(body.data());
}

inline std::string_view View(const flatbuffers::String* text) {
  return text == nullptr ? std::string_view() : std::string_view(text->data(), text->size());
}

inline std::string Str(const flatbuffers::String* text) { return std::string(View(text)); }

template <typename Vector>
std::size_t SizeOf(const Vector* vector) {
  return vector == nullptr ? 0 : vector->size();
}

// The strings of a list in `body`. All elements may point to one string, so that a frame of 4 MiB
// would stand for terabytes: together they must have no more bytes than the message. Nor is one
// batch that keeps other calls waiting for as long as it takes to serve it.
inline Result<std::vector<std::string_view>> Views(
    const flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>* list,
    std::span<const std::byte> body) {
  std::vector<std::string_view> views;
  if (SizeOf(list) > kMaxBatch) return Fail(Code::kCorrupt, "a batch that is too large");
  views.reserve(SizeOf(list));
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < SizeOf(list); ++i) {
    views.push_back(View(list->Get(static_cast<unsigned>(i))));
    bytes += views.back().size();
    if (bytes > body.size()) return Fail(Code::kCorrupt, "strings that share their bytes");
  }
  return views;
}

// The verifier does not look at the alignment of a vector's elements. The builder does not align a
// vector without elements.
template <typename Vector>
bool Aligned(const Vector* vector, std::size_t alignment = 8) {
  return SizeOf(vector) == 0 || reinterpret_cast<std::uintptr_t>(vector->Data()) % alignment == 0;
}

inline flatbuffers::Offset<flatbuffers::String> Text(Builder& builder, std::string_view text) {
  return builder.CreateString(text.data(), text.size());
}

}  // namespace kvcove::wire
