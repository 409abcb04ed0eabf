#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The container image in Debian's runc: tests/package/container_test.py IMAGE DEB PACKAGES TRACE, as root

IMAGE is what scripts/image.py has made of the other two. Containers run as runtimes run them: the layers below an overlay, a user without
rights, no capability, a root that is read only, a small /dev/shm, and the system calls that Docker's profile forbids.
"""

import contextlib
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

from guest import done

SOURCES = pathlib.Path(__file__).resolve().parents[2]
IMAGE = DEB = PACKAGES = TRACE = pathlib.Path()
MOST_BYTES = 60 << 20
USER = 65532
PATIENCE = 30
# Of Docker's profile, as far as kvcove could want them.
FORBIDDEN = (
    *("io_uring_setup", "io_uring_enter", "io_uring_register", "mbind", "set_mempolicy", "get_mempolicy", "move_pages"),
    *("bpf", "perf_event_open", "userfaultfd", "ptrace", "mount", "umount2", "unshare", "setns", "keyctl", "add_key", "request_key"),
)


def sha256(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Image:
    """An image's files, checked against the digests that name them."""

    def __init__(self, path):
        with tarfile.open(path) as archive:
            self.files = {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}
        self.index = json.loads(self.files["index.json"])
        self.descriptor = self.index["manifests"][0]
        self.manifest = json.loads(self.blob(self.descriptor))
        self.config = json.loads(self.blob(self.manifest["config"]))
        self.layers = [gzip.decompress(self.blob(layer)) for layer in self.manifest["layers"]]

    def blob(self, descriptor):
        data = self.files["blobs/" + descriptor["digest"].replace(":", "/")]
        if (len(data), sha256(data)) != (descriptor["size"], descriptor["digest"]):
            raise AssertionError(f"{descriptor['digest']} has {len(data)} bytes of {sha256(data)}")
        return data

    def members(self):
        """What the layers have; later ones cover earlier ones."""
        found = {}
        for layer in self.layers:
            with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
                found |= {member.name: member for member in archive}
        return found

    def unpack(self, directory):
        for layer in self.layers:
            subprocess.run(["tar", "-x", "--numeric-owner", "--same-owner", "-p", "-C", directory], input=layer, check=True)


def setUpModule():
    global image, root
    image = Image(IMAGE)
    root = pathlib.Path(tempfile.mkdtemp(prefix="kvcove-image-"))
    root.chmod(0o755)
    unittest.addModuleCleanup(shutil.rmtree, root)
    image.unpack(root)


class LayoutTest(unittest.TestCase):
    def test_its_files_are_those_of_an_image_layout(self):
        self.assertEqual(json.loads(image.files["oci-layout"]), {"imageLayoutVersion": "1.0.0"})
        kinds = [image.index["mediaType"], image.descriptor["mediaType"], image.manifest["mediaType"], image.manifest["config"]["mediaType"]]
        kinds = [kind.removeprefix("application/vnd.oci.image.") for kind in kinds]
        self.assertEqual(kinds, ["index.v1+json", "manifest.v1+json", "manifest.v1+json", "config.v1+json"])
        self.assertEqual({layer["mediaType"] for layer in image.manifest["layers"]}, {"application/vnd.oci.image.layer.v1.tar+gzip"})
        self.assertEqual(image.config["rootfs"], {"type": "layers", "diff_ids": [sha256(layer) for layer in image.layers]})
        named = {descriptor["digest"] for descriptor in (image.descriptor, image.manifest["config"], *image.manifest["layers"])}
        blobs = {name for name in image.files if name.startswith("blobs/")}
        self.assertEqual(blobs, {"blobs/" + digest.replace(":", "/") for digest in named}, "nothing else is in it")

    def test_older_dockers_find_it_too(self):
        [described] = json.loads(image.files["manifest.json"])
        self.assertEqual(json.loads(image.files[described["Config"]]), image.config)
        self.assertEqual([gzip.decompress(image.files[name]) for name in described["Layers"]], image.layers)
        self.assertEqual(described["RepoTags"], [image.descriptor["annotations"]["org.opencontainers.image.ref.name"]])

    def test_it_is_small(self):
        size = IMAGE.stat().st_size
        print(f"{size / (1 << 20):.1f} MiB", file=sys.stderr)
        self.assertLessEqual(size, MOST_BYTES)

    def test_the_same_packages_give_the_same_bytes(self):
        epoch = subprocess.run(["date", "-d", image.config["created"], "+%s"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        with tempfile.TemporaryDirectory() as directory:
            again = pathlib.Path(directory, "again.tar")
            revision = image.config["config"]["Labels"].get("org.opencontainers.image.revision", "")
            done(
                [sys.executable, SOURCES / "scripts/image.py", DEB, PACKAGES, again, "--revision", revision],
                env=os.environ | {"SOURCE_DATE_EPOCH": epoch},
            )
            self.assertEqual(again.read_bytes(), IMAGE.read_bytes())

    def test_a_package_that_is_missing_is_named(self):
        with tempfile.TemporaryDirectory() as directory:
            for deb in PACKAGES.glob("*.deb"):
                if not deb.name.startswith("libsodium"):
                    pathlib.Path(directory, deb.name).symlink_to(deb)
            made = subprocess.run(
                [sys.executable, SOURCES / "scripts/image.py", DEB, directory, pathlib.Path(directory, "image.tar")],
                capture_output=True,
                text=True,
                check=False,
            )
            self.assertNotEqual(made.returncode, 0)
            self.assertRegex(made.stderr, r"libzmq.* needs libsodium.*, which none of the packages has")
            self.assertFalse(pathlib.Path(directory, "image.tar").exists())

    def test_its_configuration_is_that_of_a_server_without_rights(self):
        config = image.config["config"]
        self.assertEqual(config["User"], f"{USER}:{USER}")
        self.assertEqual(config["Entrypoint"], ["/usr/bin/kvcove", "--log-config"])
        self.assertEqual(config["StopSignal"], "SIGTERM")
        self.assertEqual(config["Healthcheck"]["Test"], ["CMD", "/usr/bin/kvcove", "health"])
        self.assertIn("KVCOVE_SOCKET=/run/kvcove/kvcove.sock", config["Env"])
        version = done(["dpkg-deb", "-f", DEB, "Version"]).strip()
        labels = config["Labels"]
        self.assertEqual(labels["org.opencontainers.image.version"], version)
        self.assertEqual(labels["org.opencontainers.image.title"], "kvcove")
        self.assertEqual(labels["org.opencontainers.image.licenses"], "Apache-2.0")
        self.assertEqual(image.manifest["annotations"], labels)


class TreeTest(unittest.TestCase):
    def test_files_belong_to_root_and_nobody_else_writes_them(self):
        own = {"run/kvcove": 0o700, "var/lib/kvcove": 0o700}
        for name, member in image.members().items():
            with self.subTest(name):
                self.assertEqual((member.uid, member.gid), (USER, USER) if name in own else (0, 0))
                self.assertFalse(member.mode & (stat.S_ISUID | stat.S_ISGID))
                if name in own:
                    self.assertEqual(member.mode, own[name])
                elif name != "tmp" and not member.issym():
                    self.assertFalse(member.mode & 0o022)
                self.assertTrue(member.isfile() or member.isdir() or member.issym(), "no device, no hard link")

    def test_the_command_finds_its_libraries_in_it(self):
        version = done(["dpkg-deb", "-f", DEB, "Version"]).strip()
        self.assertTrue(done(["chroot", root, "/usr/bin/kvcove", "--version"]).startswith(f"kvcove {version} "))

    def test_links_lead_somewhere(self):
        for name, member in image.members().items():
            if member.issym():
                target = member.linkname if member.linkname.startswith("/") else f"{pathlib.PurePath('/', name).parent}/{member.linkname}"
                self.assertTrue(self.exists(target), f"{name} -> {member.linkname}")

    def exists(self, name):
        """Below the image's root, where absolute links begin."""
        at = pathlib.Path("/")
        for part in pathlib.PurePath(os.path.normpath(name)).parts[1:]:
            at = at / part
            inside = root / str(at).lstrip("/")
            if inside.is_symlink():
                target = os.readlink(inside)
                at = pathlib.Path(os.path.normpath(target if target.startswith("/") else at.parent / target))
        return (root / str(at).lstrip("/")).exists()

    def test_there_is_no_other_program(self):
        programs = [
            name
            for name, member in image.members().items()
            if member.isfile() and member.mode & 0o111 and not re.search(r"\.so(\.|$)", name) and name.startswith("usr/")
        ]
        self.assertEqual(programs, ["usr/bin/kvcove"])

    def test_each_package_says_its_license_and_version(self):
        listed = sorted((root / "var/lib/dpkg/status.d").iterdir())
        self.assertGreater(len(listed), 10)
        for control in listed:
            self.assertRegex(control.read_text(), r"(?m)^Version: ")
            self.assertTrue(self.exists(f"/usr/share/doc/{control.name}/copyright"), control.name)

    def test_users_and_zones_are_known(self):
        self.assertIn(f"kvcove:x:{USER}:{USER}:", (root / "etc/passwd").read_text())
        self.assertTrue((root / "usr/share/zoneinfo/Europe/Berlin").exists())


class Container:
    """A container of the image in runc."""

    number = 0

    def __init__(self, test, *words, user=USER, volumes=(), network=None, memory=None, environment=(), layer=False, tmp=False):
        Container.number += 1
        self.test = test
        self.name = f"kvcove-test-{os.getpid()}-{Container.number}"
        self.bundle = pathlib.Path(tempfile.mkdtemp(prefix="kvcove-bundle-"))
        for name in ("rootfs", "upper", "work"):
            (self.bundle / name).mkdir()
        done(
            ["mount", "-t", "overlay", "overlay", "-o"]
            + [f"lowerdir={root},upperdir={self.bundle}/upper,workdir={self.bundle}/work", self.bundle / "rootfs"]
        )
        spec = self.spec(words, user, volumes, network, memory, environment, layer, tmp)
        (self.bundle / "config.json").write_text(json.dumps(spec))
        self.log = self.bundle / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["runc", "--log", self.bundle / "runc.log", "run", "--bundle", self.bundle, "--pid-file", self.bundle / "pid", self.name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        test.addCleanup(self.remove)

    @staticmethod
    def spec(words, user, volumes, network, memory, environment, layer, tmp):
        config = image.config["config"]
        options = ["nosuid", "nodev", "noexec"]
        mounts = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"]},
            {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": [*options, "mode=1777", "size=64k"]},
            {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*options, "ro"]},
            {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": [*options, "ro"]},
        ]
        mounts += [{"destination": "/tmp", "type": "tmpfs", "source": "tmp", "options": ["mode=1777"]}] if tmp else []
        mounts += [
            {"destination": str(inside), "type": "bind", "source": str(outside), "options": ["rbind", "rw"]} for outside, inside in volumes
        ]
        namespaces = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "cgroup")]
        namespaces.append({"type": "network"} | ({"path": f"/proc/{network.pid()}/ns/net"} if network else {}))
        # What runtimes leave root, as far as an engine needs it: the socket's directory is closed to others.
        kept = ["CAP_DAC_OVERRIDE"] if user == 0 else []
        capabilities = {kind: kept for kind in ("bounding", "effective", "permitted")}
        return {
            "ociVersion": "1.0.2",
            "process": {
                "terminal": False,
                "user": {"uid": user, "gid": user},
                "args": [*config["Entrypoint"], *(str(word) for word in words)],
                "env": [*config["Env"], *environment],
                "cwd": config["WorkingDir"] if user == USER else "/",
                "capabilities": capabilities,
                "rlimits": [{"type": "RLIMIT_MEMLOCK", "hard": 65536, "soft": 65536}],
                "noNewPrivileges": True,
            },
            "root": {"path": "rootfs", "readonly": not layer},
            "hostname": "kvcove",
            "mounts": mounts,
            "linux": {
                "namespaces": namespaces,
                "resources": {"pids": {"limit": 512}} | ({"memory": {"limit": memory}} if memory else {}),
                "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
                "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
                "seccomp": {
                    "defaultAction": "SCMP_ACT_ALLOW",
                    "syscalls": [{"names": list(FORBIDDEN), "action": "SCMP_ACT_ERRNO", "errnoRet": 1}],
                },
            },
        }

    def text(self):
        return self.log.read_text(errors="replace")

    def pid(self):
        return int((self.bundle / "pid").read_text())

    def asked(self, *words):
        """Runs the command in the container, as a health check does."""
        return subprocess.run(
            ["runc", "exec", self.name, "/usr/bin/kvcove", *(str(word) for word in words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def await_health(self, *words):
        self.wait_until(lambda: self.asked("health", *words).returncode == 0, f"health {words}")

    def wait_until(self, holds, what):
        deadline = time.monotonic() + PATIENCE
        while not holds():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.test.fail(f"{what}: ended with {self.process.poll()}, and said:\n{self.text()}")
            time.sleep(0.1)

    def await_text(self, pattern):
        self.wait_until(lambda: re.search(pattern, self.text()), pattern)

    def stop(self):
        """Ends it as runtimes do; returns its exit status."""
        done(["runc", "kill", self.name, "TERM"])
        return self.ended()

    def ended(self):
        try:
            return self.process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return self.test.fail(f"it goes on:\n{self.text()}")

    def remove(self):
        subprocess.run(["runc", "delete", "--force", self.name], check=False, capture_output=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=PATIENCE)
        done(["umount", self.bundle / "rootfs"])
        shutil.rmtree(self.bundle)


class RunTest(unittest.TestCase):
    def volume(self, mode=0o700, user=USER):
        path = pathlib.Path(tempfile.mkdtemp(prefix="kvcove-volume-"))
        self.addCleanup(shutil.rmtree, path)
        os.chown(path, user, user)
        path.chmod(mode)
        return path

    def start(self, *words, **options):
        return Container(self, *words, **options)

    def ends_cleanly(self, container, *volumes):
        """It ends on SIGTERM, and leaves no process, control group or socket."""
        pid = container.pid()
        began = time.monotonic()
        self.assertEqual(container.stop(), 0, container.text())
        self.assertLess(time.monotonic() - began, 10)
        self.assertFalse(pathlib.Path("/proc", str(pid)).exists())
        groups = [path for path in pathlib.Path("/sys/fs/cgroup").glob(f"*/{container.name}")]
        self.assertEqual(groups + list(pathlib.Path("/sys/fs/cgroup").glob(container.name)), [])
        for volume in volumes:
            self.assertEqual([path for path in volume.rglob("*") if path.is_socket()], [])

    def begins_with_its_options(self, container, role, *options):
        container.await_text(r"\n")
        first = container.text().splitlines()[0]
        self.assertRegex(first, rf" info kvcove\[1\] kvcove \S+ {role}: ")
        for option in options:
            self.assertIn(option, first)
        self.assertNotIn("container:", container.text(), "nothing is wrong with this container")

    def test_without_words_it_helps(self):
        container = self.start(*image.config["config"]["Cmd"])
        self.assertEqual(container.ended(), 0)
        self.assertIn("Subcommands:", container.text())

    def test_a_pool_of_one_host_serves_engines_of_other_containers(self):
        run = self.volume()
        serve = self.start("serve", "--memory", "64MiB", volumes=[(run, "/run/kvcove")], memory=256 << 20)
        self.begins_with_its_options(serve, "serve", 'memory="64MiB"', 'socket="/run/kvcove/kvcove.sock"')
        serve.await_health("--ready")
        self.assertIn("of 64MiB free", serve.asked("status").stdout)
        # Other network, PID, IPC and mount namespaces, and another /dev/shm: only the volume is common.
        for user, more in ((USER, []), (0, [f"KVCOVE_OWNER_USER={USER}"])):
            with self.subTest(user=user):
                engine = self.start(
                    *("replay", "/tmp/trace.jsonl", "--pool", "unix:/run/kvcove/kvcove.sock", "--engines", "2"),
                    *("--limit", "200", "--block-bytes", "4KiB", "--json"),
                    user=user,
                    volumes=[(run, "/run/kvcove"), (TRACE, "/tmp/trace.jsonl")],
                    environment=more,
                    tmp=True,
                )
                self.assertEqual(engine.ended(), 0, engine.text())
        self.ends_cleanly(serve, run)

    def test_a_volume_that_is_open_to_all_gets_a_directory_that_is_not(self):
        shared = self.volume(mode=0o777, user=0)  # an emptyDir
        refused = self.start("serve", "--memory", "16MiB", volumes=[(shared, "/run/kvcove")])
        self.assertEqual(refused.ended(), 2)
        self.assertIn("the socket's directory '/run/kvcove' must belong to this user", refused.text())
        serve = self.start(
            *("serve", "--memory", "16MiB"), volumes=[(shared, "/run/kvcove")], environment=["KVCOVE_SOCKET=/run/kvcove/pool/kvcove.sock"]
        )
        serve.await_health("--ready")
        self.assertEqual(stat.S_IMODE((shared / "pool").stat().st_mode), 0o700)
        self.ends_cleanly(serve, shared)

    def test_a_master_and_an_owner_form_a_cluster(self):
        data, run, store = self.volume(), self.volume(), self.volume()
        master = self.start("master", "--data", "/var/lib/kvcove/master", volumes=[(data, "/var/lib/kvcove")], memory=256 << 20)
        self.begins_with_its_options(master, "master", 'data="/var/lib/kvcove/master"')
        master.await_health("--ready")
        owner = self.start(
            *("owner", "--memory", "64MiB", "--disk", "/var/lib/kvcove/disk:64MiB", "--host-id", "node"),
            volumes=[(run, "/run/kvcove"), (store, "/var/lib/kvcove")],
            network=master,
            memory=256 << 20,
        )
        self.begins_with_its_options(owner, "owner", 'host-id="node"')
        owner.await_health("--ready")
        self.assertIn("cluster of the master 127.0.0.1:7400", owner.asked("status").stdout)
        self.assertIn("ok", owner.asked("health", "--admin", "127.0.0.1:7481").stdout)
        nobody = master.asked("health", "--socket", "/run/kvcove/none.sock")
        self.assertEqual(nobody.returncode, 1)
        self.assertIn("nobody serves the socket '/run/kvcove/none.sock'", nobody.stdout)
        # Without its master an owner is alive, and not ready.
        self.ends_cleanly(master)
        owner.wait_until(lambda: owner.asked("health", "--ready").returncode == 1, "not ready")
        self.assertEqual(owner.asked("health").returncode, 0)
        self.ends_cleanly(owner, run)

    def test_a_stop_does_not_wait_for_a_master_that_nobody_names(self):
        owner = self.start("owner", "--master", "etcd://127.0.0.1:9/kvcove", "--memory", "16MiB", volumes=[(self.volume(), "/run/kvcove")])
        owner.await_text("kvcove .* owner: ")
        began = time.monotonic()
        self.assertEqual(owner.stop(), 128 + 15)
        self.assertLess(time.monotonic() - began, 5)

    def test_what_is_wrong_is_said_at_the_start(self):
        serve = self.start("serve", "--memory", "16MiB", "--disk", "/var/lib/kvcove/disk:64MiB", layer=True)
        serve.await_text("container: disk /var/lib/kvcove/disk: in the file system of this container")
        self.assertIn("container: socket /run/kvcove/kvcove.sock: in the file system of this container", serve.text())
        self.assertIn("-v kvcove-run:/run/kvcove", serve.text())
        master = self.start("master", layer=True)
        master.await_text("container: data directory /var/lib/kvcove/kvcove-master: in the file system of this container")
        self.assertEqual(master.stop(), 0)

    def test_a_memory_limit_that_is_too_low_ends_the_start(self):
        run = self.volume()
        serve = self.start("serve", "--memory", "256MiB", volumes=[(run, "/run/kvcove")], memory=128 << 20)
        self.assertEqual(serve.ended(), 2, serve.text())
        self.assertRegex(serve.text(), r"a memory budget of 256MiB, but control group .* 128MiB")

    def test_the_doctor_says_what_the_container_means(self):
        run, data = self.volume(), self.volume()
        for role in ("serve", "owner", "master", "engine"):
            with self.subTest(role):
                doctor = self.start(
                    *("doctor", "--container", "--role", role, "--memory", "64MiB", "--data", "/var/lib/kvcove/master", "--json"),
                    volumes=[(run, "/run/kvcove"), (data, "/var/lib/kvcove")],
                    memory=128 << 20,
                )
                doctor.ended()
                findings = {one["what"]: one for one in json.loads(doctor.text().splitlines()[-1])["findings"]}
                self.assertEqual(findings["container"]["seen"], "yes, by a PID namespace of its own")
                self.assertTrue(findings["/dev/shm"]["seen"].startswith("64KiB;"))
                self.assertEqual(findings["/dev/shm"]["verdict"], "warn" if role == "engine" else "ok")
                self.assertTrue(findings["memory that may be locked"]["seen"].startswith("64KiB;"))
                self.assertTrue(findings["memory of the container"]["seen"].startswith("128MiB at most;"))
                self.assertTrue(findings["PID namespace"]["seen"].startswith("its own;"))
                self.assertEqual([one for one in findings.values() if one["verdict"] == "FAIL"], [])

    def test_a_server_whose_parent_is_the_first_process_starts(self):
        script = (
            'ip link set lo up && "$0" --log off master --data "$1/master" --exit-with-parent & '
            'for i in $(seq 100); do "$0" health --admin 127.0.0.1:7480 >/dev/null 2>&1 && break; sleep 0.1; done; '
            '"$0" health --admin 127.0.0.1:7480; status=$?; kill $!; wait $!; exit $status'
        )
        done(["unshare", "--pid", "--fork", "--mount-proc", "--net", "sh", "-c", script, root / "usr/bin/kvcove", self.volume(user=0)])


if __name__ == "__main__":
    IMAGE, DEB, PACKAGES, TRACE = (pathlib.Path(word).resolve() for word in sys.argv[1:5])
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]], verbosity=2)
