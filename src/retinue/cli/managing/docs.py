"""``retinue docs``: read the pages of the documentation, which every installation has."""

from __future__ import annotations

from pathlib import Path

import click

from retinue.cli.options import json_option
from retinue.cli.output import print_json

_SUFFIX = ".md"


def find_pages(package: Path | None = None) -> dict[str, Path]:
    """The pages by name, such as ``settings`` or ``guides/backup``: those of the wheel, or of the clone.

    ``package`` is the folder of the package ``retinue``. Raises StateError if the installation has no pages.
    """
    from retinue.core.errors import StateError

    package = package or Path(__file__).resolve().parents[2]
    for folder in (package / "docs", package.parents[1] / "docs"):
        if (folder / f"settings{_SUFFIX}").is_file():
            pages = sorted(folder.rglob(f"*{_SUFFIX}"), key=lambda page: (len(page.parts), page))
            names = {page.relative_to(folder).with_suffix("").as_posix(): page for page in pages}
            return {name: page for name, page in names.items() if not name.startswith("decisions/")}
    raise StateError("this installation has no documentation", remedy="install the wheel of retinue again")


@click.command()
@click.argument("page", required=False)
@json_option
def docs(page: str | None, as_json: bool) -> None:
    """Show a page of the documentation, or list the pages.

    PAGE is a name of the list, such as settings; the folder of a guide may be left out.
    """
    import sys

    pages = find_pages()
    if page is None:
        rows = {name: _read_title(path) for name, path in pages.items()}
        if as_json:
            print_json([{"page": name, "title": title} for name, title in rows.items()])
            return
        width = max(map(len, rows))
        click.echo_via_pager("".join(f"{name.ljust(width)}  {title}\n" for name, title in rows.items()))
        return
    text = _find_page(pages, page).read_text("utf-8")
    if as_json:
        print_json({"page": page, "text": text})
    elif sys.stdout.isatty():
        click.echo_via_pager(_render(text))
    else:
        click.echo(text, nl=False)


def _find_page(pages: dict[str, Path], name: str) -> Path:
    """The page of this name; raises InvalidSettingError with a similar name."""
    from retinue.core.errors import InvalidSettingError
    from retinue.core.text import suggest

    plain = name.removeprefix("docs/").removesuffix(_SUFFIX)
    by_name = {full.rpartition("/")[2]: path for full, path in pages.items()} | pages
    if plain in by_name:
        return by_name[plain]
    near = suggest(plain, by_name, limit=1)
    remedy = f"did you mean {near[0]}?" if near else "retinue docs lists the pages"
    raise InvalidSettingError("PAGE", f"there is no page {name}", remedy=remedy)


def _read_title(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), "")


def _render(text: str) -> str:
    """Markdown for a terminal, with colours."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(force_terminal=True)
    with console.capture() as capture:
        console.print(Markdown(text))
    return capture.get()
