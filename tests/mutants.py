#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Switches off each rule of the control plane in turn, in a copy of the sources; some test must fail each time.

  tests/mutants.py [--only TEXT] [--list]

A mutant whose text is not found any more fails, too: the rule has moved, and so must its entry here.
"""

import argparse
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "mutants" / "source"
BUILD = ROOT / "build" / "mutants" / "build"
TESTS = [
    "master_members_test", "master_members_removals_test", "master_control_test", "master_control_hello_test",
    "master_control_barring_test", "master_server_directory_test", "master_server_directory_service_test", "master_removal_log_test",
    "master_generations_test", "master_generations_slots_test", "master_generation_keeper_test", "master_server_master_test",
    "master_slot_table_test", "master_start_test", "master_store_doubt_test", "master_file_store_test", "master_file_store_recovery_test",
    "master_control_format_test", "owner_link_test", "owner_link_core_test", "owner_link_core_list_test", "owner_link_core_shards_test",
    "owner_lineage_test", "owner_core_test", "owner_withdrawn_test", "owner_spaces_test", "owner_room_test",
    "disklog_forgetting_test", "disklog_format_test", "disklog_log_test", "disklog_moves_test", "disklog_recovery_test", "tier_sim",
    "owner_disk_worker_test", "owner_directory_opening_test", "owner_removal_waits_test", "owner_owner_disks_test", "owner_owner_cluster_tier_test", "disk_retry", "disk_tier", "owner_data_service_test", "requester_remote_read_test", "requester_reset_keeper_test", "requester_calls_test", "requester_cluster_session_test", "requester_owner_client_test", "requester_borrow_test", "requester_reader_slots_test",
    "transport_run_test", "transport_device_test",
    "transport_layouts_test", "transport_paths_test", "transport_device_queue_test", "connector_worker_device_test",
    "connector_segment_pins_test", "connector_worker_in_place_test", "connector_worker_cuda_test", "sim", "cluster_sim",
    "master_server_etcd_store_test", "server_etcd_masters_test", "rpc_client_test", "requester_completion_test",
    "transport_late_transfer_test", "requester_late_transfer_test", "owner_late_transfer_test",
]  # fmt: skip
PROGRAMS = ["disklog_tests", "master_tests", "master_server_tests", "owner_tests", "requester_tests", "transport_tests", "connector_tests", "integration_tests",
            "sim_tests", "server_tests", "rpc_tests"]  # fmt: skip

# (rule, file, text, what stands in its place)
MUTANTS = [
    ("transfer: the lease is looked at again once the memory is lent", "owner/data/data_service.cc",
     "    const bool holds = service_.store_.LeaseHolds();\n", "    const bool holds = true;\n"),
    ("transfer: another tenant's objects are not lent", "owner/data/data_service.cc",
     "  return caller.MayTouch(tenant) &&", "  return (true || caller.MayTouch(tenant)) &&"),
    ("transfer: a value without its checksum is not committed", "owner/data/data_service.cc",
     "        finishes_[at_].commit = false;\n", ""),
    ("transfer: a value that arrived without its checksum is no hit", "requester/cluster/remote_read.cc",
     "        if (sound) return;\n", "        return;\n"),
    ("transfer: what may still land is said to be busy", "transport/run.cc",
     "    if (!one.transfer->Abort()) continue;\n", "    (void)one.transfer->Abort();\n"),
    ("transfer: a call is over when nothing of it can land any more", "transport/run.cc",
     "      landing->Begin();\n", ""),
    ("transfer: a value that may still be read is busy whatever other owners say", "requester/cluster/remote_write.cc",
     "      if (result.code == Code::kBufferBusy) continue;\n", ""),
    ("transfer: what is copied stays lent while it may be read", "owner/data/copier.cc",
     "  call.on_quiet = [kept = lent]() mutable { kept.reset(); };\n", ""),
    ("transfer: a copier ends when nothing of its owner is read any more", "owner/data/copier.cc",
     "    while (batches_ > 0) changed_.Wait(mutex_);\n", ""),
    ("shards: no walk begins while a put that was answered before is being completed", "owner/link/link_core_shards.cc",
     "  return completing_.empty() || completing_.begin()->second == shards_.restarts();\n", "  return true;\n"),
    ("shards: a walk ends only once its refusals are acted on", "owner/link/link_core_shards.cc",
     "  if (!completing_.empty() && completing_.begin()->first < *walk_last_) return false;\n", ""),
    ("shards: an answered key is not asked again behind a later put of it", "owner/link/shard_lanes.cc",
     "\n  answered_.erase(entry.reported.item.hash);\n", "\n"),
    ("shards: nor behind one that was queued before the answer", "owner/link/shard_lanes.cc",
     "    answered_.erase(entry.reported.item.hash);\n    if", "    if"),
    ("shards: a slot that was dropped after a lost shard is barred no longer", "master/control/control_proofs.cc",
     "    standings_.SetBarred(request.number, slot, false);\n", ""),
    ("shards: a put that is refused at its repetition is not listed from before", "master/directory/directory_service.cc",
     "    if (!item.inventory) Unlist(item, number);\n", ""),
    ("shards: an answered key of a put that waits for others is asked again under the next map", "owner/link/shard_lanes.cc",
     "    ++part.split->missing;\n    Ask(part.split, part.index);\n", ""),
    ("disk log: a damaged record gets a tombstone before its key is free", "disklog/reader.cc",
     "      state_.Forget(*entry, read.key, {});\n", "      state_.Drop(IndexEntry(*entry));\n"),
    ("disk log: so does one whose write failed", "disklog/writer.cc",
     "      state_.Forget(*known, KeyOf(entry), [done, outcome](const Status&) { done(outcome); });\n      return;\n",
     "      state_.Drop(IndexEntry(*known));\n      done(outcome);\n      return;\n"),
    ("disk log: a zone whose objects find no place at a start is freed", "disklog/recovery.cc",
     "    state_.Hide(*kept);\n    state_.zones.Doom(number, /*untaken=*/false);\n", "    state_.Hide(*kept);\n"),
    ("disk log: a zone with a damaged header is freed", "disklog/recovery.cc",
     "      Lose(number, std::nullopt);\n    }\n", "    }\n"),
    ("disk log: a zone of tombstones that cannot be read is kept", "disklog/cleaner.cc",
     "  if (!needed) return FreeZone();\n", "  return FreeZone();\n"),
    ("disk log: a disk of which tombstones may be lost starts empty", "disklog/recovery.cc",
     "  if (!state_.emptying) return;\n", "  state_.emptying = false;\n  return;\n"),
    ("disk log: the twins of lost tombstones are written twice again", "disklog/cleaner.cc",
     "    if (!single && (stream", "    if ((stream"),
    ("disk log: tombstones are written twice, to two zones", "disklog/writer.cc",
     "    append.stream = stream;\n    KVCOVE_TRY(Add(", "    append.stream = tombstone_streams().front();\n    KVCOVE_TRY(Add("),
    ("disk log: the copy of a tombstone stays away from its twin", "disklog/cleaner.cc",
     "(stream == second) != (zone.stream == second)) continue;", "stream == second) continue;"),
    ("disk log: a removal of an absent key waits for the tombstones before it", "disklog/log.cc",
     "    if (removing_ != nullptr) {\n", "    if (removing_ != nullptr && false) {\n"),
    ("disk log: a removal that was refused half-way is synced by the next", "disklog/log.cc",
     "  unsynced_ = true;\n  if (here)", "  unsynced_ = here && request.keys.size() == 1;\n  if (here)"),
    ("disk log: a removal that failed is not proven by its repetition", "disklog/log.cc",
     "    if (!status) writer_.SetUnproven();\n    if (removing_", "    if (removing_"),
    ("disk log: records that ended without a tombstone keep younger ones", "disklog/state.h",
     "      if (!recovering) zones.AddUncovered(known->zone);\n", ""),
    ("disk log: so do records that were copied", "disklog/state.h",
     "    zones.AddUncovered(entry.zone);  // until", "    // until"),
    ("disk log: a lost zone is void in both superblocks", "disklog/log.cc",
     "    WriteSuperblock(ended);\n", "    ended({});\n"),
    ("disk log: a disk that starts empty says so in both superblocks", "disklog/log.cc",
     "  if (empty) {\n    // The other", "  if (false) {\n    // The other"),
    ("disk log: a zone of which a walk cannot list all is freed", "disklog/log.cc",
     "    if (listed < zone.live()) {\n", "    if (false) {\n"),
    ("disk log: no zone is freed for its tombstones while they may find no room", "disklog/zones.cc",
     "    if (needed > 0 && (empty < (zone.doomed ? 2U : 1U) || zone.unreadable)) continue;\n",
     "    if (needed > 0 && zone.unreadable) continue;\n"),
    ("disk log: no zone of tombstones alone counts as a share's", "disklog/zones.cc",
     "  if (live == 0) return ShareClass::kOrdinary;", "  if (false) return ShareClass::kOrdinary;"),
    ("disk log: a refused removal writes neither copy of its tombstone", "disklog/writer.cc",
     "  KVCOVE_TRY(CheckTwins(append));\n", ""),
    ("disk log: a walk waits for tombstones of forgotten objects", "disklog/log.cc",
     "  if (state_.forgotten.empty()) return false;\n", "  if (true) return false;\n"),
    ("disk log: an uncovered zone that removals pay for is cleaned", "disklog/cleaner.cc",
     "= Costly();", "= {};"),
    ("disk log: a record that cannot be read twice is forgotten", "disklog/reader.cc",
     "      if (corrupt || entry->unread) {", "      if (corrupt) {"),
    ("disk log: a doomed zone is read no more", "disklog/log.cc",
     "  if (found && state_.zones[found->place.zone].doomed) return std::nullopt;\n", ""),
    ("disk log: an object that was forgotten during its move stays so", "disklog/writer.cc",
     "known != nullptr && !known->forgotten &&", "known != nullptr &&"),
    ("disk: a value that finds no place in the table is not written", "owner/disk/tiering.cc",
     "  if (!tags.Add(demotion->tag)) return &stat.table_full;\n", "  (void)tags.Add(demotion->tag);\n"),
    ("disk: a hand-over strikes its disks from the note", "owner/disk/owner_disks.cc",
     "    const Status struck = known_->Forget(tiering.shares(), [&] { tiering.use().Struck(); });\n",
     "    const Status struck;\n    tiering.use().Struck();\n"),
    ("disk: nothing is stored over what a disk that is set aside holds before the note is written", "owner/disk/disk_state.cc",
     "  note_ = Note::kMustBeStruck;\n  return true;\n", "  return false;\n"),
    ("disk: a put that began before a disk was on keeps it out of the note", "owner/disk/disk_thread.cc",
     "  if (puts.oldest < settles_from_ || ", "  if ("),
    ("disk: what was replaced is gone before the note names the disk", "owner/disk/disk_use.cc",
     " && parts_.fences.older_proven();\n", ";\n"),
    ("disk: what was being opened when the master voided it is not used", "owner/disk/disk_state.cc",
     "  if (!opening() && state_ != State::kAside) return false;\n", "  if (!opening() && state_ != State::kAside && state_ != State::kVoided) return false;\n"),
    ("disk: no new facts while the note names a disk that is void", "owner/disk/facts_writer.cc",
     "    if (outcome) outcome = files.write(job->facts);\n", "    outcome = files.write(job->facts);\n"),
    ("disk: a removal is proven by the master's store, not by the wish for it", "owner/disk/known_disks.cc",
     "    if (!void_) return forgotten;\n", ""),
    ("disk: a removal waits for its disks without a thread", "pool/local_host.cc",
     "    host_.control().RemoveThen(token, keys, deadline_ns, done);\n",
     "    done(host_.control().Remove(token, keys, deadline_ns));\n"),
    ("disk: so does a removal by pattern", "pool/local_host.cc",
     "    host_.control().RemoveMatchingThen(token, pattern, deadline_ns, done);\n",
     "    done(host_.control().RemoveMatching(token, pattern, deadline_ns));\n"),
    ("disk: a removal that its disk has missed is not proven before the disk is struck", "owner/disk/removal_waits.cc",
     "  if (!awaited.open && awaited.missed == 0) return Status();\n", "  if (!awaited.open) return Status();\n"),
    ("disk: a strike proves no removal that was missed after it began", "owner/disk/removal_waits.cc",
     "      if ((wait.striking & bit) == 0) continue;\n", "      wait.missed &= ~bit;\n"),
    ("disk: a process that hands its disks over strikes none", "owner/disk/removal_waits.cc",
     "    if (!paused_ && !stopping_) outcome", "    outcome"),
    ("disk: a removal that was proven before its caller waits is answered", "owner/disk/removal_waits.cc",
     "    if (!paused_ && !stopping_) outcome = OutcomeOf(wait->second);\n", "    if (!paused_ && !stopping_) outcome = std::nullopt;\n"),
    ("disk: removals are answered when they are proven", "owner/disk/disk_worker.cc",
     "  tiering_.removals().ReportProven();\n", ""),
    ("disk: no removal that is proven waits for the disk's next operation", "owner/disk/disk_worker.cc",
     "  tiering_.removals().ReportProven();  // those that needed no tombstone, before the wait\n", ""),
    ("open removals: they are not proven", "master/control/members.h",
     "             (removal <= ahead && std::ranges::find(open, removal) == open.end());\n", "             removal <= ahead;\n"),
    ("open removals: a restart asks for them again", "owner/link/link_core.h",
     "    return open_.empty() ? removals_ : std::min(removals_, open_.begin()->first - 1);\n", "    return removals_;\n"),
    ("open removals: others are proven meanwhile", "master/control/members.cc",
     "  at(number).ahead = ahead;\n", ""),
    ("open removals: what disks had is unlisted first", "owner/link/link_core.cc",
     "    open->second = rounds_ + 2;\n", "    open->second = 0;\n"),
    ("open removals: a hand-over asks for them again", "owner/link/link_core_carry.cc",
     "  removals_ = Acknowledged();\n", ""),
    ("open removals: an upgrade cuts off no walk", "owner/owner_take_over.cc",
     "  if (disks.set().Patterns() > 0) {\n", "  if (false) {\n"),
    ("disk: an upgrade does not wait behind a note that hangs", "owner/owner_take_over.cc",
     "  if (disks.noting()) {\n", "  if (false) {\n"),
    ("open removals: nor one that begins before the disks are closed", "owner/owner_take_over.cc",
     "  KVCOVE_TRY(NoneIsBusy(disks_));\n", ""),
    ("open removals: none ends while a key that it took is listed", "owner/link/link_core.cc",
     "  if (batch.gone.size() < kGonePageItems) ++rounds_;\n", "  ++rounds_;\n"),
    ("disk: a sync proves nothing once another has failed", "disklog/writer.cc",
     "      if (error != 0 || !unproven_) return done", "      if (true) return done"),
    ("open removals: another master knows none of them", "owner/link/link_core.cc",
     "      open_.clear();\n", ""),
    ("open removals: the keys that a walk took are unlisted", "owner/disk/removals.cc",
     "    NoteGone(first.slot, keys);\n", ""),
    ("open removals: a walk's keys are unlisted in steps", "owner/disk/removals.cc",
     "first.on_disk.TakeKeys(room);", "first.on_disk.TakeKeys();\n    room = keys.size() + 1;"),
    ("open removals: one ends with the last of its keys", "owner/disk/removals.cc",
     "    if (room == 0) break;\n", "    if (room == 0) room = kUnlistedAtOnce;\n"),
    ("open removals: none ends before its disks have proven it", "owner/disk/removals.cc",
     "  if (awaited.open) return false;\n", ""),
    ("open removals: a request names at most as many as a master takes", "owner/link/link_core.cc",
     "open.size() >= room) {\n", "open.size() >= room + 9) {\n"),
    ("open removals: one without room does not ask for the same page again and again", "owner/link/link_core.cc",
     "    if (AwaitsRoom()) return {.wait_ns = kLanePauseNs};\n", ""),
    ("open removals: what is before one without room is acknowledged", "owner/link/link_core.cc",
     "room == 0 && next != page.removals.end() && !next->pattern.empty();", "room == 0 && next != page.removals.end();"),
    ("open removals: a page that comes again drops no slot each time", "owner/link/link_core.cc",
     "    if (awaits_room_) return;\n", ""),
    ("open removals: walks of an earlier master's take room", "owner/link/link_core.cc",
     "  const std::size_t room = target_.PatternRoom();\n", "  const std::size_t room = wire::kMaxOpenRemovals;\n"),
    ("open removals: another master's log may begin with keys", "owner/link/link_core.cc",
     "      awaits_room_ = false;\n      naming_", "      naming_"),
    ("open removals: an owner has room for as many as loads may look at", "owner/disk/removals.cc",
     "  return kMostPatterns - std::min(kMostPatterns, patterns_.size());\n", "  return kMostPatterns;\n"),
    ("open removals: a call with keys, too, waits for its pattern", "master/control/control_proofs.cc",
     "  std::vector<wire::Removal> parts;\n  for (",
     "  std::vector<wire::Removal> parts;\n  if (!removal.pattern.empty()) {\n    parts.push_back({.slot = removal.slot, .generation = removal.generation, "
     ".keys = {}, .pattern = std::exchange(removal.pattern, {})});\n  }\n  for ("),
    ("open removals: many owners do not ask a hundred times a second each", "master/control/control.cc",
     "std::max(kOpenWatchNs, open * kOpenWatchEachNs)", "std::max(kOpenWatchNs, 0 * open * kOpenWatchEachNs)"),
    ("open removals: a further one is refused before keys must wait for it", "master/control/control_proofs.cc",
     "  return patterns_.size() >= most ||", "  return patterns_.size() >= 9 * most ||"),
    ("open removals: tenants that refill theirs keep out no other", "master/control/control_proofs.cc",
     "of_tenant == 0 ? options_.patterns_with_first : options_.patterns;", "options_.patterns;"),
    ("open removals: the last places are for tenants that have none", "master/control/control_proofs.cc",
     "of_tenant == 0 ? options_.patterns_with_first : options_.patterns;", "options_.patterns_with_first;"),
    ("open removals: a tenant leaves some to others", "master/control/control_proofs.cc",
     "of_tenant >= options_.tenant_patterns;", "of_tenant >= 9 * options_.tenant_patterns;"),
    ("open removals: the ends of earlier ones make room", "master/control/members.cc",
     "member.Applied(removal);", "member.Applied(removal + 9);"),
    ("disk: one walk serves all patterns that wait", "owner/disk/disk_worker.cc",
     "    walk_->patterns = std::exchange(patterns_, {});\n",
     "    walk_->patterns.push_back(std::move(patterns_.front()));\n    patterns_.pop_front();\n"),
    ("disk: an object counts for the first pattern alone", "owner/disk/disk_worker.cc",
     "        if (first == walk->patterns.end()) return;\n",
     "        if (first == walk->patterns.end()) return;\n        (*found).back().emplace_back(object.key);\n"),
    ("disk: a bounded number of patterns waits for it", "owner/disk/removals.cc",
     "Patterns() >= kMostPatterns", "Patterns() >= 9 * kMostPatterns"),
    ("disk: the next process over disks that are void is forgotten", "master/control/members.cc",
     "  if (another && hello.disk && !member.fact.disk) return Admission::kUnknown;\n", ""),
    ("rollback: a disk is the one that was noted, not a copy of it", "disklog/format.h",
     "    return noted == Id128{} || noted == opening || noted == opening_before;\n", "    return true;\n"),
    ("rollback: a crash before an opening is noted costs no disk", "disklog/log.cc",
     "  super.opening_before = options.noted_opening;\n", ""),
    ("rollback: once an opening is noted no earlier one counts", "disklog/log.cc",
     "  state_.super.opening_before = {};\n", ""),
    ("rollback: a note of an earlier number does not end it", "disklog/log.cc",
     "  if (opening != state_.super.opening) return done({});\n", ""),
    ("rollback: a copy of an open disk is another one after its clean end", "disklog/log.cc",
     "    DrawOpening(done);\n", "    WriteSuperblock(done);\n"),
    ("rollback: an open disk draws no number before the last is noted", "disklog/log.cc",
     "  if (state_.super.opening_before == Id128{}) {\n", "  {\n"),
    ("rollback: a copy of an open disk is another one after some time", "owner/disk/disk_thread.cc",
     "      DrawAgain();\n", ""),
    ("rollback: a number that an open disk has drawn is noted", "owner/disk/disk_thread.cc",
     "    if (drawn && !stopping_) StartNoting();\n", ""),
    ("disk: its thread does not wait for the note of a drawn number", "owner/disk/disk_thread.cc",
     "  if (noter) noter_ = std::move(*noter);\n", "  if (noter) noter->join();\n"),
    ("rollback: a copy in the place of a disk that is set aside starts empty", "owner/disk/disk_thread.cc",
     "           found_.super.HasOpening(disk.opening);\n", "           true;\n"),
    ("rollback: an owner that names an earlier opening is forgotten", "master/control/members.cc",
     "  return hello.opening != stored && hello.opening_before != stored;\n", "  return false;\n"),
    ("rollback: no process is forgotten while its lease runs", "master/control/control.cc",
     "  if (!ended) return refuse(Code::kStale, ended.error().detail);\n", ""),
    ("rollback: the last opening is drawn before the lanes end", "owner/link/link.cc",
     "  target_.EndOpening();\n  Join();\n", "  Join();\n  target_.EndOpening();\n"),
    ("rollback: a running owner draws an opening of its directory", "owner/disk/disk_opening.cc",
     "    if (opening_.DrawAgain(clock_.NowNs())) SaveOpening();\n", ""),
    ("rollback: a disk that pauses is known by its opening", "owner/disk/owner_disks.cc",
     "    if (i < openings_.size()) disk.opening = openings_[i];\n", ""),
    ("rollback: a clone does not end the member of its original", "master/control/control.cc",
     "  if (member && !rolled_back) EndMember(*member, deferred);\n", "  if (member) EndMember(*member, deferred);\n"),
    ("rollback: a process waits for an opening that is being stored", "master/control/members.cc",
     "  if (another && member.asked_opening != Id128{}) {", "  if (false) {"),
    ("rollback: the disks wait until the master has the opening", "owner/disk/directory_opening.h",
     "    return kept_ && (!drawn_ || (stored_ != now_ && now_ns - drawn_ns_ < await_ns_));\n", "    return now_ns < 0;\n"),
    ("rollback: the directory has an opening before the master", "owner/disk/directory_opening.h",
     "return drawn_ && written_ ? now_ : Id128{};", "return drawn_ ? now_ : Id128{};"),
    ("rollback: no opening is drawn before the master has the last", "owner/disk/directory_opening.cc",
     "  if (!kept_ || !drawn_ || stored_ != now_) return false;\n", "  if (!kept_) return false;\n"),
    ("rollback: the directory keeps the opening that the master has", "owner/disk/directory_opening.cc",
     "  before_ = stored_;\n  now_ = RandomId();\n", "  now_ = RandomId();\n"),
    ("disk: a note holds the lock of its directory", "owner/disk/disk_opening.cc",
     "/*owner=*/0, std::move(lock)", "/*owner=*/0"),
    ("rollback: a position that a renewal shows is written down", "owner/link/link_core.cc",
     "  FollowPosition(asked_under);\n", ""),
    ("disk: its device is closed once nothing is under way in it", "owner/disk/disk_thread.cc",
     "  if (auto closer = StartThread(\"kvcove-closer\", [held] { delete held; })) closer->detach();\n", "  (void)held;\n"),
    ("disk: a thread that was left behind closes it", "owner/disk/disk_thread.cc",
     "      held = TakeHeld();\n", ""),
    ("disk: a thread that was left behind lets the note's directory go", "owner/disk/disk_thread.cc",
     "      known = std::move(place_.known);\n", ""),
    ("etcd: a leader stops before its lease ends", "master/etcd/etcd_leadership.cc", "return ttl_ns / 10 * 8;", "return ttl_ns / 4 * 5;"),
    ("masters: one doubt lasts for several looks", "server/etcd_masters.cc",
     "    while (AwaitDoubt()) {\n", "    for (; AwaitDoubt(); doubted_until_ns_ = 0) {\n"),
    ("client: connecting to a frozen daemon ends at the deadline", "rpc/client.cc",
     "Left(deadline_ns)), kMillisecond, kSecond)", "Left(deadline_ns)), kSecond, kSecond)"),
    ("completions: one that is late is not final while its call runs", "requester/completion.cc", ".final = false});", ".final = true});"),
    ("drain: it ends with its process", "master/control/members.cc",
     "    if (!same_memory) member.draining = false;\n", ""),
    ("puts: what waits for the master gives way to other puts", "owner/core/room.cc",
     "    Reservation* const waiting = reservations_.OldestWaiting(*from);\n", "    Reservation* const waiting = nullptr;\n"),
    ("puts: half of a space stays what the policy kept", "owner/core/room.h",
     "    return reservations_.waiting_bytes(space) > spaces_.object_bytes(space) / 2;\n", "    return false;\n"),
    ("puts: a token that is newer than the owner's knowledge is not stale", "owner/core/core_puts.cc",
     "  if (code == Code::kStale && Awaits(token)) code = Code::kUnavailable;\n", ""),
    ("puts: an owner without a generation knows no token's age", "owner/core/core.cc",
     "  return own == 0 || Follows(own, token.generation);\n", "  return own != 0 && Follows(own, token.generation);\n"),
    ("removals: an owner lists no put that a pattern may still take away", "master/directory/directory_service.cc",
     "  if (!item.inventory &&\n      removals_.PatternSince(item.slot, std::max(item.removals, request.applied))) {\n", "  if (false) {\n"),
    ("member end: a late first hello revives nothing", "master/control/members.cc",
     "hello.fresh && !ended_.contains(hello.owner) ? Admission::kFresh", "hello.fresh ? Admission::kFresh"),
    ("reset: a page that is not the last acknowledges nothing", "master/control/control.cc",
     "  if (!request.partial) {\n", "  {\n"),
    ("member end: a successor is of the same host and tenant", "master/control/members.cc",
     "at(*number).fact.host != hello.host || at(*number).fact.tenant != hello.tenant", "false"),
    ("member end: it is over only when nobody maps its memory", "owner/link/lineage.cc",
     "    if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {\n", "    if (false) {\n"),
    ("one value: a present owner's value stays", "master/control/standings.h",
     "    if (Present(number) && !drops) return Way::kNo;\n", ""),
    ("one value: what is told again while a lease runs stays", "master/directory/directory.cc",
     "  if (entry.group == item.group || !Stands(entry)) return Code::kOk;\n",
     "  if (entry.group == item.group || !Counts(entry)) return Code::kOk;\n"),
    ("one value: what was told again before a lease stays", "master/control/standings.h",
     "!EpochIs(number, listed_under) && TellsFirst(number);", "TellsFirst(number);"),
    ("one value: an absent owner's listing blocks no put", "master/control/standings.h",
     "    if (!Barred(number, slot)) return Way::kAsk;\n", "    if (!Barred(number, slot)) return Way::kNo;\n"),
    ("one value: barred before it gives way", "master/control/standings.h",
     "    if (!Barred(number, slot)) return Way::kAsk;\n", ""),
    ("one value: an owner whose lease ran out tells first", "master/control/members.cc",
     "member.tell_first = member.tell_first || overtaken || lapsed || back;", "member.tell_first = false;"),
    ("barrier: a removal without an absent owner needs one", "master/control",
     "    if (!options_.barriers) return true;\n", "    return true;\n"),
    ("barrier: it counts once it is stored", "master/control/members.cc",
     "if (!barrier->second.stored || barrier->second.unnamed_until_ns > now_ns) {",
     "if (barrier->second.unnamed_until_ns > now_ns) {"),
    ("barrier: it counts once each lease that does not name it has ended", "master/control/members.cc",
     "if (!barrier->second.stored || barrier->second.unnamed_until_ns > now_ns) {", "if (!barrier->second.stored) {"),
    ("barrier: it stays until the owner has applied what was proven by it", "master/control/members.cc",
     "const bool over = barrier.fact.term == term_ && barrier.stored && !barrier.overtaken &&\n"
     "                      barrier.covers <= member.removals;",
     "const bool over = barrier.fact.term == term_ && barrier.stored && !barrier.overtaken;"),
    ("barrier: of an earlier term, its slot is dropped", "master/control/members.cc",
     "    if (barrier.fact.term == term_) continue;\n    if (drop == 0)", "    continue;\n    if (drop == 0)"),
    ("barrier: nothing of its slot is listed before", "master/directory/directory_service.cc",
     "  if (std::ranges::find(drops, item.slot) != drops.end()) return refuse();\n", ""),
    ("barrier: the owner hides its slots before the deadline", "owner/link/link_core.cc",
     "  std::vector<SlotId> hidden = reply.hidden;\n", "  std::vector<SlotId> hidden;\n"),
    ("floor of the shard's memory", "master/directory/removal_memory.h",
     "    if (number < slots_[slot].floor) return true;\n", ""),
    ("floor of the log", "master/control/removal_log.cc", "if (slot.floor > after) page.drop.push_back(id);", ""),
    ("number at reservation", "owner/core/core_puts.cc", "  listings_.Await(reservation);\n",
     "  reservation.removals = applied_;\n  listings_.Await(reservation);\n"),
    ("a removal ends puts that were begun before it", "owner/core/core_objects.cc",
     "  if (claim != nullptr) reservations_.Remove(*claim);\n", ""),
    ("a commit under an earlier generation is refused", "owner/core/core_puts.cc",
     "  if (reservations_.Removed(reservation) ||\n"
     "      objects_.slot(reservation.slot).generation != reservation.generation) {\n    ++counters_.stale_puts;",
     "  if (reservations_.Removed(reservation)) {\n    ++counters_.stale_puts;"),
    ("a late commit does not take the key back", "owner/core/core_puts.cc",
     "  if (!reservations_.OwnsKey(reservation, clock_.NowNs())) {", "  if (false) {"),
    ("readers compare generations", "segment/reader.cc",
     "  if (of_entry != current || scope.generation != current) return MissReason::kReset;\n", "  (void)current;\n"),
    ("readers look at the version again after the fence", "segment/reader.cc",
     "  if (!view.StillThere(found.place, found.version)) return MissReason::kRaced;\n", ""),
    ("a loan is looked at again when it ends", "requester/local/loan.cc",
     "  return CheckScope(attachment_->header(), scope_, scope_.generation, now_ns);\n", "  return MissReason::kNone;\n"),
    ("a loan of an owner that is gone is a miss", "requester/local/loan.cc",
     "  if (!attachment_->connected()) return MissReason::kUnavailable;\n", ""),
    ("the owner looks at the slots of loans", "requester/local/reader_slots.cc",
     "  page_->lanes[lane].used.store(segment::kLaneSlots, std::memory_order_release);\n", ""),
    ("a lane stays the loans' while one of them has a slot of it", "requester/local/reader_slots.cc",
     "    if (free_slots_[lane] != kAllSlots) continue;\n", ""),
    ("what a closed session had reserved is given up", "requester/local/reservation.cc",
     "    if (closed || item.dropped) results[i].code = closed ? Code::kClosed : Code::kCorrupt;\n"
     "    ends.push_back({.reservation = item.reservation, .commit = !closed && !item.dropped});\n",
     "    (void)closed;\n    ends.push_back({.reservation = item.reservation, .commit = true});\n"),
    ("what a reader protects is not given out", "owner/core/withdrawn.cc",
     "return std::ranges::binary_search(protected_, place) || lent_.contains(place);", "return lent_.contains(place);"),
    ("what is lent is not given out", "owner/core/withdrawn.cc",
     "return std::ranges::binary_search(protected_, place) || lent_.contains(place);",
     "return std::ranges::binary_search(protected_, place);"),
    ("what is being written counts for the quota", "owner/core/spaces.h",
     "return At(number).used() + bytes <=", "return At(number).objects + bytes <="),
    ("reservations leave what is guaranteed to others", "owner/core/spaces.cc",
     "beyond_guarantees_ == 0 || beyond_guarantees_ + added <= floating;", "true;"),
    ("a listing that a later removal matches is refused", "master/directory/directory_service.cc",
     "if (removals_.RemovedSince(item.slot, tag, std::max(item.removals, options_.first_removal))) {", "if (false) {"),
    ("comparison at hello", "master/control/control.cc",
     "if (hello.incarnation == incarnation_ && KnowsLessThan(hello.seen)) {", "if (false) {"),
    ("generations before the deadline", "owner/link/link_core.cc",
     "  Apply(reply.changes, asked_under);\n  if (reply.granted) {",
     "  if (reply.granted) SetLease(sent_ns + reply.lease_ns);\n  Apply(reply.changes, asked_under);\n  if (reply.granted) {"),
    ("the deadline counts from when the lease was asked for", "owner/link/link_core.cc",
     "SetLease(sent_ns + reply.lease_ns);", "SetLease(sent_ns + 2 * reply.lease_ns);"),
    ("after a start: no lease before most members have said hello", "master/control/members.h",
     "  if (doubt_.Holds(request.number, now_ns)) return Renewal::kDoubted;\n", ""),
    ("after a start: most members are waited for, not some", "master/control/store_doubt.h",
     "const bool most = 2 * unheard_.size() < listed_.size();", "const bool most = true;"),
    ("after a start: a member that has ended vouches for nothing", "master/control/members.cc",
     "  doubt_.Ended(ref.number);\n", ""),
    ("after a start: only a lease that never ran out vouches for the store", "owner/link/link_core.cc",
     "request.leased = leased_until_ns_ > sent_ns_;", "request.leased = true;"),
    ("after a start: a lease of another incarnation vouches for nothing", "owner/link/link_core.cc",
     "      leased_until_ns_ = 0;  // it vouches for another history\n", ""),
    ("no lease while the store is known to lack facts", "master/control/control.cc",
     "renewal == Members::Renewal::kGranted && !lost_;", "renewal == Members::Renewal::kGranted;"),
    ("a lease needs the current generations", "master/control/members.h",
     "  if (request.table < table) return Renewal::kBehind;\n", ""),
    ("term: numbers of removals grow with it", "master/control/removal_log.h", "return term << 40;", "return 1ULL << 40;"),
    ("term: an owner that knows a later one", "master/control/control.cc",
     "  if (seen.term > own.term) return true;\n", "  if (seen.term > own.term) return false;\n"),
    ("member: in the store before its first lease", "master/control/control.cc",
     "  commits_.Add({{.key = MemberKey(hello.owner), .value = Encode(*fact)}},", "  commits_.Add({},"),
    ("member end: stored before anything is proven without it", "master/control/control.cc",
     "  commits_.Add(Deletions(members_.BeginEnd(number)),", "  (void)members_.BeginEnd(number);\n  commits_.Add({},"),
    ("member: an identity that is not in the store drops its objects", "master/control/members.cc",
     "    return hello.fresh && !ended_.contains(hello.owner) ? Admission::kFresh : Admission::kUnknown;\n",
     "    return Admission::kFresh;\n"),
    ("member: one process under a running lease", "master/control/members.cc",
     "  if (another && member.lease_until_ns > now_ns) {", "  if (false) {"),
    ("reset: it is not sent without the registration of its version", "requester/calls.cc",
     "    if (!registered && !full) return std::unexpected(registered.error());\n", "    (void)full;\n"),
    ("reset: a busy or absent master is not one without room", "requester/calls.cc",
     "        !registered && registered.error().code == Code::kLimit && !rpc::BusyIn(registered.error());\n",
     "        !registered && registered.error().code == Code::kLimit;\n"),
    ("reset: a version that any client of the host knows is registered", "requester/local/host_session.cc",
     "  const bool known = request.version && KnowsVersion(*request.version);\n", "  const bool known = false;\n"),
    ("reset: one that another master got than the registration is repeated", "requester/cluster/cluster_session.cc",
     "  if (known && host_->master_address() != asked) {\n", "  if (false && host_->master_address() != asked) {\n"),
    ("reset: a registered version is voided whatever came between", "master/control/generations.cc",
     "  if (request.registered || !request.version", "  if (!request.version"),
    ("reset: an error of this process is no refusal", "requester/cluster/cluster_session.cc",
     "    return Fail(local ? Code::kUnavailable : outcome.error().code, outcome.error().detail);\n",
     "    (void)local;\n    return std::unexpected(outcome.error());\n"),
    ("reset: its caller waits while no master answers", "requester/reset_keeper.cc",
     "  const bool waits = StartRetries() &&", "  const bool waits = StartRetries() && false &&"),
    ("reset: a repetition whose caller has given up shares no generation", "requester/reset_keeper.cc",
     "  pending_->request.late = true;\n", ""),
    ("reset: its caller is answered after an attempt that shares generations", "requester/reset_keeper.cc",
     "  while (sharing_ == attempt) changed_.Wait(mutex_);\n", ""),
    ("reset: its caller does not wait for attempts of later ones", "requester/reset_keeper.cc",
     "  while (sharing_ == attempt) changed_.Wait(mutex_);\n", "  while (sharing_ != 0) changed_.Wait(mutex_);\n"),
    ("reset: a later one that is proven ends the attempts that share generations", "requester/reset_keeper.cc",
     "    if (proves()) EndSharing();\n", ""),
    ("reset: the end of a session ends its attempt", "requester/reset_keeper.cc",
     "      const InterruptBy interrupt(ends_);\n", ""),
    ("a reset waits for every lease", "master/control/members.cc",
     "return !options_.strict && member->lease_until_ns <= now_ns;", "return true;"),
    ("a removal that a reset voids waits for the new generation", "master/control/control_proofs.cc",
     "    if (raised) return members_.TableProven(ref, *raised, now_ns);\n", ""),
    ("--strict: no lease that ran out proves anything", "master/control/members.cc",
     "return !options_.strict && member->lease_until_ns <= now_ns;", "return member->lease_until_ns <= now_ns;"),
    ("a reset waits for leases of masters that nobody knows", "master/control/generation_keeper.cc",
     "if (clock_.NowNs() >= proven_from_ns_) return answer();", "return answer();"),
    ("nobody learns of a fact before it is synced", "master/store/control_file.cc",
     "  KVCOVE_TRY(disk_->Sync(kName));\n  known_ = true;\n  const std::uint64_t first",
     "  known_ = true;\n  const std::uint64_t first"),
    ("a slot that another tenant has is void for its old one's owner", "master/control/slot_table.cc",
     "TenantOf(update.name) != only_tenant", "false"),
    ("device: a load's kernel waits for the step's mark", "transport/cuda/submit.cc",
     "    if (load_) {\n      Await(kernel_, kernel_waits_);\n", "    if (load_) {\n"),
    ("device: a save's kernel waits for the step's mark", "transport/cuda/submit.cc",
     "    } else {\n      Await(kernel_, kernel_waits_);\n", "    } else {\n"),
    ("device: copies run by run wait for the step's mark", "transport/cuda/submit.cc",
     "    Await(copy_, copy_waits_);\n", ""),
    ("device: a slot is filled again when its bytes are away", "transport/cuda/submit.cc",
     "    if (slot.used && ok()) Do(driver_.stream_wait(first, slot.free, 0), \"a wait for a slot\");\n", ""),
    ("device: a slot's second half waits for the first", "transport/cuda/submit.cc",
     "    if (ok()) Do(driver_.stream_wait(then, slot.filled, 0), \"a wait for a slot's bytes\");\n", ""),
    ("device: a ticket covers both of its paths", "transport/cuda/submit.cc",
     "    const bool joined = !used_copy_ || !used_kernel_ ||\n", "    const bool joined = !used_copy_ || used_kernel_ ||\n"),
    ("device: lists of runs stay until the ticket is over", "transport/cuda/submit.cc",
     "    Ticket ticket{.way = way, .enqueued = status_, .blocks = std::move(blocks_)};\n",
     "    for (const RunBlock& block : blocks_) staging_.blocks.push_back(block);\n"
     "    Ticket ticket{.way = way, .enqueued = status_};\n"),
    ("device: a late error is told", "transport/cuda/device.cc",
     "  KVCOVE_TRY(CheckResult(result, \"copies that were under way\"));\n", ""),
    ("device: a ticket without an event ends with its streams", "transport/cuda/device.cc",
     "driver_.event_query(done) : QueryStreams(Of(at->second.way));", "driver_.event_query(done) : kSuccess;"),
    ("device: no mark in a stream that is captured", "transport/cuda/device.cc",
     "  if (capturing != 0) {\n", "  if (false) {\n"),
    ("device: calls beside a capture are relaxed", "transport/cuda/driver.h", "int mode_ = 2;", "int mode_ = 0;"),
    ("device: our streams do not wait for the default one", "transport/cuda/device.cc",
     "kNonBlocking = 1;", "kNonBlocking = 0;"),
    ("device: loads have the higher priority", "transport/cuda/device.cc",
     "StartChannel(Of(DeviceWay::kLoad), greatest,", "StartChannel(Of(DeviceWay::kLoad), least,"),
    ("device: a slot has room for a chunk", "transport/cuda/paths.cc",
     "at + copy.bytes > limits_.chunk_bytes ||\n", "false ||\n"),
    ("device: lent memory comes back when the ticket is over", "transport/device_queue.cc",
     "  flight->host = std::move(host);\n", "  host.reset();\n"),
    ("device: what is forgotten is not called", "transport/device_queue.cc",
     "      dones.push_back(std::exchange(flight->done, nullptr));\n", ""),
    ("device: a load runs behind its step's mark", "connector/worker/worker_steps.cc", "    job->after = mark;\n", ""),
    ("device: a save is due when its step is computed", "connector/worker/worker_steps.cc",
     "  const bool at_once = !*step.ready && queue == nullptr;\n", "  const bool at_once = !*step.ready;\n"),
    ("device: the stream waits for synchronous loads", "connector/worker/worker_layers.cc",
     "  WaitOnStream(stream, kAllParts);\n", ""),
    ("device: a step that comes to no layer waits for its loads", "connector/worker/worker_steps.cc",
     "  if (options_.layer_parts > 1) WaitForSyncLoads(stream);\n", ""),
    ("device: the stream waits for the first layers of all values first", "connector/worker/worker_layers.cc",
     "lent.push_back(std::move(some.batch));", "SubmitByLayers(job, {some.batch}, false);"),
    ("device: what the stream waits for, and is more than may be lent, comes behind it", "connector/worker/worker_layers.cc",
     "      waits = some.waits;\n", ""),
    ("device: the stream waits for the parts up to a layer's only", "connector/worker/device_moves.cc",
     "      if (each.number > part) return false;\n", ""),
    ("device: a load ends when nothing lands any more", "connector/worker/job_results.cc",
     "  if (job.in_flight > 0) return;\n", ""),
    ("device: a late error fails its blocks", "connector/worker/device_moves.cc",
     "      batch.tally.bad.insert(item.place);\n", ""),
    ("device: unregister waits for the device", "connector/worker/worker.cc",
     "  if (AwaitFlights()) return true;\n", "  return true;\n"),
    ("device: what a hanging device may write is never given back", "transport/device_queue.cc",
     "KeepForEver(flight->host);", "KeepForEver(nullptr), (void)flight;"),
    ("device: no run crosses the end of a pinned piece", "transport/cuda/paths.cc",
     "    auto seam = std::ranges::upper_bound(limits.seams, copy.host);\n", "    auto seam = limits.seams.end();\n"),
    ("device: no span crosses the end of a pinned piece", "transport/cuda/paths.cc",
     "!std::ranges::binary_search(limits_.seams, copy.host)", "true"),
    ("device: nothing is pinned beyond the populated mark", "connector/worker/segment_pins.cc",
     "    if (segment->bytes() + piece <= segment->range_.populated_bytes) return segment;\n", "    return segment;\n"),
    ("device: memory that is not pinned is not used in place", "connector/worker/segment_pins.cc",
     "  return offset <= pinned && bytes <= pinned - offset;\n", "  return offset <= range_.size_bytes && bytes > 0 && pinned > 0;\n"),
    ("device: a transfer keeps its memory pinned", "connector/worker/in_place.h",
     "segments_.push_back(std::move(segment));", "segment.reset();"),
    ("device: transfers hold a bounded part of the pool", "connector/worker/in_place.h",
     "    if (bounded && before != 0 && before + bytes > most_bytes_) {\n", "    if (before + bytes < bytes) {\n"),
    ("device: what the stream waits for is held as long as it takes", "connector/worker/worker_layers.cc",
     "job.BytesOf(items), false)", "job.BytesOf(items), true)"),
    ("device: loads of a rank without a store end", "connector/worker/worker_steps.cc",
     "  (void)FailLoadsWithoutStore(lines);\n", ""),
    ("device: owners that are gone are seen while memory is pinned", "connector/worker/segment_pins.cc",
     "since_look_ < kPiecesALook ? Next() : nullptr", "Next()"),
    ("device: what a load read in place is looked at again", "connector/worker/worker_device.cc",
     "  if (load && batch->in_place != nullptr && batch->status) Revalidate(*batch);\n", ""),
    ("device: a load that waits for the pool's memory goes on", "connector/worker/device_moves.cc",
     "  flow.blocked = false;\n", ""),
    ("device: what waits for the pool's memory needs no ring", "connector/worker/worker_in_place.cc",
     "  return moves_.batches(load) > 0;\n", "  return false;\n"),
    ("device: a save in place is committed when the device is done", "connector/worker/worker_in_place.cc",
     "    Submit(batch);\n  }\n", "    CommitInPlace(*batch);\n    Submit(batch);\n  }\n"),
    ("device: a reservation is the device's until it is done", "connector/worker/worker_in_place.cc",
     "    Submit(batch);\n  }\n", "    Submit(batch);\n    space.Abort();\n  }\n"),
    ("device: a save in place that failed is not committed", "connector/worker/worker_device.cc",
     "  if (!batch.status) {\n    batch.in_place->space.Abort();\n    return;\n  }\n", ""),
    ("device: a session's own misses alone are final", "connector/worker/worker_in_place.cc",
     "result.code == Code::kMiss && !result.elsewhere;", "result.code == Code::kMiss;"),
]  # fmt: skip


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def must(command):
    done = run(command)
    if done.returncode != 0:
        sys.exit(done.stdout[-4000:])


def copy_sources():
    """What has not changed keeps its time, so that it is not built again."""
    names = run(["git", "-C", str(ROOT), "ls-files"]).stdout.splitlines()
    for file in [file for file in COPY.rglob("*") if file.is_file() and str(file.relative_to(COPY)) not in set(names)]:
        file.unlink()  # it was moved: the build would take both
    for name in names:
        source, target = ROOT / name, COPY / name
        if not source.is_file():
            continue
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())


def build(programs=PROGRAMS):
    return run(["cmake", "--build", str(BUILD), "--target", *programs])


def failing(tests=TESTS):
    """The first test that fails, or nothing."""
    for test in tests:
        environment = {"KVCOVE_SIM_SEEDS": "40", "PATH": "/usr/bin:/bin"}
        if test == "cluster_sim":
            environment["GTEST_FILTER"] = "*KeepsItsPromises*"
        done = run(["ctest", "--test-dir", str(BUILD), "-R", f"^{test}$", "--no-tests=error"], env=environment)
        if done.returncode != 0:
            return test
    return None


def noticed_by(module):
    """What notices a mutant of this module: "" for nothing. Its own tests are asked first, as the others are five
    programs more to link."""
    own = [test for test in TESTS if test.startswith(module + "_")]
    stages = [([name for name in PROGRAMS if name.startswith(f"{module}_")], own)] if own else []
    for programs, tests in [*stages, (PROGRAMS, [test for test in TESTS if test not in own])]:
        if build(programs).returncode != 0:
            return "it does not compile"
        if (found := failing(tests)) is not None:
            return found
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rules with this text")
    parser.add_argument("--list", action="store_true", help="show the rules")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if arguments.only in mutant[0]]
    if arguments.list:
        print("\n".join(mutant[0] for mutant in chosen))
        return 0
    copy_sources()
    must(["cmake", "-S", str(COPY), "-B", str(BUILD), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DKVCOVE_UNITY=0"])
    built = build()
    if built.returncode != 0:
        sys.exit(built.stdout[-4000:])
    if (broken := failing()) is not None:
        sys.exit(f"{broken} fails without any mutant")
    unnoticed = []
    for rule, path, old, new in chosen:
        began = time.monotonic()
        matches = [file for file in sorted((COPY / "kvcove").rglob("*")) if file.is_file()
                   and str(file.relative_to(COPY / "kvcove")).startswith(path) and "_test." not in file.name]
        matches = [file for file in matches if old in file.read_text()]
        if not matches:
            outcome = "NOT FOUND: " + path
            unnoticed.append(rule)
        else:
            text = matches[0].read_text()
            matches[0].write_text(text.replace(old, new, 1))
            found = noticed_by(path.partition("/")[0])
            matches[0].write_text(text)
            outcome = found or "UNNOTICED"
            if found in ("", "it does not compile"):
                unnoticed.append(rule)
        print(f"{rule}: {outcome} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{len(chosen) - len(unnoticed)} of {len(chosen)} rules: a test fails without them")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
