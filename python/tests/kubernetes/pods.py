# SPDX-License-Identifier: Apache-2.0
"""Runs pods of manifests as a node does, by Linux's namespaces: what the kubelet and a runtime make of these fields.

A pod has network, IPC and UTS namespaces; each of its containers a PID and a mount namespace, a file system of its own that is read-only
where the manifest says so, the volumes, the user, the groups, the capabilities and the variables of the manifest. An image
has the programs that the chart expects in it, and no others. Not made: a seccomp profile, control groups, and the scheduler.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conftest import command_path, ends_with_its_test, wait_until

#: The programs of images, beside the C library: kvcove's has the command alone. An engine's has Python and the packages of these tests.
TOOLS = ("install", "sh", "tr")
IMAGE = runpy.run_path(str(Path(__file__).parents[3] / "scripts/image.py"))
LIBRARIES = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/lib", "/lib32", "/lib64")
DEVICES = ("null", "zero", "full", "random", "urandom")
CAPABILITY = {"CHOWN": "chown", "FOWNER": "fowner"}

# Its first argument is the new root; what follows is the container's command behind setpriv.
ENTER = """\
set -e
root=$1
shift
mount --make-rprivate /
. "$root/.runtime/mounts"
cd "$root"
pivot_root . .runtime/old
.runtime/old/usr/bin/umount -l .runtime/old
cd /
exec /.runtime/setpriv "$@"
"""


class NoNamespaces(Exception):
    """This user may not make pods on this machine."""


def run(*words: str) -> str:
    ran = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if ran.returncode != 0:
        raise AssertionError(f"{words}: {ran.stderr}")
    return ran.stdout


def expand(text: str, variables: dict[str, str]) -> str:
    """Expand ``$(NAME)`` as Kubernetes does: ``$$`` is ``$``, and what is not known stays."""

    def one(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^()]*)\)", one, text)


def is_kvcoves(container: dict[str, Any]) -> bool:
    return "/kvcove:" in container["image"]


@dataclass
class Node:
    """A node with its directories, and the network between its pods: a router, a pair of interfaces for each pod."""

    directory: Path
    name: str
    #: Of the cluster: ConfigMaps and volumes by name, and the files of secrets.
    objects: list[dict[str, Any]] = field(default_factory=list)
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    pods: int = 0

    @property
    def router(self) -> str:
        return f"kvk-{os.getpid()}"

    @property
    def hosts(self) -> Path:
        return self.directory / "hosts"

    def publish(self, name: str, address: str) -> None:
        """Let all pods know a name, as DNS does."""
        self.names[name] = address
        lines = [f"{found} {known}\n" for known, found in self.names.items()]
        self.hosts.write_text("".join(lines))  # in place, since containers have mounted it

    def start(self) -> None:
        self.publish("localhost", "127.0.0.1")
        try:
            run("ip", "netns", "add", self.router)
            run(
                "ip",
                "netns",
                "exec",
                self.router,
                "sh",
                "-c",
                "echo 1 >/proc/sys/net/ipv4/ip_forward",
            )
        except (OSError, AssertionError) as error:
            raise NoNamespaces(
                "this machine does not let this user make network namespaces"
            ) from error

    def stop(self) -> None:
        subprocess.run(["ip", "netns", "del", self.router], capture_output=True, check=False)

    def find(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any]:
        (found,) = (
            each
            for each in self.objects
            if each["kind"] == kind
            and each["metadata"]["name"] == name
            and each["metadata"].get("namespace") == namespace
        )
        return found


class Pod:
    """A pod of a template: ``name`` is that of its volumes, too, so a pod that replaces another one has its own."""

    def __init__(self, node: Node, thing: dict[str, Any], name: str) -> None:
        self.node, self.name = node, name
        self.namespace: str = thing["metadata"]["namespace"]
        self.spec: dict[str, Any] = thing["spec"]["template"]["spec"]
        self.claims = {
            each["metadata"]["name"] for each in thing["spec"].get("volumeClaimTemplates", [])
        }
        node.pods += 1
        self.net = f"{node.router}-{node.pods}"
        self.ip = f"10.80.0.{node.pods + 1}"
        self.running: list[Container] = []
        self._connect(f"v{node.pods}")
        self.directory = node.directory / "pods" / f"{name}-{node.pods}"
        self.directory.mkdir(parents=True)

    def _connect(self, outside: str) -> None:
        router = self.node.router
        run("ip", "netns", "add", self.net)
        run("ip", "-n", self.net, "link", "set", "lo", "up")
        run("ip", "link", "add", "eth0", "netns", self.net, "type", "veth",
            "peer", "name", outside, "netns", router)  # fmt: skip
        for space, device, address in ((self.net, "eth0", self.ip), (router, outside, "10.80.0.1")):
            run("ip", "-n", space, "addr", "add", f"{address}/32", "dev", device)
            run("ip", "-n", space, "link", "set", device, "up")
        run("ip", "-n", router, "route", "add", f"{self.ip}/32", "dev", outside)
        run("ip", "-n", self.net, "route", "add", "10.80.0.1/32", "dev", "eth0")
        run("ip", "-n", self.net, "route", "add", "default", "via", "10.80.0.1")

    def start(self) -> Container:
        """Run the init containers to their ends, then start the container."""
        for spec in self.spec.get("initContainers", []):
            init = Container(self, spec)
            assert init.wait() == 0, init.log.read_text()
        (spec,) = self.spec["containers"]
        container = Container(self, spec)
        self.running.append(container)
        return container

    def delete(self) -> None:
        for container in self.running:
            container.stop()
        subprocess.run(["ip", "netns", "del", self.net], capture_output=True, check=False)

    def volume(self, name: str) -> Path:
        """Return the directory on the node that a volume is."""
        if name in self.claims:
            return self._own(self.node.directory / "claims" / f"{name}-{self.name}", 0o2775)
        (volume,) = (each for each in self.spec["volumes"] if each["name"] == name)
        if claim := volume.get("persistentVolumeClaim"):
            bound = self.node.find("PersistentVolumeClaim", claim["claimName"], self.namespace)
            path = self.node.find("PersistentVolume", bound["spec"]["volumeName"])["spec"][
                "hostPath"
            ]
            assert path["type"] == "DirectoryOrCreate"
            made = Path(f"{self.node.directory}/host{path['path']}")
            made.mkdir(mode=0o755, parents=True, exist_ok=True)
            return made
        if "emptyDir" in volume:
            return self._own(self.directory / name, 0o2777)
        return self._secret(self.directory / name, volume["secret"])

    def _own(self, path: Path, mode: int) -> Path:
        if not path.exists():
            path.mkdir(parents=True)
            os.chown(path, 0, self.spec["securityContext"].get("fsGroup", 0))
            path.chmod(mode)
        return path

    def _secret(self, path: Path, volume: dict[str, Any]) -> Path:
        """Write a secret as the kubelet does: files of root's and the pod's group, behind links that one rename replaces."""
        version = path / "..2026"
        if not path.exists():
            version.mkdir(parents=True)
            (path / "..data").symlink_to(version.name)
            for name, text in self.node.secrets[volume["secretName"]].items():
                (version / name).write_text(text)
                os.chown(version / name, 0, self.spec["securityContext"]["fsGroup"])
                (version / name).chmod(volume["defaultMode"])
                (path / name).symlink_to(f"..data/{name}")
        return path

    def variables(self, container: dict[str, Any]) -> dict[str, str]:
        found = {"HOSTNAME": self.name}
        if is_kvcoves(container):
            found |= dict(word.split("=", 1) for word in IMAGE["ENVIRONMENT"])
        found["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"  # for the mounts before it begins
        for source in container.get("envFrom", []):
            config = self.node.find("ConfigMap", source["configMapRef"]["name"], self.namespace)
            found |= config["data"]
        fields = {
            "metadata.name": self.name,
            "spec.nodeName": self.node.name,
            "status.podIP": self.ip,
        }
        for each in container.get("env", []):
            path = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            found[each["name"]] = fields[path] if path else expand(each["value"], found)
        return found


class Container:
    """A process that is process 1 of its PID namespace, in the namespaces of its pod."""

    def __init__(self, pod: Pod, spec: dict[str, Any]) -> None:
        self.pod, self.spec = pod, spec
        self.log = pod.directory / f"{spec['name']}.log"
        self.root = pod.directory / f"root-{time.monotonic_ns()}"
        self._make_root()
        variables = pod.variables(spec)
        words = [*spec.get("command", IMAGE["ENTRY"]), *spec.get("args", [])]
        words = [expand(each, variables) for each in words]
        command = [
            "nsenter",
            f"--net=/run/netns/{pod.net}",
            "unshare",
            "--mount",
            "--pid",
            "--ipc",
            "--uts",
        ]
        command += ["--fork", "--kill-child", "bash", "-c", ENTER, "enter", str(self.root)]
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [*command, *self._privileges(), *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                text=True,
                env={**variables, "PATH": f"{variables['PATH']}:/usr/local/bin"},
            )
        ends_with_its_test(self.process)

    # ---- its file system

    def _make_root(self) -> None:
        """Make the directories of the image, and the script that mounts the volumes and what is of the machine."""
        for name in (
            "proc",
            "sys",
            "dev/shm",
            "etc",
            "run",
            "tmp",
            "var/lib",
            "usr/bin",
            "opt/engine",
        ):
            (self.root / name).mkdir(parents=True)
        (self.root / ".runtime/old").mkdir(parents=True)
        (self.root / "bin").symlink_to("usr/bin")
        if is_kvcoves(self.spec):
            shutil.copy(command_path(), self.root / "usr/bin/kvcove")
        elif "busybox" in self.spec["image"]:
            for name in TOOLS:
                shutil.copy(shutil.which(name) or f"/usr/bin/{name}", self.root / "usr/bin" / name)
        shutil.copy(shutil.which("setpriv") or "/usr/bin/setpriv", self.root / ".runtime")
        (self.root / "etc/passwd").write_text(
            "root:x:0:0::/:/bin/sh\nkvcove:x:65532:65532::/:/bin/sh\n"
        )
        (self.root / "etc/group").write_text("root:x:0:\nkvcove:x:65532:\n")
        hosts = {"localhost": "127.0.0.1", self.pod.name: self.pod.ip, **self.pod.node.names}
        (self.root / "etc/hosts").write_text(
            "".join(f"{ip} {name}\n" for name, ip in hosts.items())
        )
        (self.root / "etc/nsswitch.conf").write_text("hosts: files\n")
        for name in (self.root, *self.root.rglob("*")):
            if name.is_dir() and not name.is_symlink():
                name.chmod(0o755)
        (self.root / ".runtime/mounts").write_text("\n".join(self._mounts()) + "\n")

    def _mounts(self) -> Iterator[str]:
        root = self.root
        yield f"mount --bind {root} {root}"
        for name in LIBRARIES:
            if Path(name).is_symlink():
                (root / name[1:]).symlink_to(os.readlink(name))
            elif Path(name).is_dir():
                yield from self._bind(Path(name), name, True)
        yield f"mount -t proc proc {root}/proc"
        yield f"mount -t sysfs -o ro sysfs {root}/sys"
        yield f"mount -t tmpfs -o mode=755,size=1m tmpfs {root}/dev"
        for name in DEVICES:
            yield f"touch {root}/dev/{name} && mount --bind /dev/{name} {root}/dev/{name}"
        yield f"mkdir {root}/dev/shm && mount -t tmpfs -o mode=1777,size=64m tmpfs {root}/dev/shm"
        yield f"touch {root}/etc/hosts && mount --bind {self.pod.node.hosts} {root}/etc/hosts"
        for mount in self.spec.get("volumeMounts", []):
            source = self.pod.volume(mount["name"])
            yield from self._bind(source, mount["mountPath"], mount.get("readOnly", False))
        if sys.executable in self.spec.get(
            "command", []
        ):  # may be below a volume's place, such as /tmp
            for place in (sys.base_prefix, sys.prefix):
                yield from self._bind(Path(place), place, True)
            for file in (Path(__file__).parent, Path(__file__).parents[3] / "examples/engine"):
                yield from self._bind(file, f"/opt/engine/{file.name}", True)
        if self.spec["securityContext"]["readOnlyRootFilesystem"]:
            yield f"mount -o remount,bind,ro {root}"

    def _bind(self, source: Path, place: str, read_only: bool) -> Iterator[str]:
        target = self.root / place[1:]
        yield f"mkdir -p {target} && mount --bind {source} {target}"
        if read_only:
            yield f"mount -o remount,bind,ro {target}"

    def _privileges(self) -> list[str]:
        """Return the options of setpriv that stand for the security contexts of pod and container."""
        security = {**self.pod.spec["securityContext"], **self.spec["securityContext"]}
        groups = [security["fsGroup"], *security.get("supplementalGroups", [])]
        allowed = [CAPABILITY[name] for name in security["capabilities"].get("add", [])]
        bounding = ",".join(["-all", *(f"+{name}" for name in allowed)])
        words = [f"--reuid={security['runAsUser']}", f"--regid={security['runAsGroup']}"]
        words += [
            f"--groups={','.join(map(str, groups))}",
            f"--bounding-set={bounding}",
            "--inh-caps=-all",
        ]
        return [*words, "--no-new-privs", "--"]

    # ---- what a kubelet does with it

    def pid(self) -> int:
        """Return its process 1, by the machine's numbers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        assert wait_until(lambda: children.exists() and children.read_text().split())
        return int(children.read_text().split()[0])

    def execute(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it, as `kubectl exec` and a probe do."""
        pid = str(self.pid())
        enter = [
            "nsenter",
            "--target",
            pid,
            "--mount",
            "--pid",
            "--net",
            "--ipc",
            "--uts",
            "--root",
            "--wd",
        ]
        return subprocess.run(
            [*enter, "/.runtime/setpriv", *self._privileges(), *words],
            env=self.pod.variables(self.spec),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def probe(self, name: str) -> bool:
        return self.execute(*self.spec[name]["exec"]["command"]).returncode == 0

    def becomes_ready(self) -> None:
        def looked() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return self.probe("startupProbe") and self.probe("readinessProbe")

        assert wait_until(looked), self.log.read_text()
        assert self.probe("livenessProbe")

    def wait(self) -> int:
        return self.process.wait(60)

    def stop(self) -> None:
        """End it as the deletion of a pod does."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid(), 15)
            self.process.wait(self.pod.spec.get("terminationGracePeriodSeconds", 30))

    def kill(self) -> None:
        os.kill(self.pid(), 9)
        self.process.wait(60)

    # ---- an engine

    def ask(self, **question: Any) -> dict[str, Any]:
        """Ask the program of ``engine.py``."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, self.log.read_text()
        found: dict[str, Any] = json.loads(answer)
        return found
