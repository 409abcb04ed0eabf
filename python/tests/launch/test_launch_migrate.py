# SPDX-License-Identifier: Apache-2.0
"""Old files of prime-rl become new ones, and nothing else in them changes."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path

import pytest
from kvcove.launch import prime_rl
from kvcove.launch._document import parse
from kvcove.launch.migrate import migrate_file, migrate_text

from kvcove import launch

CPU_ONLY = """\
# A run on eight nodes.
max_steps = 100

[slurm]
job_name = "old"

[inference.vllm]
model = "some/model"     # aligned   by hand

[inference.kv_cache_offload]  # KV
# As much as a node has to spare.
cpu_bytes = 1_000_000_000_000   # 1 TB

[trainer.optim]
lr = 1e-6
"""

MOONCAKE = """\
[slurm]

[kv_cache_offload]
type = "mooncake"
metadata_server = "http://head:8080/metadata"
master_server_address = "head:50051"
device_name = "mlx5_0"

[kv_cache_offload.cpu]
num_bytes = 1_000_000_000_000

[kv_cache_offload.disk]
path = "/scratch/kv"
num_bytes = 5_000 # never kept to
"""

DOTTED = """\
slurm = {}
inference.kv_cache_offload.cpu_bytes = 7
inference.vllm.model = "m"
"""


def changed_lines(old: str, new: str) -> list[str]:
    return [line for line in difflib.ndiff(old.splitlines(), new.splitlines()) if line[0] in "+-"]


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        (
            CPU_ONLY,
            [
                '+ type = "native"',
                "- cpu_bytes = 1_000_000_000_000   # 1 TB",
                "+ cpu.num_bytes = 1_000_000_000_000   # 1 TB",
            ],
        ),
        (
            MOONCAKE,
            [
                '- metadata_server = "http://head:8080/metadata"',
                '- master_server_address = "head:50051"',
                "- num_bytes = 5_000 # never kept to",
            ],
        ),
        (
            DOTTED,
            [
                "- inference.kv_cache_offload.cpu_bytes = 7",
                '+ inference.kv_cache_offload.type = "native"',
                "+ inference.kv_cache_offload.cpu.num_bytes = 7",
            ],
        ),
        (
            "[inference]\nuse_deep_gemm = true\nkv_cache_offload.cpu_bytes = 7",
            [
                "- kv_cache_offload.cpu_bytes = 7",
                '+ kv_cache_offload.type = "native"',
                "+ kv_cache_offload.cpu.num_bytes = 7",
            ],
        ),
        (
            "[kv_cache_offload]\ncpu_bytes = 7",
            ['+ type = "native"', "- cpu_bytes = 7", "+ cpu.num_bytes = 7"],
        ),
    ],
    ids=["cpu_bytes", "mooncake", "dotted", "within a table", "without an end of line"],
)
def test_a_known_old_file(text: str, changed: list[str]) -> None:
    with pytest.raises(launch.ConfigError):
        prime_rl.load(parse(text, "toml"))
    new = migrate_text(text)
    assert sorted(changed_lines(text, new)) == sorted(changed)
    assert prime_rl.load(parse(new, "toml")).offload is not None
    assert migrate_text(new) == new


def test_ends_of_lines_stay() -> None:
    new = migrate_text(CPU_ONLY.replace("\n", "\r\n"))
    assert new.count("\n") == new.count("\r\n") == CPU_ONLY.count("\n") + 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[inference]\nkv_cache_offload = {cpu_bytes = 7}\n",
            "2: inference.kv_cache_offload: this form cannot be rewritten; write this:\n\n"
            '[inference.kv_cache_offload]\ntype = "native"\n\n[inference.kv_cache_offload.cpu]\n'
            "num_bytes = 7\n",
        ),
        (
            '[kv_cache_offload]\n"cpu_bytes" = 7\n',
            "1: kv_cache_offload: this form cannot be rewritten; write this:",
        ),
        (
            "[kv_cache_offload]\ncpu_bytes = 7\ncpu.num_bytes = 8\n",
            "1: kv_cache_offload: cpu_bytes and cpu.num_bytes are both there; remove cpu_bytes",
        ),
        (
            "[inference.deployment.kv_cache_offload]\ncpu_bytes = 7\n",
            "1: inference.deployment.kv_cache_offload: it is no part of deployment any more",
        ),
        ("[", " this is no TOML"),
    ],
)
def test_what_cannot_be_rewritten_is_printed(text: str, told: str) -> None:
    with pytest.raises(launch.ConfigError) as caught:
        migrate_text(text, "rl.toml")
    assert str(caught.value).startswith(f"rl.toml:{told}")


def test_what_else_is_in_a_file_is_no_matter() -> None:
    text = (
        "x = nan # a line's end of another kind: \u2028 and \x85\n"
        "s = '''\n[kv_cache_offload]\ncpu_bytes = 1\n'''\n[[list]]\na.b = [\n 1,\n]\n[[list]]\n"
        "[kv_cache_offload]\ncpu_bytes = 7"
    )
    new = migrate_text(text)
    assert new == text.removesuffix("cpu_bytes = 7") + 'type = "native"\ncpu.num_bytes = 7'


@pytest.mark.parametrize("text", ["", "a = 1\n", "[kv_cache_offload]\ntype = 'native'\n"])
def test_nothing_to_do(text: str) -> None:
    assert migrate_text(text) == text


def test_a_file_in_place(tmp_path: Path) -> None:
    file = tmp_path / "rl.toml"
    file.write_text(CPU_ONLY)
    file.chmod(0o640)
    assert migrate_file(file)
    assert tomllib.loads(file.read_text())["inference"]["kv_cache_offload"] == {
        "type": "native",
        "cpu": {"num_bytes": 10**12},
    }
    assert file.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [file]
    assert not migrate_file(file)


def test_a_file_that_cannot_be_rewritten_stays(tmp_path: Path) -> None:
    file = tmp_path / "rl.toml"
    file.write_text("kv_cache_offload = {cpu_bytes = 7}\n")
    with pytest.raises(launch.ConfigError):
        migrate_file(file)
    assert file.read_text() == "kv_cache_offload = {cpu_bytes = 7}\n"
    assert list(tmp_path.iterdir()) == [file]
