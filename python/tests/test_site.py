# SPDX-License-Identifier: Apache-2.0
"""The site of docs/ is whole: strict links, search, nothing from elsewhere, each page within two clicks."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import shutil
import subprocess
import sys
import types
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLICKS = 2


@functools.cache
def reference() -> types.ModuleType:
    path = ROOT / "scripts/site/python_reference.py"
    spec = importlib.util.spec_from_file_location("python_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Links(HTMLParser):
    """What a page leads to, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.leads_to: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a" and (href := values.get("href")):
            self.leads_to.append(href)
        elif tag == "link" and (href := values.get("href")):
            if values.get("rel") not in ("canonical", "prev", "next"):
                self.loads.append(href)
        elif source := values.get("src"):
            self.loads.append(source)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    directory = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


@functools.cache
def links_of(page: Path) -> Links:
    links = Links()
    links.feed(page.read_text())
    return links


def pages(site: Path) -> set[Path]:
    """Return the site's pages; of what Doxygen made, its first one."""
    doxygen = site / "reference/cpp"
    found = {page for page in site.rglob("*.html") if doxygen not in page.parents}
    found.discard(site / "404.html")
    if (doxygen / "index.html").exists():
        found.add(doxygen / "index.html")
    return found


def test_every_page_is_within_two_clicks(site: Path) -> None:
    every = pages(site)
    assert len(every) > 60
    near = {site / "index.html"}
    reached = set(near)
    for _ in range(CLICKS):
        near = {
            (page.parent / unquote(urlparse(link).path)).resolve()
            for page in near & every
            for link in links_of(page).leads_to
            if urlparse(link).scheme == "" and urlparse(link).path
        } - reached
        reached |= near
    assert sorted(str(page.relative_to(site)) for page in every - reached) == []


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    outside = {
        f"{page.relative_to(site)}: {source}"
        for page in pages(site)
        for source in links_of(page).loads
        if urlparse(source).scheme not in ("", "data", "javascript") or source.startswith("//")
    }
    assert outside == set()


def test_links_between_pages_are_alive(site: Path) -> None:
    dead = {
        f"{page.relative_to(site)}: {link}"
        for page in pages(site)
        for link in links_of(page).leads_to
        if urlparse(link).scheme == ""
        and urlparse(link).path
        and not (page.parent / unquote(urlparse(link).path)).exists()
    }
    assert dead == set()


def test_the_search_knows_all_pages(site: Path) -> None:
    entries = json.loads((site / "search/search_index.json").read_text())["docs"]
    known = {entry["location"].partition("#")[0] or "index.html" for entry in entries}
    wanted = {str(page.relative_to(site)) for page in pages(site)} - {"reference/cpp/index.html"}
    assert wanted <= known
    assert any("kvcove plan" in entry["text"] for entry in entries)


def test_the_reference_of_the_python_api_has_all_names() -> None:
    page = reference().page(ROOT)
    for module in reference().MODULES:
        for name in reference().public(ast.parse(reference().file_of(ROOT, module).read_text())):
            assert name in page, f"{module}.{name}"
    assert "#### Session.put\n" in page
    assert ":class:" not in page
    assert "``" not in page.replace("```", "")


def test_the_headers_pass_doxygen(tmp_path: Path) -> None:
    if (doxygen := shutil.which("doxygen")) is None:
        pytest.skip("Doxygen is not installed")
    headers = (ROOT / "cmake/package.cmake").read_text()
    headers = headers[headers.index("set(public_headers") :]
    listed = headers[: headers.index(")")].split()[1:]
    settings = (ROOT / "scripts/site/Doxyfile").read_text()
    done = subprocess.run(
        [doxygen, "-"],
        input=f'{settings}\nINPUT = {" ".join(listed)}\nHTML_OUTPUT = "{tmp_path}"\n',
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "kIncompatible" in "".join(page.read_text() for page in tmp_path.glob("*.html"))
