// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/owner_fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "kvcove/base/size.h"
#include "kvcove/base/text.h"
#include "kvcove/policy/policy.h"

namespace kvcove::pool {
namespace {

using Texts = std::span<const std::string>;

Result<std::uint64_t> SizeOf(std::string_view option, std::string_view text) {
  Result<std::uint64_t> bytes = ParseSize(text);
  if (!bytes) return Fail(Code::kInvalid, fmt::format("{}: {}", option, bytes.error().detail));
  return bytes;
}

Result<std::uint64_t> CountOf(std::string_view option, std::string_view text) {
  const auto value = NumberOf<std::uint64_t>(text);
  if (!value) return Fail(Code::kInvalid, fmt::format("{}='{}' is not a number", option, text));
  return *value;
}

// The parts of NAMESPACE=FIRST or NAMESPACE=FIRST:SECOND, split at the last '=': a namespace may
// contain one.
struct NamedPair {
  std::string name;
  std::string first;
  std::optional<std::string> second;
};

// Splits the text. `form`: the right form, for the message.
Result<NamedPair> SplitNamed(std::string_view option, const std::string& text,
                             std::string_view form) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string::npos) {
    return Fail(Code::kInvalid, fmt::format("{}: '{}' is not {}", option, text, form));
  }
  const std::string values = text.substr(equals + 1);
  const std::size_t colon = values.find(':');
  NamedPair parts{
      .name = text.substr(0, equals), .first = values.substr(0, colon), .second = std::nullopt};
  if (colon != std::string::npos) parts.second = values.substr(colon + 1);
  return parts;
}

struct NamedQuota {
  std::string name;
  owner::Quota quota;
};

Result<NamedQuota> QuotaOf(std::string_view option, const std::string& text) {
  KVCOVE_ASSIGN(const NamedPair parts,
                SplitNamed(option, text,
                           "NAMESPACE=MAXIMUM or NAMESPACE=MAXIMUM:GUARANTEED, such as "
                           "acme=2GiB:1GiB"));
  NamedQuota named{.name = parts.name, .quota = {}};
  KVCOVE_ASSIGN(named.quota.maximum_bytes, SizeOf(option, parts.first));
  if (parts.second) {
    KVCOVE_ASSIGN(named.quota.guaranteed_bytes, SizeOf(option, *parts.second));
  }
  if (named.quota.guaranteed_bytes > named.quota.maximum_bytes) {
    return Fail(Code::kInvalid,
                fmt::format("{}: '{}' guarantees more than its maximum", option, text));
  }
  return named;
}

Status ReadBandwidths(std::string_view option, Texts texts, LocalHostOptions& options) {
  for (const std::string& text : texts) {
    KVCOVE_ASSIGN(const NamedPair parts,
                  SplitNamed(option, text,
                             "NAMESPACE=READ or NAMESPACE=READ:WRITE, such as "
                             "acme=500MiB/s:100MiB/s"));
    owner::DiskQuota& quota = options.owner.disk_quotas[parts.name];
    KVCOVE_ASSIGN(quota.read_rate, owner::ParseRate(option, parts.first));
    if (parts.second) {
      KVCOVE_ASSIGN(quota.write_rate, owner::ParseRate(option, *parts.second));
    }
  }
  return {};
}

constexpr auto kMany = OwnerField::Kind::kMany;

std::vector<OwnerField> MakeFields() {
  return {
      {.key = "memory",
       .standard = "4GiB",
       .help = "size of the payload memory, such as 64GiB; 16TiB at most",
       .read = [](std::string_view option, Texts texts, LocalHostOptions& options) -> Status {
         KVCOVE_ASSIGN(options.owner.memory_bytes, SizeOf(option, texts[0]));
         return {};
       }},
      {.key = "granule",
       .standard = "0",
       .help =
           "unit in which memory is allocated, 64B to 4KiB (0: the smallest that --memory allows: "
           "64B up to 256GiB, 4KiB for 16TiB)",
       .read = [](std::string_view option, Texts texts, LocalHostOptions& options) -> Status {
         KVCOVE_ASSIGN(options.owner.granule_bytes, SizeOf(option, texts[0]));
         return {};
       }},
      {.key = "max_objects",
       .standard = "0",
       .help = "most objects that are stored at a time (0: one per 512 bytes of memory)",
       .read = [](std::string_view option, Texts texts, LocalHostOptions& options) -> Status {
         KVCOVE_ASSIGN(options.owner.max_objects, CountOf(option, texts[0]));
         return {};
       }},
      {.key = "policy",
       .standard = "default",
       .help = "eviction policy: " + policy::ListPolicies(policy::PolicyNames()),
       .read = [](std::string_view, Texts texts, LocalHostOptions& options) -> Status {
         options.owner.policy = texts[0];
         return {};
       }},
      {.key = "quota",
       .standard = "",
       .help = "memory of a namespace, as NAMESPACE=MAXIMUM[:GUARANTEED], such as acme=2GiB:1GiB; "
               "may be "
               "repeated",
       .kind = kMany,
       .in_address = false,
       .read = [](std::string_view option, Texts texts, LocalHostOptions& options) -> Status {
         for (const std::string& text : texts) {
           KVCOVE_ASSIGN(const NamedQuota named, QuotaOf(option, text));
           options.owner.quotas[named.name] = named.quota;
         }
         return {};
       }},
      {.key = "populate",
       .standard = "1",
       .help = "do not populate memory before it is used (the first puts are slower)",
       .kind = OwnerField::Kind::kFlag,
       .read = [](std::string_view option, Texts texts, LocalHostOptions& options) -> Status {
         KVCOVE_ASSIGN(options.owner.populate, ParseSwitch(option, texts[0]));
         return {};
       }},
      {.key = "huge_pages",
       .standard = "auto",
       .help = "huge pages: auto (where the host has enough of them), require (or do not start), "
               "or off",
       .read = [](std::string_view option, Texts texts, LocalHostOptions& options) -> Status {
         KVCOVE_ASSIGN(options.owner.huge_pages, ParseHugePages(option, texts[0]));
         return {};
       }},
      {.key = "log_resets",
       .standard = "1",
       .help = "log no line for each reset and for the values that it voids",
       .kind = OwnerField::Kind::kFlag,
       .read = [](std::string_view option, Texts texts, LocalHostOptions& options) -> Status {
         KVCOVE_ASSIGN(options.owner.log_resets, ParseSwitch(option, texts[0]));
         return {};
       }},
      {.key = "disk",
       .standard = "",
       .help =
           "disk for evicted values, as PATH:SIZE, such as /mnt/nvme0:500GiB; PATH is a directory, "
           "file or block device, whose values are read again, also after a restart; several disks "
           "share the load by their size, repeated or with commas (docs/ssd.md)",
       .kind = kMany,
       .read = [](std::string_view option, Texts texts, LocalHostOptions& options) -> Status {
         KVCOVE_ASSIGN(options.owner.disks,
                       owner::ParseDisks(option, std::vector(texts.begin(), texts.end())));
         return {};
       }},
      {.key = "disk_admit",
       .standard = "policy",
       .help =
           "evicted values that are written to the disk: policy (those that are read again often "
           "enough), all, keep (all, and puts are refused while the disk is behind), or never "
           "(none; "
           "values on the disk are still read)",
       .read = [](std::string_view option, Texts texts, LocalHostOptions& options) -> Status {
         KVCOVE_ASSIGN(options.owner.disk_admit, owner::ParseDiskAdmit(option, texts[0]));
         return {};
       }},
      {.key = "disk_write_rate",
       .standard = "0",
       .help =
           "highest rate at which evicted values are written, such as 200MiB/s, after a burst of "
           "ten seconds' worth; further values are dropped (0: any rate)",
       .read = [](std::string_view option, Texts texts, LocalHostOptions& options) -> Status {
         KVCOVE_ASSIGN(options.owner.disk_write_rate, owner::ParseRate(option, texts[0]));
         return {};
       }},
      {.key = "disk_quota",
       .standard = "",
       .help = "disk space of a namespace, as NAMESPACE=MAXIMUM[:GUARANTEED], such as "
               "acme=200GiB:100GiB; may be repeated (docs/ssd.md)",
       .kind = kMany,
       .in_address = false,
       .only_daemons = true,
       .read = [](std::string_view option, Texts texts, LocalHostOptions& options) -> Status {
         for (const std::string& text : texts) {
           KVCOVE_ASSIGN(const NamedQuota named, QuotaOf(option, text));
           owner::DiskQuota& quota = options.owner.disk_quotas[named.name];
           quota.maximum_bytes = named.quota.maximum_bytes;
           quota.guaranteed_bytes = named.quota.guaranteed_bytes;
         }
         return {};
       }},
      {.key = "disk_bandwidth",
       .standard = "",
       .help =
           "disk bandwidth of a namespace, of all disks together, as NAMESPACE=READ[:WRITE], such "
           "as acme=500MiB/s:100MiB/s; 0: any rate; may be repeated (docs/ssd.md)",
       .kind = kMany,
       .in_address = false,
       .only_daemons = true,
       .read = ReadBandwidths},
  };
}

template <typename Quotas>
std::uint64_t GuaranteedBy(const Quotas& quotas) {
  std::uint64_t sum = 0;
  for (const auto& [name, quota] : quotas) sum += quota.guaranteed_bytes;
  return sum;
}

}  // namespace

Result<bool> ParseSwitch(std::string_view option, std::string_view text) {
  KVCOVE_ASSIGN(const std::uint64_t value, CountOf(option, text));
  return value != 0;
}

std::span<const OwnerField> OwnerFields() {
  static const std::vector<OwnerField> fields = MakeFields();
  return fields;
}

std::string FlagOf(const OwnerField& field) {
  std::string flag = field.kind == OwnerField::Kind::kFlag ? "--no-" : "--";
  flag += field.key;
  std::ranges::replace(flag, '_', '-');
  return flag;
}

Status CheckShares(const owner::OwnerOptions& options) {
  if (const std::uint64_t sum = GuaranteedBy(options.quotas); sum > options.memory_bytes) {
    return Fail(Code::kInvalid, fmt::format("the quotas guarantee {} together, but --memory is {}",
                                            FormatSize(sum), FormatSize(options.memory_bytes)));
  }
  if (options.disks.empty() && !options.disk_quotas.empty()) {
    const bool of_bytes = std::ranges::any_of(options.disk_quotas, [](const auto& named) {
      return named.second.maximum_bytes != owner::DiskQuota{}.maximum_bytes;
    });
    return Fail(Code::kInvalid,
                fmt::format("{} shares out a disk, and there is none; add --disk PATH:SIZE",
                            of_bytes ? "--disk-quota" : "--disk-bandwidth"));
  }
  std::uint64_t disk_bytes = 0;
  for (const disklog::DiskSpec& disk : options.disks) disk_bytes += disk.size_bytes;
  // A quarter remains free: a disk is written and reclaimed in whole zones, so one that is promised
  // in full could not be written any more.
  const std::uint64_t guaranteed = GuaranteedBy(options.disk_quotas);
  if (guaranteed > disk_bytes / 4 * 3) {
    return Fail(Code::kInvalid,
                fmt::format("--disk-quota guarantees {} together, but three quarters of --disk are "
                            "{}; guarantee less",
                            FormatSize(guaranteed), FormatSize(disk_bytes / 4 * 3)));
  }
  return {};
}

}  // namespace kvcove::pool
