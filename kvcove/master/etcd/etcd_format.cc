// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/etcd/etcd_format.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kvcove/base/hash.h"
#include "kvcove/base/little_endian.h"

namespace kvcove::master {
namespace {

using nlohmann::json;

constexpr std::string_view kHeadName = "head";
constexpr std::string_view kLeaderName = "leader";
constexpr std::string_view kFactPrefix = "fact/";
constexpr std::string_view kPartPrefix = "part/";
constexpr std::uint32_t kNoValue = 0xFFFFFFFF;

std::uint64_t SumOfFact(std::string_view key, std::uint64_t revision, std::string_view value) {
  return Hash64(value, Hash64(key, revision));
}

std::uint64_t SumOfHead(const EtcdHead& head) {
  return Hash64(
      fmt::format("{} {} {} {}", head.revision, ToHex(head.commit), head.parts, head.facts),
      kEtcdFormat);
}

std::uint64_t SumOfPart(std::string_view body, std::uint64_t revision, std::uint32_t index) {
  return Hash64(body, Mix64(revision) ^ index);
}

std::unexpected<Error> Damaged(std::string_view what) {
  return Fail(Code::kCorrupt, std::string(what));
}

}  // namespace

std::string Encode(const EtcdHead& head) {
  return json{{"format", kEtcdFormat}, {"revision", head.revision}, {"commit", ToHex(head.commit)},
              {"parts", head.parts},   {"facts", head.facts},       {"sum", SumOfHead(head)}}
      .dump();
}

Result<EtcdHead> DecodeHead(std::string_view text) {
  const json body = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto number = [&](const char* name) -> std::uint64_t {
    const auto at = body.find(name);
    return at != body.end() && at->is_number_unsigned() ? at->get<std::uint64_t>() : 0;
  };
  if (!body.is_object()) return Damaged("it is no JSON object");
  if (number("format") != kEtcdFormat) {
    return Fail(Code::kIncompatible, fmt::format("it has format {}, this program knows format {}",
                                                 number("format"), kEtcdFormat));
  }
  EtcdHead head{.revision = number("revision"),
                .parts = static_cast<std::uint32_t>(number("parts")),
                .facts = number("facts")};
  const auto commit = body.find("commit");
  if (commit != body.end() && commit->is_string()) {
    head.commit = IdFromHex(commit->get<std::string>()).value_or(Id128{});
  }
  if (number("sum") != SumOfHead(head)) return Damaged("its checksum is wrong");
  return head;
}

std::string Encode(const EtcdLeader& leader) {
  return json{
      {"candidate", ToHex(leader.candidate)}, {"address", leader.address}, {"admin", leader.admin}}
      .dump();
}

Result<EtcdLeader> DecodeLeader(std::string_view text) {
  const json body = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto field = [&](const char* name) -> std::string {
    const auto at = body.find(name);
    return at != body.end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  if (!body.is_object()) return Damaged("the key of the leader holds no JSON object");
  const auto candidate = IdFromHex(field("candidate"));
  if (!candidate) return Damaged("the key of the leader names no candidate");
  return EtcdLeader{.candidate = *candidate, .address = field("address"), .admin = field("admin")};
}

std::string EncodeFact(std::string_view key, const Fact& fact) {
  std::string bytes;
  AppendNumber(bytes, fact.revision);
  AppendNumber(bytes, SumOfFact(key, fact.revision, fact.value));
  return bytes + fact.value;
}

Result<Fact> DecodeFact(std::string_view key, std::string_view bytes) {
  FieldReader reader(bytes);
  Fact fact;
  fact.revision = reader.Number<std::uint64_t>();
  const auto sum = reader.Number<std::uint64_t>();
  fact.value = reader.Bytes(reader.left());
  if (!reader.ok()) return Damaged("it is too short");
  if (sum != SumOfFact(key, fact.revision, fact.value)) return Damaged("its checksum is wrong");
  return fact;
}

std::string PartKey(std::uint64_t revision, std::uint32_t index) {
  return fmt::format("{}{:020}/{:06}", kPartPrefix, revision, index);
}

std::vector<std::string> EncodeParts(std::span<const FactChange> changes, std::uint64_t revision) {
  std::vector<std::string> bodies(1);
  for (const FactChange& change : changes) {
    if (bodies.back().size() > kPartBytes) bodies.emplace_back();
    std::string& body = bodies.back();
    AppendNumber(body, static_cast<std::uint16_t>(change.key.size()));
    AppendNumber(body, change.value ? static_cast<std::uint32_t>(change.value->size()) : kNoValue);
    body += change.key;
    if (change.value) body += *change.value;
  }
  std::vector<std::string> parts;
  for (const std::string& body : bodies) {
    std::string part;
    AppendNumber(part, SumOfPart(body, revision, static_cast<std::uint32_t>(parts.size())));
    parts.push_back(part + body);
  }
  return parts;
}

Result<std::vector<FactChange>> DecodePart(std::string_view bytes, std::uint64_t revision,
                                           std::uint32_t index) {
  FieldReader reader(bytes);
  const auto sum = reader.Number<std::uint64_t>();
  if (!reader.ok() || sum != SumOfPart(bytes.substr(sizeof(sum)), revision, index)) {
    return Damaged("its checksum is wrong");
  }
  std::vector<FactChange> changes;
  while (reader.ok() && reader.left() > 0) {
    const auto key_bytes = reader.Number<std::uint16_t>();
    const auto value_bytes = reader.Number<std::uint32_t>();
    FactChange change;
    change.key = reader.Bytes(key_bytes);
    if (value_bytes != kNoValue) change.value = std::string(reader.Bytes(value_bytes));
    changes.push_back(std::move(change));
  }
  if (!reader.ok()) return Damaged("it is too short");
  return changes;
}

namespace {

std::unexpected<Error> At(const std::string& prefix, std::string_view key, const Error& error) {
  return Fail(error.code,
              error.code == Code::kCorrupt
                  ? fmt::format("the value of '{}{}' in etcd is damaged: {}; no fact is taken from "
                                "this prefix ('kvcove store restore' puts a backup there)",
                                prefix, key, error.detail)
                  : fmt::format("'{}{}' in etcd: {}", prefix, key, error.detail));
}

Status ReadParts(const EtcdKeys& keys, const std::string& prefix, EtcdImage& image) {
  for (std::uint32_t i = 0; i < image.head.parts; ++i) {
    const std::string key = PartKey(image.head.revision, i);
    const auto at = keys.find(key);
    if (at == keys.end()) return At(prefix, key, {Code::kCorrupt, "it is missing"});
    auto changes = DecodePart(at->second, image.head.revision, i);
    if (!changes) return At(prefix, key, changes.error());
    std::ranges::move(*changes, std::back_inserter(image.unapplied));
  }
  ApplyTransaction(image.unapplied, image.head.revision, image.facts);
  return {};
}

}  // namespace

Result<EtcdImage> ReadImage(const EtcdKeys& keys, const std::string& prefix) {
  EtcdImage image;
  std::size_t parts = 0;
  for (const auto& [key, value] : keys) {
    if (key == kLeaderName) continue;
    if (key == kHeadName) {
      auto head = DecodeHead(value);
      if (!head) return At(prefix, key, head.error());
      image.head = *head;
      image.found = true;
    } else if (key.starts_with(kFactPrefix)) {
      const std::string name = key.substr(kFactPrefix.size());
      auto fact = DecodeFact(name, value);
      if (!fact) return At(prefix, key, fact.error());
      image.facts.emplace(name, std::move(*fact));
    } else if (key.starts_with(kPartPrefix)) {
      ++parts;
    } else {
      const bool pool = key.ends_with("/head") || key.ends_with("/leader") ||
                        key.find("/fact/") != std::string::npos;
      return Fail(
          Code::kIncompatible,
          fmt::format("'{}' in etcd is the prefix of {}: '{}{}' is there; each pool needs "
                      "a prefix of its own that is not part of another one's",
                      prefix, pool ? "another pool" : "another program's keys", prefix, key));
    }
  }
  if (!image.found) {
    if (image.facts.empty()) {
      image.stray_parts = parts > 0;
      return image;
    }
    return At(prefix, kHeadName, {Code::kCorrupt, "it is missing, and facts are there"});
  }
  image.stray_parts = parts > image.head.parts;
  KVCOVE_TRY(ReadParts(keys, prefix, image));
  if (image.facts.size() != image.head.facts) {
    return At(prefix, kHeadName,
              {Code::kCorrupt, fmt::format("it counts {} facts, and {} are there", image.head.facts,
                                           image.facts.size())});
  }
  for (const auto& [key, fact] : image.facts) {
    if (fact.revision > image.head.revision) {
      return At(prefix, key, {Code::kCorrupt, "it is newer than the last transaction"});
    }
  }
  return image;
}

}  // namespace kvcove::master
