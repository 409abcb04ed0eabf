// SPDX-License-Identifier: Apache-2.0
#include "kvcove/wire/host_wire.h"

#include "kvcove/wire/host_flat.h"

namespace kvcove::wire {

Result<RegisterCall> DecodeRegister(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Register>(body));
  return RegisterCall{.request = {.name = Str(root->name()),
                                  .version = Str(root->version()),
                                  .engine = Str(root->engine()),
                                  .follow_always = root->follow_always(),
                                  .assume_weights = root->assume_weights(),
                                  .last_incarnation = FromFb(root->last_incarnation()),
                                  .last_generation = root->last_generation(),
                                  .holder = FromFb(root->holder())},
                      .budget_ns = root->budget_ns()};
}

std::string Encode(const Registration& registration) {
  Builder builder;
  const fb::Id incarnation = ToFb(registration.incarnation);
  builder.Finish(fb::CreateRegisterReply(builder, &incarnation, registration.slot,
                                         registration.generation, registration.open));
  return StringOf(builder);
}

Result<ResetCall> DecodeReset(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Reset>(body));
  ResetCall call{.request = {.name = Str(root->name()),
                             .engine = Str(root->engine()),
                             .version = std::nullopt,
                             .id = FromFb(root->id()),
                             .late = root->late(),
                             .holder = FromFb(root->holder()),
                             .registered = root->registered()},
                 .budget_ns = root->budget_ns()};
  if (root->has_version()) call.request.version = Str(root->version());
  return call;
}

Result<ResetOutcome> DecodeResetOutcome(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::ResetReply>(body));
  return ResetOutcome{.raised = static_cast<std::uint32_t>(root->raised()),
                      .incarnation = FromFb(root->incarnation()),
                      .generation = root->generation(),
                      .unshared_ms = root->unshared_ms()};
}

std::string Encode(const ResetOutcome& outcome) {
  Builder builder;
  const fb::Id incarnation = ToFb(outcome.incarnation);
  builder.Finish(fb::CreateResetReply(builder, outcome.raised, &incarnation, outcome.generation,
                                      outcome.unshared_ms));
  return StringOf(builder);
}

Result<PruneCall> DecodePrune(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Prune>(body));
  return PruneCall{.request = {.name = Str(root->name()), .before = Str(root->before())},
                   .budget_ns = root->budget_ns()};
}

Result<PruneOutcome> DecodePruneOutcome(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::PruneReply>(body));
  return PruneOutcome{.versions = root->versions(), .raised = root->raised()};
}

std::string Encode(const PruneOutcome& outcome) {
  Builder builder;
  builder.Finish(fb::CreatePruneReply(builder, outcome.versions, outcome.raised));
  return StringOf(builder);
}

Result<EngineVersions> DecodeEngineVersions(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::EngineVersions>(body));
  KVCOVE_ASSIGN(const std::vector<std::string_view> versions, Views(root->versions(), body));
  return EngineVersions{.name = Str(root->name()),
                        .engine = Str(root->engine()),
                        .versions = {versions.begin(), versions.end()},
                        .holder = FromFb(root->holder())};
}

bool MayWait(Method method) {
  return method == Method::kRegister || method == Method::kReset ||
         method == Method::kNameVersions || method == Method::kEndEngine ||
         method == Method::kPrune;
}

bool MayWaitInCluster(Method method) { return method == Method::kPut || method == Method::kFinish; }

std::string EncodeHello(const Hello& hello) {
  Builder builder;
  builder.Finish(fb::CreateHello(builder, Text(builder, hello.name), hello.layout));
  return StringOf(builder);
}

Result<Hello> DecodeHello(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Hello>(body));
  return Hello{.name = Str(root->name()), .layout = root->layout()};
}

std::string EncodeWelcome(const Welcome& welcome) {
  Builder builder;
  const fb::Id secret = ToFb(welcome.secret);
  builder.Finish(fb::CreateHelloReply(builder, welcome.session, &secret, welcome.now_ns,
                                      welcome.layout, welcome.node,
                                      Text(builder, welcome.authority)));
  return StringOf(builder);
}

std::string Encode(const Attendance& attendance) {
  Builder builder;
  builder.Finish(fb::CreateAttendReply(builder, attendance.lease_left_ns, attendance.attendants,
                                       Text(builder, attendance.address)));
  return StringOf(builder);
}

Result<Attendance> DecodeAttendance(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::AttendReply>(body));
  return Attendance{.lease_left_ns = root->lease_left_ns(),
                    .attendants = root->attendants(),
                    .address = Str(root->address())};
}

Result<Welcome> DecodeWelcome(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::HelloReply>(body));
  return Welcome{.session = root->session(),
                 .secret = FromFb(root->secret()),
                 .now_ns = root->now_ns(),
                 .layout = root->layout(),
                 .node = root->node(),
                 .authority = Str(root->authority())};
}

std::string EncodeJoin(const Welcome& welcome) {
  Builder builder;
  const fb::Id secret = ToFb(welcome.secret);
  builder.Finish(fb::CreateJoin(builder, welcome.session, &secret));
  return StringOf(builder);
}

Result<Welcome> DecodeJoin(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Join>(body));
  return Welcome{.session = root->session(), .secret = FromFb(root->secret()), .authority = {}};
}

}  // namespace kvcove::wire
