# SPDX-License-Identifier: Apache-2.0
"""Clean systems for the tests of packages: Debian's, as mmdebstrap makes them, each in a directory of its own. As root."""

import os
import pathlib
import shutil
import subprocess
import tempfile


def done(command, **options):
    """Run a command that must succeed; return what it printed."""
    ended = subprocess.run(
        [str(word) for word in command],
        **({"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL, "text": True} | options),
        check=False,
    )
    if ended.returncode != 0:
        raise AssertionError(f"{[str(word) for word in command]} ended with {ended.returncode}:\n{ended.stdout}")
    return ended.stdout


class Guest:
    """A system below a directory, made of the tarball of one. `close` removes it."""

    def __init__(self, tarball):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="kvcove-guest-"))
        done(["tar", "-xf", tarball, "-C", self.root, "--exclude=./dev/*"])

    def close(self):
        shutil.rmtree(self.root)

    def command(self, *words, user=None):
        """The words that run a command in it, in namespaces of its own: mounts, processes, network, names."""
        setup = (
            "mount -t proc proc proc && mount -t tmpfs -o mode=755 dev dev && mkdir dev/shm dev/pts && "
            "mount -t tmpfs -o mode=1777 shm dev/shm && "
            "for node in null zero full random urandom tty; do touch dev/$node && mount --bind /dev/$node dev/$node; done && "
            "ln -s /proc/self/fd dev/fd && ip link set lo up && "
        )
        change = f"chroot {'--userspec=' + user if user else ''} ."
        return [
            *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "--uts", "--ipc"),
            *("sh", "-c", f'cd "$0" && {setup} exec {change} "$@"', str(self.root)),
            *(str(word) for word in words),
        ]

    def run(self, *words, user=None, **options):
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
        # `ip` and `unshare` are the host's.
        environment["PATH"] = f"{environment['PATH']}:{os.environ['PATH']}"
        return done(self.command(*words, user=user), env=environment | options.pop("env", {}), **options)

    def put(self, path):
        """Copy a file of the host to /; return its path there."""
        shutil.copy(path, self.root)
        return "/" + pathlib.Path(path).name
