# SPDX-License-Identifier: Apache-2.0
"""prime-rl's files: what is taken, and what is said of what is not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from kvcove.launch import prime_rl
from kvcove.launch._document import dump, parse
from pydantic import BaseModel, ValidationError

from kvcove import launch

SLURM = "[slurm]\n"
HEAD = "[inference.kv_cache_offload]\n"


def load(text: str) -> prime_rl.PrimeRl:
    return prime_rl.load(parse(text, "toml", "rl.toml"))


def told(text: str) -> str:
    with pytest.raises(launch.ConfigError) as caught:
        load(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[inference.kv_cach_offload]\n",
            "rl.toml:1: inference.kv_cach_offload: unknown key; did ",
        ),
        ("[kv-cache-offload]\n", "rl.toml:1: kv-cache-offload: unknown key; did you mean 'kv_c"),
        (
            "[inference]\nkv_cache_dtype = 'fp8'\n[kv_cache_offload]\n",
            "rl.toml:3: kv_cache_offload: unknown key; did you mean 'inference.kv_cache_offload'?",
        ),
    ],
)
def test_a_block_under_another_name_is_not_passed_over(text: str, expected: str) -> None:
    assert told(text).startswith(expected)


def test_an_rl_file_and_an_inference_file_say_the_same() -> None:
    block = 'type = "native"\n[{0}kv_cache_offload.cpu]\nnum_bytes = 68_719_476_736\n'
    rl = load("[inference.kv_cache_offload]\n" + block.format("inference."))
    alone = load("[kv_cache_offload]\n" + block.format(""))
    assert rl == alone
    assert isinstance(rl.offload, launch.NativeOffload)
    assert rl.offload.cpu is not None
    assert (rl.offload.cpu.num_bytes, rl.slurm, rl.use_pd_kv_transfer) == (64 << 30, False, False)


def test_nothing_about_kv() -> None:
    assert load("max_steps = 3\n").build_kv_transfer_config() is None
    assert load("[inference.vllm]\nmodel = 'm'\n").offload is None


@pytest.mark.parametrize(
    "text",
    [
        "[inference.deployment]\ntype = 'disaggregated'\n",
        "[deployment]\ntype = 'disaggregated'\n",
        "use_pd_kv_transfer = true\n",
    ],
)
def test_prefill_and_decode_apart(text: str) -> None:
    made = load(text).build_kv_transfer_config()
    assert made is not None and made["kv_connector"] == "NixlConnector"


@pytest.mark.parametrize(
    ("size", "bytes_"),
    [
        ("1000", 1000),
        ("1_000_000", 1000000),
        ('"64GiB"', 64 << 30),
        ('"1.5 TiB"', 3 << 39),
        ('"500MB"', 500_000_000),
        ('"4g"', 4 << 30),
        ("2e9", 2_000_000_000),
    ],
)
def test_sizes(size: str, bytes_: int) -> None:
    kind = "kvcove" if size.startswith('"') else "native"
    offload = load(f'{HEAD}type = "{kind}"\ncpu.num_bytes = {size}\n').offload
    assert offload is not None and offload.cpu is not None
    assert offload.cpu.num_bytes == bytes_


@pytest.mark.parametrize(
    "size", ["0", "-1", '"0"', '"-4GiB"', '"4 gigs"', '""', "1.5", "true", "[]"]
)
def test_sizes_that_are_none(size: str) -> None:
    text = told(f'{HEAD}type = "native"\ncpu.num_bytes = {size}\n')
    assert text.startswith("rl.toml:3: inference.kv_cache_offload.cpu.num_bytes: ")


@pytest.mark.parametrize("kind", ["native", "mooncake"])
def test_a_size_as_text_is_what_prime_rl_refuses(kind: str) -> None:
    block = f'{SLURM}{HEAD}type = "{kind}"\ncpu.num_bytes = '
    assert told(f'{block}"64GiB"\n') == (
        "rl.toml:4: inference.kv_cache_offload.cpu.num_bytes: '64GiB': prime-rl takes a number here "
        f"for '{kind}': 68719476736; a size as text is for 'kvcove'"
    )
    # It does take these.
    for number in ("68719476736", '" 68719476736 "', "68719476736.0"):
        offload = load(f"{block}{number}\n").offload
        assert offload is not None and offload.cpu is not None
        assert offload.cpu.num_bytes == 64 << 30


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'type = "native"\ncpu.num_byte = 1\n',
            "rl.toml:3: inference.kv_cache_offload.cpu.num_byte: unknown key; did you mean "
            "'num_bytes'?",
        ),
        (
            'type = "native"\ncpu.num_bytes = 1\ndevice_name = "mlx5_0"\n',
            "rl.toml:4: inference.kv_cache_offload.device_name: unknown key; known: cpu, disk, type",
        ),
        (
            'typ = "native"\n',
            "rl.toml:1: inference.kv_cache_offload.type: missing; give 'native', 'mooncake' or "
            "'kvcove'",
        ),
        (
            'type = "natve"\n',
            "rl.toml:2: inference.kv_cache_offload.type: 'natve' is not known; did you mean "
            "'native'?; give 'native', 'mooncake' or 'kvcove'",
        ),
        (
            "type = []\n",
            "rl.toml:2: inference.kv_cache_offload.type: [] is not known; known: native, mooncake, "
            "kvcove; give 'native', 'mooncake' or 'kvcove'",
        ),
        (
            'type = "kvcove"\ncpu.num_bytes = 1\n',
            "rl.toml:3: inference.kv_cache_offload.cpu.num_bytes: an engine's own pool has 1MiB to "
            "16TiB, not 1; for more share the pool of several hosts, each with an owner (kvcove "
            'owner --memory ..., 16TiB at most), and give pool = "kvcove://HOST:7400"',
        ),
        (
            'type = "kvcove"\npool = "kvcove://h:7400"\ncpu.num_bytes = "1GiB"\n',
            "rl.toml:4: inference.kv_cache_offload.cpu: the pool at kvcove://h:7400 has memory of "
            'its own; leave cpu out, or give pool = "auto"',
        ),
        (
            'type = "kvcove"\npool = "embeded"\ncpu.num_bytes = "1GiB"\n',
            "rl.toml:3: inference.kv_cache_offload.pool: 'embeded': give auto, embedded, "
            "unix:/PATH, kvcove://HOST:7400 or kvcove://etcd://HOST:2379/PREFIX; did you mean 'embedded'?",
        ),
        (
            'type = "kvcove"\ncpu.num_bytes = "1GiB"\nextra_config = { threds = 3 }\n',
            "rl.toml:4: inference.kv_cache_offload.extra_config: unknown key 'threds'; did you mean "
            "'threads'?",
        ),
        (
            'type = "kvcove"\ncpu.num_bytes = "1GiB"\nextra_config.memory = "2GiB"\n',
            "rl.toml:4: inference.kv_cache_offload.extra_config.memory: write it as cpu.num_bytes",
        ),
        (
            'type = "kvcove"\npool = "unix:/s"\ndisk.path = "/tmp"\n',
            "rl.toml:4: inference.kv_cache_offload.disk: the pool at unix:/s has disks, or none: start "
            "its owners with 'kvcove owner --disk /tmp:SIZE', and leave disk out",
        ),
        (
            'type = "native"\ncpu = 5\n',
            "rl.toml:3: inference.kv_cache_offload.cpu: 5 is no table of keys and values",
        ),
    ],
)
def test_what_is_wrong_is_told_where_it_is(text: str, expected: str) -> None:
    assert expected in told(HEAD + text).splitlines()


def test_all_that_is_wrong_is_told_at_once() -> None:
    text = told(
        HEAD + 'type = "mooncake"\ncpu.num_bytes = 0\ndisk.path = "kv"\nx = 1\n'
        "[inference.vllm]\nenable_prefix_caching = false\n"
    )
    lines = [2, 7, 3, 4, 5]
    assert [line.split(": ")[0] for line in text.splitlines()] == [f"rl.toml:{n}" for n in lines]


@pytest.mark.parametrize("kind", ["native", "mooncake", "kvcove"])
def test_a_disk_alone_is_refused_in_the_known_words(kind: str, tmp_path: Path) -> None:
    text = f'{SLURM}{HEAD}type = "{kind}"\ndisk.path = "{tmp_path}"\n'
    assert told(text) == (
        "rl.toml:2: inference.kv_cache_offload requires a cpu tier (disk-only offload is not "
        "supported)."
    )


def test_mooncake_needs_slurm_with_and_without_rl() -> None:
    block = 'type = "mooncake"\ncpu.num_bytes = 1_099_511_627_776\n'
    rule = (
        "Mooncake KV offload requires SLURM — the per-node store is launched by the sbatch "
        "template. Use inference.kv_cache_offload.type='native' for local runs."
    )
    assert told(HEAD + block) == f"rl.toml:2: {rule}"
    assert told("[kv_cache_offload]\n" + block) == f"rl.toml:2: {rule}"
    for text in (SLURM + HEAD + block, SLURM + "[kv_cache_offload]\n" + block):
        found = load(text + 'device_name = "mlx5_0,mlx5_1"\n')
        assert isinstance(found.offload, launch.MooncakeOffload)
        assert found.offload.device_name == "mlx5_0,mlx5_1"


def test_kvcove_needs_no_slurm() -> None:
    assert load(f'{HEAD}type = "kvcove"\npool = "kvcove://h:7400"\n').build_kv_transfer_config()
    assert load(f'{HEAD}type = "kvcove"\ncpu.num_bytes = "1GiB"\n').build_kv_transfer_config()


@pytest.mark.parametrize("kind", ["native", "kvcove"])
def test_router_replay_is_refused_in_the_known_words(kind: str) -> None:
    text = f'[trainer]\nenable_router_replay = true\n{HEAD}type = "{kind}"\ncpu.num_bytes = 1073741824\n'
    assert told(text) == (
        "rl.toml:2: Router replay with inference.kv_cache_offload is not supported. External KV "
        "cache hits do not carry routed-expert decisions."
    )


def test_prefix_caching_must_be_on() -> None:
    block = f'{HEAD}type = "native"\ncpu.num_bytes = 1\n'
    assert told(block + "[inference.vllm]\nenable_prefix_caching = false\n") == (
        "rl.toml:5: KV cache offloading requires inference.vllm.enable_prefix_caching to be true."
    )


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    text = '{head}type = "native"\ncpu.num_bytes = 1\ndisk.path = "{path}"\n'
    assert told(text.format(head=HEAD, path=file / "kv")) == (
        f"rl.toml:4: inference.kv_cache_offload.disk.path: '{file}/kv' cannot be written: {file} is "
        "no directory"
    )
    assert "give an absolute path" in told(text.format(head=HEAD, path="kv"))
    assert load(text.format(head=HEAD, path=tmp_path / "new" / "kv")).offload
    # With SLURM another host has the disk.
    assert load(SLURM + text.format(head=HEAD, path=file / "kv")).slurm


def test_a_directory_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ValidationError, match=f"this user may not write to {tmp_path}"):
        launch.DiskTier(path=tmp_path / "kv")


OLD = [
    (
        "cpu_bytes = 1_000_000_000\n",
        ["cpu_bytes"],
        'type = "native"\n\n{0}.cpu]\nnum_bytes = 1000000000',
    ),
    (
        'type = "mooncake"\nmetadata_server = "http://h:8080/metadata"\n'
        'master_server_address = "h:50051"\ncpu.num_bytes = 2_000\n',
        ["metadata_server", "master_server_address"],
        'type = "mooncake"\n\n{0}.cpu]\nnum_bytes = 2000',
    ),
    (
        'type = "native"\ncpu.num_bytes = 5\ndisk = {path = "/d", num_bytes = 9}\n',
        ["disk.num_bytes"],
        'type = "native"\n\n{0}.cpu]\nnum_bytes = 5\n\n{0}.disk]\npath = "/d"',
    ),
]


@pytest.mark.parametrize(("text", "keys", "new"), OLD)
@pytest.mark.parametrize("root", ["inference.", ""])
def test_old_keys_are_told_with_the_exact_new_text(
    text: str, keys: list[str], new: str, root: str
) -> None:
    head = f"[{root}kv_cache_offload"
    message = told(f"{head}]\n{text}")
    for key in keys:
        assert f"{root}kv_cache_offload.{key}: it is " in message
    block = f"{head}]\n{new.format(head)}\n"
    assert f"write this:\n\n{block}\n" in message
    assert message.endswith("or let `python -m kvcove.launch migrate --write rl.toml` do it")
    # What is printed is right, but for SLURM and the disk of the example.
    assert load("[slurm]\n" + block).offload is not None


def test_an_old_key_beside_the_new_one() -> None:
    message = told(HEAD + "cpu_bytes = 1\ncpu.num_bytes = 2\n")
    assert "cpu_bytes and cpu.num_bytes are both there; remove cpu_bytes" in message


def test_the_block_was_a_part_of_the_deployment_once() -> None:
    message = told("[inference.deployment.kv_cache_offload]\ncpu_bytes = 7\nblock_size = 64\n")
    assert message == (
        "rl.toml:1: inference.deployment.kv_cache_offload: it is no part of deployment any more; "
        'write this:\n\n[inference.kv_cache_offload]\ntype = "native"\n\n'
        "[inference.kv_cache_offload.cpu]\nnum_bytes = 7\n"
    )


def test_in_yaml_the_new_text_is_yaml() -> None:
    document = parse("inference:\n  kv_cache_offload:\n    cpu_bytes: 7\n", "yaml", "rl.yaml")
    with pytest.raises(launch.ConfigError) as caught:
        prime_rl.load(document)
    assert str(caught.value) == (
        "rl.yaml:3: inference.kv_cache_offload.cpu_bytes: it is cpu.num_bytes now; write this:\n\n"
        "inference:\n  kv_cache_offload:\n    type: native\n    cpu:\n      num_bytes: 7\n"
    )


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("[a\n", "toml", "rl.toml: this is no TOML: "),
        ("a: [1\nb: 2\n", "yaml", "rl.yaml:2: this is no YAML: "),
        ("a: 1\nb: 2\na: 3\n", "yaml", "rl.yaml:3: a: this key is there twice"),
        ("- 1\n", "yaml", "rl.yaml:1: a mapping is wanted at the top"),
    ],
)
def test_files_that_are_none(text: str, language: str, expected: str) -> None:
    with pytest.raises(launch.ConfigError) as caught:
        parse(text, language, f"rl.{language}")
    assert str(caught.value).startswith(expected)


def test_an_anchor_within_itself_ends() -> None:
    assert parse("a: &a\n  b: *a\n", "yaml").lines == {("a",): 1, ("a", "b"): 2}


def test_a_misspelt_key_is_not_missing_too() -> None:
    assert len(told(HEAD + 'type = "native"\ncpu.num_byte = 1\n').splitlines()) == 1


def test_lines_behind_values_of_several_lines() -> None:
    text = (
        'a = """\n[inference.kv_cache_offload]\n"""\nb = [\n  1, # ]\n  2,\n]\n\n'
        f'{HEAD}type = "native"\ncpu.num_bytes = 0\n'
    )
    assert told(text).startswith("rl.toml:11: ")


def test_toml_that_is_written_is_read_again() -> None:
    data: dict[str, Any] = {
        "text": 'quo"te \\ back\nline \x01 ü',
        "odd key": True,
        "list": ["a", 1, 2.5],
        "below": {"n": 1, "deep": {"x": "y"}},
    }
    document = parse(dump(data, ("a", "b c"), "toml"), "toml")
    assert document.data == {"a": {"b c": data}}
    assert parse(dump(data, ("a", "b c"), "yaml"), "yaml").data == {"a": {"b c": data}}


def test_as_a_field_of_a_trainers_own_model() -> None:
    class Inference(BaseModel):
        kv_cache_offload: launch.KVCacheOffload | None = None

    made = Inference.model_validate(
        {"kv_cache_offload": {"type": "kvcove", "cpu": {"num_bytes": "2GiB"}}}
    )
    assert isinstance(made.kv_cache_offload, launch.KvcoveOffload)
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        Inference.model_validate({"kv_cache_offload": {"type": "native", "cpu_byte": 3}})
