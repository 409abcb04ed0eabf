# SPDX-License-Identifier: Apache-2.0
"""Which versions of LMCache, and which settings, the adapters take. LMCache need not be there."""

import logging

import pytest
from kvcove.lmcache import _config, _spaces, _versions


@pytest.mark.parametrize("version", ["0.5.4", "0.5.5.post1", "0.5.6", "0.0.0.dev1", ""])
def test_known_versions_are_taken(version: str, caplog: pytest.LogCaptureFixture) -> None:
    _versions.check_version(version)
    assert caplog.text == ""


@pytest.mark.parametrize("version", ["0.5.3", "0.3.9.post2"])
def test_an_older_version_is_refused_with_the_range(version: str) -> None:
    with pytest.raises(ValueError, match=rf"knows LMCache 0\.5\.4 to 0\.5\.6; this is {version}"):
        _versions.check_version(version)


def test_a_newer_version_is_tried_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        _versions.check_version("0.6.0")
        _versions.check_version("0.6.0")
    assert caplog.text.count("knows LMCache 0.5.4 to 0.5.6; this is 0.6.0") == 1


def test_the_pool_and_the_segment_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVCOVE_POOL", "unix:/tmp/nobody.sock")
    monkeypatch.setenv("KVCOVE_PREFERRED_SEGMENT", "host:7401")
    config = _config.Config.of({}, "adapter_params")
    assert (config.pool, config.preferred_segment) == ("unix:/tmp/nobody.sock", "host:7401")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"namespac": "a"}, "adapter_params: unknown key 'namespac'; did you mean 'namespace'"),
        ({"pool": "embedded"}, "give auto, unix:/PATH or kvcove://HOST:7400"),
        ({"on_unreachable": "wait"}, "give 'fallback' or 'crash'"),
        ({"hold_s": "long"}, "is no float"),
        ({"hold_s": 61}, "give 0 to 60 seconds"),
        ({"timeout_ms": 0}, "milliseconds"),
        ({"tenants": "acme.toml"}, "give a token file for each salt"),
        ({"tenants": {"acme": 1}}, "give a token file for each salt"),
        (
            {"tenants": {"acme": "acme.toml"}, "pool": "unix:/tmp/p.sock"},
            "give its 'pool' as kvcove://",
        ),
    ],
)
def test_a_wrong_setting_is_one_line(given: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _config.Config.of(given, "adapter_params")


@pytest.mark.parametrize(
    ("model", "salt", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "", "meta-llama/Llama-3.1-8B"),
        ("meta-llama/Llama-3.1-8B", "acme", "meta-llama/Llama-3.1-8B@acme"),
    ],
)
def test_a_salt_is_behind_the_models_name(model: str, salt: str, name: str) -> None:
    assert _spaces._name_of(model, salt) == name


@pytest.mark.parametrize("salt", ["a\nb", "ü" * 300])
def test_a_salt_that_is_no_name_is_hashed(salt: str) -> None:
    assert len(_spaces._name_of("m", salt)) == 64
    assert _spaces._name_of("m", salt) != _spaces._name_of("m2", salt)
