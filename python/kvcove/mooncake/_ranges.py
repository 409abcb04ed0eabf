# SPDX-License-Identifier: Apache-2.0
"""Parts of values, and values that are written or read range by range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import kvcove
from kvcove.mooncake._answers import INVALID, UNSET, refused
from kvcove.mooncake._parts import StorePart
from kvcove.mooncake._types import Code, ReplicateConfig

if TYPE_CHECKING:
    import threading


__all__ = ["RangeMethods"]


class RangeMethods(StorePart):
    """The ranged methods of the store; it has the others."""

    if TYPE_CHECKING:
        _life: threading.Lock
        _puts: dict[str, tuple[bytearray, kvcove.Token, ReplicateConfig]]
        _gets: dict[str, bytes]

    def get_into_ranges(
        self,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[str]],
        all_dst_offsets: Sequence[Sequence[Sequence[int]]],
        all_src_offsets: Sequence[Sequence[Sequence[int]]],
        all_sizes: Sequence[Sequence[Sequence[int]]],
    ) -> list[list[list[int]]]:
        """Read parts of values: ``results[buffer][key][fragment]`` is bytes or negative."""
        results: list[list[list[int]]] = []
        lists = (all_keys, all_dst_offsets, all_src_offsets, all_sizes)
        for b, buffer in enumerate(buffer_ptrs):
            if any(b >= len(part) for part in lists):
                results.append([])
                continue
            results.append(
                self._get_ranges(
                    all_keys[b],
                    [[buffer] * len(s) for s in all_sizes[b]],
                    all_sizes[b],
                    all_src_offsets[b],
                    all_dst_offsets[b],
                    values=None,
                )
            )
        return results

    def _get_ranges(
        self,
        keys: Sequence[str],
        all_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_src: Sequence[Sequence[int]],
        all_dst: Sequence[Sequence[int]] | None,
        values: dict[str, bytes] | None,
    ) -> list[list[int]]:
        now = self._now
        results: list[list[int]] = []
        for k, key in enumerate(keys):
            fits = k < len(all_ptrs) and k < len(all_sizes) and k < len(all_src)
            if all_dst is not None:
                fits = fits and k < len(all_dst) and len(all_dst[k]) == len(all_sizes[k])
            if not fits or not len(all_ptrs[k]) == len(all_sizes[k]) == len(all_src[k]):
                results.append([INVALID] * (len(all_sizes[k]) if k < len(all_sizes) else 1))
                continue
            count = len(all_sizes[k])
            if now is None:
                results.append([UNSET] * count)
                continue
            value = values.get(key) if values is not None else self._values([key])[0]
            if value is None:
                results.append([int(Code.OBJECT_NOT_FOUND)] * count)
                continue
            fragments = []
            for f in range(count):
                source, size = all_src[k][f], all_sizes[k][f]
                target = all_ptrs[k][f] + (all_dst[k][f] if all_dst is not None else 0)
                if source < 0 or size <= 0 or source + size > len(value):
                    fragments.append(INVALID)
                    continue
                fragments.append(
                    now.native.copy_out(memoryview(value)[source : source + size], target)
                )
            results.append(fragments)
        return results

    # ---- sessions, layer by layer

    def batch_put_session_start(
        self, keys: Sequence[str], sizes: Sequence[int], config: ReplicateConfig | None = None
    ) -> list[int]:
        """Begin values that are written range by range; per key 0, or -600 if it is begun."""
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
        codes = []
        with self._life:
            for key, size in zip(keys, sizes, strict=True):
                if not key or key in self._puts or size <= 0:
                    codes.append(INVALID)
                    continue
                self._puts[key] = (bytearray(size), token, config)
                codes.append(0)
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
        answers = []
        for key, pointers, sizes, offsets in zip(
            keys, all_buffer_ptrs, all_sizes, all_dst_offsets, strict=True
        ):
            begun = self._puts.get(key)
            fits = begun is not None and len(pointers) == len(sizes) == len(offsets)
            if begun is None or not fits:
                answers.append(INVALID)
                continue
            written = 0
            for pointer, size, offset in zip(pointers, sizes, offsets, strict=True):
                if size <= 0 or offset < 0 or offset + size > len(begun[0]):
                    written = INVALID
                    break
                code = now.native.copy_in(memoryview(begun[0])[offset : offset + size], pointer)
                if code < 0:
                    written = code
                    break
                written += size
            answers.append(written)
        return answers

    def batch_put_session_end(self, keys: Sequence[str]) -> list[int]:
        """Store values that are begun; per key 0 or negative."""
        now = self._now
        if now is None:
            return [UNSET] * len(keys)
        codes = []
        for key in keys:
            with self._life:
                begun = self._puts.pop(key, None)
            if begun is None:
                codes.append(INVALID)
                continue
            value, token, config = begun
            codes += self._put_buffers(now, [key], [value], config, token)
        return codes

    def batch_put_session_revoke(self, keys: Sequence[str]) -> list[int]:
        """Drop values that are begun; per key 0, or -600 if it is not begun."""
        if self._now is None:
            return [UNSET] * len(keys)
        with self._life:
            return [0 if self._puts.pop(key, None) is not None else INVALID for key in keys]

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
                self._gets[key] = value
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
        if not len(keys) == len(all_buffer_ptrs) == len(all_sizes) == len(all_src_offsets):
            return [INVALID] * len(keys)
        fragments = self._get_ranges(
            keys, all_buffer_ptrs, all_sizes, all_src_offsets, None, self._gets
        )
        return [next((code for code in key if code < 0), sum(key)) for key in fragments]

    def batch_get_session_end(self, keys: Sequence[str]) -> int:
        """Forget values that are begun: 0."""
        if self._now is None:
            return UNSET
        with self._life:
            for key in keys:
                self._gets.pop(key, None)
        return 0
