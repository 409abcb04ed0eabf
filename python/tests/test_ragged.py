# SPDX-License-Identifier: Apache-2.0
"""Columns of plain numbers are encoded at once, exactly as row by row."""

from __future__ import annotations

import random
from typing import Any

import pytest

numpy = pytest.importorskip("numpy")

from kvcove.mooncake.structured import inference, ragged  # noqa: E402


def _same(one: tuple[dict[str, Any], Any], other: tuple[dict[str, Any], Any]) -> None:
    assert one[0] == other[0]
    assert one[1].keys() == other[1].keys()
    for name, array in one[1].items():
        assert array.dtype == other[1][name].dtype, name
        assert array.shape == other[1][name].shape, name
        assert array.tolist() == other[1][name].tolist(), name


def _columns() -> list[list[Any]]:
    dice = random.Random(18)
    columns: list[list[Any]] = [
        [[1, 2], [], (3,)],
        [[0.5], [], [float("inf"), 1e300]],
        [[1], [2.5]],
        [[True], [2]],
        [[2**63 - 1], [-(2**63)]],
        [[2**63], [1]],
        [[[1, 2], [3, 4]], [5, 6]],
        [[1], None, [2]],
        [[1], numpy.array([2, 3])],
    ]
    for _ in range(200):
        number = dice.choice((lambda: dice.randrange(-9, 9), dice.random))
        columns.append([[number() for _ in range(dice.randrange(5))] for _ in range(9)])
    return columns


@pytest.mark.parametrize("dtype", [None, "int64", "float64"])
def test_plain_numbers_are_encoded_as_row_by_row(
    dtype: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rows in _columns():
        answers = []
        for slowly in (False, True):
            with monkeypatch.context() as patch:
                if slowly:
                    patch.setattr(ragged, "plain_numbers", lambda _rows: None)
                try:
                    answers.append(ragged.encode_arrays(rows, dtype))
                except (OverflowError, TypeError, ValueError) as error:
                    answers.append(type(error))
        if isinstance(answers[0], type) or isinstance(answers[1], type):
            assert answers[0] == answers[1], rows
        else:
            _same(answers[0], answers[1])


def test_the_codec_is_the_same_as_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    for rows in _columns():
        fast = inference.choose_leaf_codec(rows)
        with monkeypatch.context() as patch:
            patch.setattr(inference, "plain_numbers", lambda _rows: None)
            assert inference.choose_leaf_codec(rows) == fast, rows


def test_lists_of_numbers_cost_no_array_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[i, i + 1] for i in range(1000)]
    arrays = 0

    def counted(row: Any) -> Any:
        nonlocal arrays
        arrays += 1
        return numpy.asarray(row)

    monkeypatch.setattr(inference, "number_array", counted)
    monkeypatch.setattr(ragged, "number_array", counted)
    assert inference.choose_leaf_codec(rows).codec == "typed_ragged"
    ragged.encode_arrays(rows, "int64")
    assert arrays == 0
