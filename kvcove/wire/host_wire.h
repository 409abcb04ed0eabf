// SPDX-License-Identifier: Apache-2.0
// The services of messages.h over frames: stubs on the asking side, `Serve...` on the answering
// side. Bytes only, no socket.
#pragma once

#include <memory>
#include <string>

#include "kvcove/base/clock.h"
#include "kvcove/wire/frame.h"
#include "kvcove/wire/messages.h"

namespace kvcove::wire {

// Carries one call at a time per caller; thread-safe.
class Channel {
 public:
  virtual ~Channel() = default;
  // The reply's body. A reply whose code is not ok becomes that error, its body the detail.
  virtual Result<std::string> Call(Method method, std::span<const std::byte> body,
                                   std::int64_t deadline_ns) = 0;
};

// Stubs, each as wide as its caller needs. Thread-safe; the channel outlives them. `clock`: of the
// deadlines.
std::unique_ptr<HostService> MakeHostStub(Channel& channel,
                                          const Clock& clock = SystemClock::Instance());
std::unique_ptr<ObjectService> MakeObjectStub(Channel& channel,
                                              const Clock& clock = SystemClock::Instance());
// `holder`: the process that keeps its registrations alive (RegisterRequest).
std::unique_ptr<GenerationService> MakeGenerationStub(Channel& channel, const Id128& holder,
                                                      const Clock& clock);

// Answer one request. `deadline_ns`: by the budget in its frame; 0: the frame has none, so the call
// ends by the budget in its table, or after kUntoldBudgetNs. Malformed bodies are kCorrupt: the
// caller closes that connection.
inline constexpr std::int64_t kUntoldBudgetNs = 10 * kSecond;
Result<std::string> ServeHost(HostService& service, Method method, std::span<const std::byte> body,
                              std::int64_t deadline_ns);
// Answer Method::kPut and kFinish, from whatever thread ends them. ServePutThen: false, and nothing
// has begun, where `may_begin` says no of the put's token.
bool ServePutThen(PutService& service, std::span<const std::byte> body, std::int64_t deadline_ns,
                  const std::function<bool(const Token&)>& may_begin,
                  const std::function<void(Result<std::string>)>& done);
void ServeFinishThen(PutService& service, std::span<const std::byte> body, std::int64_t deadline_ns,
                     const std::function<void(Result<std::string>)>& done);
// Answers Method::kRemove and kRemoveMatching, from whatever thread ends them.
void ServeRemovalThen(RemovalService& service, Method method, std::span<const std::byte> body,
                      std::int64_t deadline_ns,
                      const std::function<void(Result<std::string>)>& done);
// Answers Method::kLoad, from whatever thread ends it.
void ServeLoad(ObjectService& service, std::span<const std::byte> body, std::int64_t deadline_ns,
               const std::function<void(Result<std::string>)>& done);
Result<std::string> ServeObjects(ObjectService& service, Method method,
                                 std::span<const std::byte> body, std::int64_t deadline_ns);
Result<std::string> ServeGenerations(GenerationService& service, Method method,
                                     std::span<const std::byte> body, std::int64_t deadline_ns);
// Their parts, for a server that answers them later.
struct RegisterCall {
  RegisterRequest request;
  std::int64_t budget_ns = 0;
};
struct ResetCall {
  ResetRequest request;
  std::int64_t budget_ns = 0;
};
struct PruneCall {
  PruneRequest request;
  std::int64_t budget_ns = 0;
};
struct EngineVersions {
  std::string name;
  std::string engine;
  std::vector<std::string> versions;
  Id128 holder;
};
Result<RegisterCall> DecodeRegister(std::span<const std::byte> body);
Result<ResetCall> DecodeReset(std::span<const std::byte> body);
Result<PruneCall> DecodePrune(std::span<const std::byte> body);
Result<EngineVersions> DecodeEngineVersions(std::span<const std::byte> body);
std::string Encode(const Registration& registration);
Result<ResetOutcome> DecodeResetOutcome(std::span<const std::byte> body);
std::string Encode(const ResetOutcome& outcome);
Result<PruneOutcome> DecodePruneOutcome(std::span<const std::byte> body);
std::string Encode(const PruneOutcome& outcome);
// Calls that may wait for the store or for a lease; the others answer at once, but for removals
// (ServeRemovalThen).
bool MayWait(Method method);
bool MayWaitInCluster(Method method);

// The first exchange of a connection. `layout`: the version of the segment's layout that each side
// knows (segment/layout.h). Another one is refused.
struct Hello {
  std::string name;
  std::uint32_t layout = 0;
};
struct Welcome {
  SessionNumber session = 0;
  Id128 secret;             // joins more connections to the session
  std::int64_t now_ns = 0;  // by the owner's clock: a lease is checked by the reader's
  std::uint32_t layout = 0;
  int node = -1;               // NUMA, of the owner's memory; -1: it is bound to none
  std::string authority = {};  // over generations: owners with equal ones belong together
};
std::string EncodeHello(const Hello& hello);
Result<Hello> DecodeHello(std::span<const std::byte> body);
std::string EncodeWelcome(const Welcome& welcome);
Result<Welcome> DecodeWelcome(std::span<const std::byte> body);
// The answer to Method::kAttend: the owner tells a process that keeps it running how it is.
struct Attendance {
  std::int64_t lease_left_ns = 0;  // not above 0: its memory may not be read
  std::uint32_t attendants = 0;    // connections that keep it, this one included
  std::string address;  // host:port of its data, as others reach it; empty without a cluster
};
std::string Encode(const Attendance& attendance);
Result<Attendance> DecodeAttendance(std::span<const std::byte> body);
std::string EncodeJoin(const Welcome& welcome);
Result<Welcome> DecodeJoin(std::span<const std::byte> body);

}  // namespace kvcove::wire
