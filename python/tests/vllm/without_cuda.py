# SPDX-License-Identifier: Apache-2.0
"""Make PyPI's torch usable without its CUDA libraries: without_cuda.py, with that torch's Python.

On x86-64 PyPI has torch for CUDA only, whose 15 libraries are 2 GB to download. A test on CPUs calls
none of their functions, but the dynamic loader wants every library and version that torch names. One
small library with all these names answers "no device" (cudaErrorNoDevice, 100) to every call; torch
then says that it sees no GPU. Needs a C compiler and binutils, as the build does.
"""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
import tempfile
from pathlib import Path

_LIBRARY = re.compile(r"lib(cu|nccl|nv)[A-Za-z_]*\.so\.\d+")
_FUNCTION = re.compile(r"_*(cu|nccl|nv)[A-Za-z]")
_NO_DEVICE = 100
_FILE = "libwithout_cuda.so"


def _read(*arguments: str | Path) -> str:
    return subprocess.run(
        ["readelf", "-W", *arguments], check=True, capture_output=True, text=True
    ).stdout


def wanted(directory: Path) -> tuple[set[str], dict[str, set[str]]]:
    """Return the libraries that are not there, and the functions wanted by version ("": none)."""
    objects = sorted(path for path in directory.glob("lib*.so*") if not path.is_symlink())
    needed = {path: set(re.findall(r"\(NEEDED\).*\[(.*)\]", _read("-d", path))) for path in objects}
    there = {path.name for path in objects}
    missing = {
        name for names in needed.values() for name in names - there if _LIBRARY.fullmatch(name)
    }
    functions: dict[str, set[str]] = {}
    for path in objects:
        if not needed[path] & missing:
            continue
        # Versions are named by library: "Version: 1  File: NAME  Cnt: 1", then a line for each.
        versions, library = {""}, ""
        for line in _read("-V", path).splitlines():
            if found := re.search(r"\bFile: (\S+)", line):
                library = found[1]
            elif (found := re.search(r"\bName: (\S+)", line)) and library in missing:
                versions.add(found[1])
        for line in _read("--dyn-syms", path).splitlines():
            words = line.split()
            if len(words) < 8 or words[6] != "UND":
                continue
            name, _, version = words[7].partition("@")
            if version in versions and (version or _FUNCTION.match(name)):
                functions.setdefault(version, set()).add(name)
    return missing, functions


def make(directory: Path) -> None:
    """Put the library, under all its names, beside torch's own."""
    missing, functions = wanted(directory)
    names = sorted(set().union(*functions.values()))
    machine = os.uname().machine
    result, text = {
        "x86_64": (f"mov ${_NO_DEVICE}, %eax", "lea text(%rip), %rax"),
        "aarch64": (f"mov w0, #{_NO_DEVICE}", "adr x0, text"),
    }[machine]
    lines = [".text", f"answer: {result}", "ret", "say: " + text, "ret"]
    lines += ['text: .asciz "without CUDA"', '.section .note.GNU-stack,"",%progbits']
    for name in names:
        # What returns a text must return one.
        answer = "say" if name.endswith(("String", "Name", "GetLastError")) else "answer"
        answer = "answer" if name == "cudaGetLastError" else answer
        lines += [f".globl {name}", f".type {name}, %function", f".set {name}, {answer}"]
    versions = [
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(members))} }};"
        for version, members in sorted(functions.items())
        if version
    ]
    # A library that torch wants no version of must still have the name.
    with tempfile.TemporaryDirectory() as scratch:
        source, script = Path(scratch, "answers.s"), Path(scratch, "versions")
        source.write_text("\n".join(lines) + "\n")
        script.write_text("\n".join(versions) + "\n")
        subprocess.run(
            [
                os.environ.get("CC", "cc"),
                "-shared",
                "-nostdlib",
                "-Wl,-soname," + _FILE,
                f"-Wl,--version-script={script}",
                "-o",
                directory / _FILE,
                source,
            ],
            check=True,
        )
    for name in missing:
        link = directory / name
        link.unlink(missing_ok=True)
        link.symlink_to(_FILE)
    print(f"{len(missing)} libraries of CUDA, {len(names)} functions: none is needed on CPUs")


if __name__ == "__main__":
    make(Path(sysconfig.get_path("platlib")) / "torch" / "lib")
