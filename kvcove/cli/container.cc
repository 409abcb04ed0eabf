// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/container.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kvcove/base/control_group.h"
#include "kvcove/base/directory.h"
#include "kvcove/base/log.h"
#include "kvcove/base/memory_file.h"
#include "kvcove/base/pages.h"
#include "kvcove/base/size.h"
#include "kvcove/master/master.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace kvcove::cli {
namespace {

constexpr std::uint64_t kUnlimited = ~0ULL;
constexpr const char* kMemoryOfContainer = "memory of the container";
constexpr const char* kOutside = "outside of the container's own file system";
constexpr std::uint64_t kEntryBytes = 94;       // at most, in a master's directory
constexpr std::uint64_t kEngineShm = 1 * kGiB;  // NCCL and torch fail with docker's 64MiB

// The kernel gives the namespaces with which it begins these numbers (linux/proc_ns.h). It gives
// the first network namespace none of its own.
struct FirstNamespace {
  std::string_view kind;
  std::string_view link;
};
constexpr FirstNamespace kFirst[] = {{"pid", "pid:[4026531836]"}, {"user", "user:[4026531837]"}};

std::string NamespaceLink(const std::string& path) {
  std::error_code error;
  return std::filesystem::read_symlink(path, error).string();
}

// What shows that this is a container; a PID namespace alone may be a sandbox's, but its limits are
// the same.
std::string HowContained(const std::string& root, std::optional<bool> own_pids) {
  std::error_code error;
  for (const char* marker : {"/.dockerenv", "/run/.containerenv"}) {
    if (std::filesystem::exists(root + marker, error)) return marker;
  }
  if (std::getenv("KUBERNETES_SERVICE_HOST") != nullptr) return "$KUBERNETES_SERVICE_HOST";
  return own_pids.value_or(false) ? "a PID namespace of its own" : "";
}

// Whether the kernel gives a descriptor of a peer's process (Linux 6.5).
bool NamesPeers() {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return false;
  int fd = -1;
  socklen_t length = sizeof(fd);
  const bool works = getsockopt(pair[0], SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0;
  if (works) close(fd);
  close(pair[0]);
  close(pair[1]);
  return works;
}

// "2MB" and "1GB", as files of the controller have it.
std::string NameOfPages(std::uint64_t bytes) {
  if (bytes % kGiB == 0) return fmt::format("{}GB", bytes / kGiB);
  if (bytes % kMiB == 0) return fmt::format("{}MB", bytes / kMiB);
  return fmt::format("{}KB", bytes / kKiB);
}

void ReadHugePages(const std::string& root, ContainerFacts& facts) {
  const HugePageHost host = HugePageHost::Read(root);
  facts.huge_page_bytes = host.page_bytes;
  facts.huge_set_aside = host.set_aside;
  if (host.page_bytes == 0) return;
  const std::string pages = "hugetlb." + NameOfPages(host.page_bytes);
  for (const ControlGroup& group : ControlGroups("hugetlb", root)) {
    const std::string file = pages + (group.version2 ? ".max" : ".limit_in_bytes");
    const std::uint64_t limit = group.Number(file, kUnlimited);
    // What version 1 calls no limit is larger than any memory.
    if (limit >= std::min<std::uint64_t>(facts.huge_limit_bytes, 1ULL << 60)) continue;
    facts.huge_limit_bytes = limit;
    facts.huge_group = group.name;
  }
}

Finding ContainedFinding(const ContainerFacts& facts) {
  if (!facts.how.empty()) return {.what = "container", .seen = "yes, by " + facts.how};
  return {.what = "container",
          .verdict = Verdict::kNote,
          .seen = "nothing shows one",
          .change =
              "the lines below are about this host: run this command in the container, from its "
              "image, with the options of its server"};
}

Finding ShmFinding(const ContainerFacts& facts, Role role) {
  const std::string size = facts.shm_bytes ? FormatSize(*facts.shm_bytes) : "none";
  Finding finding{.what = "/dev/shm",
                  .seen = size +
                          "; kvcove keeps nothing there. Its memory files are passed through the "
                          "socket, so neither the size counts nor who else sees it"};
  if (role != Role::kEngine || facts.shm_bytes.value_or(0) >= kEngineShm) return finding;
  finding.verdict = Verdict::kWarn;
  finding.change =
      "NCCL and torch of an engine need it, not kvcove: --shm-size 8g (docker, podman), or an "
      "emptyDir with 'medium: Memory' at /dev/shm (Kubernetes)";
  return finding;
}

Finding LockedFinding(const ContainerFacts& facts, const ContainerUse& use) {
  Finding finding{
      .what = "memory that may be locked",
      .seen = facts.locked_bytes == kUnlimited ? "no limit" : FormatSize(facts.locked_bytes)};
  if (use.role == Role::kMaster) {
    finding.seen += "; a master locks none";
    return finding;
  }
  if (facts.locked_bytes == kUnlimited) return finding;
  finding.change =
      "--ulimit memlock=-1 (docker, podman); LimitMEMLOCK=infinity in the unit of containerd or "
      "CRI-O on the node (Kubernetes)";
  if (use.rdma && facts.locked_bytes < use.memory_bytes) {
    finding.verdict = Verdict::kWarn;
    finding.seen += fmt::format("; RDMA locks all of --memory, {}", FormatSize(use.memory_bytes));
    return finding;
  }
  finding.verdict = Verdict::kNote;
  finding.seen += use.role == Role::kEngine
                      ? "; an engine locks memory of the pool for its GPU, and for RDMA"
                      : "; only RDMA, which locks all of --memory, and io_uring with registered "
                        "buffers need more";
  return finding;
}

Finding HugePagesFinding(const ContainerFacts& facts, const ContainerUse& use) {
  Finding finding{.what = "huge pages of the container"};
  if (!HoldsMemory(use.role)) {
    finding.seen = fmt::format("they count for the owner's container, not for that of {} {}",
                               use.role == Role::kEngine ? "an" : "a", RoleName(use.role));
    return finding;
  }
  if (facts.huge_set_aside == 0) {
    finding.seen = "the node has set none aside, so the container can have none";
    return finding;
  }
  const std::string size = FormatSize(facts.huge_page_bytes);
  if (facts.huge_limit_bytes == kUnlimited) {
    finding.seen = fmt::format("no limit for those of {}", size);
    return finding;
  }
  finding.seen = fmt::format("control group '{}' permits {} in pages of {}", facts.huge_group,
                             FormatSize(facts.huge_limit_bytes), size);
  if (facts.huge_limit_bytes >= use.memory_bytes) return finding;
  finding.verdict = Verdict::kNote;
  finding.seen +=
      fmt::format(", less than --memory {}: it gets other pages", FormatSize(use.memory_bytes));
  // Kubernetes writes hugepages-2Mi.
  const std::string unit = size.substr(0, size.size() - 1);
  finding.change =
      fmt::format("a limit hugepages-{} of {} for the container (Kubernetes), or --huge-pages off",
                  unit, FormatSize(use.memory_bytes));
  return finding;
}

// What the role takes of the container's memory, and the text that says so.
struct MemoryUse {
  std::uint64_t bytes = 0;
  std::string text;
  std::string change;
};

MemoryUse MemoryNeed(const ContainerFacts& facts, const ContainerUse& use) {
  if (use.role == Role::kEngine) {
    const std::uint64_t tables = PageTableBytes(use.memory_bytes, SystemPageBytes());
    return {.bytes = tables,
            .text = fmt::format("the pool counts for the owner's container; here count only page "
                                "tables, up to {} for --memory {}",
                                FormatSize(tables), FormatSize(use.memory_bytes)),
            .change = fmt::format("raise the limit by {}", FormatSize(tables))};
  }
  if (use.role == Role::kMaster) {
    const std::uint64_t most = master::MasterOptions().max_entries;
    const std::uint64_t fit = facts.memory.most_bytes / 10 * 9 / kEntryBytes;
    return {.bytes = std::min(fit, most) == most ? 0 : most * kEntryBytes,
            .text = fmt::format("a directory of {} objects, the default of --max-entries, takes up "
                                "to {}",
                                most, FormatSize(most * kEntryBytes)),
            .change = fmt::format("--max-entries {} keeps the directory within the limit", fit)};
  }
  const std::uint64_t all = use.memory_bytes + (use.memory_bytes / 9);
  return {.bytes = all,
          .text = fmt::format("all of --memory {} counts for this container, whichever engine "
                              "touches it, unless huge pages are set aside for it, and about a "
                              "tenth more for index, buffers and threads",
                              FormatSize(use.memory_bytes)),
          .change = fmt::format("a limit of {} (--memory of docker; requests and limits of memory, "
                                "equal, in Kubernetes), or less --memory",
                                FormatSize(all))};
}

Finding MemoryFinding(const ContainerFacts& facts, const ContainerUse& use) {
  Finding finding{.what = kMemoryOfContainer};
  const MemoryUse need = MemoryNeed(facts, use);
  if (!facts.memory_limited) {
    finding.seen = "no limit; " + need.text;
    if (!HoldsMemory(use.role)) return finding;
    finding.verdict = Verdict::kNote;
    finding.change =
        "without a limit the kernel ends this process when the host runs short: " + need.change;
    return finding;
  }
  finding.seen = fmt::format("{} at most; {}", FormatSize(facts.memory.most_bytes), need.text);
  if (need.bytes <= facts.memory.most_bytes) return finding;
  finding.verdict = use.role == Role::kMaster ? Verdict::kNote : Verdict::kWarn;
  finding.change = need.change;
  return finding;
}

Finding ProcessesFinding(const ContainerFacts& facts, Role role) {
  Finding finding{.what = "PID namespace",
                  .seen = !facts.own_pids   ? "unknown"
                          : *facts.own_pids ? "its own"
                                            : "the host's"};
  if (role == Role::kMaster) {
    finding.seen += "; a master watches no process";
  } else if (facts.names_peers) {
    finding.seen += "; an owner sees engines of any other end (SO_PEERPIDFD)";
  } else if (facts.own_pids.value_or(true)) {
    finding.verdict = Verdict::kWarn;
    finding.seen +=
        "; before Linux 6.5 an owner watches an engine by its number, so it refuses an engine of "
        "another namespace its memory, and values travel over TCP";
    finding.change =
        "one namespace for owner and engines: 'shareProcessNamespace: true' in one pod, 'hostPID: "
        "true' in two, --pid container:NAME or --pid host (docker, podman)";
  }
  return finding;
}

Finding NetworkFinding(const ContainerFacts& facts, const ContainerUse& use) {
  Finding finding{.what = "network namespace",
                  .seen = facts.network.empty() ? "unknown" : facts.network};
  if (use.role == Role::kServe) {
    finding.seen += "; engines come through the socket, whatever their network is";
  } else if (use.role == Role::kMaster) {
    finding.seen +=
        "; owners and engines must reach --listen: 0.0.0.0:7400, where the port is published (-p "
        "7400:7400) or the address is the pod's";
  } else if (!use.host_id.empty()) {
    finding.seen += fmt::format("; processes that say KVCOVE_HOST_ID={} are on one host with this",
                                use.host_id);
  } else {
    finding.verdict = Verdict::kNote;
    finding.seen += "; owner and engines share memory only where both have this one";
    finding.change =
        "for others: one text in KVCOVE_HOST_ID of the owner and of its node's engines, such as "
        "the node's name (fieldRef spec.nodeName in Kubernetes)";
  }
  return finding;
}

Finding UserFinding(const ContainerFacts& facts, Role role) {
  Finding finding{.what = "user", .seen = fmt::format("{}", facts.user)};
  if (role == Role::kMaster) return finding;
  finding.seen += role == Role::kEngine
                      ? "; the owner must be of this user, of root or of $KVCOVE_OWNER_USER, and "
                        "lets in its own user, root, and those of --engine-user and --engine-group"
                      : "; engines run as this user, as root, or as --engine-user and "
                        "--engine-group say, and have KVCOVE_OWNER_USER=" +
                            fmt::format("{}", facts.user);
  if (!facts.own_users.value_or(false)) return finding;
  finding.verdict = Verdict::kNote;
  finding.change =
      "this is a user namespace of its own: owner and engine must have the same one, or the same "
      "mapping, since a user without a number here is seen as 65534 and refused";
  return finding;
}

std::string SocketDirectory(const std::string& socket) {
  return std::filesystem::path(socket).parent_path().string();
}

Finding SocketFinding(const ContainerFacts& facts, const ContainerUse& use) {
  const std::string directory = SocketDirectory(use.socket);
  Finding finding{.what = "socket " + use.socket, .seen = kOutside};
  std::error_code error;
  if (use.role == Role::kEngine && !std::filesystem::exists(use.socket, error)) {
    finding.verdict = Verdict::kWarn;
    finding.seen = "is not there";
    finding.change = fmt::format(
        "mount the directory of the owner's socket here, under the path that it has there, or name "
        "the socket in $KVCOVE_SOCKET; '{}' is looked at",
        directory);
    return finding;
  }
  if (HoldsMemory(use.role) && std::filesystem::exists(directory, error)) {
    // An emptyDir is open to all users, and a new hostPath is root's.
    if (!CheckOwnDirectory(directory, DirectoryUse::kGroupSocket)) {
      finding.verdict = Verdict::kFail;
      finding.seen = fmt::format(
          "'{}' does not belong to this user, or is not closed to others: a server refuses it",
          directory);
      finding.change = fmt::format(
          "in an emptyDir a directory that kvcove makes, KVCOVE_SOCKET={}/pool/kvcove.sock here "
          "and in the engines' containers; of a node's directory 'install -d -o {} -g {} -m 700 "
          "{}' there",
          directory, facts.user, facts.user, directory);
      return finding;
    }
  }
  if (!facts.IsInLayer(use.socket)) return finding;
  finding.verdict = use.role == Role::kEngine ? Verdict::kNote : Verdict::kWarn;
  finding.seen = "in the file system of this container, which no other container sees";
  finding.change = fmt::format(
      "mount one volume at '{}' here and in the engines' containers: -v kvcove-run:{} (docker, "
      "podman), a hostPath in two pods; in one pod an emptyDir, with the socket in a directory of "
      "its own below it, as an emptyDir is open to all users (Kubernetes)",
      directory, directory);
  return finding;
}

Finding StoredFinding(const ContainerFacts& facts, const std::string& what, const std::string& name,
                      const std::string& lost) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(name, error);
  const std::string path = error ? name : whole.string();
  Finding finding{.what = what + " " + path, .seen = kOutside};
  if (!facts.IsInLayer(path)) return finding;
  finding.verdict = Verdict::kWarn;
  finding.seen = "in the file system of this container, and ends with it: " + lost;
  finding.change = fmt::format(
      "mount a volume at '{}': -v NAME:{} (docker, podman), a PersistentVolumeClaim or a hostPath "
      "(Kubernetes)",
      path, path);
  return finding;
}

}  // namespace

Result<Role> ParseRole(std::string_view what, std::string_view text) {
  const auto at = std::ranges::find(kRoles, text);
  if (at != std::end(kRoles)) return static_cast<Role>(at - std::begin(kRoles));
  return Fail(Code::kInvalid,
              fmt::format("{} {}: give one of {}", what, text, fmt::join(kRoles, ", ")));
}

std::optional<bool> OwnNamespace(std::string_view kind, const std::string& root) {
  const std::string link = NamespaceLink(fmt::format("{}/proc/self/ns/{}", root, kind));
  const auto first = std::ranges::find(kFirst, kind, &FirstNamespace::kind);
  if (link.empty() || first == std::end(kFirst)) return std::nullopt;
  return link != first->link;
}

ContainerFacts ContainerFacts::Read(const std::string& root) {
  ContainerFacts facts;
  facts.own_pids = OwnNamespace("pid", root);
  facts.own_users = OwnNamespace("user", root);
  facts.how = HowContained(root, facts.own_pids);
  facts.names_peers = NamesPeers();
  facts.network = NamespaceLink(root + "/proc/self/ns/net");
  facts.user = geteuid();
  rlimit locked{};
  getrlimit(RLIMIT_MEMLOCK, &locked);
  facts.locked_bytes = locked.rlim_cur == RLIM_INFINITY ? kUnlimited : locked.rlim_cur;
  struct statvfs shm{};
  if (statvfs("/dev/shm", &shm) == 0) facts.shm_bytes = std::uint64_t{shm.f_blocks} * shm.f_frsize;
  ReadHugePages(root, facts);
  facts.memory = AvailableMemory(root);
  std::ifstream meminfo(root + "/proc/meminfo");
  std::uint64_t host_kib = 0;
  for (std::string word; meminfo >> word;) {
    if (word == "MemTotal:") meminfo >> host_kib;
  }
  facts.memory_limited = facts.memory.most_bytes < host_kib * kKiB;
  facts.mounts = Mounts(root);
  return facts;
}

bool ContainerFacts::IsInLayer(const std::string& path) const {
  std::error_code error;
  const auto whole =
      std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  const std::string at = error ? path : whole.string();
  const Mount* nearest = nullptr;
  for (const Mount& mount : mounts) {
    const bool covers =
        mount.point == "/" || at == mount.point || at.starts_with(mount.point + "/");
    if (covers && (nearest == nullptr || mount.point.size() >= nearest->point.size())) {
      nearest = &mount;
    }
  }
  // Runtimes lay an image's layers over one another. Another root, such as that of a virtual
  // machine or of systemd-nspawn, outlives its processes.
  return nearest != nullptr && nearest->point == "/" &&
         (nearest->type == "overlay" || nearest->type == "fuse.fuse-overlayfs");
}

std::vector<Finding> ContainerFindings(const ContainerFacts& facts, const ContainerUse& use) {
  std::vector<Finding> findings = {ContainedFinding(facts),    ShmFinding(facts, use.role),
                                   LockedFinding(facts, use),  HugePagesFinding(facts, use),
                                   MemoryFinding(facts, use),  ProcessesFinding(facts, use.role),
                                   NetworkFinding(facts, use), UserFinding(facts, use.role)};
  const bool listens = !use.socket.empty() && use.role != Role::kMaster;
  if (listens) findings.push_back(SocketFinding(facts, use));
  if (!use.data.empty()) {
    findings.push_back(
        StoredFinding(facts, "data directory", use.data,
                      use.role == Role::kMaster
                          ? "a new container begins another pool, in which owners keep nothing"
                          : "a new container does not know the values of its disks"));
  }
  for (const std::string& disk : use.disks) {
    findings.push_back(StoredFinding(facts, "disk", disk, "its values are lost"));
  }
  return findings;
}

void WarnOfContainer(const ContainerUse& use) {
  const ContainerFacts facts = ContainerFacts::Read();
  if (facts.how.empty()) return;
  for (const Finding& finding : ContainerFindings(facts, use)) {
    // The owner itself compares --memory with what there is, and says so (memory_budget.cc). What
    // it refuses, it says, too.
    if (finding.verdict != Verdict::kWarn || finding.what == kMemoryOfContainer) continue;
    LogWarn("container: {}: {}; {}", finding.what, finding.seen, finding.change);
  }
}

}  // namespace kvcove::cli
