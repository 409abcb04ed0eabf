# SPDX-License-Identifier: Apache-2.0
"""What the adapters of all engines share: their settings, the versions that they know, how others differ."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest

import kvcove
from kvcove import engines

_log = logging.getLogger("engine.kvcove")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of an engine."""

    pool: str = "auto"
    hold_s: float = 10.0
    fast: bool = False


def test_settings_that_are_not_given_have_their_defaults() -> None:
    assert engines.settings_of(Settings, {"hold_s": 3}, "settings") == Settings(hold_s=3.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"pol": "auto"}, "^settings: unknown key 'pol'; did you mean 'pool'\\?$"),
        ({"xyz": 1}, "^settings: unknown key 'xyz'; known: pool, hold_s, fast$"),
        ({"hold_s": "3"}, "^settings: hold_s: '3' is no number$"),
        ({"hold_s": True}, "^settings: hold_s: True is no number$"),
        ({"fast": 1}, "^settings: fast: 1 is no boolean$"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        engines.settings_of(Settings, given, "settings")


@pytest.mark.parametrize("version", ["0.0.0", "0.1.dev7+gabc", "dev", "1", ""])
def test_a_version_that_nobody_can_say_is_taken(
    version: str, caplog: pytest.LogCaptureFixture
) -> None:
    known = engines.KnownVersions("Engine", (0, 24), (0, 33), upgrade="upgrade")
    assert known.numbers_of(version) is None
    known.check(version, _log)
    assert not caplog.messages


@pytest.mark.parametrize("version", ["0.1.7", "0.23.9"])
def test_an_old_version_is_refused_with_what_to_do(version: str) -> None:
    known = engines.KnownVersions("Engine", (0, 24), (0, 33), upgrade="upgrade it")
    with pytest.raises(ValueError, match=rf"Engine 0\.24 to 0\.33; this is {version}: upgrade it$"):
        known.check(version, _log)


def test_as_many_numbers_count_as_the_range_has(caplog: pytest.LogCaptureFixture) -> None:
    engines.KnownVersions("Engine", (0, 24), (0, 33), upgrade="").check("0.33.9", _log)
    assert not caplog.messages
    engines.KnownVersions("Engine", (0, 24, 0), (0, 33, 0), upgrade="").check("0.33.9", _log)
    assert len(caplog.messages) == 1


def test_the_second_engine_says_what_it_has_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    with kvcove.open("embedded:?memory=8MiB&populate=0") as pool:

        def start(**facts: str) -> list[str]:
            caplog.clear()
            engines.warn_of_differences(
                _log, lambda: pool.session(engines.FACTS), "m", facts, others="others"
            )
            return caplog.messages

        assert start(**{"KV type": "fp8", "block tokens": "16"}) == []
        assert start(**{"KV type": "fp8", "block tokens": "16"}) == []
        (line,) = start(**{"KV type": "bf16", "block tokens": "16"})
    assert line == (
        "kvcove: others of m with another KV type share nothing with this one: fp8 there, bf16 here; "
        "give them the same --kv-cache-dtype"
    )


def test_a_pool_that_fails_is_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    def closed() -> Any:
        raise kvcove.UnavailableError("nobody answers")

    engines.warn_of_differences(_log, closed, "m", {})
    assert not caplog.messages
