#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy on the sources of kvcove/ and lab/ that changed.

  tidy.py [--base COMMIT] [SOURCE...]

Without sources it takes those whose code differs from COMMIT's (default: what scripts/base.sh prints).

Most of clang-tidy's time goes to the headers, which all sources of a module share. So up to eight sources are checked as
one text. A text in which it finds anything, or that does not compile (two sources may use one name), is checked again
source by source, and that result counts. What a text of several sources cannot show is checked in each source: that it
compiles with its own includes alone, and that it uses what it names by `using`.

The exit code is 1 when there is anything to report.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "tidy"
TOGETHER = 8
# The static analyzer takes as long as all other checks together. After a change of more sources they must do.
MOST_ANALYZED = 30
NO_ANALYZER = "--checks=-clang-analyzer-*"
GENERATED = [f"generated/kvcove/wire/{name}_generated.h" for name in ("host", "cluster")]


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)  # fmt: skip


def code_of(text):
    """The text without comments, includes and white space: a change of these alone says nothing new."""
    kept = subprocess.run(["g++", "-fpreprocessed", "-dD", "-E", "-P", "-x", "c++", "-"], input=text, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout  # fmt: skip
    return "".join("".join(line.split()) for line in kept.splitlines() if not re.match(r"\s*#\s*include", line))


def changed_sources(base):
    """The sources that were added since `base`, or whose code differs; a source that has only moved does not."""
    base = base or subprocess.run([ROOT / "scripts" / "base.sh"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    listed = git("diff", "-M", "--name-status", "--diff-filter=d", base, "--", "kvcove/*.cc", "lab/*.cc")
    if listed.returncode != 0:
        sys.exit(f"tidy: git has no commit {base}; name the one to compare with by --base or KVCOVE_BASE")
    for line in listed.stdout.splitlines():
        kind, *names = line.split("\t")
        if kind.startswith("A") or code_of(git("show", f"{base}:{names[0]}").stdout) != code_of((ROOT / names[-1]).read_text()):
            yield names[-1]


def configure():
    """Prepares a build whose units are single sources without precompiled headers; returns each source's command."""
    options = ["-DKVCOVE_UNITY=0", "-DKVCOVE_PRECOMPILED=OFF", "-DKVCOVE_TESTS=OFF", "-DKVCOVE_FUZZ=OFF", "-DKVCOVE_LAB_COMMANDS=ON"]
    for command in (["cmake", "--preset", "asan", "-B", str(BUILD), *options], ["ninja", "-C", str(BUILD), *GENERATED]):
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"tidy: {shlex.join(command)} failed:\n{done.stdout}")
    commands = {}
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        compiler = next(i for i, word in enumerate(words) if "clang" in pathlib.Path(word).name)
        flags = words[compiler + 1 :]
        for name in ("-o", "-c"):  # each with its file
            if name in flags:
                del flags[flags.index(name) : flags.index(name) + 2]
        commands[os.path.relpath(entry["file"], ROOT)] = (words[compiler], flags)
    return commands


def run(command):
    """Runs a command in the build; returns its exit code and all that it printed but clang-tidy's counts."""
    done = subprocess.run(command, cwd=BUILD, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    counts = re.compile(r"^\d+ (warnings?|errors?)( and \d+ errors?)?( generated| treated as errors?)\.?$|^Suppressed \d+ |^Use -header-filter")
    return done.returncode, "\n".join(line for line in done.stdout.splitlines() if not counts.match(line))


def tidy(path, flags, checks):
    return run(["clang-tidy-19", "--quiet", *checks, str(path), "--", *flags])


def check_alone(source, command):
    """What a text of several sources would hide: an include or a use that only another source has."""
    compiler, flags = command
    code, output = run([compiler, *flags, "-fsyntax-only", str(ROOT / source)])
    found = [output] if code != 0 else []
    text = (ROOT / source).read_text()
    for name in re.findall(r"^using [\w:]+::(\w+);", text, re.MULTILINE):
        if len(re.findall(rf"\b{name}\b", text)) == 1:
            found.append(f"{source}: `using` names {name}, which the source does not use")
    return found


def check_together(number, sources, flags, checks):
    """Checks a unit of sources; returns what is to be reported of each."""
    if len(sources) > 1:
        # As parts of the main file, and not as files that it includes: some checks look at the main file only.
        text = BUILD / "units" / f"{number}.cc"
        text.write_text("\n".join((ROOT / source).read_text() for source in sources))
        if tidy(text, flags, checks)[0] == 0:
            return []
    found = []
    for source in sources:
        code, output = tidy(ROOT / source, flags, checks)
        if code != 0:
            found.append(output)
    return found


def units_of(sources, commands):
    """Sorts sources by their flags and checks, in lists of at most TOGETHER: (sources, flags, checks)."""
    sorts = {}
    analyzed = sum(not uses_coroutines(source) for source in sources)
    for source in sources:
        checks = () if analyzed <= MOST_ANALYZED and not uses_coroutines(source) else (NO_ANALYZER,)
        sorts.setdefault((tuple(commands[source][1]), checks), []).append(source)
    for (flags, checks), alike in sorts.items():
        # Evenly, and a core's worth at least: eight and one would leave a core with little.
        count = max(-(-len(alike) // TOGETHER), min(len(alike), os.cpu_count() or 1) if checks == () else 1)
        for i in range(count):
            yield alike[i::count], flags, checks


def uses_coroutines(source):
    """The analyzer loses its way in Boost's coroutines: their users get the other checks only."""
    return "<boost/asio/awaitable.hpp>" in (ROOT / source).read_text()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", help="the commit to compare with (default: what scripts/base.sh prints)")
    parser.add_argument("sources", nargs="*", metavar="SOURCE")
    arguments = parser.parse_args()
    changed = arguments.sources or list(changed_sources(arguments.base))
    sources = [source for source in changed if not source.endswith("_test.cc")]
    if not sources:
        print("tidy: no source has changed")
        return 0
    commands = configure()
    unknown = [source for source in sources if source not in commands]
    if unknown:
        sys.exit(f"tidy: no target of the build has {', '.join(unknown)}; SOURCE is a path from the root of the repository")
    (BUILD / "units").mkdir(exist_ok=True)
    found = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        # The largest first: the last ones then end at about the same time.
        units = sorted(units_of(sources, commands), key=lambda unit: -len(unit[0]))
        jobs = [pool.submit(check_together, number, *unit) for number, unit in enumerate(units)]
        jobs += [pool.submit(check_alone, source, commands[source]) for unit in units for source in unit[0] if len(unit[0]) > 1]
        for job in concurrent.futures.as_completed(jobs):
            found += job.result()
            for output in job.result():
                print(output, flush=True)
    print(f"tidy: {len(sources)} sources, {len(units)} units: {'clean' if not found else 'see above'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
