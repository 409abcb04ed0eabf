# SPDX-License-Identifier: Apache-2.0
"""What an engine learns at its start of what its token may do."""

from __future__ import annotations

import subprocess
from pathlib import Path

from conftest import Program, command_path, free_port

import kvcove
from kvcove import engines


def test_a_pool_says_at_once_what_the_token_may_do(tmp_path: Path) -> None:
    servers = tmp_path / "servers.toml"
    for tenant, scopes in (("acme", "read,write"), ("cluster", "owner,admin")):
        command = [command_path(), "token", tenant, "--scopes", scopes]
        command += ["--credentials", str(servers), "--output", str(tmp_path / f"{tenant}.toml")]
        subprocess.run(command, check=True, capture_output=True, timeout=20)
    address = f"127.0.0.1:{free_port()}"
    command = [command_path(), "master", "--listen", address, "--data", str(tmp_path / "master")]
    master = Program(
        [*command, "--admin", "off", "--credentials", str(servers)], tmp_path / "master.log"
    )
    try:
        master.wait_for("master at")
        with kvcove.open(f"kvcove://{address}?token={tmp_path}/acme.toml", timeout=30) as pool:
            assert pool.scopes() == ["read", "write"]
            lines = engines.refusals(pool, finds=True, stores=True)
    finally:
        master.stop()
    assert len(lines) == 1
    assert 'lacks the scope "reset"' in lines[0]
    assert "--credentials" in lines[0], "the line says where to give it"


def test_only_what_the_engine_does_is_missed() -> None:
    class Reader:
        def scopes(self) -> list[str]:
            return ["read", "reset"]

    assert engines.refusals(Reader(), finds=True, stores=False) == []
    assert "stores nothing" in engines.refusals(Reader(), finds=True, stores=True)[0]
    with kvcove.open("embedded:?memory=4MiB") as pool:
        assert pool.scopes() == [], "nobody asks for a token there"
        assert engines.refusals(pool, finds=True, stores=True) == []
