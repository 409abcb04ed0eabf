// SPDX-License-Identifier: Apache-2.0
// `kvcove doctor`: looks at a host before kvcove is used on it, and says what to change.
#include "kvcove/cli/doctor.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "kvcove/base/clock.h"
#include "kvcove/base/directory.h"
#include "kvcove/base/host/memory.h"
#include "kvcove/base/host/virtual_machine.h"
#include "kvcove/base/memory_file.h"
#include "kvcove/base/pages.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/read_only_copy.h"
#include "kvcove/base/size.h"
#include "kvcove/base/thread_room.h"
#include "kvcove/cli/command.h"
#include "kvcove/cli/container.h"
#include "kvcove/pool/pool.h"
#include "kvcove/segment/payload.h"
#include "kvcove/server/daemon.h"

namespace kvcove::cli {
namespace {

Finding Memory(std::uint64_t wanted) {
  const MemoryRoom room = AvailableMemory();
  const std::uint64_t available = room.bytes;
  Finding finding{
      .what = "memory",
      .seen = fmt::format("{} can be had now; {} sets it", FormatSize(available), room.limit)};
  if (wanted > segment::kMaxPayloadBytes) {
    finding.verdict = Verdict::kFail;
    finding.change = fmt::format("--memory {}: an owner gives at most {}", FormatSize(wanted),
                                 FormatSize(segment::kMaxPayloadBytes));
  } else if (wanted > available) {
    finding.verdict = Verdict::kFail;
    finding.change =
        fmt::format("--memory {} does not fit: ask for less, free memory, or raise the limit of {}",
                    FormatSize(wanted), room.limit);
  } else if (wanted > available / 10 * 9) {
    finding.verdict = Verdict::kWarn;
    finding.change = "leave a tenth to the index, the engine and the kernel";
  } else if (room.throttles) {
    finding.verdict = Verdict::kWarn;
    finding.change =
        "beyond memory.high the kernel slows every thread that needs memory, also those that renew "
        "leases: set memory.max alone, or leave room below memory.high";
  }
  return finding;
}

Finding SharedMemory() {
  Finding finding{.what = "sealed memory files", .seen = "can be made"};
  const Result<UniqueFd> file = CreateMemoryFile("kvcove-doctor", 4096);
  const Result<UniqueFd> reader = file ? ReadOnlyCopy(file->get()) : std::unexpected(file.error());
  if (!reader) {
    finding = {.what = finding.what,
               .verdict = Verdict::kFail,
               .seen = reader.error().detail,
               .change =
                   "kvcove needs memfd_create with seals, and /proc/self/fd to open such a "
                   "file to read only: a sandbox must allow both"};
  }
  return finding;
}

Finding LockedMemory() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  Finding finding{.what = "locked memory",
                  .seen = limit.rlim_cur == RLIM_INFINITY
                              ? std::string("unlimited")
                              : fmt::format("at most {}", FormatSize(limit.rlim_cur))};
  if (limit.rlim_cur != RLIM_INFINITY) {
    finding.verdict = Verdict::kNote;
    finding.change =
        "only RDMA and io_uring with registered buffers need it: ulimit -l unlimited, "
        "LimitMEMLOCK=infinity (systemd), --ulimit memlock=-1 (docker)";
  }
  return finding;
}

Finding HugePagesFor(std::uint64_t wanted) {
  const HugePageHost host = HugePageHost::Read();
  const std::uint64_t tables = PageTableBytes(wanted, SystemPageBytes());
  Finding finding{.what = "huge pages"};
  if (host.page_bytes > 0 && host.Needed(wanted) <= host.free) {
    finding.seen =
        fmt::format("{} of {} are free, {} are needed for --memory {}", host.free,
                    FormatSize(host.page_bytes), host.Needed(wanted), FormatSize(wanted));
    return finding;
  }
  const std::string cost = fmt::format(
      "page tables of {} in each process that maps all of --memory {} ({} a GiB)",
      FormatSize(tables), FormatSize(wanted), FormatSize(PageTableBytes(kGiB, SystemPageBytes())));
  if (host.page_bytes == 0) {
    finding.seen = "this kernel has none: " + cost;
    return finding;
  }
  if (host.Transparent()) {
    finding.seen = fmt::format(
        "transparent ones where the kernel finds them (shmem_enabled {}); "
        "without, {}",
        host.shmem, cost);
    return finding;
  }
  finding.verdict = Verdict::kNote;
  finding.seen = fmt::format("{} of {} are free, {} are needed: {}", host.free,
                             FormatSize(host.page_bytes), host.Needed(wanted), cost);
  finding.change = fmt::format(
      "{}, soon after boot; or transparent ones: echo advise > "
      "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
      host.Sysctl(wanted));
  return finding;
}

Finding Descriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  Finding finding{.what = "open files", .seen = fmt::format("at most {}", limit.rlim_max)};
  if (limit.rlim_max < 4096) {
    finding.verdict = Verdict::kWarn;
    finding.change = "each connection is one: ulimit -n 65536, LimitNOFILE=65536 (systemd)";
  }
  return finding;
}

// Memory is a file, too. What is wrong with --disk another check says.
Finding FileSizes(std::uint64_t memory, std::span<const std::string> disks) {
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return {.what = "file size", .seen = "unlimited"};
  std::uint64_t largest = memory;
  if (const auto specs = owner::ParseDisks("--disk", disks)) {
    for (const disklog::DiskSpec& spec : *specs) largest = std::max(largest, spec.size_bytes);
  }
  Finding finding{
      .what = "file size",
      .verdict = Verdict::kNote,
      .seen = fmt::format("at most {}", FormatSize(limit.rlim_cur)),
      .change = fmt::format("memory and disks of an owner are files, of {} here: ulimit "
                            "-f unlimited, LimitFSIZE=infinity (systemd)",
                            FormatSize(largest))};
  if (limit.rlim_cur < largest) finding.verdict = Verdict::kFail;
  return finding;
}

// An owner in a cluster, with a disk and TLS, has up to 60 threads, and a master 25. Each rank of
// an engine has about 15, and they count for the engine's user and group.
Finding Threads() {
  constexpr std::uint64_t kServer = 64;
  constexpr std::uint64_t kHost = 256;
  const ThreadRoom room = AvailableThreads();
  if (room.limit.empty()) return {.what = "threads", .seen = "no limit but the kernel's"};
  Finding finding{
      .what = "threads",
      .seen = fmt::format("{} more can be started; {} sets it", room.threads, room.limit)};
  if (room.threads >= kHost) return finding;
  finding.verdict = room.threads < kServer ? Verdict::kFail : Verdict::kWarn;
  finding.change = fmt::format(
      "an owner has up to {} threads, each rank of an engine 15: leave room for {}: pids.max, "
      "TasksMax (systemd), --pids-limit (docker), ulimit -u",
      kServer, kHost);
  return finding;
}

Finding ProcessWatch() {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  Finding finding{.what = "watching processes", .seen = "pidfd_open works"};
  if (fd < 0) {
    finding = {.what = finding.what,
               .verdict = Verdict::kFail,
               .seen = std::strerror(errno),
               .change =
                   "an owner must know when an engine is dead: Linux 5.3 or later, and a "
                   "sandbox that allows pidfd_open"};
  } else {
    close(fd);
  }
  return finding;
}

Finding ClockCheck() {
  timespec now{};
  timex state{};
  const bool boottime = clock_gettime(CLOCK_BOOTTIME, &now) == 0;
  const int synchronised = adjtimex(&state);
  Finding finding{.what = "clock", .seen = "CLOCK_BOOTTIME runs"};
  if (!boottime) {
    finding = {.what = "clock",
               .verdict = Verdict::kFail,
               .seen = "no CLOCK_BOOTTIME",
               .change = "leases need it: Linux 2.6.39 or later"};
  } else if (synchronised == TIME_ERROR) {
    finding.verdict = Verdict::kNote;
    finding.change = "the time of day is not synchronised (NTP): only log lines show it";
  }
  return finding;
}

Finding MachineCheck() {
  Finding finding{.what = "machine", .seen = "none that says it is virtual; leases need no more"};
  const std::optional<std::string> known = VirtualMachine();
  if (!known) return finding;
  finding.verdict = Verdict::kNote;
  finding.seen = fmt::format("a virtual one ({})", *known);
  finding.change =
      "its clocks stand still while it is paused or migrated: processes on it may then read for "
      "another second, the length of a lease, what a reset has voided. Where that must not be, "
      "start the masters with --strict: a reset is true only when each owner has acknowledged it. "
      "And its disks may answer a sync before anything is stored: look that the hypervisor passes "
      "flushes on (QEMU: not cache=unsafe), or a loss of power loses what resets have stored";
  return finding;
}

Finding Disk(const std::string& directory) {
  Finding finding{.what = "data directory " + directory};
  std::error_code ignored;
  std::filesystem::path at = directory;
  while (!at.empty() && !std::filesystem::exists(at, ignored)) at = at.parent_path();
  if (at.empty()) at = ".";
  if (at == directory) {
    if (const auto own = CheckOwnDirectory(directory, DirectoryUse::kData); !own) {
      return {.what = finding.what,
              .verdict = Verdict::kFail,
              .seen = "other users could change what is in it",
              .change = own.error().detail};
    }
  }
  struct statvfs space{};
  if (statvfs(at.c_str(), &space) != 0) {
    return {.what = finding.what, .verdict = Verdict::kFail, .seen = std::strerror(errno)};
  }
  const std::string name = (at / fmt::format(".kvcove-doctor-{}", getpid())).string();
  const int fd = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) {
    return {.what = finding.what,
            .verdict = Verdict::kFail,
            .seen = fmt::format("cannot be written: {}", std::strerror(errno)),
            .change = "name another one with --data, or give it to this user"};
  }
  const std::int64_t began = SystemClock::Instance().NowNs();
  const bool synced = write(fd, "kvcove", 6) == 6 && fsync(fd) == 0;
  const double ms = static_cast<double>(SystemClock::Instance().NowNs() - began) * 1e-6;
  close(fd);
  unlink(name.c_str());
  const std::uint64_t free = std::uint64_t{space.f_bavail} * space.f_frsize;
  finding.seen = fmt::format("{} free, a sync takes {:.1f} ms", FormatSize(free), ms);
  if (!synced || free < 64 * kMiB) {
    finding.verdict = Verdict::kFail;
    finding.change = "a reset is synced there before anybody learns of it: make room";
  } else if (ms > 50) {
    finding.verdict = Verdict::kWarn;
    finding.change = "each reset waits for one sync: put the directory on a faster disk";
  }
  return finding;
}

Finding IoUring() {
  char parameters[120] = {};
  const int fd = static_cast<int>(syscall(SYS_io_uring_setup, 4, parameters));
  Finding finding{.what = "io_uring", .seen = "allowed"};
  if (fd < 0) {
    finding.verdict = Verdict::kNote;
    finding.seen = fmt::format("not allowed ({})", std::strerror(errno));
    finding.change =
        "the disk tier will read and write with threads instead; to allow it: sysctl "
        "kernel.io_uring_disabled=0, and a seccomp profile with io_uring_setup";
  } else {
    close(fd);
  }
  return finding;
}

// What the container means for a process of this role.
Status AddContainerFindings(const DoctorOptions& options, std::uint64_t memory,
                            std::vector<Finding>& findings) {
  if (!options.container) return {};
  KVCOVE_ASSIGN(const Role role, ParseRole("--role", options.role));
  ContainerUse use{.role = role,
                   .memory_bytes = memory,
                   .socket = DefaultSocketPath(),
                   .rdma = !options.rdma_devices.empty()};
  if (const char* host = std::getenv("KVCOVE_HOST_ID")) use.host_id = host;
  KVCOVE_ASSIGN(const auto disks, owner::ParseDisks("--disk", options.disks));
  for (const disklog::DiskSpec& disk : disks) use.disks.push_back(disk.path);
  if (role == Role::kMaster) use.data = options.data;
  for (Finding& finding : ContainerFindings(ContainerFacts::Read(), use)) {
    findings.push_back(std::move(finding));
  }
  return {};
}

// Those about the memory of an owner are left out where none is to run.
Result<std::vector<Finding>> HostFindings(const DoctorOptions& options, std::uint64_t memory) {
  KVCOVE_ASSIGN(const Role role, ParseRole("--role", options.role));
  std::vector<Finding> findings;
  if (HoldsMemory(role)) findings = {Memory(memory), HugePagesFor(memory)};
  if (!options.container) findings.push_back(LockedMemory());  // the container's says more
  findings.insert(findings.end(), {SharedMemory(), Descriptors(), FileSizes(memory, options.disks),
                                   Threads(), ProcessWatch(), ClockCheck(), MachineCheck()});
  if (role != Role::kEngine) findings.push_back(Disk(options.data));
  findings.push_back(IoUring());
  return findings;
}

Result<int> Run(const DoctorOptions& options) {
  KVCOVE_ASSIGN(const std::uint64_t memory, options.memory.Bytes("--memory"));
  KVCOVE_ASSIGN(std::vector<Finding> findings, HostFindings(options, memory));
  KVCOVE_TRY(AddContainerFindings(options, memory, findings));
  KVCOVE_TRY(AddDiskFindings(options, findings));
  AddNumaFindings(options, memory, findings);
  KVCOVE_TRY(AddNetworkFindings(options, findings));
  int failed = 0;
  int warned = 0;
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& finding : findings) {
    failed += finding.verdict == Verdict::kFail ? 1 : 0;
    warned += finding.verdict == Verdict::kWarn ? 1 : 0;
    const char* verdict = kVerdicts[static_cast<int>(finding.verdict)];
    if (options.as_json) {
      list.push_back({{"what", finding.what},
                      {"verdict", verdict},
                      {"seen", finding.seen},
                      {"change", finding.change}});
      continue;
    }
    fmt::print("{:<5} {}: {}\n", verdict, finding.what, finding.seen);
    if (!finding.change.empty()) fmt::print("      -> {}\n", finding.change);
  }
  if (options.as_json) {
    fmt::print("{}\n", nlohmann::json{{"findings", list}, {"failed", failed}}.dump());
  } else if (failed == 0) {
    fmt::print("\nThis host can run kvcove{}.\n",
               warned == 0 ? "" : fmt::format("; {} warnings above", warned));
  } else {
    fmt::print("\n{} must change before kvcove runs here.\n",
               failed == 1 ? "One thing" : fmt::format("{} things", failed));
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace

void AddDoctor(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* doctor = app.add_subcommand(
      "doctor", "Check this host before kvcove is used on it, and say what to change.");
  doctor->add_option("--memory", options->memory.text, "memory that an owner is to have")
      ->capture_default_str();
  doctor->add_option("--data", options->data, "directory that is to have the generations")
      ->capture_default_str();
  doctor
      ->add_option("--disk", options->disks,
                   "PATH:SIZE of a disk tier to check, as 'kvcove serve --disk' has it; repeated "
                   "or with commas")
      ->allow_extra_args(false);
  doctor->add_option("--listen", options->listen, "host:port that must be free; may be repeated")
      ->capture_default_str();
  doctor->add_option(
      "--master", options->master,
      "a master that this host must reach, host:port, several, separated by commas, or "
      "etcd://HOST:2379/PREFIX, as their --store; an owner's address follows");
  doctor->add_option("--advertise", options->advertise,
                     "how others shall reach this host's owner, host:port (default: decided by the "
                     "route to --master)");
  doctor
      ->add_option("--rdma-device,--devices", options->rdma_devices,
                   "an RDMA device to check, such as mlx5_0 or mlx5_0:2; repeated or with commas "
                   "(default: all, nearest and fastest first)")
      ->delimiter(',');
  doctor->add_option(
      "--gid-index", options->gid_index,
      "index of the GID that RDMA is to use (default: $MC_GID_INDEX, else found out)");
  doctor->add_option("--near", options->near,
                     "what RDMA devices shall be near to: a GPU's PCI address, or numa:N (default: "
                     "the NUMA node of this process, where it has one alone)");
  doctor
      ->add_option(
          "--sysfs", options->sysfs,
          "directory of the kernel's tree of devices; in a container the host's may be elsewhere")
      ->capture_default_str();
  doctor
      ->add_option("--peer", options->peers,
                   "host:port of an owner's data port on another host (default port 7401): measure "
                   "TCP and each RDMA port of this host with it, by at most 21 MiB each way, and "
                   "say how data moves and why; repeated or with commas")
      ->delimiter(',');
  doctor->add_flag("--rdma-plaintext", options->rdma_plaintext,
                   "with TLS: measure RDMA all the same, as --rdma-plaintext of an owner permits "
                   "it");
  CLI::Option* container = doctor->add_flag(
      "--container", options->container,
      "say, too, what the container of this process means for it: /dev/shm, locked memory, huge "
      "pages, memory limit, namespaces, user, volumes; run it in the container, from its image");
  container->group(kOfThisCall);
  doctor
      ->add_option("--role", options->role,
                   "what the container is for: serve, owner, master or engine")
      ->group(kOfThisCall)
      ->capture_default_str();
  AddSecurityOptions(*doctor, options->security);
  doctor->add_flag("--json", options->as_json, "print JSON");
  doctor->callback([options, &chosen] { chosen = [options] { return Run(*options); }; });
}

}  // namespace kvcove::cli
