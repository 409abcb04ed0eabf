# SPDX-License-Identifier: Apache-2.0
"""Which versions of LMCache, and which settings, the adapters take, and their namespaces. LMCache need not be there."""

import logging

import pytest
from kvcove.lmcache import _config, _spaces, _versions

import kvcove


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
        ({"hold_s": "long"}, "is no number"),
        ({"hold_s": 61}, "give 0 to 60 seconds"),
        ({"timeout_ms": 0}, "milliseconds"),
        ({"namespace": "n" * 101}, "give at most 100 bytes"),
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


def test_no_salt_makes_another_models_name() -> None:
    assert _spaces._name_of("m@acme", "") != _spaces._name_of("m", "acme")
    assert _spaces._name_of("m@a", "b") != _spaces._name_of("m", "a@b")


@pytest.mark.parametrize("salt", ["a\nb", "ü" * 300])
def test_a_salt_that_is_no_name_is_hashed(salt: str) -> None:
    assert len(_spaces._name_of("m", salt)) == 64
    assert _spaces._name_of("m", salt) != _spaces._name_of("m2", salt)


def test_a_salt_that_is_a_tenant_has_a_pool_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, real = [], kvcove.open

    def embedded(address: str) -> kvcove.Pool:
        opened.append(address)
        return real("embedded:?memory=8MiB&populate=0")

    monkeypatch.setattr(kvcove, "open", embedded)
    given = {"pool": "kvcove://host:7400", "tenants": {"acme": "acme.toml"}}
    spaces = _spaces.Spaces(_config.Config.of(given, "adapter_params"))
    assert opened == ["kvcove://host:7400", "kvcove://host:7400?token=acme.toml"]
    for salt in ("acme", "other"):
        found = spaces.at("m", salt)
        assert found is not None
        assert found[0].session.put([found[1] + b"chunk"], [salt.encode()]).all_ok
    names = [f"{model}@{salt}" for model, salt, _ in spaces.open()]
    assert names == ["m@other", "m@acme"]
    spaces.reset()
    for salt in ("acme", "other"):
        found = spaces.at("m", salt)
        assert found is not None
        assert found[0].session.stored() == []
    spaces.close()


def test_a_clear_voids_salts_that_are_not_open() -> None:
    with kvcove.open("embedded:?memory=8MiB&populate=0") as pool:
        config = _config.Config.of({"pool": "unix:/tmp/nobody.sock"}, "adapter_params")
        tenants = []
        for _ in range(2):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(kvcove, "open", lambda _: pool)
                tenants.append(_spaces._Tenant("", config))
        first, other = tenants
        before = first.epoch()
        assert other.epoch() == before
        space = first.space("m", "acme")
        assert space.session.put([before + b"chunk"], [b"kv"]).all_ok
        other.reset()  # which has no session on that namespace
        assert first.epoch() == other.epoch() != before
        assert not space.session.exists([first.epoch() + b"chunk"]).all_ok


def test_sessions_that_were_used_last_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_spaces, "_MOST", 2)
    real = kvcove.open
    monkeypatch.setattr(kvcove, "open", lambda _: real("embedded:?memory=8MiB&populate=0"))
    spaces = _spaces.Spaces(_config.Config.of({"pool": "unix:/tmp/nobody.sock"}, "adapter_params"))
    for salt in ("a", "b", "a", "c"):
        assert spaces.at("m", salt) is not None
    assert [salt for _, salt, _ in spaces.open()] == ["a", "c"]
    spaces.close()
