# SPDX-License-Identifier: Apache-2.0
"""Parts of values, and values that are written or read range by range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import kvcove
from kvcove.mooncake._answers import INVALID, UNSET, answered, code_of, octets, refused
from kvcove.mooncake._parts import StorePart
from kvcove.mooncake._types import Code, RangedReadSnapshot, ReplicateConfig

if TYPE_CHECKING:
    import threading


__all__ = ["RangeMethods"]


def _all_invalid(keys: Sequence[str], all_to: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return -600 for every fragment that was asked for, one for a key that has no list of them."""
    return [[INVALID] * (len(all_to[k]) if k < len(all_to) else 1) for k in range(len(keys))]


def _of_those(
    all_lists: Sequence[Sequence[Sequence[int]]], known: Sequence[Sequence[bool]]
) -> list[list[Sequence[int]]]:
    """Return each key's list, an empty one for those that are not known."""
    return [
        [[] if k < len(asked) and not asked[k] else one for k, one in enumerate(lists)]
        for lists, asked in zip(all_lists, [*known, *[[]] * len(all_lists)], strict=False)
    ]


class RangeMethods(StorePart):
    """The ranged methods of the store; it has the others."""

    if TYPE_CHECKING:
        _life: threading.Lock
        _puts: dict[bytes, tuple[bytearray, kvcove.Token, ReplicateConfig]]
        _gets: dict[bytes, bytes]

    def get_into_ranges(
        self,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[str]],
        all_dst_offsets: Sequence[Sequence[Sequence[int]]],
        all_src_offsets: Sequence[Sequence[Sequence[int]]],
        all_sizes: Sequence[Sequence[Sequence[int]]],
    ) -> list[list[list[int]]]:
        """Read parts of values: ``results[buffer][key][fragment]`` is bytes or negative."""
        lists = (all_keys, all_dst_offsets, all_src_offsets, all_sizes)
        if not all(isinstance(part, Sequence) for part in lists):
            raise TypeError("get_into_ranges(): keys, offsets and sizes are lists, one a buffer")
        if any(len(part) != len(buffer_ptrs) for part in lists):
            return [
                _all_invalid(
                    all_keys[b] if b < len(all_keys) else [""],
                    all_dst_offsets[b] if b < len(all_dst_offsets) else [],
                )
                for b in range(len(buffer_ptrs))
            ]
        return [
            self._fill(buffer, keys, to, source, sizes)
            for buffer, keys, to, source, sizes in zip(buffer_ptrs, *lists, strict=True)
        ]

    def begin_weight_snapshot(self, snapshot: object, adapter: object) -> None:
        """Refuse: managed weights are not here.

        Raises
        ------
        NotImplementedError
            Always.
        """
        raise NotImplementedError(
            "begin_weight_snapshot(): kvcove manages no weights; put the tensors under keys of their "
            "own, and read them with get_into_ranges()"
        )

    def prepare_get_into_ranges_snapshot(self, keys: Sequence[str]) -> RangedReadSnapshot:
        """Look keys up for reads of their ranges, and hold what is there."""
        now = self._now
        if now is not None:
            answered(lambda: now.native.batch_sizes(now.session, keys, True), len(keys))
        return RangedReadSnapshot(self, map(octets, keys))

    def get_into_ranges_from_snapshot(
        self,
        snapshot: RangedReadSnapshot,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[str]],
        all_dst_offsets: Sequence[Sequence[Sequence[int]]],
        all_src_offsets: Sequence[Sequence[Sequence[int]]],
        all_sizes: Sequence[Sequence[Sequence[int]]],
    ) -> list[list[list[int]]]:
        """Like :meth:`get_into_ranges`, for the keys of a snapshot; -600 for others.

        A key that was not there is looked up again.

        Raises
        ------
        ValueError
            The snapshot is another store's.
        """
        if not isinstance(snapshot, RangedReadSnapshot):
            raise TypeError(
                "get_into_ranges_from_snapshot(): snapshot: what prepare_get_into_ranges_snapshot() "
                f"returns is wanted, not {type(snapshot).__name__}"
            )
        known = [[snapshot.has(self, octets(key)) for key in keys] for keys in all_keys]
        lists = [_of_those(part, known) for part in (all_dst_offsets, all_src_offsets, all_sizes)]
        answers = self.get_into_ranges(buffer_ptrs, all_keys, *lists)
        for read, asked, offsets in zip(answers, known, all_dst_offsets, strict=False):
            for k, is_asked in enumerate(asked):
                if not is_asked and k < len(read) and k < len(offsets):
                    read[k] = [INVALID] * len(offsets[k])
        return answers

    def _fill(
        self,
        buffer: int,
        keys: Sequence[str],
        all_to: Sequence[Sequence[int]],
        all_from: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
    ) -> list[list[int]]:
        """Read parts of values into one registered buffer; per key and fragment as it went."""
        now = self._now
        if now is None:
            return [[UNSET] * len(to) for to in all_to]
        fits = len(keys) == len(all_to) == len(all_from) == len(all_sizes)
        if not fits or not now.native.is_registered(buffer):
            return _all_invalid(keys, all_to)
        try:
            return now.native.get_ranges(now.session, buffer, keys, all_to, all_from, all_sizes)
        except kvcove.InvalidError as error:
            raise TypeError(f"get_into_ranges(): {error}") from None
        except kvcove.Error as error:
            return [[code_of(error)] * len(to) for to in all_to]

    # ---- sessions, layer by layer

    def batch_put_session_start(
        self, keys: Sequence[str], sizes: Sequence[int], config: ReplicateConfig | None = None
    ) -> list[int]:
        """Begin values that are written range by range; per key 0, -600 if it is begun, -705 if it is there."""
        now = self._now
        if now is None:
            return [UNSET] * len(keys)
        config = config or ReplicateConfig()
        refusal = refused(config, len(keys), values_in_bytes=False)
        if len(sizes) != len(keys) or refusal != 0:
            return [refusal or INVALID] * len(keys)
        token = self._captured()
        if isinstance(token, int):
            return [token] * len(keys)
        there = answered(lambda: now.native.batch_sizes(now.session, keys, False), len(keys))
        codes = []
        with self._life:
            for key, size, found in zip(map(octets, keys), sizes, there, strict=True):
                if not key or key in self._puts or size <= 0:
                    codes.append(INVALID)
                    continue
                if found > 0:
                    codes.append(int(Code.OBJECT_ALREADY_EXISTS))
                    continue
                try:
                    self._puts[key] = (bytearray(size), token, config)
                    codes.append(0)
                except (MemoryError, OverflowError):
                    codes.append(int(Code.NO_AVAILABLE_HANDLE))
        return codes

    def batch_put_from_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_dst_offsets: Sequence[Sequence[int]],
    ) -> list[int]:
        """Write ranges of values that are begun; per key the bytes written or negative."""
        now = self._now
        if now is None:
            return [UNSET] * len(keys)
        if not len(keys) == len(all_buffer_ptrs) == len(all_sizes) == len(all_dst_offsets):
            return [INVALID] * len(keys)
        begun = [self._puts.get(octets(key)) for key in keys]
        values = [None if one is None else one[0] for one in begun]
        return now.native.copy_ranges(values, all_dst_offsets, all_buffer_ptrs, all_sizes, False)

    def batch_put_session_end(self, keys: Sequence[str]) -> list[int]:
        """Store values that are begun; per key 0 or negative."""
        now = self._now
        if now is None:
            return [UNSET] * len(keys)
        codes = [INVALID] * len(keys)
        with self._life:
            ended = [self._puts.pop(octets(key), None) for key in keys]
        # One call for those that were begun together: they have a token and a configuration.
        groups: dict[tuple[int, int], list[int]] = {}
        for i, begun in enumerate(ended):
            if begun is not None:
                groups.setdefault((id(begun[1]), id(begun[2])), []).append(i)
        for which in groups.values():
            together = [begun for i in which if (begun := ended[i]) is not None]
            _, token, config = together[0]
            names, values = [keys[i] for i in which], [begun[0] for begun in together]
            for i, code in zip(
                which, self._put_buffers(now, names, values, config, token), strict=True
            ):
                codes[i] = code
        return codes

    def batch_put_session_revoke(self, keys: Sequence[str]) -> list[int]:
        """Drop values that are begun; per key 0, or -600 if it is not begun."""
        if self._now is None:
            return [UNSET] * len(keys)
        with self._life:
            return [0 if self._puts.pop(octets(key), None) is not None else INVALID for key in keys]

    def batch_get_session_start(self, keys: Sequence[str]) -> list[int]:
        """Begin to read values range by range; per key 0 or negative. They stay as they are."""
        if self._now is None:
            return [UNSET] * len(keys)
        codes = []
        for key, value in zip(keys, self._values(keys), strict=True):
            if value is None:
                codes.append(int(Code.OBJECT_NOT_FOUND))
                continue
            with self._life:
                self._gets[octets(key)] = value
            codes.append(0)
        return codes

    def batch_get_into_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_src_offsets: Sequence[Sequence[int]],
    ) -> list[int]:
        """Read ranges of values that are begun; per key the bytes read or negative."""
        now = self._now
        if now is None:
            return [UNSET] * len(keys)
        if not len(keys) == len(all_buffer_ptrs) == len(all_sizes) == len(all_src_offsets):
            return [INVALID] * len(keys)
        values = [self._gets.get(octets(key)) for key in keys]
        return now.native.copy_ranges(values, all_src_offsets, all_buffer_ptrs, all_sizes, True)

    def batch_get_session_end(self, keys: Sequence[str]) -> int:
        """Forget values that are begun: 0."""
        if self._now is None:
            return UNSET
        with self._life:
            for key in keys:
                self._gets.pop(octets(key), None)
        return 0
