# SPDX-License-Identifier: Apache-2.0
"""Whether a load has written every block that it says it has (``check_loads``): a look at the memory itself.

For those who look for a fault: each block is filled before its load, and read when the load has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from kvcove import _native
from kvcove.vllm import _compat
from kvcove.vllm._compat import cacheable_groups

__all__ = ["LoadCheck"]

_log = logging.getLogger("vllm.kvcove")


class LoadCheck:
    """The blocks that one rank's loads are to write.

    Parameters
    ----------
    kv_caches : dict of str to torch.Tensor or list of torch.Tensor
        As vLLM registers them.
    kv_cache_config, vllm_config : Any
        The engine's.
    """

    def __init__(self, kv_caches: dict[str, Any], kv_cache_config: Any, vllm_config: Any) -> None:
        import torch

        self._of_size = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        # Nothing that a model computes: of eight bytes and more, every element is this one.
        self._word = int.from_bytes(b"\x5a\xc3\x96\x3c\xa5\x69\xf0\x5b", "little")
        self._groups: list[list[tuple[str, Any]]] = []
        for group in cacheable_groups(kv_cache_config):
            tensors: list[tuple[str, Any]] = []
            for name in group.layer_names:
                caches = kv_caches.get(name)
                if caches is None:
                    continue  # of another pipeline stage
                several = isinstance(caches, list | tuple)
                for tensor in caches if several else [caches]:
                    at = (
                        0
                        if several
                        else _compat.axes_of(name, tensor.dim(), vllm_config).index("block")
                    )
                    words = tensor.view(self._of_size[tensor.element_size()]).movedim(at, 0)
                    pieces = words.shape[0] // kv_cache_config.num_blocks
                    tensors.append((name, words.unflatten(0, (-1, pieces))))
            self._groups.append(tensors)
        self._loads: dict[str, list[tuple[int, int]]] = {}

    def _pattern(self, words: Any) -> int:
        bits = 8 * int(words.element_size())
        value = self._word & ((1 << bits) - 1)
        return value - (1 << bits) if value >> (bits - 1) else value

    def fill(self, plan: bytes) -> None:
        """Fill the blocks that the plan's loads are to write; before they begin."""
        for request, blocks in _native.loads_of(plan):
            self._loads[request] = blocks
            for group, block in blocks:
                for _, words in self._groups[group]:
                    words[block].fill_(self._pattern(words))

    def under_way(self) -> set[str]:
        """Return the requests whose loads have not been looked at."""
        return set(self._loads)

    def unwritten(
        self, ended: Iterable[str], failed: Collection[str], failed_blocks: Collection[int]
    ) -> dict[str, set[int]]:
        """Return the blocks that loads left as they were, by request, with an error line for each load.

        Parameters
        ----------
        ended : iterable of str
            The requests whose loads have ended.
        failed, failed_blocks : collection
            The requests and blocks that were reported as failed: they may hold anything.
        """
        found: dict[str, set[int]] = {}
        for request in ended:
            blocks = self._loads.pop(request, [])
            if request in failed:
                continue
            for group, block in blocks:
                if block in failed_blocks:
                    continue
                names = list(self._left(group, block))
                if not names:
                    continue
                if request not in found:
                    _log.error(
                        "kvcove: request %s: its load has ended, but block %d of KV group %d is not "
                        "written in %s; the load is reported as failed. Please report this with the "
                        "engine's arguments",
                        request,
                        block,
                        group,
                        ", ".join(names[:4]),
                    )
                found.setdefault(request, set()).add(block)
        return found

    def _left(self, group: int, block: int) -> Iterator[str]:
        for name, words in self._groups[group]:
            if bool((words[block] == self._pattern(words)).all(dim=-1).any()):
                yield name
