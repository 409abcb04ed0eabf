# SPDX-License-Identifier: Apache-2.0
"""``kvcove why-not``: why two engines share no KV, from what each has left in the pool."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import command_path, wait_until

import kvcove
from kvcove import engines

VLLM = {"KV type": "bfloat16", "block tokens": "16", "vLLM": "0.33", "block hashing": "sha256:0"}


@pytest.fixture
def pool(serve: str) -> Iterator[kvcove.Pool]:
    with kvcove.open(f"unix:{serve}") as opened:
        yield opened


@pytest.fixture
def facts(pool: kvcove.Pool) -> Iterator[kvcove.Session]:
    with pool.session("kvcove-facts") as session:
        yield session


def why_not(serve: str, one: str, other: str, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [command_path(), "why-not", one, other, "--pool", f"unix:{serve}", *more],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def told(serve: str, one: str, other: str) -> Any:
    # A pool whose lease has run out, as the machine stood still, has nothing for a moment.
    ran: list[subprocess.CompletedProcess[str]] = []

    def ask() -> bool:
        ran[:] = [why_not(serve, one, other, "--json")]
        return ran[0].returncode != 2

    assert wait_until(ask), ran[0].stderr
    answer = json.loads(ran[0].stdout)
    assert answer["shares"] == (ran[0].returncode == 0)
    assert "weights_unknown" not in answer, answer
    return answer


def test_what_differs_is_told_with_advice(serve: str, facts: kvcove.Session) -> None:
    other = {**VLLM, "KV type": "fp8_e4m3", "block hashing": "sha256:1"}
    engines.leave_own(facts, "one-1234", "vLLM", "m@1", VLLM)
    engines.leave_own(facts, "two-5678", "vLLM", "m@2", other)
    engines.leave_own(facts, "three-90", "SGLang", "m@3", {"SGLang": "0.5.23"})
    answer = told(serve, "one-1234", "two-5678")
    assert [each["fact"] for each in answer["differences"]] == ["KV type", "block hashing"]
    first = answer["differences"][0]
    assert (first["one"], first["other"]) == ("bfloat16", "fp8_e4m3")
    assert first["advice"] == engines.advice_of("KV type")
    text = why_not(serve, "one", "two")  # the beginnings of their names
    assert text.returncode == 1
    assert "KV type: bfloat16 and fp8_e4m3; give them the same --kv-cache-dtype" in text.stdout
    (kind,) = told(serve, "one", "three")["differences"]
    assert (kind["one"], kind["other"]) == ("vLLM", "SGLang")


def test_equal_engines_share_unless_their_weights_differ(
    serve: str, pool: kvcove.Pool, facts: kvcove.Session
) -> None:
    for engine in ("one", "two"):
        engines.leave_own(facts, engine, "vLLM", "m@1", VLLM)
    with pool.session("m@1", engine="one") as one, pool.session("m@1", engine="two") as two:
        one.capture("w1")
        two.capture("w1")
        assert told(serve, "one", "two")["shares"]
        assert "they share\n" in why_not(serve, "one", "two").stdout
        two.capture("w2")
        (weights,) = told(serve, "one", "two")["differences"]
        assert (weights["fact"], weights["one"], weights["other"]) == ("weights", "w1", "w2")


def test_an_engine_that_has_started_again_has_its_new_facts(
    serve: str, facts: kvcove.Session
) -> None:
    engines.leave_own(facts, "one", "vLLM", "m@1", VLLM)
    engines.leave_own(facts, "two", "vLLM", "m@2", {**VLLM, "block tokens": "32"})
    assert not told(serve, "one", "two")["shares"]
    engines.leave_own(facts, "two", "vLLM", "m@1", VLLM)
    assert told(serve, "one", "two")["shares"]


def test_an_unknown_engine_is_an_error_that_names_the_nearest(
    serve: str, facts: kvcove.Session
) -> None:
    engines.leave_own(facts, "prefill-0", "vLLM", "m@1", VLLM)
    engines.leave_own(facts, "prefill-1", "vLLM", "m@1", VLLM)
    unknown = why_not(serve, "prefill-0", "perfill-1")
    assert unknown.returncode == 2
    assert "did you mean 'prefill-1'?" in unknown.stderr
    several = why_not(serve, "prefill-0", "prefill")
    assert several.returncode == 2
    assert "2 engines begin with 'prefill'" in several.stderr
    garbage = [
        b"[1]",
        b'{"kind": 1, "namespace": "m", "facts": {}, "advice": {}}',
        b'{"facts": [1]}',
    ]
    for i, text in enumerate(garbage):
        facts.put([f"engine broken-{i}"], [text])
        broken = why_not(serve, "prefill-0", f"broken-{i}")
        assert broken.returncode == 2, broken
        assert "cannot be read" in broken.stderr


def test_a_socket_names_the_pool(serve: str, facts: kvcove.Session) -> None:
    for engine in ("one", "two"):
        engines.leave_own(facts, engine, "vLLM", "m@1", VLLM)
    words = [command_path(), "why-not", "one", "two", "--socket", serve]

    def shares() -> bool:
        ran = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
        return ran.returncode == 0 and "they share" in ran.stdout

    assert wait_until(shares)
