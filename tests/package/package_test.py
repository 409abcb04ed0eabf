#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvcove as C++ users get it: tests/package/package_test.py SOURCES BUILD

Installs what BUILD has built into a folder of its own, compiles examples/cpp against that in each way that docs/cpp.md
names, and runs it. The way that compiles kvcove again (a project that adds it) is cheap where ccache has its objects.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

SOURCES = pathlib.Path()
BUILD = pathlib.Path()
CXX = os.environ.get("CXX", "c++")
# Of what serves others, and of what asks etcd.
SERVES = (
    *("kvcove::server::Daemon::", "kvcove::server::ElectedMaster::", "kvcove::master::MasterServer::"),
    *("kvcove::master::Standby::", "kvcove::master::EtcdClient::", "kvcove::http::Server::"),
)
ASKS_ETCD = "tests/package/subproject/asks_etcd.cc"
OUTPUT = "2 of 3 chunks are there\nchunk-2: 65536 bytes, as they were put\nafter the reset: a miss (reset)\n"
ONE_HOST = """\
read in place: 131072 bytes of 131072 are right
released: ok ok
released after a reset: a miss (reset) a miss (reset)
the second engine's look-up: a miss (closed) a miss (closed)
with new weights: 131072 bytes of 131072 are right
"""
CLUSTER = """\
4 of 4 chunks are stored, the first on 2 owners
2 owners have a part of 4 chunks
  one has the first 4
  one has the first 4
4 chunks came back, as they were put
after the reset: 0 chunks (reset)
"""


def version():
    """Return what kvcove/version.h says."""
    text = (SOURCES / "kvcove/version.h").read_text()
    parts = re.findall(r"#define KVCOVE_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text)
    return ".".join(parts)


def cached(name):
    """Return a variable of BUILD's cache."""
    found = re.search(rf"^{name}:\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.MULTILINE)
    return found[1] if found else ""


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = pathlib.Path(tempfile.mkdtemp(prefix="kvcove-package-"))
        cls.addClassCleanup(shutil.rmtree, cls.work)
        # Moved after it was installed: nothing in it names the place.
        cls.done(["cmake", "--install", BUILD, "--prefix", cls.work / "first"])
        cls.prefix = (cls.work / "first").rename(cls.work / "prefix")
        cls.libraries = next(cls.prefix.rglob("libkvcove.a")).parent
        cls.headers = sorted(
            path.relative_to(cls.prefix / "include") for path in cls.prefix.rglob("*.h")
        )

    @classmethod
    def done(cls, command, **options):
        """Run a command that must succeed; return what it printed."""
        ended = subprocess.run(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            **{"stderr": subprocess.STDOUT, **options},
        )
        if ended.returncode != 0:
            raise AssertionError(f"{command} ended with {ended.returncode}:\n{ended.stdout}")
        return ended.stdout

    def check_example(self, *command, **options):
        self.assertEqual(self.done(command, **options), f"kvcove {version()}\n{OUTPUT}")

    def build_example(self, name, *options, target="embedded"):
        """Build examples/cpp against the installed package; return the program."""
        build = self.work / name
        self.done(
            ["cmake", "-G", "Ninja", "-S", SOURCES / "examples/cpp", "-B", build]
            + [f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DCMAKE_CXX_COMPILER={CXX}", *options]
        )
        self.done(["cmake", "--build", build, "--target", target])
        return build / "embedded"

    def start(self, name, until, *words):
        """Start a command of the installed package; return the match of what its log then says."""
        log = self.work / f"{name}.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                [self.prefix / "bin/kvcove", *map(str, words)], stdout=out, stderr=out
            )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        end = time.monotonic() + 60
        while not (found := re.search(until, log.read_text())):
            running = process.poll() is None and time.monotonic() < end
            self.assertTrue(running, f"'{until}' is not in:\n{log.read_text()}")
            time.sleep(0.01)
        return found

    def pkg_config(self, *words, package="kvcove"):
        environment = os.environ | {"PKG_CONFIG_PATH": str(self.libraries / "pkgconfig")}
        return self.done(["pkg-config", *words, package], env=environment).split()

    def check_asks_etcd(self, program):
        self.assertIn("this program has no client of etcd", self.done([program]))
        self.assertIn("names no leader", self.done([program, "with"]))

    def needed(self, program):
        return re.findall(r"NEEDED\s+(\S+)", self.done(["objdump", "-p", program]))

    def test_find_package_links_the_static_library(self):
        program = self.build_example("static")
        self.check_example(program)
        self.assertNotIn("libkvcove", " ".join(self.needed(program)))

    def test_the_examples_print_what_they_should_on_pools_of_each_form(self):
        build = self.build_example("examples", "-DBUILD_SHARED_LIBS=ON", target="all").parent
        sockets = self.work / "sockets"
        sockets.mkdir(mode=0o700)
        socket = sockets / "kvcove.sock"
        self.start("serve", "serving", "serve", "--socket", socket, "--memory", "64MiB")
        # Twice on a daemon: they run also where they have run.
        for address in ("embedded:?memory=64MiB", f"unix:{socket}", f"unix:{socket}"):
            self.check_example(build / "embedded", address)
            self.assertEqual(self.done([build / "one_host", address]), ONE_HOST)
        words = ("master", "--listen", "127.0.0.1:0", "--data", self.work / "master", "--admin", "off")
        master = self.start("master", r"master at (127\.0\.0\.1:\d+)", *words)[1]
        for name in ("owner-0", "owner-1"):
            words = ("owner", "--master", master, "--listen", "127.0.0.1:0", "--memory", "64MiB")
            words += ("--admin", "off", "--socket", sockets / name)
            self.start(name, "knows this owner as number", *words)
        # The log's lines are on stderr: they say which way values move.
        words = (build / "cluster", f"kvcove://{master}")
        self.assertEqual(self.done(words, stderr=None), CLUSTER)
        self.check_example(build / "embedded", f"kvcove://{master}", stderr=None)

    def test_find_package_links_the_shared_library(self):
        program = self.build_example("shared", "-DBUILD_SHARED_LIBS=ON")
        self.check_example(program)
        # The minor number is part of the name while the major one is 0.
        self.assertIn("libkvcove.so." + ".".join(version().split(".")[:2]), self.needed(program))

    def test_pkg_config_links_the_shared_library(self):
        program = self.work / "pkg-config-shared"
        example = SOURCES / "examples/cpp/embedded.cc"
        self.done(
            [CXX, "-std=c++23", example, "-o", program, *self.pkg_config("--cflags", "--libs")]
        )
        environment = os.environ | {"LD_LIBRARY_PATH": str(self.libraries)}
        self.check_example(program, env=environment)
        self.assertEqual(self.pkg_config("--modversion"), [version()])

    def test_pkg_config_links_the_static_library(self):
        program = self.work / "pkg-config-static"
        example = SOURCES / "examples/cpp/embedded.cc"
        flags = self.pkg_config("--static", "--cflags", "--libs")
        flags = ["-l:libkvcove.a" if flag == "-lkvcove" else flag for flag in flags]
        # A user's warnings are no errors of kvcove's headers.
        strict = ["-std=c++23", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
        self.done([CXX, *strict, example, "-o", program, *flags])
        self.check_example(program)

    def test_find_package_links_the_library_for_servers(self):
        project = self.work / "server"
        project.mkdir()
        (project / "asks.cc").write_text((SOURCES / ASKS_ETCD).read_text())
        (project / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(asks LANGUAGES CXX)\n"
            "find_package(kvcove CONFIG REQUIRED COMPONENTS server)\nadd_executable(asks asks.cc)\n"
            "target_link_libraries(asks PRIVATE kvcove::server)\n"
        )
        build = project / "build"
        command = ["cmake", "-G", "Ninja", "-S", project, "-B", build]
        self.done(
            [*command, f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DCMAKE_CXX_COMPILER={CXX}"]
        )
        self.done(["cmake", "--build", build])
        self.check_asks_etcd(build / "asks")

    def test_pkg_config_links_the_library_for_servers(self):
        program = self.work / "asks"
        flags = self.pkg_config("--cflags", "--libs", package="kvcove-server")
        self.done([CXX, "-std=c++23", SOURCES / ASKS_ETCD, "-o", program, *flags])
        self.check_asks_etcd(program)

    def test_an_engines_library_serves_nobody(self):
        server = self.done(["nm", "-C", "--defined-only", self.libraries / "libkvcove-server.a"])
        self.assertNotRegex(server, r"kvcove::(lab|cli)::")
        for library in ("libkvcove.a", "libkvcove.so"):
            engine = self.done(["nm", "-C", self.libraries / library])  # with what it asks for
            self.assertIn("kvcove::pool::HostControl::", engine)
            self.assertNotRegex(engine, r"kvcove::(server|http|lab|cli)::")
            for name in SERVES:
                self.assertNotIn(name, engine, library)
                self.assertIn(name, server)

    def test_a_project_may_add_kvcove(self):
        build = self.work / "fetch"
        command = ["cmake", "-G", "Ninja", "-S", SOURCES / "tests/package/subproject"]
        command += [f"-DKVCOVE_SOURCE={SOURCES}", f"-DCMAKE_CXX_COMPILER={CXX}"]
        command += [f"-D{name}={cached(name)}" for name in ("CMAKE_BUILD_TYPE", "KVCOVE_WERROR")]
        self.done([*command, "-B", self.work / "subdirectory", "-DHOW=subdirectory"])
        self.done([*command, "-B", build, "-DHOW=fetch"])
        # Include paths, generated headers and flags show in one module. All of kvcove takes eight minutes more, each time: another
        # project has no precompiled headers and other units, so the compiler cache has nothing. `make soak` asks for it.
        whole = "KVCOVE_WHOLE" in os.environ
        targets = ["embedded", "asks_etcd"] if whole else ["kvcove_wire"]
        self.done(["cmake", "--build", build, "-j", str(os.cpu_count()), "--target", *targets])
        if whole:
            self.check_example(build / "embedded")
            self.check_asks_etcd(build / "asks_etcd")

    def test_what_is_not_there_is_refused(self):
        for words, message in (
            ("99.0 CONFIG REQUIRED", "99.0"),
            ("CONFIG REQUIRED COMPONENTS dynamic", "components static, shared and server, and no dynamic"),
        ):
            project = self.work / "refused"
            project.mkdir(exist_ok=True)
            (project / "CMakeLists.txt").write_text(
                "cmake_minimum_required(VERSION 3.25)\nproject(refused LANGUAGES NONE)\n"
                f"find_package(kvcove {words})\n"
            )
            command = ["cmake", "-S", project, "-B", project / "build"]
            command += [f"-DCMAKE_PREFIX_PATH={self.prefix}"]
            ended = subprocess.run(
                [str(word) for word in command], capture_output=True, text=True, check=False
            )
            self.assertNotEqual(ended.returncode, 0, words)
            self.assertIn(message, " ".join(ended.stderr.split()))

    def test_each_header_compiles_alone_and_needs_no_other_library(self):
        self.assertIn(pathlib.Path("kvcove/pool/pool.h"), self.headers)
        for header in self.headers:
            text = (self.prefix / "include" / header).read_text()
            for name in re.findall(r"#include\s+(\S+)", text):
                of_kvcove = name.startswith('"') and pathlib.Path(name.strip('"')) in self.headers
                of_the_language = re.fullmatch(r"<[a-z_]+>", name)
                self.assertTrue(of_kvcove or of_the_language, f"{header} includes {name}")
        flags = ["-std=c++23", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
        compilers = [
            (
                header,
                subprocess.Popen(
                    [CXX, *flags, f"-I{self.prefix / 'include'}", "-x", "c++", "-"],
                    stdin=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                ),
            )
            for header in self.headers
        ]
        for header, compiler in compilers:
            _, errors = compiler.communicate(f'#include "{header}"\n#include "{header}"\n')
            self.assertEqual(compiler.returncode, 0, f"{header}:\n{errors}")

    def test_the_shared_library_shows_the_listed_symbols_and_no_other(self):
        table = self.done(["nm", "-DC", "--defined-only", self.libraries / "libkvcove.so"])
        text = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >"
        view = "std::basic_string_view<char, std::char_traits<char> >"
        shown = {
            line.split(maxsplit=2)[2].replace(text, "std::string").replace(view, "std::string_view")
            for line in table.splitlines()
        }
        listed = set((SOURCES / "tests/package/exports.txt").read_text().splitlines())
        more = "\n".join(sorted(shown - listed))
        gone = "\n".join(sorted(listed - shown))
        self.assertEqual(more, "", "exported, but not in tests/package/exports.txt")
        self.assertEqual(gone, "", "in tests/package/exports.txt, but not exported: an ABI break")

    def test_the_shared_library_needs_the_runtimes_only(self):
        self.assertLessEqual(
            set(self.needed(self.libraries / "libkvcove.so")),
            {
                *("libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6"),
                *("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"),
            },
        )

    def test_the_readmes_sample_compiles_without_a_warning(self):
        include, body = re.search(
            r"```cpp\n(#include .*?)\n\n(.*?)```", (SOURCES / "README.md").read_text(), re.DOTALL
        ).groups()
        sample = self.work / "readme.cc"
        sample.write_text(
            f"{include}\n#include <cstdio>\n"
            "static int Failed(const kvcove::Error& e) { return std::puts(e.detail.c_str()); }\n"
            "int main() {\n  char data[16] = {}, buffer[16];\n"
            f"  std::size_t size = sizeof(data), capacity = sizeof(buffer);\n{body}}}\n"
        )
        flags = ["-Wall", "-Wextra", "-Werror", *self.pkg_config("--cflags")]
        self.done([CXX, "-std=c++23", "-fsyntax-only", sample, *flags])

    def test_one_version_is_said_everywhere(self):
        told = self.done([self.prefix / "bin/kvcove", "--version"])
        self.assertTrue(told.startswith(f"kvcove {version()} "), told)
        # The drop-in is a distribution of its own, with files of its own.
        other = (SOURCES / "python/mooncake/pyproject.toml").read_text()
        self.assertIn(f'version = "{version()}"', other)
        self.assertIn(f'"kvcove=={version()}"', other)
        self.assertIn(f"kvcove {version()}\n", (SOURCES / "examples/cpp/README.md").read_text())


if __name__ == "__main__":
    SOURCES, BUILD = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
