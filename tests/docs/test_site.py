"""The documentation as a site: it builds without a warning, its links lead somewhere, nothing is fetched."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from scripts import site
from tests.docs.pages import DECISIONS, GUIDES, README, ROOT

ZENSICAL = Path(sys.executable).parent / "zensical"


def page(folder: Path, name: str, body: str) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"<html><body>{body}</body></html>", encoding="utf-8")


def test_links_to_pages_and_headings_that_exist_are_no_problem(tmp_path: Path) -> None:
    page(
        tmp_path, "index.html", '<h1 id="top">x</h1><a href="guide/#part">g</a><a href="https://e.org/">e</a>'
    )
    page(
        tmp_path,
        "guide/index.html",
        '<h2 id="part">p</h2><a href="..">up</a><img src="../a.svg"><a href="../a.svg">a</a>',
    )
    (tmp_path / "a.svg").write_text("<svg/>")
    assert site.find_problems(tmp_path) == []


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('<a href="nowhere/">x</a>', "index.html: nowhere/ leads nowhere"),
        ('<a href="#no">x</a>', "index.html: #no has no such heading"),
        ('<script src="https://cdn.example/x.js"></script>', "index.html: fetches https://cdn.example/x.js"),
        ('<img src="//cdn.example/x.png">', "index.html: fetches //cdn.example/x.png"),
        (
            '<link rel="stylesheet" href="https://f.example/c.css">',
            "index.html: fetches https://f.example/c.css",
        ),
    ],
)
def test_what_leads_nowhere_or_is_fetched_from_elsewhere_is_named(
    tmp_path: Path, body: str, problem: str
) -> None:
    page(tmp_path, "index.html", body)
    assert site.find_problems(tmp_path) == [problem]


def test_a_style_sheet_that_imports_from_elsewhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text(
        '@import "https://fonts.example/a"; b {background: url(data:image/png;base64,)}'
    )
    assert site.find_foreign_urls(tmp_path) == ["a.css: https://fonts.example/a"]


def test_the_search_leaves_out_the_pages_of_a_folder(tmp_path: Path) -> None:
    items = [{"location": place} for place in ("guides/a/", "decisions/b/#x", "decisions/b/")]
    (tmp_path / "search.json").write_text(json.dumps({"config": {}, "items": items}))
    assert site.leave_out_of_search(tmp_path, "decisions") == 2
    assert json.loads((tmp_path / "search.json").read_text())["items"] == items[:1]


def list_pages(entry: Any) -> Iterator[str]:
    """The pages of an entry of the navigation, in order."""
    if isinstance(entry, str):
        yield entry
        return
    for part in entry.values() if isinstance(entry, dict) else entry:
        yield from list_pages(part)


def test_the_navigation_has_every_page_once_and_ends_with_the_decisions() -> None:
    navigation = YAML(typ="safe").load(ROOT / "mkdocs.yml")["nav"]
    decisions = [f"decisions/{page.name}" for page in DECISIONS]
    guides = [page.relative_to(ROOT / "docs").as_posix() for page in GUIDES if page != README]
    assert sorted(list_pages(navigation)) == sorted([*guides, *decisions])
    assert list(list_pages(navigation[-1])) == decisions


def test_the_start_page_leads_to_every_page() -> None:
    """The README leads to the start page, and that to all others."""
    linked = set(re.findall(r"\]\(((?:guides/)?[\w-]+\.md)", (ROOT / "docs" / "index.md").read_text("utf-8")))
    start = ROOT / "docs" / "index.md"
    assert {ROOT / "docs" / name for name in linked} | {README, start} == set(GUIDES)
    assert "(docs/index.md)" in README.read_text("utf-8")


@pytest.mark.skipif(
    not ZENSICAL.exists(), reason="NOT TESTED without the group docs: make site builds and checks it"
)
def test_the_site_builds_without_a_network_and_its_search_knows_every_page(tmp_path: Path) -> None:
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }
    built = subprocess.run(
        [ZENSICAL, "build", "--clean", "--strict", "--config-file", tmp_path / "mkdocs.yml"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert site.find_problems(tmp_path / "site") == []
    assert site.find_foreign_urls(tmp_path / "site") == []
    index = site.read_search_index(tmp_path / "site")
    assert all(word in index for word in ("Glossary", "many-nodes", "0001-decision-record-format"))
