# SPDX-License-Identifier: Apache-2.0
"""How the pages of SGLang's host pools become objects of the pool, and where their bytes lie."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

from kvcove import Memory

__all__ = ["HostPages", "Shard"]

# Host pools of which layouts that differ store a page in the same order of bytes, so that engines with another
# io backend share. "layers": K of all layers, then V; "tokens" and "heads": as page_first and page_head have it.
_ORDER_OF_LAYOUT = {
    "layer_first": "layers",
    "page_first_direct": "layers",
    "page_first": "tokens",
    "page_head": "heads",
}
_ORDERED = frozenset({"MHATokenToKVPoolHost", "MLATokenToKVPoolHost"})
# Their pages are parts of other pools' pages, which one rank alone cannot say.
_REFUSED = frozenset({"PageInterleaveHostPool", "UnifiedPageEnvelopeHostPool"})


@dataclasses.dataclass(frozen=True)
class Shard:
    """Which part of a page a rank holds.

    Attributes
    ----------
    tp, tp_size, pp, pp_size, cp, cp_size : int
        The rank's places in SGLang's groups.
    replicated : bool
        All ranks of the TP group hold the same KV (MLA): one of them writes, all read.
    heads : int
        Into how many objects a page is cut by heads (``tp_lcm_size``), else 1.
    """

    tp: int
    tp_size: int
    pp: int
    pp_size: int
    cp: int
    cp_size: int
    replicated: bool
    heads: int

    @classmethod
    def of(cls, config: Any) -> Shard:
        """Return the shard of a ``HiCacheStorageConfig``."""
        split = bool(getattr(config, "should_split_heads", False))
        return cls(
            tp=config.tp_rank,
            tp_size=config.tp_size,
            pp=config.pp_rank,
            pp_size=config.pp_size,
            cp=config.attn_cp_rank,
            cp_size=config.attn_cp_size,
            replicated=config.is_mla_model,
            heads=config.tp_lcm_size // config.tp_size if split else 1,
        )

    def names(self, replicated: bool) -> list[str]:
        """Return one name for each object of a page."""
        stage = f"pp{self.pp}of{self.pp_size}.cp{self.cp}of{self.cp_size}"
        if replicated:
            return [stage]
        total = self.tp_size * self.heads
        return [f"tp{self.tp * self.heads + i}of{total}.{stage}" for i in range(self.heads)]


class HostPages:
    """The pages of one host pool. Immutable: the pool's buffers stay where they are.

    Parameters
    ----------
    name : str
        Of the pool in SGLang (``PoolName``).
    pool : HostKVCache
        What SGLang registered.
    shard : Shard
        Of this rank.
    """

    def __init__(self, name: str, pool: Any, shard: Shard) -> None:
        kind = type(pool).__name__
        if kind in _REFUSED:
            raise NotImplementedError(
                f"kvcove: host pools of {kind} have no pages of their own; start SGLang without page "
                "interleaving or shared page envelopes"
            )
        # The state of Mamba layers, and a draft model's heads beside an MLA model, are of one rank.
        self._replicated = shard.replicated and name != "mamba" and not _has_heads(pool)
        self._split = shard.heads if _has_heads(pool) else 1
        self._pool = pool
        self.page_size = int(getattr(pool, "page_size", 1) or 1)
        self.is_logical = getattr(pool, "kv_buffer", self) is None
        self._interleaved = kind == "MHATokenToKVPoolHost" and pool.layout == "layer_first"
        self.copies = False
        sizes = () if self.is_logical else self._page_sizes()
        self.page_bytes = sum(sizes)
        names = shard.names(self._replicated)
        if not _has_heads(pool):
            names = names[:1]
        self.facts = {
            "page tokens": str(self.page_size),
            "page order": self._order(kind),
            "page bytes": str(self.page_bytes),
        }
        layout = hashlib.sha256(self._layout(kind, sizes).encode()).hexdigest()[:16]
        self._prefixes = [f"{name}.{layout}.{part}." for part in names]
        self.objects = len(self._prefixes)

    def keys(self, hashes: Sequence[str]) -> list[str]:
        """Return the keys of pages: ``objects`` of each, those of a page one behind the other."""
        return [prefix + page for page in hashes for prefix in self._prefixes]

    def sources(self, indices: Any) -> list[Any]:
        """Return the objects of pages as values of a put.

        Parameters
        ----------
        indices : torch.Tensor
            Of the pages' tokens in the host pool.
        """
        if not self.copies:
            return self._memory(indices)
        return [
            _as_bytes(self._pool.get_data_page(first, flat=True)) for first in self._firsts(indices)
        ]

    def targets(self, indices: Any) -> list[Any]:
        """Return the buffers of a get, which :meth:`take` puts in place where they are copies."""
        if not self.copies:
            return self._memory(indices)
        return [self._pool.get_dummy_flat_data_page() for _ in self._firsts(indices)]

    @staticmethod
    def buffer(target: Any) -> Any:
        """Return what a get writes of one target."""
        return target if isinstance(target, list) else _as_bytes(target)

    def take(self, indices: Any, targets: Sequence[Any], found: Sequence[bool]) -> None:
        """Put pages that were read in place."""
        if self.copies:
            for first, page, ok in zip(self._firsts(indices), targets, found, strict=True):
                if ok:
                    self._pool.set_from_flat_data_page(first, page)

    def _firsts(self, indices: Any) -> list[int]:
        return [int(indices[at]) for at in range(0, len(indices), self.page_size)]

    def _memory(self, indices: Any) -> list[list[Memory]]:
        addresses, sizes = self._meta(indices)
        pages = len(indices) // self.page_size
        each = len(addresses) // pages
        order = list(range(each))
        if (
            self._interleaved
        ):  # K and V of a layer side by side, of which the pool's order is K, then V
            order = [*range(0, each, 2), *range(1, each, 2)]
        step = each // self.objects
        return [
            [
                Memory(addresses[at + i], sizes[at + i])
                for i in order[first : first + step]
                if sizes[at + i] > 0
            ]
            for at in range(0, each * pages, each)
            for first in range(0, each, step)
        ]

    def _meta(self, indices: Any) -> tuple[list[int], list[int]]:
        if self._split > 1:
            addresses, sizes = self._pool.get_split_heads_page_buffer_meta(indices, self._split)
        else:
            addresses, sizes = self._pool.get_page_buffer_meta(indices)
        return addresses, sizes

    def _page_sizes(self) -> tuple[int, ...]:
        import torch

        try:
            return tuple(self._meta(torch.arange(self.page_size, dtype=torch.int64))[1])
        except (NotImplementedError, ValueError):
            self.copies = True
            page = self._pool.get_dummy_flat_data_page()
            return (page.numel() * page.element_size(),)

    def _order(self, kind: str) -> str:
        layout = str(getattr(self._pool, "layout", ""))
        return _ORDER_OF_LAYOUT.get(layout, layout) if kind in _ORDERED else f"{kind} {layout}"

    def _layout(self, kind: str, sizes: Sequence[int]) -> str:
        """Say all that two pools must have in common so that a page's bytes mean the same."""
        pool = self._pool
        # Of a state both parts have a type of their own, and types of the same size differ.
        types = [
            f"{name} {each}" for name, each in sorted(vars(pool).items()) if name.endswith("dtype")
        ]
        facts: list[Any] = [kind, types, self.page_size]
        if kind in _ORDERED:
            # The pieces differ by layout; the heads of one object do not differ by TP.
            facts += [self._order(kind), self.page_bytes // self._split]
            facts += [getattr(pool, "layer_num", 0), getattr(pool, "head_num", 0) // self._split]
        else:
            facts += [self._order(kind), *sizes]
        facts += [getattr(pool, "start_layer", 0), getattr(pool, "end_layer", 0)]
        facts += [getattr(pool, "storage_format_tag", None)]
        return repr(facts)


def _has_heads(pool: Any) -> bool:
    """Whether a pool's pages are cut by heads over the ranks: it keeps K and V."""
    return any(each.__name__ == "MHATokenToKVPoolHost" for each in type(pool).__mro__)


def _as_bytes(page: Any) -> Any:
    import torch

    return page.contiguous().view(torch.uint8).numpy()
