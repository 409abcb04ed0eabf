# SPDX-License-Identifier: Apache-2.0
"""Engines as trainers make them, with KVCOVE_VLLM_CONNECTOR=auto: trainer_engines.py TRAINER MODEL.

Each trainer's own code runs as far as it does without a GPU; `switch` is vLLM alone, `nemo-rl` the arguments that
its worker makes (PyPI has no NeMo-RL). trainers.py has started a pool, and named it in $KVCOVE_POOL. Prints a line
for each check, and ends with 1 if one fails.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import weights
from driver import PROMPTS, SMALL
from own import OwnEngine

FAILED: list[str] = []
SWITCH = "KVCOVE_VLLM_CONNECTOR"


def check(condition: bool, text: str) -> None:
    print(f"  {'ok  ' if condition else 'FAIL'}  {text}", flush=True)
    if not condition:
        FAILED.append(text)


class Log:
    """Keeps what kvcove says. Not a handler: vLLM takes those of its loggers away when it configures them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        made = logging.getLogRecordFactory()

        def record(name: str, *arguments: Any, **more: Any) -> logging.LogRecord:
            found = made(name, *arguments, **more)
            if name == "vllm.kvcove":
                self.lines.append(found.getMessage())
            return found

        logging.setLogRecordFactory(record)

    def says(self, text: str) -> bool:
        return any(text in line for line in self.lines)


def configured(arguments: Any) -> Any:
    """Return the kv_transfer_config of the engine that these arguments make."""
    return arguments.create_engine_config().kv_transfer_config


def is_ours(transfer: Any) -> bool:
    return transfer is not None and transfer.kv_connector == "KvcoveConnector"


class Plain(OwnEngine):
    """An engine that nobody gives a kv_transfer_config."""

    def __init__(self, model: str, **options: Any) -> None:
        from driver import start

        self.llm = start(model, **options)


def stored_and_fenced(engine: OwnEngine) -> None:
    """Store, hit, reset, miss."""
    asked = sum(map(len, PROMPTS))
    cold, hits, _ = engine.measured()
    check(hits == 0, "nothing is found at first")
    engine.settle()
    warm, hits, _ = engine.measured()
    check(hits > 0.9 * asked and warm == cold, f"{hits} of {asked} tokens from the pool, as before")
    check(engine.reset(connector=True), "a reset of its connector is proven")
    again, hits, _ = engine.measured()
    check(hits == 0 and again == cold, "behind it nothing older is found")
    engine.settle()


def other_weights(engine: OwnEngine, change: Callable[[], Any]) -> None:
    """Change the weights as a trainer does, with the engine's own cache reset alone."""
    before, hits, _ = engine.measured()
    check(hits > 0, "the pool has what was computed")
    change()
    changed, hits, _ = engine.measured()
    check(changed != before, "the weights are others")
    check(hits == 0, f"KV of the weights before is not found ({hits} tokens)")


def switch(model: str) -> None:
    from vllm import EngineArgs

    log = Log()
    refused = configured(EngineArgs(model=model, enable_prefix_caching=False, **SMALL))
    check(refused is None and log.says("prefix caching is off"), "an engine without prefix caching")
    own = configured(
        EngineArgs(
            model=model,
            kv_transfer_config={"kv_connector": "ExampleConnector", "kv_role": "kv_both"},
            **SMALL,
        )
    )
    check(own.kv_connector == "ExampleConnector", "a kv_transfer_config of its own stays")
    os.environ[SWITCH] = "off"
    check(configured(EngineArgs(model=model, **SMALL)) is None, "off: no connector")
    os.environ[SWITCH] = "auto"
    engine = Plain(model)
    check(log.says("this engine gets KvcoveConnector"), "an engine gets the connector")
    stored_and_fenced(engine)
    other_weights(engine, lambda: engine.llm.apply_model(weights.change))


def openrlhf(model: str) -> None:
    """Its Ray actor's class, in this process, with the arguments that create_vllm_engines makes."""
    from openrlhf.trainer.ray import vllm_engine as module

    taken: list[dict[str, Any]] = []

    class Remote:
        @staticmethod
        def options(**_: Any) -> type[Remote]:
            return Remote

        @staticmethod
        def remote(**arguments: Any) -> None:
            taken.append(arguments)

    actor = module.RolloutRayActor.__ray_metadata__.modified_class
    module.RolloutRayActor = Remote
    module.PlacementGroupSchedulingStrategy = lambda **_: None
    for caching in (False, True):
        module.create_vllm_engines(
            num_engines=1,
            tensor_parallel_size=1,
            pretrain=model,
            seed=0,
            full_determinism=True,  # the engine in this process
            enable_prefix_caching=caching,
            enforce_eager=True,
            max_model_len=2048,
            shared_pg=object(),
            gpu_memory_utilization=0.5,
        )
    off, on = taken
    log = Log()
    os.environ["RAY_ADDRESS"] = "nowhere"  # no Ray runs here

    async def train() -> None:
        made = actor.__new__(actor)
        engines = sys.modules["vllm"]
        arguments = {
            key: value
            for key, value in off.items()
            if key not in ("num_gpus", "bundle_indices", "full_determinism", "agent_func_path")
            and key not in ("remote_rm_url", "mm_pad_token_ids")
        }
        check(configured(engines.AsyncEngineArgs(**arguments)) is None, "its default is refused")
        check(log.says("--vllm.enable_prefix_caching"), "a line says which option to set")
        await actor.__init__(made, **{**on, "dtype": "float32"})
        check(log.says("this engine gets KvcoveConnector"), "its engine gets the connector")
        await turns(made)

    async def turns(made: Any) -> None:
        from vllm import SamplingParams

        greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)

        async def roll_out() -> tuple[list[list[int]], int]:
            done = await asyncio.gather(*(made.generate(prompt, greedy) for prompt in PROMPTS))
            outputs = [list(each.outputs[0].token_ids) for each in done]
            return outputs, sum(each.num_cached_tokens or 0 for each in done)

        async def second_turn() -> tuple[list[list[int]], int]:
            for _ in range(50):  # saves go on beside the requests
                await asyncio.sleep(0.1)
                await made.reset_prefix_cache()
                outputs, cached = await roll_out()
                if cached:
                    break
            return outputs, cached

        first, cached = await roll_out()
        check(cached == 0, "nothing is found at first")
        again, cached = await second_turn()
        check(cached > 0 and again == first, f"{cached} tokens from the pool in the second turn")
        # As broadcast_to_vllm: the local reset, then one call a parameter. Its own needs CUDA.
        await made.reset_prefix_cache()
        await made.llm.collective_rpc("apply_model", args=(weights.change,))
        changed, cached = await roll_out()
        check(changed != first and cached == 0, "after an update nothing of before is found")
        _, cached = await second_turn()
        check(cached > 0, f"{cached} tokens of the new weights in the second turn")

    asyncio.run(train())


def areal(model: str) -> None:
    """Its command for a rollout server, through vLLM's parser: its own server needs vLLM 0.19."""
    import shlex

    from areal.api.cli_args import vLLMConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    log = Log()

    def transfer(**fields: Any) -> Any:
        config = vLLMConfig(
            model=model, dtype="float32", enforce_eager=True, max_model_len=2048, **fields
        )
        command = vLLMConfig.build_cmd(config, 1, 1)
        words = shlex.split(command) if isinstance(command, str) else list(command)
        place = next(i for i, word in enumerate(words) if word.endswith("areal_vllm_server"))
        parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(words[place + 1 :])
        return configured(AsyncEngineArgs.from_cli_args(parsed))

    check(transfer() is None, "its default is refused")
    check(log.says("vllm.no_enable_prefix_caching=false"), "a line says which field to set")
    check(is_ours(transfer(no_enable_prefix_caching=False)), "with it the engine gets ours")


def skyrl(model: str) -> None:
    import typing

    import typing_extensions

    # It wants Python 3.12, whose TypedDict pydantic takes.
    typing.TypedDict = typing_extensions.TypedDict  # type: ignore[assignment]
    from skyrl.backends.skyrl_train.inference_servers.utils import build_vllm_cli_args
    from skyrl.train.config import SkyRLTrainConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    place = "generator.inference_engine.engine_init_kwargs.kv_transfer_config"

    def transfer(*overrides: str) -> Any:
        # Colocated engines sleep, which none does on a CPU.
        basic = (f"trainer.policy.model.path={model}", "trainer.placement.colocate_all=false")
        config = SkyRLTrainConfig.from_cli_overrides([*basic, *overrides])
        parsed = build_vllm_cli_args(config)
        parsed.worker_extension_cls = ""  # of the engine's process, with a GPU
        return configured(AsyncEngineArgs.from_cli_args(parsed))

    given = transfer(
        f"{place}.kv_connector=KvcoveConnector",
        f"{place}.kv_connector_module_path=kvcove.vllm",
        f"{place}.kv_role=kv_both",
        f"{place}.kv_load_failure_policy=recompute",
        f"{place}.kv_connector_extra_config.threads=3",
    )
    check(
        is_ours(given) and given.kv_connector_extra_config == {"threads": 3},
        "its arguments reach vLLM",
    )
    switched = transfer()
    check(
        is_ours(switched) and "threads" not in switched.kv_connector_extra_config, "or the switch"
    )


def torchtitan(model: str) -> None:
    """Its generator's way of new weights, and its launcher, around a model of vLLM's."""
    from vllm import EngineArgs

    log = Log()
    stand_in()
    from torchtitan.experiments.rl.actors import generator as module

    # It has set PYTORCH_CUDA_ALLOC_CONF, as nobody else had.
    check(configured(EngineArgs(model=model, **SMALL)) is None, "its allocator is refused")
    check(log.says("expandable_segments:False"), "a line says which variable to set")
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:False"
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ.update(ranks)
    os.environ.setdefault("MASTER_PORT", "29531")
    launcher = {"distributed_executor_backend": "external_launcher"}
    refused = configured(EngineArgs(model=model, tensor_parallel_size=2, **launcher, **SMALL))
    check(refused is None and log.says("2 ranks schedules by itself"), "two ranks are refused")
    engine = Plain(model, **launcher)
    stored_and_fenced(engine)

    class Store:
        """TorchStore: writes into the parameters that it is given."""

        @staticmethod
        async def get_state_dict(key: str, user_state_dict: Any, **_: Any) -> None:
            for tensor in user_state_dict.values():
                if tensor.is_floating_point():
                    tensor.mul_(1.25)

    module.ts = Store
    module.get_spmd_backend = lambda: "default"
    core = engine.llm.llm_engine
    generator = types.SimpleNamespace(
        config=types.SimpleNamespace(
            reset_prefix_cache_on_weight_sync=True, reset_running_requests_on_weight_sync=True
        ),
        _engine=core,
        _get_model=core.engine_core.engine_core.model_executor.driver_worker.get_model,
        _rank=1,
        _pull_model_state_dict_future=None,
    )
    pull = module.VLLMGenerator._pull_model_state_dict
    other_weights(engine, lambda: asyncio.run(pull(generator, 2)))


def stand_in() -> None:
    """Give torchtitan what it imports and its generator does not need here: actors, a store, kernels, boards."""

    class Module(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            if name[0].isupper():
                return type(name, (), {})
            return lambda f=None, *_, **__: f if callable(f) else (lambda g: g)

    def put(*names: str) -> None:
        for name in names:
            made = Module(name)
            made.__path__ = []
            sys.modules[name] = made

    put("monarch", "monarch.actor", "torchstore")
    import torchtitan.distributed  # noqa: F401

    put(
        "torchtitan.distributed.minimal_async_ep", "torchtitan.distributed.minimal_async_ep.kernels"
    )
    put("tensorboard", "torch.utils.tensorboard")


def nemo_rl(model: str) -> None:
    """What its workers hand to LLM and AsyncEngineArgs: the dict of policy.generation.vllm_kwargs."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    given = {
        "kv_connector": "KvcoveConnector",
        "kv_connector_module_path": "kvcove.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"pool": os.environ["KVCOVE_POOL"]},
    }
    asynchronous = configured(AsyncEngineArgs(model=model, kv_transfer_config=given, **SMALL))
    check(is_ours(asynchronous), "its asynchronous worker's dict becomes a configuration")
    engine = Plain(model, kv_transfer_config=given)
    stored_and_fenced(engine)

    def refit() -> None:
        # A refit is a collective_rpc of its own; nothing resets the store.
        engine.llm.collective_rpc("apply_model", args=(weights.change,))
        engine.llm.llm_engine.reset_prefix_cache()

    other_weights(engine, refit)


TRAINERS = {
    "switch": switch,
    "openrlhf": openrlhf,
    "areal": areal,
    "skyrl": skyrl,
    "torchtitan": torchtitan,
    "nemo-rl": nemo_rl,
}

if __name__ == "__main__":
    name, model = sys.argv[1:3]
    TRAINERS[name](model)
    sys.exit(1 if FAILED else 0)
