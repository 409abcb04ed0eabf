# SPDX-License-Identifier: Apache-2.0
"""How payload moves, as setup() of mooncake.store says it."""

import pytest
from kvcove.mooncake import _config

ARGUMENTS = {
    "local_hostname": "127.0.0.1",
    "metadata_server": "P2PHANDSHAKE",
    "global_segment_size": 0,
    "master_server_addr": "127.0.0.1:50051",
}


def setup_of(**more: object) -> _config.Setup:
    """Return the checked arguments."""
    return _config.Setup.of({**ARGUMENTS, **more})


def test_the_protocol_rdma_asks_the_pool_for_it() -> None:
    """Owner and requester use the devices that are named, or any."""
    setup = setup_of(protocol="rdma")
    assert (setup.transport, setup.devices) == ("auto", "")
    assert setup.pool.endswith("transport=auto")
    setup = setup_of(protocol="RDMA", rdma_devices=" mlx5_0, mlx5_1:2 ,mlx5_0,")
    assert (setup.transport, setup.devices) == ("auto", "mlx5_0,mlx5_1:2")
    assert setup.pool.endswith("transport=auto&devices=mlx5_0,mlx5_1:2")


@pytest.mark.parametrize("protocol", ["tcp", "nvmeof", ""])
def test_other_protocols_are_tcp(protocol: str) -> None:
    """Devices mean nothing there."""
    setup = setup_of(protocol=protocol, rdma_devices="mlx5_0")
    assert (setup.transport, setup.devices) == ("tcp", "")
    assert "transport=" not in setup.pool


def test_the_address_of_the_pool_has_the_last_word() -> None:
    """What it says is said once."""
    setup = setup_of(protocol="rdma", master_server_addr="kvcove://127.0.0.1:7400?transport=tcp")
    assert setup.pool.endswith("?transport=tcp")
    assert (setup.transport, setup.devices) == ("tcp", "")
    setup = setup_of(
        protocol="tcp",
        rdma_devices="mlx5_0",
        master_server_addr="kvcove://127.0.0.1:7400?transport=verbs",
    )
    assert setup.pool.endswith("?transport=verbs&devices=mlx5_0")
    assert (setup.transport, setup.devices) == ("verbs", "mlx5_0")
    setup = setup_of(
        protocol="rdma",
        rdma_devices="mlx5_0",
        master_server_addr="kvcove://127.0.0.1:7400?devices=mlx5_1",
    )
    assert setup.pool.endswith("?devices=mlx5_1&transport=auto")
    assert setup.devices == "mlx5_1"
    assert "transport=" not in setup_of(protocol="rdma", master_server_addr="embedded:").pool


@pytest.mark.parametrize("text", ["{}", "mlx5_0:0", "mlx5_0:256", "mlx5_0:1/256", "mlx5_0:"])
def test_names_that_are_no_devices_leave_the_choice_to_kvcove(text: str) -> None:
    """Other implementations take other texts there; a store starts all the same."""
    assert setup_of(protocol="rdma", rdma_devices=text).devices == ""


def test_a_port_that_is_named_twice_is_one() -> None:
    """Its first name stays."""
    assert setup_of(protocol="rdma", rdma_devices="mlx5_0,mlx5_0:1/3").devices == "mlx5_0"
