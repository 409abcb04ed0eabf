# SPDX-License-Identifier: Apache-2.0
"""``python -m kvcove.launch``: the command."""

from __future__ import annotations

import argparse
import logging
import os
import re
import shlex
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvcove.launch import (
    _shared,
    _stale,
    _vllm,
    hydra,
    migrate,
    prime_rl,
    prime_rl_run,
    slurm,
    verl,
)
from kvcove.launch._document import Document, at, read
from kvcove.launch._errors import ConfigError, LaunchError
from kvcove.launch.connector import build_kv_transfer_config, to_json
from kvcove.launch.embed import PoolUnreachable, ask
from kvcove.launch.kv_store import KVStoreConfig

__all__ = ["main"]

_log = logging.getLogger("kvcove.launch")

_EPILOG = """\
exit status: 0 done; 1 the pool does not answer, prime-rl fails, or (migrate --check) a file is outdated;
2 a configuration or an argument is wrong; 127 no such command.
docs/verl.md, docs/prime-rl.md and docs/slurm.md have the configurations.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kvcove.launch",
        description="Checks how a trainer's configuration offloads KV, and starts its engines so.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, summary: str, more: str = "") -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}. {more}".strip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    build = add(
        "build",
        "print the value of vLLM's --kv-transfer-config",
        "Nothing is printed where no connector is wanted.",
    )
    build.add_argument(
        "source",
        nargs="+",
        metavar="FILE|KEY=VALUE",
        help="a TOML file of prime-rl; or a YAML file of verl, Hydra's overrides, or both",
    )
    _add_version(build)
    _add_strict(build)
    build.add_argument("--pretty", action="store_true", help="over several lines")

    check = add("check", "say what is wrong with configurations, and where")
    check.add_argument(
        "files", nargs="+", metavar="FILE", help="TOML of prime-rl, YAML of verl or prime-rl"
    )

    _add_strict(check)

    rewrite = add(
        "migrate",
        "rewrite outdated keys of prime-rl's TOML",
        "Everything else stays as it is, comments too.",
    )
    rewrite.add_argument("files", nargs="+", metavar="FILE")
    how = rewrite.add_mutually_exclusive_group()
    how.add_argument("--write", action="store_true", help="into the file; default: print the text")
    how.add_argument("--check", action="store_true", help="only say which files are outdated")

    run = add(
        "verl",
        f"run verl with {verl.BLOCK}",
        "The block is taken out\nof COMMAND's overrides and checked; the pool is asked once; then "
        "COMMAND runs\nwith what unmodified verl understands.",
    )
    run.usage = (
        "python -m kvcove.launch verl [--kv-store FILE] [--timeout S] [--strict]\n"
        "                                    [--print] -- COMMAND..."
    )
    run.add_argument(
        "--kv-store", metavar="FILE", help="a YAML file with the block; overrides go over it"
    )
    run.add_argument(
        "--timeout",
        type=_seconds,
        default=2.0,
        metavar="S",
        help="seconds that the pool may take to answer (default: 2)",
    )
    run.add_argument(
        "--print", action="store_true", help="print the command instead; the pool is not asked"
    )
    _add_strict(run)
    run.add_argument("run", nargs=argparse.REMAINDER, metavar="-- COMMAND...")

    run = add(
        "prime-rl",
        "run prime-rl's rl or inference with kv_cache_offload.type = 'kvcove'",
        "This runs\nin the Python environment of prime-rl, which stays as it is: files and jobs that its "
        "launchers\nwrite have the connector as unmodified prime-rl takes it. A job of SLURM gets one pool "
        "over\nits inference nodes; with type 'mooncake' the pool has kvcove's programs, too.",
    )
    run.usage = (
        "python -m kvcove.launch prime-rl [--strict] -- rl @ FILE...\n"
        "       python -m kvcove.launch prime-rl [--strict] -- inference @ FILE..."
    )
    _add_strict(run)
    run.add_argument("run", nargs=argparse.REMAINDER, metavar="-- COMMAND...")
    _add_slurm(add)
    return parser


def _add_slurm(add: Callable[..., argparse.ArgumentParser]) -> None:
    job = add(
        "slurm",
        "print a job of SLURM whose nodes share one pool",
        "The first node has the master,\neach node gives memory; COMMAND runs on each node when "
        "its owner holds a lease.\nA 'vllm serve' gets --kv-transfer-config unless it has one.",
    )
    job.usage = (
        "python -m kvcove.launch slurm [FILE] [OPTIONS] --nodes N --output-dir DIR -- COMMAND...\n"
        "       python -m kvcove.launch slurm [FILE] [OPTIONS] --part"
    )
    job.add_argument("file", nargs="?", metavar="FILE", help="a configuration of prime-rl")
    job.add_argument(
        "--type",
        choices=("kvcove", "mooncake"),
        help="without FILE: kvcove's connector (default; from vLLM 0.24 on), or MooncakeStoreConnector "
        "as it is",
    )
    job.add_argument("--memory", metavar="SIZE", help="of each node, such as 64GiB")
    job.add_argument(
        "--disk",
        metavar="PATH",
        help="a directory of each node for what memory evicts; with kvcove also PATH:SIZE",
    )
    job.add_argument("--device-name", metavar="NAMES", help="mooncake: RDMA devices")
    job.add_argument(
        "--first-port",
        type=int,
        default=slurm.FIRST_PORT,
        metavar="N",
        help="a job has eight of the 10,000 ports from here on, by its number (default: 20000)",
    )
    job.add_argument(
        "--timeout",
        type=int,
        default=120,
        metavar="S",
        help="seconds to wait for the master, and for a lease (default: 120)",
    )
    job.add_argument(
        "--part",
        action="store_true",
        help="print only what stands in for _mooncake_store.sh.j2 in prime-rl's templates; without FILE and "
        "--memory it takes memory, disk and devices from their variables",
    )
    job.add_argument(
        "--setup",
        action="append",
        default=[],
        metavar="LINE",
        help="a line of the shell that each node runs first, such as --setup 'module load cuda'; may be repeated",
    )
    job.add_argument("--nodes", type=int, metavar="N", help="nodes of the job")
    job.add_argument("--output-dir", metavar="DIR", help="for logs; all nodes see it")
    job.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTION",
        help="a line of #SBATCH, such as --sbatch=--time=1:00:00; may be repeated",
    )
    _add_version(job)
    _add_strict(job)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= 600:
        raise argparse.ArgumentTypeError("more than 0 and at most 600 seconds")
    return seconds


def _add_version(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--vllm-version",
        metavar="V",
        help="names differ between versions of vLLM (default: the installed one's)",
    )


def _add_strict(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--strict",
        action="store_true",
        help="refuse where engines may be given KV of old weights, or a load that fails ends a request; "
        "default: a warning",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    logging.basicConfig(format="%(name)s: %(levelname)s: %(message)s", level=logging.WARNING)
    words = list(sys.argv[1:] if arguments is None else arguments)
    behind: list[str] = []
    if words[:1] == ["slurm"] and "--" in words:
        # What stands behind it is the job's command.
        behind = words[words.index("--") + 1 :]
        words = words[: words.index("--")]
    options = _parser().parse_args(words)
    options.behind = behind
    commands = {
        "build": _build,
        "check": _check,
        "migrate": _migrate,
        "prime-rl": _prime_rl,
        "slurm": _slurm,
        "verl": _verl,
    }
    try:
        return commands[options.command](options)
    except PoolUnreachable as error:
        print(f"kvcove.launch: {error}", file=sys.stderr)
        return 1
    except (LaunchError, OSError, ValueError) as error:
        print(f"kvcove.launch: {error}", file=sys.stderr)
        return 2


def _is_prime_rl(document: Document) -> bool:
    """Tell a file of prime-rl from one of verl."""
    if document.language == "toml":
        return True
    found = at(document.data, prime_rl.block_path(document.data))
    return found is not None and verl.find_block(document.data) is None


def _build(options: argparse.Namespace) -> int:
    overrides, files = hydra.split(options.source, verl.BLOCK)
    strange = [name for name in files if "=" in name and not Path(name).exists()]
    if strange:
        raise LaunchError(f"{strange[0]}: neither a file nor a key of {verl.BLOCK}")
    if len(files) > 1:
        raise LaunchError(f"{files[1]}: one file is enough")
    document = read(files[0]) if files else None
    config: dict[str, Any] | None
    ranks: int | None
    if document is not None and _is_prime_rl(document):
        if overrides:
            raise LaunchError(f"{overrides[0].text}: {files[0]} is no configuration of verl")
        found = prime_rl.load(document)
        config = found.build_kv_transfer_config(options.vllm_version)
        ranks, resets = found.ranks, False
    else:
        store = verl.load(document, overrides)
        config = build_kv_transfer_config(store, vllm_version=options.vllm_version)
        ranks, resets = _look_at(document, store), True
    _stale.tell(config, ranks=ranks, resets=resets, strict=options.strict)
    if config is None:
        print("kvcove.launch: no connector is wanted", file=sys.stderr)
    elif options.pretty:
        import json

        print(json.dumps(config, indent=2, ensure_ascii=False))
    else:
        print(to_json(config))
    return 0


def _look_at(document: Document | None, store: KVStoreConfig) -> int | None:
    """Refuse what is beside verl's block and undoes it; return the ranks of an engine."""
    documents = [] if document is None else [document]
    if store.enable:
        verl.refuse_conflicts((), documents)
    source = document.source if document is not None else ""
    _shared.tell(store, verl.hosts_of((), documents), source=source)
    return verl.ranks_of((), documents)


def _check(options: argparse.Namespace) -> int:
    status = 0
    for name in options.files:
        try:
            print(f"{name}: {_summary(read(name), strict=options.strict)}")
        except (ConfigError, LaunchError) as error:
            print(error, file=sys.stderr)
            status = 2
    return status


def _summary(document: Document, *, strict: bool) -> str:
    def tell(made: dict[str, Any] | None, ranks: int | None, *, resets: bool) -> None:
        _stale.tell(
            made,
            ranks=ranks,
            resets=resets,
            strict=strict,
            source=document.source,
        )

    if not _is_prime_rl(document):
        if verl.find_block(document.data) is None:
            return f"there is no {verl.BLOCK}"
        config = verl.load(document)
        tell(build_kv_transfer_config(config), _look_at(document, config), resets=True)
        return f"right; {config.connector() if config.enable else 'not enabled'}"
    found = prime_rl.load(document)
    prime_rl.check_deployment(document)
    made = found.build_kv_transfer_config()
    if made is None:
        return "right; no connector"
    tell(made, found.ranks, resets=False)
    connectors = made["kv_connector_extra_config"].get("connectors", [made])
    text = f"right; {' and '.join(c['kv_connector'] for c in connectors)}"
    if found.slurm and found.offload is not None and found.offload.disk is not None:
        text += f"; that {found.offload.disk.path} can be written is for the nodes to say"
    return text


def _migrate(options: argparse.Namespace) -> int:
    status = 0
    for name in options.files:
        if options.write:
            done = migrate.migrate_file(name)
            print(f"{name}: {'rewritten' if done else 'nothing to do'}", file=sys.stderr)
            continue
        text = Path(name).read_bytes().decode("utf-8")
        new = migrate.migrate_text(text, name)
        if not options.check:
            sys.stdout.write(new)
        elif new != text:
            print(f"{name}: outdated; `python -m kvcove.launch migrate --write {name}`")
            status = 1
    return status


def _prime_rl(options: argparse.Namespace) -> int:
    command = options.run[1:] if options.run[:1] == ["--"] else options.run
    if not command:
        raise LaunchError(
            "prime-rl: a command is wanted: python -m kvcove.launch prime-rl -- rl @ rl.toml"
        )
    try:
        prime_rl_run.run(command, strict=options.strict)
    except LaunchError:
        raise
    except (OSError, ValueError):
        traceback.print_exc()  # prime-rl's own, as prime-rl alone shows it
        return 1
    return 0


def _slurm(options: argparse.Namespace) -> int:
    own = "kvcove" if _vllm.has_own_connector(options.vllm_version) else "mooncake"
    pool = slurm.pool_of(
        read(options.file) if options.file else None,
        kind=options.type or (None if options.file else own),
        memory=options.memory,
        disk=options.disk,
        device_name=options.device_name,
        first_port=options.first_port,
        timeout=options.timeout,
        vllm_version=options.vllm_version,
        of_template=options.part and not options.file,
        setup=options.setup,
    )
    told = _stale.ranks_of(options.behind)
    _stale.tell(
        pool.connector,
        ranks=told and max(pool.ranks, told),
        resets=False,
        strict=options.strict,
        program="prime-rl" if options.file else _stale.program_of(options.behind),
    )
    if options.part:
        if options.behind or options.nodes or options.output_dir or options.sbatch:
            raise LaunchError(
                "slurm --part: nodes, directory, command are what is around the part; leave "
                "--nodes, --output-dir, --sbatch and -- COMMAND out"
            )
        sys.stdout.write(slurm.render_part(pool))
        return 0
    for name, value in (("--nodes", options.nodes), ("--output-dir", options.output_dir)):
        if value is None:
            raise LaunchError(f"slurm: {name} is missing (or --part)")
    script = slurm.Script(options.nodes, options.output_dir, options.behind, options.sbatch)
    sys.stdout.write(slurm.render_script(pool, script))
    return 0


_OVERRIDE = re.compile(r"(\+\+|\+)?[A-Za-z_][\w./@-]*=|~[A-Za-z_]")


def _with_overrides(command: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Return a command with overrides behind its last one, else at its end.

    Hydra's parser takes overrides in one piece: one that follows an option such as ``--cfg job`` is an
    error where others stand in front of that option.
    """
    # NAME=VALUE in front of the program are variables of env.
    program = next((i for i, word in enumerate(command) if word != "env" and "=" not in word), 0)
    last = max(
        (i for i, word in enumerate(command) if i > program and _OVERRIDE.match(word)),
        default=len(command) - 1,
    )
    return [*command[: last + 1], *overrides, *command[last + 1 :]]


def _verl(options: argparse.Namespace) -> int:
    command = options.run[1:] if options.run[:1] == ["--"] else options.run
    if not command:
        raise LaunchError(
            "verl: a command is wanted: python -m kvcove.launch verl -- python3 -m ..."
        )
    document = read(options.kv_store) if options.kv_store else None
    if document is not None and verl.find_block(document.data) is None:
        raise LaunchError(f"{options.kv_store}: there is no {verl.BLOCK}")
    made = verl.plan(command, document)
    environment = {**os.environ, **made.environment}
    run = made.command
    wanted = bool(made.overrides)
    if not wanted:
        print(
            f"kvcove.launch: {verl.BLOCK} is not enabled: the engines get no connector from it",
            file=sys.stderr,
        )
    if wanted:
        _shared.tell(made.config, made.hosts, environ=environment)
        if _vllm.refuses_verls_abort():
            _log.warning(
                "this verl cannot abort requests of this vLLM (pause_generation has no argument "
                "'wait_for_inflight_requests' any more), and a run that aborts ends there: install the "
                "vLLM that verl pins, or apply kvcove's contrib/verl.patch to verl"
            )
    if wanted and not options.print:
        ask(made.config, timeout=options.timeout, environ=environment)
    if wanted:
        run = _with_overrides(run, made.overrides)
        _stale.tell(
            made.connector,
            ranks=made.ranks,
            resets=True,
            strict=options.strict,
        )
    if options.print:
        settings = [f"{key}={value}" for key, value in made.environment.items()]
        print(shlex.join([*(["env", *settings] if settings else []), *run]))
        return 0
    program = shutil.which(run[0])
    if program is None:
        print(f"kvcove.launch: {run[0]}: no such command", file=sys.stderr)
        return 127
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(program, run, environment)
