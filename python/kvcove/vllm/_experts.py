# SPDX-License-Identifier: Apache-2.0
"""Experts of a model that lie on the ranks of several engines (data parallel, expert parallel).

Every token's KV depends on experts of all ranks, also of those of the engine's data-parallel peers.
So the version of the weights is of all of them: a digest for each expert, by layer and number, where
it lies left out (docs/connector.md). The ranks of one engine digest their own; the engines leave
theirs in the pool, and each reads its peers'.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvcove.engines import _digest

__all__ = ["Board", "Exchange", "Layer", "experts_text", "group_of", "layers_of"]

_log = logging.getLogger("vllm.kvcove")
_LOOK_S = 0.25
_PATIENCE_S = 30.0  # then an engine goes on with a version of its own


@dataclass(frozen=True)
class Layer:
    """The experts of one layer on this rank.

    Attributes
    ----------
    name : str
        Of the module.
    module : torch.nn.Module
        With their parameters, one row an expert.
    numbers : list of str
        Of the experts in the rows' order, the model's own.
    in_all : int
        Of the layer, on all ranks.
    """

    name: str
    module: Any
    numbers: list[str]
    in_all: int


def layers_of(model: Any, balancer: Any = None) -> list[Layer]:
    """Return the layers of a model whose experts lie on several ranks.

    Parameters
    ----------
    model : torch.nn.Module
        The worker's.
    balancer : Any
        vLLM's ``EplbState``, if experts move while the engine runs.
    """
    found = [
        (name, module)
        for name, module in model.named_modules()
        if hasattr(module, "local_num_experts") and hasattr(module, "expert_map")
    ]
    logical = _logical(balancer, len(found))
    layers = []
    for at, (name, module) in enumerate(found):
        if module.expert_map is not None:
            places = [int(local) for local in module.expert_map.tolist()]
            here = sorted((local, place) for place, local in enumerate(places) if local >= 0)
            names = logical[at] if logical is not None else list(range(len(places)))
            numbers = [
                str(names[place]) if place < len(names) else f"s{place}" for _, place in here
            ]
            extra = max(len(places) - len(names), 0)  # shared ones, that every rank has
            layers.append(Layer(name, module, numbers, len(set(names)) + extra))
            continue
        parallel: Any = getattr(getattr(module, "moe_config", None), "moe_parallel_config", None)
        size = int(getattr(parallel, "tp_size", 1))
        if size > 1:  # a slice of every expert
            layers.append(Layer(name, module, [f"t{int(parallel.tp_rank)}"], size))
    return layers


def _logical(balancer: Any, count: int) -> list[list[int]] | None:
    """Return the number of the expert in each place, by layer, where they move."""
    states = getattr(balancer, "model_states", None)
    if not states:
        return None
    for state in states.values() if isinstance(states, Mapping) else states:
        rows = state.physical_to_logical_map.tolist()
        if len(rows) == count:
            return [[int(number) for number in row if number >= 0] for row in rows]
    return None


def _parts(layer: Layer) -> Iterator[tuple[str, Any]]:
    yield from sorted(layer.module.named_parameters(), key=lambda item: item[0])


def experts_text(layers: Sequence[Layer], digest: _digest.Digest) -> tuple[str, set[str]]:
    """Return "<experts in all>;<expert>=<digest>,..." and the names of tensors that it covers.

    What every rank has of a layer is left to the digest of the whole model. What says where experts
    lie (maps and tables, all of integers) is in neither.
    """
    covered: set[str] = set()
    entries: list[str] = []
    for number, layer in enumerate(layers):
        made = [hashlib.sha256() for _ in layer.numbers]
        for name, tensor in _parts(layer):
            rows = tensor.shape[0] if tensor.dim() > 0 else 0
            whole = len(made) == 1 and layer.numbers[0].startswith("t")
            if not whole and rows != len(made):
                continue
            covered.add(f"{layer.name}.{name}")
            parts = digest.rows(tensor[None] if whole else tensor)
            for expert, part in zip(made, parts, strict=True):
                expert.update(f"{name}|{tuple(tensor.shape[1:])}|{tensor.dtype}|{part}|".encode())
        for name, tensor in layer.module.named_buffers():
            if not tensor.dtype.is_floating_point:
                covered.add(f"{layer.name}.{name}")
        entries += [
            f"{number}.{expert}={value.hexdigest()[:32]}"
            for expert, value in zip(layer.numbers, made, strict=True)
        ]
    return f"{sum(layer.in_all for layer in layers)};{','.join(entries)}", covered


def group_of(vllm_config: Any) -> tuple[str, int, int] | None:
    """Return a name that an engine's data-parallel peers have, too, their number and its own."""
    parallel = vllm_config.parallel_config
    size = int(getattr(parallel, "data_parallel_size", 1))
    if size <= 1:
        return None
    port = getattr(parallel, "_coord_store_port", 0) or parallel.data_parallel_master_port
    rank = int(getattr(parallel, "data_parallel_index", parallel.data_parallel_rank))
    return f"{parallel.data_parallel_master_ip}:{port}:{size}", size, rank


class Board:
    """What one engine tells its peers, and what it makes of theirs. Decides; reads nothing itself."""

    def __init__(self, patience: float = _PATIENCE_S) -> None:
        self._patience = patience
        self._since: float | None = None  # it waits for peers
        self._given: tuple[int, tuple[str, ...], bool] | None = None

    def forget(self) -> None:
        """Begin anew: the engine's own weights are not known."""
        self._since = self._given = None

    def take(
        self, own: tuple[int, str], peers: Sequence[str | None], now: float
    ) -> tuple[int, list[str], bool] | None:
        """Return what the scheduler's role is to be given, None: nothing new.

        Parameters
        ----------
        own : tuple of int and str
            Of ``SchedulerRole.takes_peers``.
        peers : sequence of str or None
            The others' entries.
        now : float
            In seconds.
        """
        there = tuple(peer for peer in peers if peer is not None)
        digest = own[1].partition(";")[0]
        agree = len(there) == len(peers) and all(peer.partition(";")[0] == digest for peer in there)
        if agree:
            self._since = None
        elif self._since is None:
            self._since = now
        alone = self._since is not None and now - self._since >= self._patience
        given = (own[0], there, alone)
        if given == self._given:
            return None
        self._given = given
        return own[0], list(there), alone


class Exchange:
    """The thread that keeps a role's peers up to date, through the pool."""

    def __init__(
        self,
        role: Any,
        session: Any,
        group: tuple[str, int, int],
        clock: Callable[[], float] = time.monotonic,
        patience: float = _PATIENCE_S,
        look_s: float = _LOOK_S,
    ) -> None:
        self._role = role
        self._session = session
        self._name, self._size, self._rank = group
        self._clock = clock
        self._look_s = look_s
        self._board = Board(patience)
        self._patience = patience
        self._texts: dict[str, str] = {}
        self._warned = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvcove-experts", daemon=True)
        self._thread.start()

    def _state_key(self, rank: int) -> str:
        return f"experts of {self._name}, {rank}"

    def _run(self) -> None:
        from kvcove import Error

        while not self._stop.wait(self._look_s):
            try:
                self.look()
            except Error as error:
                _log.debug("kvcove: the experts of other engines are not known: %s", error)

    def _tell(self, text: str | None, state: str | None) -> None:
        """Let the pool have this engine's state, and the text that it stands for."""
        name = hashlib.sha256(text.encode()).hexdigest() if text is not None else None
        if text is not None and not self._session.exists([f"experts {name}"]).all_ok:
            self._session.put([f"experts {name}"], [text.encode()])
        if state == name:
            return
        if state is not None:
            self._session.remove([self._state_key(self._rank)])
        if name is not None:
            self._session.put([self._state_key(self._rank)], [name.encode()])

    def _text(self, name: str) -> str | None:
        """Return what a peer's state stands for; each is read once."""
        if name not in self._texts:
            found = self._session.get([f"experts {name}"])[0]
            if found is None:
                return None
            if len(self._texts) >= 4 * self._size:
                self._texts.clear()
            self._texts[name] = bytes(found).decode()
        return self._texts[name]

    def look(self) -> None:
        """Tell what is new, or was evicted, and take what the others have told."""
        own = self._role.takes_peers()
        found = self._session.get([self._state_key(rank) for rank in range(self._size)])
        states = [bytes(value).decode() if value is not None else None for value in found]
        self._tell(None if own is None else own[1], states[self._rank])
        if own is None:
            self._board.forget()
            return
        peers = [
            None if state is None else self._text(state)
            for rank, state in enumerate(states)
            if rank != self._rank
        ]
        given = self._board.take(own, peers, self._clock())
        if given is None:
            return
        number, there, alone = given
        if alone and not self._warned:
            self._warned = True
            _log.warning(
                "kvcove: %d of %d data-parallel engines have told in %.0f s which experts they have, "
                "or have other weights: this one shares with none of them. They need one pool "
                '("pool": "kvcove://..." or this host\'s owner), and updates must reach all of them',
                1 + len(there),
                self._size,
                self._patience,
            )
        self._role.set_peers(number, there, alone)

    def close(self) -> None:
        """End it, and take back what was told."""
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(Exception):
            self._session.remove([self._state_key(self._rank)])
