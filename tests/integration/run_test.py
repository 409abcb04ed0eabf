#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`kvcove run -- COMMAND`, with real owners and masters: tests/integration/run_test.py KVCOVE"""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

KVCOVE = ""


KEPT = []


def port():
    """One that nobody uses, below the range from which connections get theirs.

    This process keeps a socket bound to it, which keeps out other tests but no server (SO_REUSEADDR).
    """
    while True:
        number = random.randrange(10000, 30000)
        probe = socket.socket()
        try:
            probe.bind(("127.0.0.1", number))
        except OSError:
            probe.close()
            continue
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        KEPT.append(probe)
        return number


def alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


class Run(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="kvcove-run-"))
        self.socket = self.directory / "s" / "kvcove.sock"
        self.log = self.directory / "s" / "kvcove.sock.log"
        self.started = []
        self.environment = {**os.environ, "KVCOVE_SOCKET": str(self.socket), "KVCOVE_MEMORY": "64MiB"}

    def tearDown(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.assertTrue(self.until(lambda: not self.owners()), f"owners are left: {self.owners()}")
        self.assertFalse(self.socket.exists(), "the socket is left")
        shutil.rmtree(self.directory)

    def owners(self):
        """Pids of the owners at this test's socket: their log is open in them."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if os.readlink(entry / "fd" / "2") == str(self.log) and alive(entry.name):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def until(self, condition, seconds=60.0):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.02)
        return condition()

    def start(self, *words, errors=subprocess.PIPE, **environment):
        process = subprocess.Popen(
            [KVCOVE, *words], env={**self.environment, **environment}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
        self.started.append(process)
        return process

    def run_command(self, *words, timeout=120, **environment):
        process = self.start("run", *words, **environment)
        output, errors = process.communicate(timeout=timeout)
        return process.returncode, output, errors

    def listens(self):
        """Whether an owner listens at the socket, whose name is there a moment before."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def start_master(self):
        number = port()
        master = self.start("--log", "error", "master", "--listen", f"127.0.0.1:{number}", "--admin", "off",
                            "--data", str(self.directory / "m"))  # fmt: skip
        return master, f"127.0.0.1:{number}"

    def cluster_options(self, master):
        return ["--master", master, "--listen", f"127.0.0.1:{port()}", "--admin", "off"]

    # ---- what COMMAND gets, and what its end says

    def test_it_returns_what_the_command_returns(self):
        for script, status in (("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)):
            self.assertEqual(self.run_command("--", "sh", "-c", script)[0], status)
        status, _, errors = self.run_command("--", "no-such-command")
        self.assertEqual((status, "cannot be run" in errors), (127, True))
        status, _, errors = self.run_command("--", str(self.directory))
        self.assertEqual((status, "cannot be run" in errors), (126, True))

    def test_without_a_command_it_says_how_to_give_one(self):
        status, _, errors = self.run_command("--memory", "1MiB")
        self.assertEqual((status, "-- COMMAND" in errors), (2, True))

    def test_what_stands_behind_the_dashes_is_the_commands(self):
        status, output, _ = self.run_command("--memory", "8MiB", "--", "echo", "--memory", "lots", "serve", "--", "-x")
        self.assertEqual((status, output), (0, "--memory lots serve -- -x\n"))

    def test_a_pool_of_one_host(self):
        _, output, _ = self.run_command("--", "env")
        self.assertIn(f"KVCOVE_POOL=unix:{self.socket}\n", output)
        self.assertNotIn("PREFERRED_SEGMENT", output)

    def test_the_owner_logs_as_the_run_does(self):
        status, _, errors = self.run_command("--log-format", "json", "--", "true")
        self.assertEqual(status, 0, errors)
        lines = self.log.read_text().splitlines()
        self.assertTrue(lines)
        for line in lines:
            self.assertIn("message", json.loads(line))
        self.run_command("--log", "error", "--", "true")
        self.assertEqual(self.log.read_text(), "")

    def test_a_host_of_a_cluster(self):
        _, master = self.start_master()
        options = self.cluster_options(master)
        _, output, errors = self.run_command(*options, "--", "env")
        self.assertIn(f"KVCOVE_POOL=kvcove://{master}\n", output, errors)
        self.assertIn(f"\nKVCOVE_PREFERRED_SEGMENT={options[3]}\n", output)
        self.assertIn(f"\nMOONCAKE_PREFERRED_SEGMENT={options[3]}\n", output)

    def test_the_command_moves_payload_as_its_owner_does(self):
        _, master = self.start_master()
        options = ["--master", master, "--no-owner"]
        for given, query in (
            ([], ""),
            (["--transport", "tcp", "--devices", "mlx5_0"], ""),
            (["--transport", "auto"], "?transport=auto"),
            (["--transport", "verbs", "--devices", "mlx5_0,mlx5_1:2", "--gid-index", "3", "--rdma-plaintext"],
             "?transport=verbs&devices=mlx5_0:1/3,mlx5_1:2/3&rdma_plaintext=1"),
        ):  # fmt: skip
            status, output, errors = self.run_command(*options, *given, "--", "env")
            self.assertEqual(status, 0, errors)
            self.assertIn(f"KVCOVE_POOL=kvcove://{master}{query}\n", output)
        rdma = ["--transport", "auto", "--devices", "mlx5_0"]
        status, output, errors = self.run_command(*options, *rdma, "--", "env", MC_GID_INDEX="4")
        self.assertEqual(status, 0, errors)
        self.assertIn(f"KVCOVE_POOL=kvcove://{master}?transport=auto&devices=mlx5_0:1/4\n", output)
        status, output, errors = self.run_command(*options, *rdma[:2], "--gid-index", "4", "--", "env")
        self.assertEqual(status, 0, errors)
        self.assertIn(f"KVCOVE_POOL=kvcove://{master}?transport=auto\n", output)
        self.assertIn("GID index 4: the command does not get it", errors)
        for given, text in ((["--transport", "rdma"], "auto, verbs (RDMA) and tcp are known"),
                            (["--gid-index", "x"], "'x' is no GID index")):  # fmt: skip
            status, output, errors = self.run_command(*options, *given, "--", "echo", "ran")
            self.assertEqual((status, output), (2, ""), errors)
            self.assertIn(text, errors)

    def test_an_engine_gets_the_connector_unless_it_brings_one(self):
        engine = self.directory / "vllm"
        engine.write_text("#!/bin/sh\necho \"$@\"\n")
        engine.chmod(0o755)
        config = self.directory / "engine.yaml"
        config.write_text("model: m\nkv_transfer_config: {}\n")
        added = '{"kv_connector":"KvcoveConnector","kv_connector_module_path":"kvcove.vllm","kv_role":"kv_both",' \
                '"kv_load_failure_policy":"recompute","kv_connector_extra_config":{"pool":"unix:%s"}}' % self.socket  # fmt: skip
        mooncake = '{"kv_connector":"MooncakeStoreConnector","kv_role":"kv_both",' \
                   '"kv_load_failure_policy":"recompute","kv_connector_extra_config":{"load_async":true,"enable_cross_layers_blocks":true}}'  # fmt: skip
        for options, words, expected in (
            ([], ["serve", "m"], f"serve m --kv-transfer-config {added}"),
            (["--connector", "mooncake"], ["serve", "m"], f"serve m --kv-transfer-config {mooncake}"),
            (["--connector", "none"], ["serve", "m"], "serve m"),
            ([], ["serve", "m", "--kv-transfer-config={}"], "serve m --kv-transfer-config={}"),
            ([], ["serve", "--config", str(config)], f"serve --config {config}"),
            ([], ["bench"], "bench"),
        ):
            _, output, errors = self.run_command(*options, "--", str(engine), *words)
            self.assertEqual(output, expected + "\n", errors)
        # Started as modules, and as the files of modules.
        python = self.directory / "python"
        main = self.directory / "tree/vllm/entrypoints/cli/main.py"
        server = self.directory / "tree/vllm/entrypoints/openai/api_server.py"
        for path in (python, main, server):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(engine.read_text())
            path.chmod(0o755)
        for words, takes in (
            ([python, "-m", "vllm.entrypoints.openai.api_server", "--model", "m"], True),
            ([python, "-m", "vllm.entrypoints.cli.main", "serve", "m"], True),
            ([python, "-m", "vllm", "serve", "m"], True),
            ([main, "serve", "m"], True),
            ([server, "--model", "m"], True),
            ([python, "-m", "vllm.entrypoints.cli.main", "bench"], False),
        ):
            _, output, errors = self.run_command("--", *map(str, words))
            expected = " ".join(map(str, words[1:])) + (f" --kv-transfer-config {added}" if takes else "")
            self.assertEqual(output, expected + "\n", errors)

    def test_a_server_of_sglang_gets_the_storage_backend_unless_it_brings_one(self):
        engine = self.directory / "sglang"
        module = self.directory / "python"
        for path in (engine, module):
            path.write_text("#!/bin/sh\necho \"$@\"\n")
            path.chmod(0o755)
        added = (
            "--enable-hierarchical-cache --hicache-storage-backend dynamic --hicache-storage-backend-extra-config "
            '{"backend_name":"kvcove","module_path":"kvcove.sglang","class_name":"KvcoveStorage","interface_v1":1,'
            '"pool":"unix:%s"}' % self.socket
        )
        server = [module, "-m", "sglang.launch_server", "--model-path", "m"]
        for options, words, takes in (
            ([], server, True),
            ([], [engine, "serve", "m"], True),
            ([], [engine, "bench"], False),
            (["--connector", "none"], server, False),
            (["--connector", "mooncake"], server, False),
            ([], [*server, "--hicache-storage-backend", "file"], False),
            ([], [*server, "--hicache-storage-backend=file"], False),
            ([], [*server, "--disable-radix-cache"], False),
            ([], [*server, "--enable-lmcache"], False),
            ([], [*server, "--enable-unified-cache-external-linker"], False),
        ):
            _, output, errors = self.run_command(*options, "--", *map(str, words))
            expected = " ".join(map(str, words[1:])) + (f" {added}" if takes else "")
            self.assertEqual(output, expected + "\n", errors)

    def test_a_server_of_lmcache_gets_the_l2_adapter_unless_it_brings_one(self):
        program = self.directory / "lmcache"
        module = self.directory / "python"
        for path in (program, module):
            path.write_text("#!/bin/sh\necho \"$@\"\n")
            path.chmod(0o755)
        added = (
            '--l2-adapter {"type":"plugin","module_path":"kvcove.lmcache","class_name":"KvcoveL2Adapter",'
            '"adapter_params":{"pool":"unix:%s"}}' % self.socket
        )
        server = [program, "server", "--l1-size-gb", "1"]
        for options, words, takes in (
            ([], server, True),
            ([], [module, "-m", "lmcache.cli.main", "server"], True),
            ([], [program, "bench", "server"], False),
            (["--connector", "none"], server, False),
            (["--connector", "mooncake"], server, False),
            ([], [*server, "--l2-adapter", "{}"], False),
            ([], [*server, "--l2-adapter={}"], False),
        ):
            _, output, errors = self.run_command(*options, "--", *map(str, words))
            expected = " ".join(map(str, words[1:])) + (f" {added}" if takes else "")
            self.assertEqual(output, expected + "\n", errors)

    def test_an_engine_with_vllms_own_connector_is_warned_of(self):
        engine = self.directory / "vllm"
        engine.write_text("#!/bin/sh\n")
        engine.chmod(0o755)
        config = self.directory / "engine.yaml"
        config.write_text("model: m\ntensor-parallel-size: 2\n")
        own = '--kv-transfer-config={"kv_connector":"MooncakeStoreConnector"%s}'
        recompute = own % ',"kv_load_failure_policy":"recompute"'
        ranks, policy = "rank 0 only", "recompute"
        for options, words, warned in (
            (["--connector", "mooncake"], ["serve", "m"], []),
            (["--connector", "mooncake"], ["serve", "m", "-tp", "1"], []),
            (["--connector", "mooncake"], ["serve", "m", "--tensor-parallel-size", "2"], [ranks]),
            (["--connector", "mooncake"], ["serve", "m", "-tp=4"], [ranks]),
            (["--connector", "mooncake"], ["serve", "--config", str(config)], [ranks]),
            ([], ["serve", "m", "--tensor-parallel-size=2"], []),
            ([], ["serve", "m", own % ""], [policy]),
            ([], ["serve", "m", own % "", "-tp", "2"], [ranks, policy]),
            ([], ["serve", "m", recompute], []),
            ([], ["serve", "m", recompute, "--tensor_parallel_size", "2"], [ranks]),
            ([], ["serve", "m", recompute, "-tp", "1", "--pipeline-parallel-size=2"], [ranks]),
            ([], ["serve", "m", recompute, "-tp", "1", "-pp=1"], []),
        ):
            _, _, errors = self.run_command(*options, "--", str(engine), *words)
            lines = [line for line in errors.splitlines() if " warning " in line and "MooncakeStoreConnector" in line]
            self.assertEqual(len(lines), len(warned), errors)
            for line, text in zip(lines, warned):
                self.assertIn(text, line)

    def test_what_engines_say_of_the_pool_is_told_at_the_end(self):
        script = """
            echo "7-1 all 60 s of this engine: 1 of 9 tokens" > $KVCOVE_SUMMARIES
            echo "7-1 all 90 s of this engine: 2 of 9 tokens" > $KVCOVE_SUMMARIES
            echo "8-1 all 30 s of this engine: 3 of 9 tokens" > $KVCOVE_SUMMARIES
            echo nonsense > $KVCOVE_SUMMARIES"""
        for options in ((), ("--no-owner",)):
            status, _, errors = self.run_command(*options, "--", "sh", "-c", script)
            told = [line.partition("engine ")[2] for line in errors.splitlines() if " tokens" in line]
            self.assertEqual((status, told), (0, ["7-1: all 90 s of this engine: 2 of 9 tokens",
                                                  "8-1: all 30 s of this engine: 3 of 9 tokens"]))  # fmt: skip
        # What was said before the command was killed is told, too; a flood is taken.
        script = """
            i=0; while [ $i -lt 3000 ]; do echo "9-1 $i tokens, $(printf %100s)"; i=$((i + 1)); done > $KVCOVE_SUMMARIES
            kill -9 $$"""
        status, _, errors = self.run_command("--", "sh", "-c", script)
        self.assertEqual(status, 137)
        self.assertIn("engine 9-1: 2999 tokens", errors)

    # ---- ends

    def test_nothing_but_what_is_promised_is_left(self):
        self.assertEqual(self.run_command("--", "true")[0], 0)
        self.assertEqual(sorted(entry.name for entry in self.socket.parent.iterdir()), ["data", self.log.name])
        self.assertEqual(self.owners(), [])

    def command(self, script, *options):
        """A command that prints its pid when it runs."""
        path = self.directory / f"errors-{len(self.started)}"
        with path.open("w") as errors:
            run = self.start("run", *options, "--", "sh", "-c", f"echo $$; {script}", errors=errors)
        run.errors = path
        return run, int(run.stdout.readline())

    def says(self, run, text, times=1):
        """Wait until a run has said it so often."""
        self.assertTrue(self.until(lambda: run.errors.read_text().count(text) >= times),
                        f"{text!r} is not in: {run.errors.read_text()}")  # fmt: skip

    def test_signals_are_passed_on(self):
        run, _ = self.command("trap 'exit 3' TERM; trap 'echo again' USR1; echo set; while true; do sleep 0.05; done")
        self.assertEqual(run.stdout.readline(), "set\n")
        run.send_signal(signal.SIGUSR1)
        self.assertEqual(run.stdout.readline(), "again\n")
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(60), 3)
        self.assertEqual(self.owners(), [])

    def test_as_process_1_of_a_container_it_leaves_no_zombies(self):
        words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        if subprocess.run([*words, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("this user may not make PID namespaces")
        orphans = "for i in 1 2 3; do (sleep 0.1 &); done; sleep 2; grep -h State: /proc/[0-9]*/status; exit 3"
        ran = subprocess.run(
            [*words, KVCOVE, "run", "--", "sh", "-c", orphans], env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        self.assertEqual(ran.returncode, 3, ran.stderr)
        self.assertIn("State:\tS", ran.stdout)
        self.assertNotIn("zombie", ran.stdout)

    def test_a_command_that_does_not_heed_sigterm_is_killed(self):
        run, command = self.command("trap '' TERM; echo set; while true; do sleep 0.05; done", "--stop-timeout", "1")
        self.assertEqual(run.stdout.readline(), "set\n")
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(60), 137)
        self.assertFalse(alive(command))

    def test_when_it_is_killed_the_command_and_the_owner_end(self):
        run, command = self.command("exec sleep 60")
        self.assertEqual(len(self.owners()), 1)
        run.kill()
        self.assertTrue(self.until(lambda: not alive(command) and not self.owners()))

    def test_a_shared_owner_stays(self):
        for _ in range(2):
            self.assertEqual(self.run_command("--shared", "--", "true")[0], 0)
            self.assertEqual(len(self.owners()), 1)
        time.sleep(1)
        (owner,) = self.owners()
        os.kill(owner, signal.SIGTERM)

    def test_a_signal_while_the_owner_is_awaited_ends_it(self):
        run = self.start("run", *self.cluster_options(f"127.0.0.1:{port()}"), "--", "true")
        self.assertTrue(self.until(self.owners))
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(60), 143)
        self.assertEqual(self.owners(), [])

    # ---- several at once

    def test_two_share_one_owner_that_ends_with_the_last(self):
        first, _ = self.command("exec sleep 60")
        second, _ = self.command("exec sleep 60")
        owners = self.owners()
        self.assertEqual(len(owners), 1)
        first.terminate()
        self.assertEqual(first.wait(60), 143)
        time.sleep(0.5)
        self.assertEqual(self.owners(), owners)
        second.terminate()
        self.assertEqual(second.wait(60), 143)
        self.assertTrue(self.until(lambda: not self.owners()))

    def test_many_that_start_at_once_start_one_owner(self):
        runs = [self.command("exec sleep 60") for _ in range(5)]
        self.assertEqual(len(self.owners()), 1)
        for run, _ in runs:
            run.terminate()
        for run, _ in runs:
            self.assertEqual(run.wait(60), 143)

    def test_an_owner_that_somebody_else_started_is_used_and_stays(self):
        owner = self.start("--log", "error", "serve")
        self.assertTrue(self.until(self.listens))
        status, _, errors = self.run_command("--memory", "128MiB", "--", "true")
        self.assertEqual(status, 0)
        self.assertIn("it was there already, so --memory and other options of an owner do not apply", errors)
        time.sleep(0.3)
        self.assertIsNone(owner.poll())
        owner.terminate()
        self.assertEqual(owner.wait(60), 0)

    # ---- faults

    def test_an_owner_that_dies_is_reported_and_started_again(self):
        starter, _ = self.command("exec sleep 60")
        other, _ = self.command("exec sleep 60")
        runs = [starter, other]
        for times in (1, 2):  # also when its starter has gone
            owners = self.owners()
            os.kill(owners[0], signal.SIGKILL)
            self.assertTrue(self.until(lambda: self.owners() not in ([], owners)), "no other owner was started")
            # An owner that nobody else attends ends with the run that started it.
            for run in runs:
                self.says(run, "the owner is ready again", times)
            if times == 1:
                self.says(starter, "the owner ended by signal 9")
            run = runs.pop(0)
            run.terminate()
            run.communicate(timeout=60)
        self.assertTrue(self.until(lambda: not self.owners()))

    def test_an_owner_that_dies_is_reported_by_its_starter_when_another_has_started_one(self):
        starter, _ = self.command("exec sleep 60")
        self.command("exec sleep 60")
        (owner,) = self.owners()
        os.kill(starter.pid, signal.SIGSTOP)
        os.kill(owner, signal.SIGKILL)
        self.assertTrue(self.until(lambda: self.owners() not in ([], [owner])), "no other owner was started")
        os.kill(starter.pid, signal.SIGCONT)
        self.says(starter, "the owner ended by signal 9")
        starter.terminate()
        starter.communicate(timeout=60)

    def test_an_owner_that_was_frozen_goes_on(self):
        run, _ = self.command("exec sleep 60")
        (owner,) = self.owners()
        for times in range(1, 6):
            os.kill(owner, signal.SIGSTOP)
            time.sleep(1)
            self.says(run, "does not answer", times)
            os.kill(owner, signal.SIGCONT)
            self.says(run, "answers again", times)
        self.assertEqual(self.owners(), [owner])
        run.terminate()
        run.communicate(timeout=60)

    def test_a_run_that_leaves_a_silent_owner_leaves_it_to_others(self):
        first, _ = self.command("exec sleep 60")
        second, _ = self.command("exec sleep 60")
        (owner,) = self.owners()
        os.kill(owner, signal.SIGSTOP)
        for run in (first, second):
            self.says(run, "does not answer")
        first.terminate()
        time.sleep(1)
        os.kill(owner, signal.SIGCONT)
        self.assertEqual(first.wait(60), 143)
        self.says(second, "answers again")
        self.assertEqual(self.owners(), [owner])
        second.terminate()
        self.assertEqual(second.wait(60), 143)
        self.assertTrue(self.until(lambda: not self.owners()))

    def test_the_limit_of_restarts(self):
        goes = self.directory / "goes"
        run, _ = self.command(f"while [ ! -e {goes} ]; do sleep 0.05; done", "--restarts", "0")
        os.kill(self.owners()[0], signal.SIGKILL)
        self.says(run, "it is not started again")
        goes.touch()
        run.communicate(timeout=60)
        self.assertEqual(run.returncode, 0, "the command goes on without")

    def test_a_port_in_use(self):
        _, master = self.start_master()
        options = self.cluster_options(master)
        with socket.create_server(("127.0.0.1", int(options[3].split(":")[1]))):
            status, output, errors = self.run_command(*options, "--", "echo", "ran")
            self.assertEqual((status, output), (2, ""))
            self.assertIn("before it was ready", errors)
            self.assertIn(options[3], errors, "the end of the log says which port")
            status, output, errors = self.run_command(*options, "--on-failure", "fallback", "--", "env")
            self.assertEqual(status, 0, errors)
            self.assertNotIn("KVCOVE_POOL", output)

    def test_what_an_owner_cannot_use_is_told_before_the_command_starts(self):
        _, master = self.start_master()
        options = self.cluster_options(master)[:4]
        with socket.create_server(("127.0.0.1", 0)) as used:
            admin = f"127.0.0.1:{used.getsockname()[1]}"
            for more, text in ((["--admin", admin], f"listening on {admin}: Address already in use"),
                               (["--admin", "off", "--rdma-device", "nosuch0"], "there is no such RDMA device"),
                               (["--admin", "off", "--transport", "rdma"], "auto, verbs (RDMA) and tcp are known"),
                               (["--admin", "off", "--gid-index", "x"], "'x' is no GID index")):  # fmt: skip
                status, output, errors = self.run_command(*options, *more, "--", "echo", "ran")
                self.assertEqual((status, output), (2, ""), errors)
                self.assertIn(text, errors)
                self.assertNotIn("knows this owner", errors, "the master heard of it first")

    def test_an_owner_of_a_cluster_with_a_disk_keeps_its_identity_where_it_is_told(self):
        _, master = self.start_master()
        data = self.directory / "identity"
        disk = ["--disk", f"{self.directory / 'disk'}:64MiB", "--memory", "16MiB"]
        (self.directory / "disk").mkdir()
        identities = []
        for options in (["--data", str(data)], ["--data", str(data)], []):
            environment = {} if options else {"KVCOVE_DATA": str(data)}
            status, output, errors = self.run_command(
                *self.cluster_options(master), *disk, *options, "--", "echo", "ran", **environment
            )  # fmt: skip
            if "tmpfs" in errors:
                self.skipTest("no place for a disk here")
            self.assertEqual((status, output), (0, "ran\n"), errors)
            identities.append((data / "owner").read_text().split("identity ")[1].split()[0])
            self.assertEqual([entry.name for entry in self.directory.glob("disk/*.data")], [])
        self.assertEqual(len(set(identities)), 1, "the same owner each time")

    def test_variables_for_other_programs_change_nothing(self):
        left_over = {"KVCOVE_INSECURE": "1", "KVCOVE_CREDENTIALS": "/nowhere", "KVCOVE_LISTEN": "x"}
        status, output, errors = self.run_command("--", "echo", "ran", **left_over)
        self.assertEqual((status, output), (0, "ran\n"), errors)
        _, master = self.start_master()
        status, output, errors = self.run_command(*self.cluster_options(master), "--", "echo", "ran",
                                                  KVCOVE_DATA="/nowhere")  # fmt: skip
        self.assertEqual((status, output), (0, "ran\n"), errors)

    def test_a_master_that_asks_for_credentials(self):
        files = [str(self.directory / name) for name in ("servers.toml", "acme.toml")]
        for tenant, scopes in (("acme", "read,write,reset"), ("cluster", "owner,admin")):
            token = self.start("token", tenant, "--scopes", scopes, "--credentials", files[0],
                               "--output", str(self.directory / f"{tenant}.toml"))  # fmt: skip
            self.assertEqual(token.wait(60), 0)
        number = port()
        self.start("--log", "error", "master", "--listen", f"127.0.0.1:{number}", "--admin", "off",
                   "--data", str(self.directory / "m"), "--credentials", files[0])  # fmt: skip
        options = self.cluster_options(f"127.0.0.1:{number}")
        status, _, errors = self.run_command(*options, "--ready-timeout", "7", "--", "true")
        self.assertEqual(status, 2)
        _, waiting = re.split(r"\([56] s of 7 s\)", errors)
        told = waiting.split("waited 7 s")
        self.assertEqual(len(told), 2, errors)
        for part in told:
            self.assertIn("denied", part, "the end of the log says why")
        options += ["--credentials", files[0], "--tenant", "acme"]
        status, output, errors = self.run_command(*options, "--", "echo", "ran")
        self.assertEqual((status, output), (0, "ran\n"), errors)
        self.assertIn("$KVCOVE_TOKEN is not set", errors)
        _, _, errors = self.run_command(*options, "--", "true", KVCOVE_TOKEN=files[1])
        self.assertNotIn("KVCOVE_TOKEN", errors)

    def test_a_master_that_is_not_there(self):
        options = [*self.cluster_options(f"127.0.0.1:{port()}"), "--ready-timeout", "3"]
        status, output, errors = self.run_command(*options, "--", "echo", "ran")
        self.assertEqual((status, output), (2, ""))
        self.assertIn("waited 3 s for the owner's lease", errors)
        self.assertIn(f"the master at {options[1]} cannot be reached", errors, "the end of the log says why")
        self.assertEqual([entry.name for entry in self.socket.parent.iterdir()], [self.log.name])
        status, output, errors = self.run_command(*options, "--on-failure", "fallback", "--", "echo", "ran")
        self.assertEqual((status, output), (0, "ran\n"), errors)

    def test_options_that_do_not_fit(self):
        for options, text in (
            (["--no-owner", "--shared"], "no owner to leave"),
            (["--connector", "best"], "kvcove"),
            (["--memory", "lots"], "'lots' is not a size"),
            (["--on-failure", "fallback", "--max-objects", "oops"], "--max-objects"),
            (["--master", "127.0.0.1:1", "--credentials", "/nowhere"], "--tenant"),
            (["--listen", "127.0.0.1:1"], "--listen is for an owner in a cluster: name the master with --master"),
            (["--insecure"], "--insecure is for an owner in a cluster"),
            (["--master", "127.0.0.1:1", "--data", "/nowhere"], "there is nothing to keep; name a disk with --disk"),
        ):
            status, _, errors = self.run_command(*options, "--", "true")
            self.assertEqual(status, 2)
            self.assertIn(text, errors)


if __name__ == "__main__":
    KVCOVE = sys.argv.pop(1)
    unittest.main(verbosity=1)
