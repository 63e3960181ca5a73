"""Images, sounds and files of a result: written below ``--out``, or named on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retinue.cli.output import clean, note, print_json, warn
from retinue.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from retinue.core.call import Part

out_option = click.option(
    "--out",
    metavar="FILE|DIR",
    help="Write images, sounds and files of the result to this file, or into this folder.",
)
"""``--out`` of commands that print a result."""


def print_result(value: Any, parts: Sequence[Part], out: str | None, *, as_json: bool) -> None:
    """Print a result on standard output, and write its parts to ``out`` or say how to save them.

    A value that is made of parts alone is not printed where they are written, nor at a terminal.
    """
    if not parts and not _has_parts_field(value):
        print_json(value, compact=as_json)
        if out is not None:
            warn(f"the result has no image, sound or file: nothing was written to {out}")
        return
    # imported here, because few results have parts
    from retinue.core.parts import find_parts, is_made_of_parts, render_parts

    is_run_result = not parts
    parts = parts or find_parts(value)
    files = [part for part in parts if part.kind not in ("text", "data")]
    if not files:
        print_json(value, compact=as_json)
        return
    is_only_parts = isinstance(value, Mapping) and is_made_of_parts(value, parts)
    if out is not None:
        rows = _write_all(files, out)
        for row in rows:
            note(_describe_written(row))
        if as_json and is_only_parts:
            print_json({"parts": rows}, compact=True)
        elif not is_only_parts:
            print_json(value["result"] if is_run_result and "result" in value else value, compact=as_json)
        return
    if as_json or not is_only_parts or not sys.stdout.isatty():
        print_json(value, compact=as_json)
    for row in render_parts(files):
        note(_describe_unsaved(row))


def _has_parts_field(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("parts"), list)


def _write_all(parts: Sequence[Part], out: str) -> list[dict[str, Any]]:
    """Write the parts; a row of each says its file, or its URL where it is a link without content."""
    from retinue.client.received_parts import write_new
    from retinue.core.parts import content_of, file_name_of, render_parts

    path, contents = Path(out), [content_of(part) for part in parts]
    is_several = len(contents) - contents.count(None) > 1
    is_folder = is_several or path.is_dir() or out.endswith(("/", os.sep))
    rows: list[dict[str, Any]] = []
    try:
        if is_folder:
            path.mkdir(parents=True, exist_ok=True)
        for number, (part, row) in enumerate(zip(parts, render_parts(parts), strict=True), 1):
            content = contents[number - 1]
            row.pop("annotations", None)
            row.pop("data", None)
            if content is not None and is_folder:
                row["file"] = str(write_new(path, file_name_of(part, number), content))
            elif content is not None:
                path.write_bytes(content)
                row["file"] = str(path)
            elif "url" not in row:
                warn(f"the {clean(row['kind'])} {clean(row['mime_type'])} is no base64 text: it was left out")
            rows.append(row)
    except OSError as error:
        raise InvalidSettingError(
            "--out",
            f"{out} cannot be written: {error.strerror or error}",
            remedy="name another file or folder",
        ) from error
    return rows


def _describe_written(row: Mapping[str, Any]) -> str:
    if "file" in row:
        return f"wrote {row['file']} ({row['mime_type']}, {row['size']:,} bytes)"
    return f"not written, a link: {row.get('url', '–')} ({row['mime_type']})"


def _describe_unsaved(row: Mapping[str, Any]) -> str:
    named = f" {row['name']}" if row.get("name") else ""
    if "data" not in row:
        return f"the result links to {row.get('url', '–')} ({row['mime_type']})"
    return (
        f"the result has {row['kind']}{named} ({row['mime_type']}, {row['size']:,} bytes); "
        "save it: add --out FILE, or --out DIR/"
    )
