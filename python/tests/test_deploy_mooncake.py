# SPDX-License-Identifier: Apache-2.0
"""deploy/mooncake: the scripts that have the names and variables of Mooncake's launchers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import free_port, wait_until

SCRIPTS = Path(__file__).resolve().parents[2] / "deploy" / "mooncake"
MASTER, OWNER, RUN = (
    str(SCRIPTS / name)
    for name in (
        "start_mooncake_master.sh",
        "start_mooncake_owner.sh",
        "run_vllm_with_mooncake_owner.sh",
    )
)
# Stands in for an engine: a store from the file that the script names, as MooncakeStoreConnector does.
ENGINE = """
import json, os, sys
from kvcove.mooncake.mooncake_config import MooncakeConfig
from kvcove.mooncake.store import MooncakeDistributedStore
config = MooncakeConfig.load_from_env()
store = MooncakeDistributedStore()
assert store.setup(config.local_hostname, config.metadata_server, config.global_segment_size,
                   16 << 20, config.protocol, config.device_name, config.master_server_address) == 0
assert store.put("key", b"value") == 0
print(json.dumps({"value": store.get("key").decode(), "arguments": sys.argv[1:],
                  "segment": os.environ["MOONCAKE_PREFERRED_SEGMENT"],
                  "segments": store.get_all_segments() if hasattr(store, "get_all_segments") else []}))
store.close()
sys.exit(int(os.environ.get("ENGINE_EXIT", "0")))
"""


class Host:
    """What the scripts see: variables, and a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self.run = directory / "run"
        self.segment_port = free_port()
        (directory / "sockets").mkdir(mode=0o700)
        (directory / "bin").mkdir()
        vllm = directory / "bin" / "vllm"
        vllm.write_text(f"#!{sys.executable}\n{ENGINE}")
        vllm.chmod(0o755)
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MC_", "MOONCAKE_", "KVCOVE_"))
        } | {
            "PATH": f"{vllm.parent}:{os.environ['PATH']}",
            "KVCOVE_PYTHON": sys.executable,
            "KVCOVE_SOCKET": str(directory / "sockets" / "kvcove.sock"),
            "MC_RUN_DIR": str(self.run),
            "MC_RPC_PORT": str(free_port()),
            "MC_HTTP_PORT": str(free_port()),
            "MC_METRICS_PORT": str(free_port()),
            "MC_OWNER_CPU_MEM_GIB": "1",
            "MC_OWNER_RPC_PORT": str(free_port()),
            "MC_OWNER_SEGMENT_PORT": str(self.segment_port),
            "MC_OWNER_READY_TIMEOUT_S": "20",
        }

    def call(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def left(self) -> list[str]:
        """Return processes that have this host's directory in their arguments."""
        found = subprocess.run(
            ["pgrep", "-fa", str(self.run.parent)], capture_output=True, text=True, check=False
        ).stdout.splitlines()
        return [line for line in found if "pgrep" not in line]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_the_scripts_are_right() -> None:
    for script in sorted(SCRIPTS.glob("*.sh")):
        assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not here")
    scripts = [str(script) for script in SCRIPTS.glob("*.sh")]
    checked = subprocess.run(
        ["shellcheck", "-x", "-P", str(SCRIPTS), *scripts], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout


def test_an_engine_with_its_owner(host: Host, tmp_path: Path) -> None:
    copy = tmp_path / "copy.env"
    started = host.call(MASTER, "--bg", "--env-file", str(copy))
    assert started.returncode == 0, started.stderr
    assert copy.read_text() == (host.run / "master.env").read_text()
    again = host.call(MASTER, "--bg")
    assert again.returncode == 1 and "the master runs already" in again.stderr

    ran = host.call(RUN, "vllm", "serve", "model", ENGINE_EXIT="7", MC_CONNECTOR="mooncake")
    assert ran.returncode == 7, ran.stderr
    seen = json.loads(ran.stdout.splitlines()[-1])
    assert seen["value"] == "value"
    assert seen["segment"] == f"127.0.0.1:{host.segment_port}"
    assert seen["arguments"][:3] == ["serve", "model", "--kv-transfer-config"]
    assert json.loads(seen["arguments"][3]) == {
        "kv_connector": "MooncakeStoreConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"load_async": True, "enable_cross_layers_blocks": True},
    }
    config = json.loads((host.run / "config.json").read_text())
    assert config["global_segment_size"] == 0
    assert config["master_server_address"] == f"127.0.0.1:{host.environment['MC_RPC_PORT']}"

    # The default is kvcove's connector: no older vLLM is in this environment.
    ran = host.call(RUN, "vllm", "serve", "model")
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout.splitlines()[-1])
    made = json.loads(seen["arguments"][3])
    assert made["kv_connector"] == "KvcoveConnector"
    assert made["kv_connector_extra_config"] == {
        "pool": f"kvcove://{config['master_server_address']}"
    }

    # A command that brings a connector keeps it, with an owner that runs already.
    owner = host.call(OWNER, "--bg")
    assert owner.returncode == 0, owner.stderr
    ran = host.call(RUN, "vllm", "serve", "model", "--kv-transfer-config", "{}")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1])["arguments"][2:] == [
        "--kv-transfer-config",
        "{}",
    ]
    assert host.call(OWNER, "--stop").stdout == "The owner has ended.\n"
    assert host.call(OWNER, "--stop").stdout == "The owner is not running.\n"
    assert host.call(MASTER, "--stop").stdout == "The master has ended.\n"
    assert wait_until(lambda: not host.left()), host.left()
    assert sorted(each.name for each in host.run.iterdir()) == [
        "config.json",
        "master",
        "master.log",
        "owner.log",
    ]


def test_a_master_for_engines_that_give_memory(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "mooncake.json"
    started = host.call(MASTER, "--bg", "--config", str(file), "--segment-size", "64MiB")
    assert started.returncode == 0, started.stderr
    assert started.stdout.endswith(f"For its engines: export MOONCAKE_CONFIG_PATH={file}\n")
    written = json.loads(file.read_text())
    assert written["master_server_address"] == f"127.0.0.1:{host.environment['MC_RPC_PORT']}"
    assert (written["mode"], written["global_segment_size"]) == ("embedded", 64 << 20)
    ran = host.call(
        sys.executable, "-c", ENGINE, MOONCAKE_CONFIG_PATH=str(file), MOONCAKE_PREFERRED_SEGMENT=""
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1])["value"] == "value"
    assert host.call(MASTER, "--stop").stdout == "The master has ended.\n"
    assert host.call(MASTER, "--bg", "--config", str(file)).returncode == 0
    written = json.loads(file.read_text())
    assert (written["mode"], written["global_segment_size"]) == ("standalone-store", 0)
    assert host.call(MASTER, "--stop").returncode == 0


@pytest.mark.parametrize(
    ("command", "variables", "told"),
    [
        ([RUN, "true"], {"MC_OWNER_CPU_MEM_GIB": ""}, "MC_OWNER_CPU_MEM_GIB must be set."),
        ([OWNER], {"MC_OWNER_CPU_MEM_GIB": ""}, "MC_OWNER_CPU_MEM_GIB must be set."),
        ([RUN, "true"], {"MC_OWNER_CPU_MEM_GIB": "4GiB"}, "'4GiB': give a number of GiB"),
        ([RUN], {}, "usage: "),
        ([RUN, "true"], {}, "no master is named and "),
        ([RUN, "true"], {"MC_OWNER_DISK_GIB": "10"}, "MC_OWNER_DISK_PATH, --disk-path): give an"),
        ([RUN, "true"], {"MC_OWNER_SEGMENT_PORT": "65536"}, "'65536' is no port"),
        ([OWNER, "--segment-port", "x"], {}, "the owner's segment port: 'x' is no port"),
        (
            [OWNER, "--disk-path", "/d", "--disk-size", "1T"],
            {},
            "--disk-size): give a number of GiB",
        ),
        ([OWNER, "--host"], {}, "--host needs a value"),
        ([OWNER, "--device", "mlx5_no"], {}, "the RDMA device 'mlx5_no': there is no such"),
        ([OWNER, "--bq"], {}, "unknown option '--bq'"),
        ([MASTER, "--config"], {}, "--config needs a value"),
        (
            [MASTER, "--config", "/dev/null/c", "--segment-size", "lots"],
            {},
            "the memory of each rank (--segment-size): ",
        ),
        (
            [MASTER, "--bg", "--host", "0.0.0.0"],
            {},
            "give the address of this host that others use",
        ),
        ([MASTER, "--bg"], {"MC_MASTER_HOST": "::"}, "give the address of this host that others"),
        ([MASTER, "--bg"], {"MC_RPC_PORT": "rpc"}, "MC_RPC_PORT: 'rpc' is no port"),
        ([MASTER, "--bg"], {"MC_LEASE_TTL": "soon"}, "exited before becoming ready"),
    ],
)
def test_what_is_wrong_is_told(
    host: Host, command: list[str], variables: dict[str, str], told: str
) -> None:
    named = {} if "no master is named" in told else {"MOONCAKE_MASTER": "127.0.0.1:1"}
    ran = host.call(*command, **{**named, **variables})
    assert ran.returncode in (1, 2)
    assert told in ran.stderr
    assert not host.left()


def test_without_a_master_the_wait_ends(host: Host) -> None:
    away = {"MOONCAKE_MASTER": f"127.0.0.1:{free_port()}", "MC_OWNER_READY_TIMEOUT_S": "2"}
    began = time.monotonic()
    ran = host.call(RUN, "true", **away)
    assert ran.returncode == 2 and time.monotonic() - began < 60
    assert "waited 2 s for the owner's lease" in ran.stderr
    background = host.call(OWNER, "--bg", **away)
    assert background.returncode == 1
    assert "The owner exited before becoming ready" in background.stderr
    assert wait_until(lambda: not host.left()), host.left()


def test_a_directory_that_others_may_enter_is_refused(host: Host) -> None:
    host.run.mkdir(mode=0o755)
    ran = host.call(MASTER, "--bg")
    assert ran.returncode == 1 and "is not a directory of this user's alone" in ran.stderr


def test_a_pid_of_another_process_is_left_alone(host: Host) -> None:
    host.run.mkdir(mode=0o700)
    with subprocess.Popen(["sleep", "60"]) as other:
        (host.run / "master.pid").write_text(f"{other.pid} 1\n")
        stopped = host.call(MASTER, "--stop")
        assert stopped.stdout == "The master is not running.\n"
        assert other.poll() is None
        other.kill()
