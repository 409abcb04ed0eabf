// SPDX-License-Identifier: Apache-2.0
// An owner inside this process: what an engine gives to a cluster while it runs.
#include <fmt/core.h>
#include <nanobind/stl/string.h>

#include "kvcove/base/clock.h"
#include "kvcove/pool/masters.h"
#include "kvcove/requester/local/attachment.h"
#include "kvcove/server/daemon.h"
#include "kvcove/server/host_admin.h"
#include "kvcove/transport/pick/transports.h"
#include "session.h"

namespace kvcove::python {
namespace {

struct PyOwner {
  ForkGuard guard;
  std::shared_ptr<server::Daemon> daemon;
  std::shared_ptr<server::HostAdmin> admin;  // of `daemon`; null in a cluster
  std::string address;

  PyOwner() = default;
  PyOwner(PyOwner&&) = default;
  PyOwner& operator=(PyOwner&&) = delete;
  // In a forked child it has no threads that could be joined: it is let go.
  ~PyOwner() {
    if (guard.Here()) return;
    new std::shared_ptr<server::Daemon>(std::move(daemon));    // NOLINT
    new std::shared_ptr<server::HostAdmin>(std::move(admin));  // NOLINT
  }
  void UnmountDisk() {
    if (!guard.Here() || daemon == nullptr) return;
    const std::shared_ptr<server::Daemon> kept = daemon;
    WithoutGil([&] { kept->host().owner().disks().Unmount(); });
  }
  void Close() {
    if (!guard.Here()) return;
    std::shared_ptr<server::Daemon> last = std::move(daemon);
    std::shared_ptr<server::HostAdmin> first = std::move(admin);
    const ReleasedGil release;
    first.reset();
    last.reset();
  }
};

// Who opens an owner has a pool of these masters: one leads, or will in a moment.
constexpr std::chrono::seconds kLeaderWait{10};

Result<rpc::Addresses> FindMasters(const std::string& master, std::chrono::milliseconds wait) {
  const Clock& clock = SystemClock::Instance();
  return pool::FindMasters(master, clock.NowNs() + wait.count() * kMillisecond, clock);
}

std::string FindMaster(const std::string& master, double timeout) {
  const auto wait = Milliseconds(timeout);
  return Unwrap(WithoutGil([&]() -> Result<std::string> {
    KVCOVE_ASSIGN(const rpc::Addresses found, FindMasters(master, wait));
    return found.front().ToString();
  }));
}

PyOwner OpenOwner(const std::string& master, std::uint64_t memory_bytes, const std::string& listen,
                  const std::string& advertise, const std::string& socket_path,
                  const std::string& credentials, const std::string& tls_authority,
                  const std::string& tls_certificate, const std::string& tls_key,
                  const std::string& disk, const std::string& disk_admit, const std::string& data,
                  const std::string& transport, const std::string& devices) {
  server::DaemonOptions options;
  options.socket_path = socket_path;
  options.host.owner.memory_bytes = memory_bytes;
  options.host.data_directory = data;
  if (!disk.empty()) {
    options.host.owner.disks = Unwrap(owner::ParseDisks("disk", {&disk, 1}));
    options.host.owner.disk_admit = Unwrap(owner::ParseDiskAdmit("disk_admit", disk_admit));
  }
  if (!master.empty()) {  // else a pool of this host alone
    pool::ClusterMember member;
    member.master = Unwrap(WithoutGil([&] { return FindMasters(master, kLeaderWait); }));
    member.listen = Unwrap(rpc::ParseAddress(listen, 0));
    member.advertise = advertise;
    if (!credentials.empty()) {
      member.credentials = Unwrap(rpc::Credentials::Load(credentials));
    }
    const rpc::TlsFiles tls{
        .authority = tls_authority, .certificate = tls_certificate, .key = tls_key};
    if (!tls.empty()) member.tls = Unwrap(rpc::Tls::Open(tls));
    member.transport = Unwrap(
        transport::OpenTransport({.kind = Unwrap(transport::ParseTransport("transport", transport)),
                                  .devices = devices,
                                  .tls = member.tls != nullptr}));
    options.host.cluster = member;
  }
  Result<std::unique_ptr<server::Daemon>> daemon =
      WithoutGil([&] { return server::Daemon::Open(options, SystemClock::Instance()); });
  PyOwner owner;
  owner.daemon = Unwrap(std::move(daemon));
  if (!master.empty()) {
    owner.address = owner.daemon->host().advertised();
  } else {
    server::Daemon* const own = owner.daemon.get();
    owner.admin =
        server::HostAdmin::OpenEmbedded(server::PoolOf({&own, 1}), SystemClock::Instance());
  }
  return owner;
}

}  // namespace

void BindOwner(nb::module_& module) {
  nb::class_<PyOwner>(module, "Owner")
      .def_ro("address", &PyOwner::address)
      .def("__repr__",
           [](const PyOwner& self) {
             return fmt::format("<kvcove.Owner {}{}>",
                                self.address.empty() ? "of this host" : "at " + self.address,
                                self.daemon == nullptr ? " closed" : "");
           })
      .def("unmount_disk", &PyOwner::UnmountDisk)
      .def("close", &PyOwner::Close);
  module.def("open_owner", &OpenOwner, nb::kw_only(), nb::arg("master"), nb::arg("memory"),
             nb::arg("listen"), nb::arg("advertise") = "", nb::arg("socket_path"),
             nb::arg("credentials") = "", nb::arg("tls_authority") = "",
             nb::arg("tls_certificate") = "", nb::arg("tls_key") = "", nb::arg("disk") = "",
             nb::arg("disk_admit") = "policy", nb::arg("data") = "", nb::arg("transport") = "tcp",
             nb::arg("devices") = "");
  module.def(
      "find_master", &FindMaster, nb::arg("master"), nb::kw_only(), nb::arg("timeout"),
      "HOST:PORT of the master that leads, as etcd://HOST:2379/PREFIX names it; of a list the "
      "first one.");
}

}  // namespace kvcove::python
