"""Builds the documentation in ``site/``; checks that links resolve and pages fetch nothing.

``make site`` runs it. The generator is zensical, pinned in the group ``docs``; ``mkdocs.yml`` is what mkdocs
with its material theme reads as well.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

ROOT = Path(__file__).resolve().parent.parent
CONFIGURATION = ROOT / "mkdocs.yml"
SITE = ROOT / "site"
_HOST = "https://site.invalid/"
_FETCHED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("use", "href")}
_FETCHED_RELATIONS = {"stylesheet", "icon", "preload", "modulepreload", "preconnect"}


class Page(HTMLParser):
    """The ids, links and fetched addresses of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        self.fetched += [found[name] for kind, name in _FETCHED if kind == tag and name in found]
        if tag == "link" and _FETCHED_RELATIONS & set(found.get("rel", "").split()):
            self.fetched.append(found.get("href", ""))


def build(program: Path) -> None:
    """Run the generator; raises CalledProcessError, also for a link to a page that does not exist."""
    subprocess.run(
        [program, "build", "--clean", "--strict", "--config-file", CONFIGURATION], cwd=ROOT, check=True
    )


def find_problems(site: Path) -> list[str]:
    """Links that lead nowhere and addresses of other hosts that a browser would fetch."""
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    problems = []
    for path, page in pages.items():
        here = path.relative_to(site)
        if here.name == "404.html":
            continue  # its links begin at the root of the host, wherever the site will be
        base = _HOST + (here.parent.as_posix() + "/" if here.name == "index.html" else here.as_posix())
        base = base.replace("/./", "/")
        problems += [
            f"{here}: fetches {url}"
            for url in page.fetched
            if urlsplit(urljoin(base, url)).netloc != "site.invalid"
        ]
        for link in page.links:
            found = urlsplit(urljoin(base, link))
            if found.netloc != "site.invalid" or found.scheme != "https":
                continue
            target = site / unquote(found.path).lstrip("/")
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                problems.append(f"{here}: {link} leads nowhere")
            elif (
                found.fragment
                and target in pages
                and unquote(found.fragment) not in pages[target].ids | {"__top"}
            ):
                problems.append(f"{here}: {link} has no such heading")
    return problems


def find_foreign_urls(site: Path) -> list[str]:
    """Style sheets that import from another host."""
    return [
        f"{path.relative_to(site)}: {url}"
        for path in sorted(site.rglob("*.css"))
        for url in re.findall(r"(?:url\(|@import\s+)[\"']?(https?://[^\"')\s]+)", path.read_text("utf-8"))
    ]


def leave_out_of_search(site: Path, folder: str) -> int:
    """Remove the pages of a folder from what the search looks through; gives the number of their sections."""
    path = site / "search.json"
    index = json.loads(path.read_text("utf-8"))
    kept = [item for item in index["items"] if not item["location"].startswith(f"{folder}/")]
    removed = len(index["items"]) - len(kept)
    path.write_text(json.dumps({**index, "items": kept}, ensure_ascii=False), encoding="utf-8")
    return removed


def read_search_index(site: Path) -> str:
    """What the search of the site looks through; raises LookupError if there is none."""
    for path in sorted(site.rglob("search*.json")):
        return json.dumps(json.loads(path.read_text("utf-8")))
    raise LookupError(f"{site} has no index of the search")


def main() -> int:
    """Build and check; 1 if anything is wrong."""
    try:
        build(Path(sys.executable).parent / "zensical")
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"site: not built: {error}", file=sys.stderr)
        return 1
    # the search ranks decisions, which hold the words of every topic, above the guides
    leave_out_of_search(SITE, "decisions")
    problems = [*find_problems(SITE), *find_foreign_urls(SITE)]
    for problem in problems:
        print(problem, file=sys.stderr)
    pages = len(list(SITE.rglob("index.html")))
    size_kb = len(read_search_index(SITE)) // 1000
    print(f"site: {pages} pages in {SITE.name}/, {size_kb} kB to search, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
