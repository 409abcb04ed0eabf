# SPDX-License-Identifier: Apache-2.0
"""Whether a vLLM has what kvcove.vllm uses of it, by its source alone: names.py TREE...

A TREE is a wheel of vLLM or a directory with its package. Nothing is imported and no engine runs: what the adapter
imports, the hooks that it has, and the methods, fields and attributes in USED are looked up by their names and
parameters, which takes a second or two; and so is the disk tier as kvcove.launch calls it. Prints what is missing, and ends with 1
if anything is.

It knows what each version lacks on purpose (SINCE, UNTIL), so that a name which a new release renames is found on the day when its
wheel is there.
"""

from __future__ import annotations

import ast
import re
import runpy
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

PACKAGE = Path(__file__).parents[2] / "kvcove"
ADAPTER = PACKAGE / "vllm"
BASES = "vllm.distributed.kv_transfer.kv_connector.v1.base"
BASE = "KVConnectorBase_V1"

# What an older version lacks, and what the adapter then does without (_compat.py): by name, the first that has it.
SINCE = {
    "AuxOutputConfig.enable_return_routed_experts": (0, 31),
    "aux_output_config": (0, 31),
    "bind_kv_cache_manager": (0, 30),
    "get_external_cache_hit_sources": (0, 32),
    "get_supported_kv_cache_layouts": (0, 29),
    "get_transfer_results": (0, 30),
    "KVConnectorBlockState.get_block_ids": (0, 30),
    "KVCacheBlockCopy.src_block_id": (0, 26),
    "kv_cache_block_copies": (0, 26),
    "_handle_blocked_waiting_request": (0, 31),
    "kv_holding_waiting": (0, 31),
    "requires_kv_delivery": (0, 27),
    "resolve_kv_cache_layout": (0, 29),
    "restore_kv_caches": (0, 33),
    "set_weight_version": (0, 27),
    "supports_sleep_mode": (0, 33),
    "unregister_kv_caches": (0, 33),
    "use_replayssm": (0, 27),
}
# What a newer version lacks, whose place another name has taken (_compat.py): by name, the last that has it.
UNTIL = {
    "_try_promote_blocked_waiting_request": (0, 30),
    "skipped_waiting": (0, 30),
}
# Public methods of the connector that are not vLLM's.
OWN = {"own_cache"}

CONNECTOR = "vllm.distributed.kv_transfer.kv_connector"
SCHEDULER = "vllm.v1.core.sched"
# Module, class, and what is used of it: "name" for a field, property or attribute that a constructor sets,
# "name(parameters)" for a method that is called, or replaced by one with these parameters.
USED: tuple[tuple[str, str, str], ...] = (
    (
        "vllm.v1.core.block_pool",
        "BlockPool",
        "blocks touch(blocks) free_blocks(ordered_blocks) evict_blocks(block_ids) reset_prefix_cache()",
    ),
    (
        f"{SCHEDULER}.scheduler",
        "Scheduler",
        "connector deferred_frees failed_recving_kv_req_ids finished_recving_kv_req_ids _inflight_prefills "
        "kv_holding_waiting _handle_blocked_waiting_request(request) skipped_waiting "
        "_try_promote_blocked_waiting_request(request) waiting kv_cache_manager requests reset_connector_cache() "
        "reset_prefix_cache(reset_running_requests,reset_connector) _build_kv_connector_meta(connector,scheduler_output)",
    ),
    (
        "vllm.v1.core.kv_cache_manager",
        "KVCacheManager",
        "get_blocks(request_id) get_block_ids(request_id) free(request)",
    ),
    ("vllm.v1.core.kv_cache_utils", "KVCacheBlock", "block_id is_null"),
    ("vllm.v1.core.kv_cache_utils", "KVCacheBlockCopy", "src_block_id dst_block_id"),
    (
        f"{SCHEDULER}.output",
        "SchedulerOutput",
        "scheduled_new_reqs scheduled_cached_reqs num_scheduled_tokens kv_cache_block_copies",
    ),
    (f"{SCHEDULER}.output", "NewRequestData", "req_id num_computed_tokens"),
    (f"{SCHEDULER}.output", "CachedRequestData", "req_ids resumed_req_ids num_computed_tokens"),
    (f"{SCHEDULER}.output", "KVConnectorBlockState", "get_block_ids(req_id)"),
    (
        "vllm.v1.outputs",
        "KVConnectorOutput",
        "finished_recving invalid_block_ids kv_connector_worker_meta",
    ),
    ("vllm.v1.kv_cache_interface", "KVCacheConfig", "num_blocks kv_cache_tensors kv_cache_groups"),
    ("vllm.v1.kv_cache_interface", "KVCacheGroupSpec", "layer_names kv_cache_spec"),
    ("vllm.v1.kv_cache_interface", "KVCacheTensor", "size"),
    ("vllm.v1.kv_cache_interface", "AttentionSpec", "num_kv_heads"),
    ("vllm.v1.kv_cache_interface", "SlidingWindowSpec", "sliding_window"),
    ("vllm.v1.kv_cache_interface", "ChunkedLocalAttentionSpec", "attention_chunk_size"),
    ("vllm.v1.kv_cache_interface", "MambaSpec", "shapes"),
    (
        "vllm.v1.request",
        "Request",
        "request_id num_tokens num_prompt_tokens num_computed_tokens cache_salt block_hashes lora_request status "
        "all_token_ids kv_transfer_params skip_reading_prefix_cache is_finished()",
    ),
    ("vllm.v1.request", "RequestStatus", "WAITING_FOR_REMOTE_KVS RUNNING"),
    (
        "vllm.v1.engine.core",
        "EngineCore",
        "scheduler model_executor collective_rpc(method,timeout,args,kwargs) wake_up(tags) add_lora(lora_request) "
        "remove_lora(lora_id) add_request(request,request_wave) set_weight_version(weight_version) "
        "reset_prefix_cache(reset_running_requests,reset_connector)",
    ),
    ("vllm.v1.worker.gpu_worker", "Worker", "sleep(level) wake_up(tags)"),
    (
        "vllm.distributed.kv_events",
        "BlockStored",
        "block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys group_idx",
    ),
    ("vllm.distributed.kv_events", "BlockRemoved", "block_hashes medium group_idx"),
    (
        "vllm.config.kv_transfer",
        "KVTransferConfig",
        "kv_connector kv_connector_module_path kv_role kv_connector_extra_config kv_load_failure_policy engine_id "
        "is_kv_consumer is_kv_producer",
    ),
    ("vllm.config.scheduler", "SchedulerConfig", "async_scheduling policy"),
    (
        "vllm.config.cache",
        "CacheConfig",
        "cache_dtype prefix_caching_hash_algo enable_prefix_caching kv_offloading_size use_replayssm",
    ),
    (
        "vllm.config.parallel",
        "ParallelConfig",
        "tensor_parallel_size pipeline_parallel_size decode_context_parallel_size cp_kv_cache_interleave_size "
        "distributed_executor_backend",
    ),
    (
        "vllm.config.model",
        "ModelConfig",
        "get_sliding_window() attention_chunk_size is_hybrid is_attention_free enable_sleep_mode enable_cumem_allocator "
        "get_total_num_kv_heads() hf_text_config",
    ),
    (
        "vllm.config",
        "VllmConfig",
        "__post_init__() kv_transfer_config model_config cache_config parallel_config scheduler_config aux_output_config",
    ),
    ("vllm.config.aux_output", "AuxOutputConfig", "enable_return_routed_experts"),
    (
        "vllm.config.speculative",
        "SpeculativeConfig",
        "method draft_model_config target_model_config use_eagle()",
    ),
    (
        f"{CONNECTOR}.v1.metrics",
        "KVConnectorStats",
        "data reset() aggregate(other) reduce() is_empty()",
    ),
    (
        f"{CONNECTOR}.v1.metrics",
        "KVConnectorPromMetrics",
        "_counter_cls _gauge_cls _histogram_cls _labelnames per_engine_labelvalues "
        "observe(transfer_stats_data,engine_idx)",
    ),
    (f"{CONNECTOR}.v1.multi_connector", "MultiConnector", "_connectors"),
    (
        f"{CONNECTOR}.factory",
        "KVConnectorFactory",
        "_registry register_connector(name,module_path,class_name)",
    ),
)

Definition = ast.FunctionDef | ast.AsyncFunctionDef


class Tree:
    """The modules of a vLLM, read when they are asked for."""

    def __init__(self, place: Path) -> None:
        self._zip = zipfile.ZipFile(place) if place.is_file() else None
        self._place = place
        self._parsed: dict[str, ast.Module | None] = {}
        self.version = self._version()

    def _read(self, path: str) -> str | None:
        try:
            if self._zip is not None:
                return self._zip.read(path).decode()
            return (self._place / path).read_text()
        except (KeyError, OSError):
            return None

    def _version(self) -> tuple[int, int]:
        names = (
            self._zip.namelist()
            if self._zip is not None
            else [f"{path.name}/" for path in self._place.glob("vllm*.dist-info")]
        )
        for name in names:
            found = re.match(r"vllm(?:_cpu)?-(\d+)\.(\d+)\S*\.dist-info/", name)
            if found:
                return int(found[1]), int(found[2])
        raise SystemExit(
            f"{self._place}: there is no vllm-*.dist-info, so its version is not known"
        )

    def module(self, name: str) -> ast.Module | None:
        if name not in self._parsed:
            path = name.replace(".", "/")
            text = self._read(f"{path}.py")
            text = self._read(f"{path}/__init__.py") if text is None else text
            self._parsed[name] = None if text is None else ast.parse(text)
        return self._parsed[name]

    def find(self, module: str, name: str) -> tuple[str, ast.AST] | None:
        """Return what a module calls so, and the module where it comes from."""
        tree = self.module(module)
        if tree is None:
            return None
        for node in _statements(tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        source = _absolute(self, module, node)
                        return self.find(source, alias.name) or (module, node)
            elif name in _names(node):
                return module, node
        inner = self.module(f"{module}.{name}")
        if inner is not None:
            return f"{module}.{name}", inner
        for node in ast.walk(
            tree
        ):  # a module that imports lazily names what it has in a dictionary
            if isinstance(node, ast.Constant) and node.value == name:
                return module, node
        return None

    def members(self, module: str, name: str) -> dict[str, ast.AST]:
        """Return fields, methods and attributes of a class and of its bases that can be found."""
        found = self.find(module, name)
        if found is None or not isinstance(found[1], ast.ClassDef):
            return {}
        source, node = found
        members: dict[str, ast.AST] = {}
        for base in node.bases:
            if isinstance(base, ast.Name):
                members |= self.members(source, base.id)
        for each in ast.walk(node):
            if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                owner = each.value
                if isinstance(owner, ast.Name) and owner.id == "self":
                    members.setdefault(each.attr, each)
        for statement in _statements(node):
            for each_name in _names(statement):
                members[each_name] = statement
        return members


def _absolute(tree: Tree, module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = tree._read(f"{module.replace('.', '/')}/__init__.py") is not None
    parts = module.split(".")[: len(module.split(".")) - node.level + (1 if package else 0)]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a body, those under conditions included."""
    for statement in getattr(node, "body", []):
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            yield from _statements(statement)
            for other in [*getattr(statement, "handlers", []), *statement.orelse]:
                yield from (_statements(other) if hasattr(other, "body") else [other])


def _names(node: ast.AST) -> set[str]:
    """Return what a statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _parameters(node: Definition) -> list[str]:
    given = node.args
    return [each.arg for each in [*given.posonlyargs, *given.args, *given.kwonlyargs]][1:]


def imports() -> Iterator[tuple[str, str]]:
    """Yield module and name of all that the adapter imports from vLLM, but what it can do without."""
    for path in sorted(ADAPTER.glob("*.py")):
        tree = ast.parse(path.read_text())
        optional = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.Try)
            for statement in node.body
            for inner in ast.walk(statement)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or id(node) in optional:
                continue
            if (node.module or "").split(".")[0] == "vllm":
                yield from ((node.module or "", alias.name) for alias in node.names)


def hooks() -> dict[str, Definition]:
    """Return the connector's public methods."""
    tree = ast.parse((ADAPTER / "_connector.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "KvcoveConnector":
            return {
                each.name: each
                for each in node.body
                if isinstance(each, ast.FunctionDef)
                and not each.name.startswith("_")
                and each.name not in OWN
            }
    raise SystemExit(f"{ADAPTER}: there is no KvcoveConnector")


def launcher() -> dict[str, Any]:
    """Return what kvcove.launch._vllm has. kvcove is not imported: its extension need not be built."""
    packages: dict[str, Any] = {}
    for name, place in (
        ("kvcove", PACKAGE),
        ("kvcove.engines", PACKAGE / "engines"),
        ("kvcove.vllm", ADAPTER),
    ):
        packages[name] = ModuleType(name)
        packages[name].__path__ = [str(place)]
    packages["kvcove"].__version__ = "of this tree"
    with mock.patch.dict(sys.modules, packages):
        return runpy.run_path(str(PACKAGE / "launch" / "_vllm.py"))


def lacks_tier(tree: Tree) -> Iterator[str]:
    """Yield a line where the launchers call the disk tier by a name that this vLLM would refuse."""
    factory = "vllm.v1.kv_offload.tiering.factory"
    known = {
        node.args[0].value
        for node in ast.walk(tree.module(factory) or ast.Module([], []))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "SecondaryTierFactory.register_tier"
        and isinstance(node.args[0], ast.Constant)
    }
    name = launcher()["disk_tier"](".".join(map(str, tree.version)))
    if name not in known:
        yield f"{factory}: no tier {name}: there are {', '.join(sorted(map(str, known)))}"


def lacks(tree: Tree) -> Iterator[str]:
    """Yield a line for each thing that this vLLM does not have as the adapter expects it."""

    def excused(*names: str) -> bool:
        return any(
            tree.version < SINCE.get(name, (0, 0)) or tree.version > UNTIL.get(name, tree.version)
            for name in names
        )

    for module, name in dict.fromkeys(imports()):
        if tree.find(module, name) is None and not excused(name):
            yield f"{module}: no {name}"
    base = tree.members(BASES, BASE) | tree.members(BASES, "SupportsHMA")
    ours = hooks()
    for name, hook in ours.items():
        there = base.get(name)
        if there is None:
            if not excused(name):
                yield f"{BASE}: no hook {name}: nobody would call it"
            continue
        if isinstance(there, Definition) and not hook.args.kwarg:
            mine, theirs = _parameters(hook), _parameters(there)
            if mine[: len(theirs)] != theirs:
                yield f"{BASE}.{name} has the parameters {theirs}, ours {mine}"
    for name, node in base.items():
        marks = [ast.unparse(each) for each in getattr(node, "decorator_list", [])]
        if any(mark.endswith("abstractmethod") for mark in marks) and name not in ours:
            yield f"{BASE}.{name} is abstract, and ours does not have it"
    for module, owner, wanted in USED:
        members = tree.members(module, owner)
        if not members:
            if not any(excused(f"{owner}.{word.partition('(')[0]}") for word in wanted.split()):
                yield f"{module}: no {owner}"
            continue
        for word in wanted.split():
            name, called, rest = word.partition("(")
            found = members.get(name)
            if found is None:
                if not excused(name, f"{owner}.{name}"):
                    yield f"{module}.{owner}: no {name}"
            elif called and isinstance(found, Definition):
                asked = [each for each in rest.rstrip(")").split(",") if each]
                there = _parameters(found)
                extra = found.args.vararg or found.args.kwarg
                if not extra and there[: len(asked)] != asked:
                    yield f"{module}.{owner}.{name} has the parameters {there}, {asked} are given"


def main(places: list[str]) -> int:
    if not places:
        raise SystemExit(__doc__)
    failed = 0
    for place in places:
        tree = Tree(Path(place))
        missing = [*lacks(tree), *lacks_tier(tree)]
        failed += len(missing)
        state = "all names are there" if not missing else f"{len(missing)} missing"
        print(f"vLLM {'.'.join(map(str, tree.version))} ({Path(place).name}): {state}", flush=True)
        for line in missing:
            print(f"  FAIL  {line}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
