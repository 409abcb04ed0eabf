#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus on a real cluster: tests/integration/prometheus_test.py KVCOVE DIRECTORY

DIRECTORY has `prometheus` and `promtool` (scripts/prometheus.sh). `make test-prometheus` runs it.
"""

import contextlib
import http.client
import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.parse
import urllib.request

from top_test import port, until

ROOT = pathlib.Path(__file__).parents[2]
MONITORING = ROOT / "deploy/monitoring"
TRACE = ROOT / "traces/conversation_trace.jsonl"
KVCOVE = ""
TOOLS = pathlib.Path()

# Metrics of what this cluster lacks: engines of vLLM, etcd, TLS, tenants that call, limits of memory.
ABSENT = re.compile(
    r"vllm:|kvcove_master_store_|_tls_|kvcove_(master|owner)_tenant_|kvcove_memory_high_|kvcove_master_shard_"
)


def promtool(*words, text=None):
    """Run promtool; the test fails with what it says."""
    done = subprocess.run(
        [TOOLS / "promtool", *words], input=text, text=True, capture_output=True, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path):
        super().__init__("localhost")
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(self.path)


def metrics_of(endpoint, bearer=""):
    """Return the answer of /metrics; `endpoint`: host:port, or the path of a socket."""
    unix = str(endpoint).startswith("/")
    connection = UnixConnection(endpoint) if unix else http.client.HTTPConnection(endpoint, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {bearer}"} if bearer else {})
        answer = connection.getresponse()
        text = answer.read().decode()
    if answer.status != 200:
        raise OSError(f"{endpoint} answers {answer.status}: {text[:200]}")
    return text


class Files(unittest.TestCase):
    """What needs no cluster."""

    def test_the_alerts_fire_when_they_must(self):
        status, said = promtool("test", "rules", str(MONITORING / "alerts_test.yml"))
        self.assertEqual(status, 0, said)

    def test_the_configuration_and_the_alerts_are_well_formed(self):
        status, said = promtool("check", "config", str(MONITORING / "prometheus.yml"))
        self.assertEqual(status, 0, said)
        status, said = promtool("check", "rules", str(MONITORING / "alerts.yml"))
        self.assertEqual(status, 0, said)


class Cluster(unittest.TestCase):
    """A master with credentials, two owners with a disk, and a pool of one host."""

    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(tempfile.mkdtemp(prefix="kvcove-prometheus-"))
        cls.addClassCleanup(shutil.rmtree, cls.directory)
        cls.owners = []
        cls.make_tokens()
        master = f"127.0.0.1:{port()}"
        admin, metrics = f"127.0.0.1:{port()}", f"127.0.0.1:{port()}"
        cls.master_endpoints = [admin, metrics]
        secured = ("--credentials", str(cls.directory / "servers.toml"))
        cls.start("master", "--listen", master, "--admin", admin, "--metrics", metrics, *secured, "--data", cls.path("m"))
        cls.owner_endpoints = []
        for name in ("a", "b"):
            admin, metrics = f"127.0.0.1:{port()}", f"127.0.0.1:{port()}"
            cls.owner_endpoints += [admin, metrics]
            owner = cls.start(
                "owner", "--master", master, "--listen", f"127.0.0.1:{port()}", "--admin", admin, "--metrics", metrics,
                *secured, "--memory", "32MiB", "--socket", cls.path(f"{name}/s"), "--tenant", "acme",
                "--disk", f"{cls.path(name + '-disk')}:64MiB",
            )  # fmt: skip
            cls.owners.append(owner)
        cls.alone = f"127.0.0.1:{port()}"
        cls.start("serve", "--socket", cls.path("s/s"), "--memory", "32MiB", "--metrics", cls.alone)
        cls.sockets = [cls.path("s/admin-s")]
        cls.pools = (f"kvcove://{master}?token={cls.path('acme.toml')}", f"unix:{cls.path('s/s')}")
        for pool in cls.pools:
            cls.use(pool)

    @classmethod
    def path(cls, name):
        return str(cls.directory / name)

    @classmethod
    def make_tokens(cls):
        for name, scopes in (("cluster", "owner,admin"), ("acme", "read,write,reset"), ("prometheus", "metrics")):
            subprocess.run(
                [KVCOVE, "token", name, "--scopes", scopes, "--credentials", cls.path("servers.toml"), "--output",
                 cls.path(f"{name}.toml")],
                check=True, capture_output=True,
            )  # fmt: skip
        cls.bearers = {
            name: subprocess.run(
                [KVCOVE, "token", "--bearer", cls.path(f"{name}.toml")], check=True, capture_output=True, text=True
            ).stdout.strip()
            for name in ("cluster", "prometheus")
        }

    @classmethod
    def start(cls, *words):
        process = subprocess.Popen([KVCOVE, "--log", "error", *words], stdin=subprocess.DEVNULL)

        def end():
            process.kill()
            process.wait()

        cls.addClassCleanup(end)
        return process

    @classmethod
    def use(cls, pool):
        """Put, get, miss and reset."""

        def replayed():
            return subprocess.run(
                [KVCOVE, "--log", "off", "replay", str(TRACE), "--limit", "300", "--engines", "2", "--update-every",
                 "100", "--pool", pool],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
            ).returncode == 0  # fmt: skip

        if not until(replayed):
            raise OSError(f"{pool} does not work")


class Endpoints(Cluster):
    def test_promtool_finds_nothing_wrong_with_any_endpoint(self):
        admins = self.master_endpoints[:1] + self.owner_endpoints[::2]
        monitored = self.master_endpoints[1:] + self.owner_endpoints[1::2]
        texts = {endpoint: metrics_of(endpoint, self.bearers["cluster"]) for endpoint in admins}
        texts |= {endpoint: metrics_of(endpoint, self.bearers["prometheus"]) for endpoint in monitored}
        texts |= {endpoint: metrics_of(endpoint) for endpoint in [self.alone, *self.sockets]}
        for endpoint, text in texts.items():
            with self.subTest(endpoint):
                status, said = promtool("check", "metrics", text=text)
                self.assertEqual((status, said), (0, ""))

    def test_without_its_token_nobody_reads_metrics(self):
        for endpoint in self.master_endpoints + self.owner_endpoints:
            with self.subTest(endpoint), self.assertRaises(OSError):
                metrics_of(endpoint)


MOONCAKE_MASTER = pathlib.Path(sys.executable).parent / "mooncake_master"
# Names of that program's dashboards, which promtool would have otherwise.
MOONCAKES_NAMES = {"master_evicted_key_count", "master_key_count", "master_soft_pin_key_count", "mem_cache_hit_nums_"}


@unittest.skipUnless(MOONCAKE_MASTER.exists(), "kvcove-mooncake is not installed beside this Python")
class DropIn(unittest.TestCase):
    def test_promtool_finds_nothing_wrong_but_that_programs_names(self):
        directory = tempfile.mkdtemp(prefix="kvcove-prometheus-")
        self.addCleanup(shutil.rmtree, directory)
        master, metrics = port(), port()
        for words in (
            [MOONCAKE_MASTER, f"-rpc_port={master}", f"-metrics_port={metrics}", f"-data={directory}/m"],
            [KVCOVE, "--log", "error", "owner", "--master", f"127.0.0.1:{master}", "--listen", f"127.0.0.1:{port()}",
             "--admin", "off", "--memory", "8MiB", "--socket", f"{directory}/o/s"],
        ):  # fmt: skip
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            self.addCleanup(process.wait)
            self.addCleanup(process.terminate)
        text = ""

        def answers():
            nonlocal text
            with contextlib.suppress(OSError, http.client.HTTPException):
                text = metrics_of(f"127.0.0.1:{metrics}")
            return "segment_total_capacity_bytes{" in text

        self.assertTrue(until(answers), text)
        said = promtool("check", "metrics", text=text)[1]
        self.assertEqual({line.split()[0] for line in said.splitlines()}, MOONCAKES_NAMES, said)


class Scrapes(Cluster):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.prometheus = f"127.0.0.1:{port()}"
        bearer = cls.directory / "bearer"
        bearer.write_text(cls.bearers["prometheus"])
        shutil.copy(MONITORING / "alerts.yml", cls.directory)
        jobs = [("kvcove-master", cls.master_endpoints[1:]), ("kvcove-owner", cls.owner_endpoints[1::2])]
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["alerts.yml"],
            "scrape_configs": [
                {
                    "job_name": job,
                    "authorization": {"credentials_file": str(bearer)},
                    "static_configs": [{"targets": targets, "labels": {"pool": "main"}}],
                }
                for job, targets in jobs
            ],
        }
        # One host has no master: a job of its own, without credentials.
        config["scrape_configs"].append(
            {"job_name": "kvcove-owner-alone", "static_configs": [{"targets": [cls.alone], "labels": {"pool": "one"}}]}
        )
        (cls.directory / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        process = subprocess.Popen(
            [TOOLS / "prometheus", "--config.file", cls.path("prometheus.yml"), "--storage.tsdb.path", cls.path("tsdb"),
             "--web.listen-address", cls.prometheus, "--log.level", "error"],
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

        def end():
            process.kill()
            process.wait()

        cls.addClassCleanup(end)
        if not until(lambda: cls.targets() and all(target["health"] == "up" for target in cls.targets())):
            raise OSError(f"Prometheus cannot scrape: {cls.targets()}")
        # Rates need two samples of what happens between them.
        for pool in cls.pools:
            cls.use(pool)

    @classmethod
    def ask(cls, path, **query):
        url = f"http://{cls.prometheus}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise OSError(f"{query}: {error.read().decode()}") from None

    @classmethod
    def targets(cls):
        try:
            return cls.ask("targets")["activeTargets"]
        except OSError:  # it has just started
            return []

    def test_each_panel_shows_something(self):
        for path in sorted((MONITORING / "dashboards").glob("*.json")):
            for panel in json.loads(path.read_text())["panels"]:
                for target in panel.get("targets", []):
                    expression = re.sub(r"\$(pool|instance)\b", ".*", target["expr"])
                    expression = expression.replace("$__rate_interval", "5m")
                    with self.subTest(f"{path.stem}: {panel['title']}", expr=expression):
                        found = self.ask("query", query=expression)["result"]
                        if not ABSENT.search(expression):
                            self.assertTrue(
                                found or until(lambda e=expression: self.ask("query", query=e)["result"], 20)
                            )

    def test_an_owner_that_is_killed_raises_the_alerts(self):
        def rules():
            return {rule["name"]: rule for group in self.ask("rules")["groups"] for rule in group["rules"]}

        self.assertTrue(until(lambda: all(rule["health"] == "ok" for rule in rules().values())), rules())
        self.assertEqual(rules()["KvcoveOwnerAway"]["state"], "inactive")
        self.owners[1].kill()
        for name in ("KvcoveTargetDown", "KvcoveOwnerAway"):
            # They fire when it has lasted.
            self.assertTrue(until(lambda n=name: rules()[n]["state"] in {"pending", "firing"}), rules()[name])


if __name__ == "__main__":
    KVCOVE, TOOLS = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
