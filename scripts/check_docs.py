#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the links of every Markdown page: none is dead, and docs/README.md leads to each page of docs/.

Each of these has its place in mkdocs.yml. Names that go stale are found, too: the files that a page names, the functions on the paths of docs/architecture.md and
the file beside a function, the numbers of methods in docs/protocol.md, and the threads in docs/threads.md.

  scripts/check_docs.py [ROOT]
"""

from __future__ import annotations

import functools
import os
import pathlib
import re
import sys

SKIPPED = {"build", "out", ".git", "node_modules", "venv"}
DECLARED = re.compile(r"\b(?:class|struct|namespace)(?: KVCOVE_\w+(?:\([^)]*\))?)? (\w+(?:::\w+)*)")
LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")


def pages(root: pathlib.Path) -> list[pathlib.Path]:
    """Return the Markdown pages of the sources."""
    found: list[pathlib.Path] = []
    for directory, below, names in os.walk(root):
        below[:] = [name for name in below if name not in SKIPPED]  # not walked
        found += [pathlib.Path(directory, name) for name in names if name.endswith(".md")]
    return sorted(found)


def prose(page: pathlib.Path) -> str:
    """Return a page without its code, in which brackets and parentheses are no links."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", lambda code: code.group().replace("(", " ").replace("[", " "), text)


@functools.cache
def anchors(page: pathlib.Path) -> set[str]:
    """Return the anchors of a page's headings, made the way GitHub makes them."""
    found: set[str] = set()
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ +(.+?) *$", text, flags=re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 0
        while (name := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(name)
    return found


def sources(root: pathlib.Path) -> dict[pathlib.Path, str]:
    """Return the texts of the product's sources."""
    suffixes = {".h", ".cc", ".py"}
    found = [
        file
        for folder in ("kvcove", "lab", "python/kvcove")
        for file in (root / folder).rglob("*.*")
    ]
    return {
        path: path.read_text()
        for path in sorted(found)
        if path.suffix in suffixes and not path.stem.endswith("_test")
    }


def check_methods(root: pathlib.Path) -> list[str]:
    """Return the methods whose number and name are not those of docs/protocol.md."""
    header = (root / "kvcove" / "wire" / "frame.h").read_text()
    page = (root / "docs" / "protocol.md").read_text()
    # "12 to 14 pin, stat objects, stat" names methods of another table once more.
    cells = re.findall(r"^\| (\d+ [a-z][^|]*)", page, flags=re.MULTILINE)
    told = {
        (int(number), name.replace(" ", ""))
        for cell in cells
        if not re.match(r"\d+ to ", cell)
        for number, name in re.findall(r"(\d+) ([a-z]+(?: [a-z]+)*)", re.sub(r"\(.*?\)", "", cell))
    }
    methods = {
        (int(number), re.sub(r"^Engine(?=Lookup|Reset|Weights|Counters)", "", name).lower())
        for name, number in re.findall(r"^  k(\w+) = (\d+),", header, flags=re.MULTILINE)
    }
    return [
        f"docs/protocol.md: method {number} {name} is {where}"
        for these, others, where in (
            (methods, told, "not there, or has another name"),
            (told, methods, "none of wire/frame.h"),
        )
        for number, name in sorted(these - others)
    ]


def check_threads(root: pathlib.Path, texts: dict[pathlib.Path, str]) -> list[str]:
    """Return the threads that docs/threads.md leaves out, and those that it makes up."""
    page = (root / "docs" / "threads.md").read_text()
    told = set(re.findall(r"`(kvcove-[a-z-]+)`", page))
    text = "\n".join(texts.values())
    started = set(
        re.findall(
            r'(?:StartThread\(|thread_name_prefix=|Thread\([^)]*name=)\s*"(kvcove-[a-z-]+)"', text
        )
    )
    return [
        *(f"docs/threads.md: {name} is missing" for name in sorted(started) if name not in page),
        *(
            f"docs/threads.md: no thread is called {name}"
            for name in sorted(told)
            if f'"{name}"' not in text
        ),
    ]


def check_files(root: pathlib.Path) -> list[str]:
    """Return the source files that a page names and that are not there, or not those of the function beside them."""
    wrong: list[str] = []
    modules = "|".join(sorted(path.name for path in (root / "kvcove").iterdir() if path.is_dir()))
    named = re.compile(rf"(?<![\w/.-])((?:lab|(?:kvcove/)?(?:{modules}))(?:/[\w-]+)+\.(?:cc|h|py|fbs))\b")
    beside = re.compile(rf"\b(\w+)::(\w+)\b(?:(?!::)[^\n|;,.]){{0,60}}?{named.pattern}")
    for page in pages(root):
        if page.name == "CHANGELOG.md":  # it names what was
            continue
        text = page.read_text()
        where = page.relative_to(root)
        files = {
            name: root / name if name.startswith(("kvcove/", "lab/")) else root / "kvcove" / name
            for name in named.findall(text)
        }
        wrong += [
            f"{where}: there is no file {name}" for name, f in files.items() if not f.exists()
        ]
        for scope, function, name in beside.findall(text):
            if files[name].exists() and not re.search(
                rf"\b{scope}::{function}\b|\b(?:class|struct) (?:\w+ )*{scope}\b",
                files[name].read_text(),
            ):
                wrong.append(f"{where}: {scope}::{function} is not in {name}")
    return wrong


def check_options(root: pathlib.Path) -> list[str]:
    """Return the options of an owner that no page has, as a flag and, where it may, in an address."""
    table = (root / "kvcove" / "pool" / "owner_fields.cc").read_text()
    text = "\n".join(page.read_text() for page in pages(root) if page.name != "CHANGELOG.md")
    text += (root / "kvcove" / "pool" / "pool.h").read_text()
    wrong = []
    for field in re.findall(r"\{\.key = .*?\.read =", table, flags=re.DOTALL):
        key = re.match(r'\{\.key = "(\w+)"', field)[1]
        flag = ("--no-" if "Kind::kFlag" in field else "--") + key.replace("_", "-")
        names = [flag] if ".in_address = false" in field else [flag, f"{key}="]
        wrong += [
            f"docs: no page has the option {n}"
            for n in names
            if not re.search(rf"(?<!\w){n}", text)
        ]
    return wrong or (
        [] if 'key = "memory"' in table else ["owner_fields.cc: no option is found there"]
    )


def check_site(root: pathlib.Path) -> list[str]:
    """Return the pages of docs/ that have no place in the site, and those that have one and are not there."""
    placed = set(re.findall(r": ([\w./-]+\.md)$", (root / "mkdocs.yml").read_text(), re.MULTILINE))
    there = {str(page.relative_to(root / "docs")) for page in (root / "docs").rglob("*.md")}
    made = ("repository/", "reference/")  # by scripts/site/hooks.py
    return [
        *(f"mkdocs.yml: docs/{page} has no place in `nav`" for page in sorted(there - placed)),
        *(
            f"mkdocs.yml: there is no docs/{page}"
            for page in sorted(placed - there)
            if not page.startswith(made)
        ),
    ]


def check(root: pathlib.Path) -> list[str]:
    """Return what is wrong, a line each."""
    wrong: list[str] = []
    leads_to: dict[pathlib.Path, set[pathlib.Path]] = {}
    for page in pages(root):
        here = page.resolve()
        leads_to[here] = set()
        for target in LINK.findall(prose(page)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            to = (page.parent / path).resolve() if path else here
            if not to.exists():
                wrong.append(f"{page.relative_to(root)}: there is no {target}")
                continue
            leads_to[here].add(to)
            if anchor and to.suffix == ".md" and anchor not in anchors(to):
                wrong.append(f"{page.relative_to(root)}: {to.name} has no heading for #{anchor}")
    index = (root / "docs" / "README.md").resolve()
    for name in re.findall(r"`([a-z_]+/[\w./-]+)`", index.read_text()):
        if not (root / name).exists() and not (root / "kvcove" / name).exists():
            wrong.append(f"docs/README.md: there is no file {name}")
    wrong += check_files(root)
    wrong += check_options(root)
    wrong += check_site(root)
    # A function is sought in the files that declare its class or namespace.
    declaring: dict[str, list[str]] = {}
    texts = sources(root)
    for source, text in texts.items():
        if source.suffix in (".h", ".cc"):
            names = {name for scopes in DECLARED.findall(text) for name in scopes.split("::")}
            for name in names:
                declaring.setdefault(name, []).append(text)
    for scope, name in re.findall(
        r"\b(\w+)::(\w+)", (index.parent / "architecture.md").read_text()
    ):
        if not any(re.search(rf"\b{name}\b", text) for text in declaring.get(scope, [])):
            wrong.append(f"docs/architecture.md: there is no {scope}::{name}")
    wrong += check_methods(root)
    wrong += check_threads(root, texts)
    reached: set[pathlib.Path] = set()
    todo = [index]
    while todo:
        page = todo.pop()
        if page in reached or page not in leads_to:
            continue
        reached.add(page)
        todo.extend(leads_to[page])
    for page in leads_to:
        if index.parent in page.parents and page not in reached:
            wrong.append(
                f"{page.relative_to(root.resolve())}: no link leads here from docs/README.md"
            )
    return wrong


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    wrong = check(root)
    print(
        "\n".join(wrong)
        if wrong
        else f"docs: every link of {len(pages(root))} pages leads somewhere"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
