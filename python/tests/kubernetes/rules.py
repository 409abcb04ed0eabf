# SPDX-License-Identifier: Apache-2.0
"""What a manifest must and must not do, whatever its kind's schema allows; each fault is a sentence with its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schema import check

KINDS: dict[str, Any] = json.loads((Path(__file__).parent / "kinds.json").read_text())
#: Of kvcove's own image.
USER = 65532
#: The one container that is root: it gives a node's directories to that user.
PREPARE = {"CHOWN", "FOWNER"}


def check_kind(thing: dict[str, Any]) -> None:
    """Raise a ``SchemaError`` where an object has a field that its kind does not have."""
    where = f"{thing.get('kind')} {thing.get('metadata', {}).get('name')}"
    assert thing.get("kind") in KINDS["definitions"], f"{where}: no schema is there for this kind"
    check(thing, KINDS["definitions"][thing["kind"]], where, KINDS)


def pods(thing: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if thing["kind"] in ("DaemonSet", "StatefulSet", "Deployment"):
        yield thing["spec"]["template"]["spec"]


def faults(thing: dict[str, Any]) -> list[str]:
    """Return the faults of an object's pods by Pod Security and by kvcove's own rules."""
    where = f"{thing['kind']} {thing['metadata']['name']}"
    return [f"{where}: {fault}" for pod in pods(thing) for fault in _of_pod(pod)]


def _of_pod(pod: dict[str, Any]) -> Iterator[str]:
    security = pod.get("securityContext", {})
    for name in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"):
        if pod.get(name):
            yield f"{name} is set"
    if pod.get("automountServiceAccountToken") is not False:
        yield "it has the token of its service account"
    if pod.get("enableServiceLinks") is not False:
        yield "variables of services may be taken for kvcove's"
    if security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "its seccomp profile is not RuntimeDefault"
    if security.get("runAsNonRoot") is not True or not security.get("runAsUser"):
        yield "it may run as root"
    if "fsGroup" in security and security.get("fsGroupChangePolicy") != "OnRootMismatch":
        yield "each start lets the group write kvcove's files, which kvcove then refuses"
    for volume in pod.get("volumes", []):
        yield from _of_volume(volume)
    for container in pod.get("initContainers", []):
        yield from (f"{container['name']}: {fault}" for fault in _of_any(container))
        if container["securityContext"].get("runAsUser") == 0:
            yield from _of_prepare(container)
    for container in pod["containers"]:
        yield from (f"{container['name']}: {fault}" for fault in _of_any(container))
        yield from (f"{container['name']}: {fault}" for fault in _of_server(container))


def _of_volume(volume: dict[str, Any]) -> Iterator[str]:
    if "hostPath" in volume:
        yield f"{volume['name']}: Pod Security `baseline` refuses a hostPath"
    if "secret" in volume and volume["secret"].get("defaultMode") != 0o440:
        yield f"{volume['name']}: kvcove refuses a secret that others may read"


def _of_any(container: dict[str, Any]) -> Iterator[str]:
    security = container.get("securityContext", {})
    if security.get("privileged") or security.get("allowPrivilegeEscalation") is not False:
        yield "it may get privileges"
    if security.get("readOnlyRootFilesystem") is not True:
        yield "its root file system is not read-only"
    if security.get("capabilities", {}).get("drop") != ["ALL"]:
        yield "it does not drop all capabilities"
    if "seccompProfile" in security or "procMount" in security:
        yield "it has a profile of its own"
    image, _, tag = container["image"].rpartition(":")
    if not image or tag == "latest":
        yield "its image has no fixed tag"
    resources = container.get("resources", {})
    wanted = resources.get("requests", {})
    if not {"cpu", "memory"} <= set(wanted) or "memory" not in resources.get("limits", {}):
        yield "it does not say what it needs"
    elif wanted["memory"] != resources["limits"]["memory"]:
        yield "it may be given less memory than it may use"
    if any("hostPort" in port for port in container.get("ports", [])):
        yield "it takes a port of the node"


def _of_server(container: dict[str, Any]) -> Iterator[str]:
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        if probe not in container:
            yield f"it has no {probe}"
    security = container.get("securityContext", {})
    if security.get("capabilities", {}).get("add"):
        yield "it adds capabilities"
    if security.get("runAsUser") == 0 or security.get("runAsNonRoot") is False:
        yield "it is root"


def _of_prepare(container: dict[str, Any]) -> Iterator[str]:
    if set(container["securityContext"]["capabilities"].get("add", [])) != PREPARE:
        yield f"{container['name']}: it has other capabilities than {sorted(PREPARE)}"
    if container["command"][0] != "install":
        yield f"{container['name']}: root may run nothing but install"
