#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the container image of the command, without a daemon and without root: image.py DEB PACKAGES IMAGE

DEB is the package of the command (scripts/packages.sh makes it), PACKAGES a directory with Debian's packages, among them all that the
command needs (KEPT names their files). IMAGE becomes a tar file that `podman load`, `docker load`, `skopeo` and `ctr` read: an OCI image
layout (https://specs.opencontainers.org/image-spec), with a manifest.json beside it for Docker before version 25.

The image has the command, the libraries that it loads and what these need, and no shell. Two layers: Debian's files, and the command's,
so that an upgrade brings the second alone. The same packages give the same bytes: times are $SOURCE_DATE_EPOCH.
"""

import argparse
import dataclasses
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import stat
import subprocess
import sys
import tarfile
import tempfile
import time

USER = 65532
MOST_BYTES = 60 << 20
# Libraries that the command opens at run time, by patterns: RDMA and its devices' providers; KV events; users and names in older glibcs.
OPENED = ("libibverbs.so.1", "lib*-rdmav*.so", "libzmq.so.5")
OPENED_IF_THERE = ("libnss_files.so.2", "libnss_dns.so.2")
# Other files: which providers there are, what system this is, time zones ($TZ), texts of licenses.
KEPT = (
    *("etc/libibverbs.d/", "etc/debian_version", "etc/os-release", "usr/lib/os-release"),
    *("usr/share/zoneinfo/", "usr/share/common-licenses/"),
)
# Other forms of the zones, and a link to /etc/localtime, which an image does not have.
LEFT_OUT = ("usr/share/zoneinfo/right/", "usr/share/zoneinfo/posix/", "usr/share/zoneinfo/localtime")
OF_COMMAND = ("usr/bin/kvcove", "usr/share/doc/kvcove/copyright", "usr/share/doc/kvcove/NOTICE")
# What a container of the image begins with.
ENTRY = ["/usr/bin/kvcove", "--log-config"]
ENVIRONMENT = ["PATH=/usr/bin", "HOME=/var/lib/kvcove", "KVCOVE_SOCKET=/run/kvcove/kvcove.sock"]
MERGED = ("bin", "lib", "lib64", "sbin")  # links into usr/, in all of Debian's systems
TEXTS = {
    "etc/passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\nkvcove:x:{USER}:{USER}:kvcove:/var/lib/kvcove:/usr/sbin/nologin\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": f"root:x:0:\nkvcove:x:{USER}:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
# Directories with another mode or owner than root's 0755.
DIRECTORIES = {
    "etc/kvcove": (0o755, 0),
    "run/kvcove": (0o700, USER),
    "var/lib/kvcove": (0o700, USER),
    "tmp": (0o1777, 0),
    "dev": (0o755, 0),
    "proc": (0o755, 0),
    "sys": (0o755, 0),
}


def fail(text):
    raise SystemExit(f"image.py: {text}")


def printed(*words):
    return subprocess.run([str(word) for word in words], check=True, stdout=subprocess.PIPE, text=True).stdout


@dataclasses.dataclass
class Entry:
    """A file, link or directory of a layer."""

    kind: bytes
    mode: int = 0o755
    data: bytes = b""
    target: str = ""
    owner: int = 0


def place(name):
    """Where a file of a package is in the image, in which /lib and its like are links into /usr."""
    return f"usr/{name}" if name.split("/")[0] in MERGED else name


class Package:
    """A .deb, unpacked into a directory."""

    def __init__(self, deb, directory):
        self.control = printed("dpkg-deb", "-f", deb)
        self.name = self.field("Package")
        self.directory = directory / self.name
        self.directory.mkdir(parents=True)
        subprocess.run(["dpkg-deb", "-x", deb, self.directory], check=True)
        self.files = {
            place(str(path.relative_to(self.directory))): path
            for path in sorted(self.directory.rglob("*"))
            if path.is_symlink() or not path.is_dir()
        }

    def field(self, name):
        found = re.search(rf"^{name}: (.*)$", self.control, re.MULTILINE)
        return found.group(1) if found else fail(f"a package without '{name}': {self.control!r}")

    def entry(self, name):
        path = self.files[name]
        if path.is_symlink():
            return Entry(tarfile.SYMTYPE, 0o777, target=os.readlink(path))
        return Entry(tarfile.REGTYPE, stat.S_IMODE(path.stat().st_mode) & 0o755, path.read_bytes())


class Debian:
    """The files of all packages, and which of them a program needs."""

    def __init__(self, packages):
        self.packages = packages
        self.owner = {name: package for package in packages for name in package.files}
        self.libraries = {}  # by their names without directories
        for name in self.owner:
            if re.match(r"usr/lib(64)?/", name) and re.search(r"\.so(\.|$)", name):
                self.libraries.setdefault(name.rpartition("/")[2], []).append(name)

    def resolved(self, name):
        """The files that a name stands for: links, and what they point to."""
        names = [name]
        while self.owner[names[-1]].files[names[-1]].is_symlink():
            target = os.readlink(self.owner[names[-1]].files[names[-1]])
            whole = target.lstrip("/") if target.startswith("/") else os.path.normpath(f"{names[-1].rpartition('/')[0]}/{target}")
            whole = place(whole)
            if whole not in self.owner:
                fail(f"/{names[-1]} is a link to {target}, which no package has")
            names.append(whole)
        return names

    def needed(self, program, opened):
        """All files without which `program` and the libraries `opened` are not loaded."""
        found, queue = set(), [("the command", self.wanted(program)), ("the command", opened)]
        while queue:
            by, names = queue.pop()
            for name in names:
                # An interpreter has a whole path, a library its name alone.
                file = place(name.lstrip("/")) if "/" in name else self.libraries.get(name, [""])[0]
                if file not in self.owner:
                    fail(f"{by} needs {name}, which none of the packages has")
                for path in self.resolved(file):
                    if path not in found:
                        found.add(path)
                        queue.append((path, self.wanted(self.owner[path].files[path])))
        return found

    @staticmethod
    def wanted(path):
        """The libraries that a file names, and its interpreter."""
        text = printed("readelf", "-dlW", path)
        return re.findall(r"\(NEEDED\).*\[(.*)\]", text) + re.findall(r"program interpreter: ([^\]]*)\]", text)


def with_parents(entries):
    """The entries and the directories above them, parents first."""
    all_of_them = dict(entries)
    for name in entries:
        parent = name.rpartition("/")[0]
        while parent and parent not in all_of_them:
            all_of_them[parent] = Entry(tarfile.DIRTYPE)
            parent = parent.rpartition("/")[0]
    return dict(sorted(all_of_them.items()))


def base_layer(debian, program):
    opened = []
    for pattern in OPENED + OPENED_IF_THERE:
        form = re.escape(pattern).replace(r"\*", "[^/]*")
        found = [path for name, paths in debian.libraries.items() if re.fullmatch(form, name) for path in paths]
        if not found and pattern in OPENED:
            fail(f"none of the packages has {pattern}")
        opened += found
    names = debian.needed(program, opened)
    names |= {name for name in debian.owner if name.startswith(KEPT) and not name.startswith(LEFT_OUT)}
    used = {debian.owner[name] for name in names}
    entries = {}
    for name in sorted(names):
        entries[name] = debian.owner[name].entry(name)
    for package in sorted(used, key=lambda one: one.name):
        # Where scanners look for what a system without dpkg has.
        entries[f"var/lib/dpkg/status.d/{package.name}"] = Entry(tarfile.REGTYPE, 0o644, package.control.encode())
        entries |= license_of(debian, package)
    for name in MERGED:
        entries[name] = Entry(tarfile.SYMTYPE, 0o777, target=f"usr/{name}")
    for name, text in TEXTS.items():
        entries[name] = Entry(tarfile.REGTYPE, 0o644, text.encode())
    for name, (mode, owner) in DIRECTORIES.items():
        entries[name] = Entry(tarfile.DIRTYPE, mode, owner=owner)
    for name in (*MERGED, "root", "run", "var/lib"):
        entries.setdefault(f"usr/{name}" if name in MERGED else name, Entry(tarfile.DIRTYPE))
    return with_parents(entries)


def license_of(debian, package):
    """The copyright of a package. Packages of one source have one directory, and links to it."""
    directory = f"usr/share/doc/{package.name}"
    if directory in debian.owner:
        target = os.path.basename(os.readlink(package.files[directory]))
        at = f"usr/share/doc/{target}/copyright"
        if at not in debian.owner:
            fail(f"/{directory} is a link to {target}, which has no copyright")
        return {directory: package.entry(directory), at: debian.owner[at].entry(at)}
    at = f"{directory}/copyright"
    return {at: package.entry(at)} if at in debian.owner else fail(f"the package {package.name} has no /{at}")


def command_layer(package):
    entries = {name: package.entry(name) for name in OF_COMMAND}
    entries[f"var/lib/dpkg/status.d/{package.name}"] = Entry(tarfile.REGTYPE, 0o644, package.control.encode())
    return with_parents(entries)


def packed(entries, epoch):
    """A layer's tar file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, entry in entries.items():
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.mtime, member.linkname = entry.kind, entry.mode, epoch, entry.target
            member.uid = member.gid = entry.owner
            member.size = len(entry.data)
            archive.addfile(member, io.BytesIO(entry.data))
    return buffer.getvalue()


def compressed(data):
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=buffer, mode="wb", compresslevel=9, mtime=0) as file:
        file.write(data)
    return buffer.getvalue()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Layout:
    """The files of an OCI image layout."""

    def __init__(self):
        self.files = {"oci-layout": encoded({"imageLayoutVersion": "1.0.0"})}

    def add(self, kind, data, **more):
        """Adds a blob; returns its descriptor."""
        self.files[f"blobs/sha256/{sha256(data)}"] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{sha256(data)}", "size": len(data)} | more

    def write(self, path, epoch):
        part = path.with_name(path.name + ".part")
        with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as archive:
            for name, data in with_parents({name: Entry(tarfile.REGTYPE, 0o644, data) for name, data in self.files.items()}).items():
                member = tarfile.TarInfo(name)
                member.type, member.mode, member.mtime, member.size = data.kind, data.mode, epoch, len(data.data)
                archive.addfile(member, io.BytesIO(data.data))
        part.rename(path)


def blob_path(descriptor):
    return "blobs/" + descriptor["digest"].replace(":", "/")


def encoded(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def configuration(command, layers, created, revision):
    second = 10**9
    labels = {
        "org.opencontainers.image.title": "kvcove",
        "org.opencontainers.image.description": "shared pool for the KV cache of LLM inference engines",
        "org.opencontainers.image.version": command.field("Version"),
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.created": created,
    } | ({"org.opencontainers.image.revision": revision} if revision else {})
    return {
        "created": created,
        "architecture": command.field("Architecture"),
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "Env": ENVIRONMENT,
            "Entrypoint": ENTRY,
            "Cmd": ["--help"],
            "WorkingDir": "/var/lib/kvcove",
            "StopSignal": "SIGTERM",
            "ExposedPorts": {"7400/tcp": {}, "7401/tcp": {}},
            "Labels": labels,
            # Not of OCI; Docker reads it all the same.
            "Healthcheck": {
                "Test": ["CMD", "/usr/bin/kvcove", "health"],
                "Interval": 30 * second,
                "Timeout": 5 * second,
                "StartPeriod": 60 * second,
                "Retries": 3,
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(layer)}" for layer in layers]},
        "history": [
            {"created": created, "created_by": "scripts/image.py: files of Debian's packages"},
            {"created": created, "created_by": f"scripts/image.py: kvcove {command.field('Version')}"},
        ],
    }


def make(deb, packages, image, epoch, revision):
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    debs = sorted(packages.glob("*.deb"))
    if not debs:
        fail(f"no packages are in {packages}")
    with tempfile.TemporaryDirectory(prefix="kvcove-image-") as work:
        command = Package(deb, pathlib.Path(work, "command"))
        debian = Debian([Package(one, pathlib.Path(work, "debian")) for one in debs])
        base = base_layer(debian, command.files["usr/bin/kvcove"])
        layers = [packed(entries, epoch) for entries in (base, command_layer(command))]
    layout = Layout()
    descriptors = [layout.add("layer.v1.tar+gzip", compressed(layer)) for layer in layers]
    config = configuration(command, layers, created, revision)
    configured = layout.add("config.v1+json", encoded(config))
    manifest = layout.add(
        "manifest.v1+json",
        encoded(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": configured,
                "layers": descriptors,
                "annotations": config["config"]["Labels"],
            }
        ),
        platform={"architecture": config["architecture"], "os": "linux"},
        annotations={"org.opencontainers.image.ref.name": f"kvcove:{command.field('Version')}"},
    )
    layout.files["index.json"] = encoded(
        {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest]}
    )
    layout.files["manifest.json"] = encoded(
        [
            {
                "Config": blob_path(configured),
                "RepoTags": [f"kvcove:{command.field('Version')}"],
                "Layers": [blob_path(one) for one in descriptors],
            }
        ]
    )
    image.parent.mkdir(parents=True, exist_ok=True)
    layout.write(image, epoch)
    size = image.stat().st_size
    if size > MOST_BYTES:
        fail(f"{image} has {size >> 20} MiB, more than {MOST_BYTES >> 20}")
    print(f"{image}: {size / (1 << 20):.1f} MiB, {manifest['digest']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deb", type=pathlib.Path, help="package of the command")
    parser.add_argument("packages", type=pathlib.Path, help="directory with Debian's packages")
    parser.add_argument("image", type=pathlib.Path, help="the tar file to write")
    parser.add_argument("--revision", default="", help="commit of the sources, for the image's labels")
    arguments = parser.parse_args()
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    make(arguments.deb, arguments.packages, arguments.image, epoch, arguments.revision)
    return 0


if __name__ == "__main__":
    sys.exit(main())
