# SPDX-License-Identifier: Apache-2.0
r"""One pool over the nodes of a job of SLURM: the shell that starts it.

The text is made of the fragments in ``shell/``, which hold no value of a user: all values stand in
assignments in front of them, quoted. It has no single quotes, so that it can stand within
``bash -c '...'``, as in prime-rl's templates.

>>> from kvcove.launch.slurm import quoted
>>> print(quoted("/scratch/my runs/$x"))
"/scratch/my runs/\$x"
"""

from __future__ import annotations

import itertools
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from kvcove.launch import prime_rl
from kvcove.launch._document import Document
from kvcove.launch._errors import LaunchError
from kvcove.launch._size import format_size, parse_size
from kvcove.launch.connector import build_kv_transfer_config, to_json
from kvcove.launch.offload import (
    LEAST_DISK,
    MOST_OF_AN_OWNER,
    CpuTier,
    KvcoveOffload,
    MooncakeOffload,
)

__all__ = ["Pool", "Script", "pool_of", "quoted", "render_part", "render_script"]

_log = logging.getLogger("kvcove.launch")
FIRST_PORT = 20000
_LICENSE = "# SPDX-License-Identifier: Apache-2.0\n"
_PORTS = 1250 * 8  # kv_begin of shell/functions.sh
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./:=,@%+")


def quoted(text: str) -> str:
    """Return a word of the shell that stands for a text, without single quotes.

    Raises
    ------
    LaunchError
        The text has control characters.
    """
    if text and _PLAIN.issuperset(text):
        return text
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        raise LaunchError(f"{text!r}: control characters, such as ends of lines, cannot stand here")
    for letter in '\\"$`':
        text = text.replace(letter, "\\" + letter)
    # A single quote would end the bash -c '...' around this.
    text = text.replace("'", '$(printf "\\047")')
    return f'"{text}"'


@dataclass(frozen=True)
class Pool:
    """What each node of a job gives to its pool.

    Attributes
    ----------
    kind : str
        ``kvcove`` or ``mooncake``: the programs that run, and the connector of the engines.
    num_bytes : int
        Memory of each node; 0: memory, disk and devices are those of the template's variables.
    disk : str
        A directory in which each node keeps what its memory evicts; empty without.
    disk_bytes : int
        ``kvcove``: of that; 0: half of what is free there.
    device_name : str
        ``mooncake``: RDMA devices, with commas between; empty: detected.
    first_port : int
        The ports of a job are eight of the 10,000 from here on, by its number.
    timeout : int
        Seconds that each wait lasts at most.
    connector : dict
        The value of vLLM's ``--kv-transfer-config``.
    ranks : int
        Of one engine, as the configuration says.
    setup : sequence of str
        Lines of the shell that each node runs first, such as ``module load cuda``.
    """

    kind: str
    num_bytes: int
    disk: str
    disk_bytes: int
    device_name: str
    first_port: int
    timeout: int
    connector: dict[str, Any]
    ranks: int = 1
    setup: Sequence[str] = ()


@dataclass(frozen=True)
class Script:
    """A whole job.

    Attributes
    ----------
    nodes : int
        How many.
    output_dir : str
        An absolute path that all nodes see.
    command : sequence of str
        Runs on each node; its engine joins the pool.
    sbatch : sequence of str
        Further options of sbatch, such as ``--time=1:00:00``.
    """

    nodes: int
    output_dir: str
    command: Sequence[str]
    sbatch: Sequence[str] = ()


def pool_of(
    document: Document | None = None,
    *,
    kind: str | None = None,
    memory: str | None = None,
    disk: str | None = None,
    device_name: str | None = None,
    first_port: int = FIRST_PORT,
    timeout: int = 120,
    vllm_version: str | None = None,
    of_template: bool = False,
    setup: Sequence[str] = (),
) -> Pool:
    """Return the pool of a configuration of prime-rl, of options, or of both: options go over it.

    Raises
    ------
    ConfigError
        The configuration is wrong.
    LaunchError
        It needs no pool, or an option is wrong or missing.
    """
    config = prime_rl.load(document) if document is not None else None
    source = document.source if document is not None else ""
    configured = config.offload if config is not None else None
    offload = configured if isinstance(configured, KvcoveOffload | MooncakeOffload) else None
    if config is not None and offload is None:
        told = "no kv_cache_offload" if configured is None else f"type = '{configured.type}'"
        raise LaunchError(f"{source}: {told}: only 'kvcove' and 'mooncake' have a pool over nodes")
    if isinstance(offload, KvcoveOffload) and offload.pool != "auto":
        raise LaunchError(
            f"{source}: pool = {offload.pool!r}: the job starts a pool of its own; "
            'give pool = "auto", or no pool'
        )
    if offload is not None and kind is not None and kind != offload.type:
        raise LaunchError(f"--type {kind}: {source} says '{offload.type}'")
    kind = offload.type if offload is not None else kind
    if kind is None:
        raise LaunchError("give a configuration of prime-rl, or --type kvcove or --type mooncake")
    num_bytes = offload.cpu.num_bytes if offload is not None and offload.cpu is not None else None
    if memory is not None:
        try:
            num_bytes = parse_size(memory)
        except ValueError as error:
            raise LaunchError(f"--memory: {error}") from error
    if of_template and num_bytes is None:
        if disk or device_name:
            raise LaunchError("--memory is missing: or leave --disk and --device-name out, too")
        num_bytes = 0
    if num_bytes is None:
        raise LaunchError("--memory is missing: what each node gives, such as 64GiB")
    if num_bytes and not 1 << 20 <= num_bytes <= MOST_OF_AN_OWNER:
        raise LaunchError(
            f"--memory {format_size(num_bytes)}: the owner on each node gives 1MiB to 16TiB; "
            "more nodes make a larger pool"
        )
    if offload is not None:
        disk = disk or (str(offload.disk.path) if offload.disk is not None else None)
    if isinstance(offload, MooncakeOffload):
        device_name = device_name or offload.device_name
    if kind == "kvcove" and device_name:
        raise LaunchError("--device-name: only --type mooncake takes it")
    path, disk_bytes = _disk_of(kind, disk or "")
    if not 1024 <= first_port <= 65536 - _PORTS:
        raise LaunchError(f"--first-port {first_port}: give 1024 to {65536 - _PORTS}")
    if not 1 <= timeout <= 86400:
        raise LaunchError(f"--timeout {timeout}: give 1 to 86400 seconds")
    engine = _engine(kind, offload)
    made = build_kv_transfer_config(
        engine,
        use_pd_kv_transfer=config is not None and config.use_pd_kv_transfer,
        vllm_version=vllm_version,
    )
    assert made is not None
    ranks = config.ranks if config is not None else 1
    for line in setup:
        if not line.strip():
            raise LaunchError("--setup: give a command of the shell, such as 'module load cuda'")
        if "\n" in line:
            raise LaunchError(f"--setup {line!r}: give one line; --setup may be repeated")
    return Pool(
        kind,
        num_bytes,
        path,
        disk_bytes,
        device_name or "",
        first_port,
        timeout,
        made,
        ranks,
        setup,
    )


def _disk_of(kind: str, disk: str) -> tuple[str, int]:
    """Return the directory and the size of ``PATH`` or, of kvcove, ``PATH:SIZE``."""
    path, colon, size = disk.partition(":")
    if disk and not Path(path).is_absolute():
        raise LaunchError(f"--disk {disk}: give an absolute path")
    if not colon:
        return path, 0
    if kind != "kvcove":
        raise LaunchError(
            f"--disk {disk}: --type mooncake takes a path alone; "
            "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES in the job's environment bounds it"
        )
    try:
        num_bytes = parse_size(size)
    except ValueError as error:
        raise LaunchError(f"--disk {disk}: {error}") from error
    if num_bytes < LEAST_DISK:
        raise LaunchError(f"--disk {disk}: a disk has 64MiB or more")
    return path, num_bytes


def _engine(
    kind: str, offload: KvcoveOffload | MooncakeOffload | None
) -> KvcoveOffload | MooncakeOffload:
    """Return what the engines are told: where the pool is says the job, in its environment."""
    if kind == "mooncake":
        return MooncakeOffload(cpu=CpuTier(num_bytes=1))
    extra = offload.extra_config if isinstance(offload, KvcoveOffload) else {}
    # Without cpu, which would be an engine's own memory: it was checked with it.
    return KvcoveOffload.model_construct(cpu=None, disk=None, pool="auto", extra_config=extra)


def render_part(pool: Pool) -> str:
    """Return what stands in for prime-rl's ``_mooncake_store.sh.j2``.

    A pool without memory of its own takes ``kv_offload_cpu_bytes``, ``kv_offload_disk_path`` and
    ``kv_offload_device_name`` from the template. Each part takes ``LOCAL_IP``, ``INFER_NODE_RANK``
    and ``OUTPUT_DIR`` from what is around it, and ends that shell with status 1 when the pool does
    not get ready.

    Raises
    ------
    LaunchError
        Jinja would read something in it.
    """
    setup = _setup(pool)
    text = "\n".join(
        [
            f"{_LICENSE}# One pool over the nodes of this job ({pool.kind}).",
            _settings(pool),
            _functions(pool),
            setup + (_PART if pool.num_bytes else _NEEDS_MEMORY + _PART),
        ]
    )
    # Only what a pool takes from the template is Jinja.
    taken = text if pool.num_bytes else setup
    if found := re.search(r"\{[{%#]", taken):
        raise LaunchError(
            f"{taken[found.start() :].splitlines()[0][:40]!r}: Jinja would read this; "
            "for --setup, source a file that has it"
        )
    return text


def render_script(pool: Pool, script: Script) -> str:
    """Return a whole job for sbatch: the pool, and a command on each node.

    Raises
    ------
    LaunchError
        It has no command, or something in it cannot be written down.
    """
    if not script.command:
        raise LaunchError("a command is wanted: ... -- vllm serve MODEL")
    if script.nodes < 1:
        raise LaunchError(f"--nodes {script.nodes}: give 1 or more")
    if not Path(script.output_dir).is_absolute():
        raise LaunchError(f"--output-dir {script.output_dir}: give an absolute path")
    options = [f"--nodes={script.nodes}", "--ntasks-per-node=1", "--no-kill"]
    if "%" in script.output_dir or '"' in script.output_dir:
        raise LaunchError(f'--output-dir {script.output_dir}: no % and no " may stand in it')
    log = f"{_directive(script.output_dir)}/kvcove-%j.log"
    options.append(f'--output="{log}"' if " " in log else f"--output={log}")
    for option in script.sbatch:
        if not option.startswith("-"):
            raise LaunchError(f"--sbatch {option!r}: an option of sbatch begins with -")
        options.append(_directive(option))
    words = [*script.command]
    if _is_vllm(words) and not _brings_connector(words):
        words += ["--kv-transfer-config", to_json(pool.connector)]
    texts = {"SETUP\n": _setup(pool), "COMMAND": " ".join(quoted(word) for word in words)}
    return "\n".join(
        [
            f"#!/bin/bash\n{_LICENSE.rstrip()}",
            "# shellcheck disable=SC2317  # srun starts a shell with these functions",
            *[f"#SBATCH {option}" for option in options],
            "",
            f"export OUTPUT_DIR={quoted(script.output_dir)}",
            _settings(pool),
            _functions(pool, "job"),
            re.sub("^SETUP\n|COMMAND$", lambda place: texts[place[0]], _SCRIPT, flags=re.MULTILINE),
        ]
    )


def _directive(text: str) -> str:
    """Return what stands in a line of #SBATCH, which is no word of the shell."""
    quoted(text)  # refuses a second line
    return text


def _is_vllm(words: Sequence[str]) -> bool:
    return "vllm.entrypoints.openai.api_server" in words or any(
        Path(first).name == "vllm" and second == "serve"
        for first, second in itertools.pairwise(words)
    )


def _brings_connector(words: Sequence[str]) -> bool:
    """Tell whether a connector is in the command, or in the file that its ``--config`` names."""
    if any(_names_transfer(word) for word in words):
        return True
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        name = following if word == "--config" else word.removeprefix("--config=")
        if name in ("", word):
            continue
        try:
            lines = Path(name).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeError) as error:
            _log.warning(
                "--config %s cannot be read here (%s): the command gets --kv-transfer-config, which "
                "goes over one in that file",
                name,
                error,
            )
            continue
        if any(_names_transfer(f"--{line}") for line in lines):
            return True
    return False


def _names_transfer(text: str) -> bool:
    return text.replace("_", "-").startswith("--kv-transfer-config")


def _settings(pool: Pool) -> str:
    values: dict[str, str | int] = {
        "KV_NAME": pool.kind,
        "KV_MEMORY": format_size(pool.num_bytes),
        "KV_FIRST_PORT": pool.first_port,
        "KV_TIMEOUT": pool.timeout,
    }
    values["KV_DISK"] = pool.disk
    if pool.kind == "kvcove":
        values["KV_DISK_BYTES"] = pool.disk_bytes
    if pool.kind == "mooncake":
        values["KV_BYTES"] = pool.num_bytes
        values["KV_DEVICES"] = pool.device_name
        values["KV_CONFIG"] = _store_config(pool.device_name, bool(pool.disk))
    words = {name: quoted(str(value)) for name, value in values.items()}
    if not pool.num_bytes:
        words |= {name: word for name, word in _OF_TEMPLATE.items() if name in words}
    text = "\n".join(f"export {name}={word}" for name, word in words.items()) + "\n"
    return text if pool.num_bytes else _WORD_OF_TEMPLATE + text


def _store_config(device_name: str, enable_offload: bool | str) -> str:
    """Return the file of MooncakeStoreConnector; each node adds where the master is."""
    config = {
        "mode": "standalone-store",
        "global_segment_size": 0,
        "local_buffer_size": 4 << 30,
        "protocol": "rdma",
        "device_name": device_name,
        "enable_offload": enable_offload,
    }
    return json.dumps(config, ensure_ascii=False)


def _functions(pool: Pool, *more: str) -> str:
    folder = resources.files("kvcove.launch") / "shell"
    names = ["functions", pool.kind, *more]
    texts = [(folder / f"{name}.sh").read_text(encoding="utf-8") for name in names]
    # Without their first paragraph: licence and purpose.
    return "\n".join(text.partition("\n\n")[2] for text in texts)


# What prime-rl's launchers give to its templates, as `quoted` gives it to the shell.
_WORD_OF_TEMPLATE = r"""{% macro kv_word(text) -%}
"{{ text | replace("\\", "\\\\") | replace("\"", "\\\"") | replace("$", "\\$") | replace("`", "\\`") | replace("\x27", "$(printf \"\\047\")") }}"
{%- endmacro %}
"""
_OF_TEMPLATE = {
    "KV_MEMORY": "{{ kv_offload_cpu_bytes }}",
    "KV_BYTES": "{{ kv_offload_cpu_bytes }}",
    "KV_DISK": "{{ kv_word(kv_offload_disk_path) }}",
    "KV_DEVICES": "{{ kv_word(kv_offload_device_name) }}",
    "KV_CONFIG": quoted(_store_config("@devices", "@disk"))
    .replace("@devices", "$KV_DEVICES")
    .replace(quoted('"@disk"')[1:-1], "{{ (kv_offload_disk_path | length > 0) | lower }}"),
}
_NEEDS_MEMORY = """\
case $KV_MEMORY in "" | 0) kv_fail "the template has no kv_offload_cpu_bytes for this type of offload" ;; esac
"""


def _setup(pool: Pool) -> str:
    """Return what runs the lines of --setup. A function would make what they declare its own."""
    words = [quoted(line) for line in pool.setup]
    return "".join(
        f'eval {word} || kv_fail "--setup failed with status $?: "{word}\n' for word in words
    )


_PART = """\
kv_begin
if [ "$INFER_NODE_RANK" = 0 ]; then kv_head; fi
kv_join
"""

_SCRIPT = """\
# This shell has the master, for as long as the job runs.
unset INFER_NODE_RANK
# After sbatch --export=NONE it would keep from srun what this shell exports.
unset SLURM_EXPORT_ENV
SETUP
kv_need scontrol srun scancel
LOCAL_IP=$(kv_local_ip)
[ -n "$LOCAL_IP" ] || kv_fail "cannot tell by which address other nodes reach $SLURMD_NODENAME"
kv_begin
kv_head
# A node that fails leaves the others working.
# shellcheck disable=SC2016  # the shells that srun starts expand it
kv_srun --ntasks-per-node=1 --kill-on-bad-exit=0 --no-kill --wait=0 bash -c "$(declare -f)"'
INFER_NODE_RANK=$SLURM_PROCID
SETUP
LOCAL_IP=$(kv_local_ip)
[ -n "$LOCAL_IP" ] || kv_fail "cannot tell by which address other nodes reach $SLURMD_NODENAME"
kv_join
kv_run COMMAND
'
"""
