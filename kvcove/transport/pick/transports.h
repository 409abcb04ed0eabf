// SPDX-License-Identifier: Apache-2.0
// Lists the transports of this build and picks the one that moves payload between hosts. The
// sources of this folder are the only place outside of a transport's own folder that names a
// transport: scripts/check_layers.sh refuses any other.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/transport/endpoint.h"

namespace kvcove::transport::verbs {
class Fabric;
struct FabricOptions;
class Verbs;
}  // namespace kvcove::transport::verbs

namespace kvcove::transport {

// Returns every transport that needs no device, the preferred one first. They live as long as the
// process.
const std::vector<Transport*>& Transports();
// Returns the transport that connects to other hosts and serves them where no option names one.
Transport& Preferred();
// Returns a transport that moves the payload of registered memory by RDMA where both sides have it,
// and all else as Preferred() does. `plaintext`: also payload of connections that TLS protects,
// since devices do not encrypt. The fabric outlives the transport.
std::unique_ptr<Transport> WithRdma(verbs::Fabric& fabric, bool plaintext);

// How a process moves payload to and from other hosts, as its user says.
struct TransportOptions {
  enum class Kind : std::uint8_t {
    kAuto,   // RDMA where this host has a device that works, else TCP
    kVerbs,  // RDMA: without such a device nothing opens
    kTcp,    // TCP, and no device is opened
  };
  Kind kind = Kind::kTcp;
  // RDMA devices with commas between, the first that works: "mlx5_0", "mlx5_0:2" (its second port),
  // "mlx5_0:2/3" (GID 3 of that). Empty: those of this host in their order.
  std::string devices;
  bool tls = false;        // TLS protects the connections
  bool plaintext = false;  // see WithRdma
};
// Reads "auto", "verbs" or "tcp". `option` names the option in errors. Errors: kInvalid.
Result<TransportOptions::Kind> ParseTransport(std::string_view option, std::string_view text);
// Returns the transport where no device can be used, and logs why. Errors: for kVerbs kUnavailable.
Result<Transport*> WithoutRdma(TransportOptions::Kind kind, const std::string& why);

// The transports with a device that a process has opened. They, and their devices, live as long as
// the process: registered memory, connections and threads refer to them, in objects that callers
// may keep for as long. Equal options give the same transport, until its device is removed; a
// forked child opens its own. Thread-safe; one mutex, under which nothing is opened.
class Devices {
 public:
  // Returns the transport for these options. Logs which device it uses, and for kAuto why none.
  // Errors: kInvalid for names that are none; for kVerbs kUnavailable with each device's reason.
  // `verbs`: for tests; null: the process's.
  Result<Transport*> Open(const TransportOptions& options, verbs::Verbs* verbs = nullptr)
      KVCOVE_EXCLUDES(mutex_);

 private:
  struct Opened {
    std::unique_ptr<verbs::Fabric> fabric;
    std::unique_ptr<Transport> encrypting;  // TLS keeps payload on the sockets
    std::unique_ptr<Transport> plaintext;
  };
  using Key = std::tuple<unsigned, std::string>;  // forks before it, names of devices
  Result<Transport*> OpenVerbs(const TransportOptions& options, const verbs::FabricOptions& fabric,
                               verbs::Verbs* verbs) KVCOVE_EXCLUDES(mutex_);
  static Transport* TransportOf(const Opened& opened, bool plaintext);
  // Returns the one that is open. Null: there is none, or its device was removed.
  Transport* Find(const Key& key, bool plaintext) KVCOVE_EXCLUDES(mutex_);

  Mutex mutex_;
  std::map<Key, Opened> opened_ KVCOVE_GUARDED_BY(mutex_);
  std::vector<Opened> removed_ KVCOVE_GUARDED_BY(mutex_);  // their devices were removed
};

// Returns the transport for these options, of the process's Devices. Errors: as Devices::Open.
Result<Transport*> OpenTransport(const TransportOptions& options);

}  // namespace kvcove::transport
