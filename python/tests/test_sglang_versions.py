# SPDX-License-Identifier: Apache-2.0
"""Which versions of SGLang, and which settings, the storage backend takes. SGLang need not be there."""

import logging

import pytest
from kvcove.sglang import _config, _versions


@pytest.mark.parametrize("version", ["0.5.21", "0.5.22.post1", "0.5.23", "0.0.0.dev1", ""])
def test_known_versions_are_taken(version: str, caplog: pytest.LogCaptureFixture) -> None:
    _versions.check_version(version)
    assert caplog.text == ""


@pytest.mark.parametrize("version", ["0.5.20", "0.4.10.post2"])
def test_an_older_version_is_refused_with_the_range(version: str) -> None:
    with pytest.raises(ValueError, match=rf"knows SGLang 0\.5\.21 to 0\.5\.23; this is {version}"):
        _versions.check_version(version)


def test_a_newer_version_is_tried_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        _versions.check_version("0.6.0")
        _versions.check_version("0.6.0")
    assert caplog.text.count("knows SGLang 0.5.21 to 0.5.23; this is 0.6.0") == 1


def test_the_pool_and_the_segment_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVCOVE_POOL", "unix:/tmp/nobody.sock")
    monkeypatch.setenv("KVCOVE_PREFERRED_SEGMENT", "host:7401")
    config = _config.Config.of({"backend_name": "kvcove", "interface_v1": 1})
    assert (config.pool, config.preferred_segment) == ("unix:/tmp/nobody.sock", "host:7401")


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"weight_version_sourc": "none"}, "did you mean 'weight_version_source'"),
        ({"weight_version_source": "salt"}, "give 'fingerprint' or 'none'"),
        ({"pool": "embedded"}, "give auto, unix:/PATH or kvcove://HOST:7400"),
        ({"on_unreachable": "wait"}, "give 'fallback' or 'crash'"),
        ({"hold_s": "long"}, "is no number"),
        ({"hold_s": 61}, "give 0 to 60 seconds"),
        ({"timeout_ms": 0}, "milliseconds"),
        ({"lookup_timeout_ms": 10_000}, "1 to 8000 milliseconds"),
        ({"assume_weights": 1}, "is no boolean"),
    ],
)
def test_a_wrong_setting_is_one_line(extra: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _config.Config.of(extra)
