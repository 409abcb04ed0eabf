# SPDX-License-Identifier: Apache-2.0
"""Hints that requests carry into the connector."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from kvcove.vllm import _hints
from kvcove.vllm._hints import RequestHints, hints_of


@pytest.fixture(autouse=True)
def _fresh() -> None:
    _hints._warned.clear()


def test_a_request_without_hints_has_none() -> None:
    assert hints_of(None) is None
    assert hints_of({"do_remote_prefill": True}) is None
    assert hints_of({"kvcove": {}}) is None


def test_hints_are_read() -> None:
    told = {"output_tokens": 300, "ephemeral_from": 4096, "session_ends": True}
    assert hints_of({"kvcove": told}) == RequestHints(300, 4096, True)
    assert hints_of({"kvcove": {"ephemeral_from": 0}}) == RequestHints(ephemeral_from=0)


@pytest.mark.parametrize(
    ("told", "left"),
    [
        ({"output_tokens": -1, "session_ends": True}, RequestHints(session_ends=True)),
        ({"output_tokens": "many"}, None),
        ({"output_tokens": True}, None),
        ({"session_ends": 1}, None),
        ({"ephemeral_from": 1 << 40, "output_tokens": 5}, RequestHints(output_tokens=5)),
        ({"priority": 3, "output_tokens": 5}, RequestHints(output_tokens=5)),
        ("session_ends", None),
    ],
)
def test_what_cannot_be_understood_is_left_out_and_said_once(
    told: Any, left: RequestHints | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "vllm.kvcove"):
        assert hints_of({"kvcove": told}) == left
        assert hints_of({"kvcove": told}) == left
    assert len(caplog.records) == 1
    assert "left out" in caplog.text
