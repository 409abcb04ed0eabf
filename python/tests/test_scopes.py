# SPDX-License-Identifier: Apache-2.0
"""What an engine learns at its start of what its token may do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from conftest import Program, command_path, guarded_cluster

import kvcove
from kvcove import engines


def test_a_pool_says_at_once_what_the_token_may_do(tmp_path: Path) -> None:
    cluster = guarded_cluster(tmp_path, acme="read,write", cluster="owner,admin")
    try:
        address = f"kvcove://{cluster.address}?token={tmp_path}/acme.toml"
        with kvcove.open(address, timeout=30) as pool:
            assert pool.scopes() == ["read", "write"]
            lines = engines.refusals(pool, finds=True, stores=True)
    finally:
        cluster.stop()
    assert len(lines) == 1
    assert 'lacks the scope "reset"' in lines[0]
    assert "--credentials" in lines[0], "the line says where to give it"


def test_an_owner_names_the_file_whose_token_is_not_known_any_more(tmp_path: Path) -> None:
    cluster = guarded_cluster(tmp_path, cluster="owner,admin")
    servers, mine = tmp_path / "servers.toml", tmp_path / "mine.toml"
    shutil.copy(servers, mine)
    command = [command_path(), "owner", "--master", cluster.address, "--listen", "127.0.0.1:0"]
    command += ["--memory", "16MiB", "--no-populate", "--admin", "off"]
    command += ["--socket", str(tmp_path / "s" / "o"), "--credentials", str(mine)]
    owner = Program(command, tmp_path / "owner.log")
    try:
        owner.wait_for("knows this owner as number")
        for word in ("--exchange", "--strike"):
            command = [command_path(), "token", "cluster", word, "--credentials", str(servers)]
            subprocess.run(command, check=True, capture_output=True, timeout=20)
        owner.wait_for(
            f"does not know the tenant 'cluster' with this token; is the token in '{mine}'"
        )
        shutil.copy(servers, mine)
        owner.wait_for("renews the lease again")
        assert "say hello first" not in owner.log.read_text()
    finally:
        assert owner.stop() == 0
        cluster.stop()


def test_only_what_the_engine_does_is_missed() -> None:
    class Reader:
        def scopes(self) -> list[str]:
            return ["read", "reset"]

    assert engines.refusals(Reader(), finds=True, stores=False) == []
    assert "stores nothing" in engines.refusals(Reader(), finds=True, stores=True)[0]
    with kvcove.open("embedded:?memory=4MiB") as pool:
        assert pool.scopes() == [], "nobody asks for a token there"
        assert engines.refusals(pool, finds=True, stores=True) == []
