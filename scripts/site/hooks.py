# SPDX-License-Identifier: Apache-2.0
"""What mkdocs does for the site beyond the pages of docs/ (mkdocs.yml).

docs/ is read as it is, links and all. A link that leaves docs/ leads to a page of the site that is made of the file
there, below `repository/`: of a Markdown page as it is, of a source as code. The references of the APIs are made when
the site is built.
"""

from __future__ import annotations

import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import python_reference  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ELSEWHERE = "repository"
LINK = re.compile(r"(\[[^\]]*\]\()([^()\s]+)(\))")
CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", flags=re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".cc": "cpp", ".h": "cpp", ".sh": "bash", ".toml": "toml", ".yml": "yaml", ".json": "json"}


def target_of(page: pathlib.Path, link: str) -> pathlib.Path | None:
    """Return the file that a link of a page leads to; None for another site, or a heading of the page itself."""
    path = link.partition("#")[0]
    if not path or re.match(r"[a-z]+:", link):
        return None
    target = pathlib.Path(os.path.normpath(page.parent / path))
    return target / "README.md" if target.is_dir() else target


def place_of(target: pathlib.Path) -> str:
    """Return where a file of the repository is in the site's sources."""
    if DOCS in target.parents:
        return str(target.relative_to(DOCS))
    name = target.relative_to(ROOT)
    return f"{ELSEWHERE}/{name}" if name.suffix == ".md" else f"{ELSEWHERE}/{name}.md"


def links_of(page: pathlib.Path) -> list[pathlib.Path]:
    """Return the files of the repository that a Markdown page leads to."""
    text = CODE.sub("", page.read_text())
    targets = (target_of(page, link) for _, link, _ in LINK.findall(text))
    return [target for target in targets if target is not None and target.is_file()]


@functools.cache
def elsewhere() -> dict[str, pathlib.Path]:
    """Return the files outside of docs/ that its pages lead to, and those that these lead to, by their place."""
    found: dict[str, pathlib.Path] = {}
    todo = sorted(DOCS.rglob("*.md"))
    seen = set(todo)
    while todo:
        for target in links_of(todo.pop()):
            if target in seen:
                continue
            seen.add(target)
            if target.suffix == ".md":
                todo.append(target)
            if DOCS not in target.parents:
                found[place_of(target)] = target
    return dict(sorted(found.items()))


def rewritten(text: str, page: pathlib.Path, place: str) -> str:
    """Return a page's text with its links as the site has them; in code brackets are no links."""

    def replace(match: re.Match[str]) -> str:
        before, link, after = match.groups()
        target = target_of(page, link)
        if target is None:
            return match.group()
        if not target.is_file():  # a folder without a page of its own
            return before[1:-2]
        heading = link.partition("#")[1:]
        path = os.path.relpath(place_of(target), os.path.dirname(place) or ".")
        return before + path + "".join(heading) + after

    return "".join(
        part if CODE.fullmatch(part) else LINK.sub(replace, part) for part in CODE.split(text)
    )


def source_page(path: pathlib.Path) -> str:
    """Return a source as a page."""
    name = path.relative_to(ROOT)
    text = path.read_text()
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`{3,}", text)), default=2))
    return f"# {name}\n\n{fence}{LANGUAGES.get(path.suffix, 'text')}\n{text}{fence}\n"


def contents() -> str:
    """Return the list of the pages that lie outside of docs/."""
    lines = ["# Files of the repository", "", "Pages and sources that other pages name."]
    folder = None
    for place, path in elsewhere().items():
        name = path.relative_to(ROOT)
        if name.parts[0] != folder:
            folder = name.parts[0]
            lines.append("")
        lines.append(f"- [{name}]({place.removeprefix(ELSEWHERE + '/')})")
    return "\n".join(lines) + "\n"


def doxygen() -> str | None:
    return shutil.which(os.environ.get("KVCOVE_DOXYGEN", "doxygen"))


def cpp_page() -> str:
    """Return the page that leads to the C++ reference."""
    text = ["# C++ API", "", "[cpp.md](../cpp.md) says how to build with it, and what is stable.", ""]
    if doxygen():
        text.append('<a href="cpp/index.html">The reference of all public headers</a>, made by Doxygen.')
    else:
        text.append("This site was built without Doxygen, so the reference is the public headers' own comments.")
    text += ["", "| header | |", "| --- | --- |"]
    for header in public_headers():
        begins = re.search(r"SPDX[^\n]*\n((?:// [^\n]*\n)*)", (ROOT / header).read_text())
        about = begins[1].replace("// ", "").replace("\n", " ") if begins else ""
        text.append(f"| `{header}` | {re.split(r'(?<=[.]) ', about)[0]} |")
    return "\n".join(text) + "\n"


def public_headers() -> list[str]:
    """Return what C++ users may include, as the package installs it."""
    listed = re.search(r"set\(public_headers(.*?)\)", (ROOT / "cmake/package.cmake").read_text(), re.DOTALL)
    if listed is None:
        raise PluginError("cmake/package.cmake has no list of public headers")
    return listed[1].split()


# ---- mkdocs' hooks


def on_files(files, config):
    for place, path in elsewhere().items():
        text = path.read_text() if path.suffix == ".md" else source_page(path)
        files.append(File.generated(config, place, content=text))
    files.append(File.generated(config, f"{ELSEWHERE}/files.md", content=contents()))
    files.append(File.generated(config, "reference/python.md", content=python_reference.page(ROOT)))
    files.append(File.generated(config, "reference/cpp.md", content=cpp_page()))
    return files


def on_page_markdown(markdown, page, config, files):
    place = page.file.src_uri
    path = elsewhere().get(place, DOCS / place)
    if path.suffix != ".md" or not path.is_file():
        return markdown
    return rewritten(markdown, path, place)


def on_post_build(config):
    if not doxygen():
        return
    output = pathlib.Path(config.site_dir) / "reference" / "cpp"
    output.mkdir(parents=True, exist_ok=True)
    here = pathlib.Path(__file__).parent
    settings = (here / "Doxyfile").read_text() + "\n".join(
        (f"INPUT = {' '.join(public_headers())}", f'HTML_OUTPUT = "{output}"')
    )
    done = subprocess.run(
        [doxygen(), "-"], input=settings, text=True, cwd=ROOT, capture_output=True, check=False
    )
    if done.returncode != 0:
        raise PluginError(f"Doxygen refuses the public headers:\n{done.stderr}")
