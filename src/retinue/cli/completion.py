"""``retinue completion``: complete agent names and skill ids in a shell.

Names are read from the registry in the state folder only, because pressing Tab must not wait for the network
or start a process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

VARIABLE = "_RETINUE_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    bash: eval "$(retinue completion bash)" in ~/.bashrc. zsh: the same in ~/.zshrc.
    fish: retinue completion fish > ~/.config/fish/completions/retinue.fish
    """
    from click.shell_completion import get_completion_class

    from retinue.cli.program import program

    chosen = get_completion_class(shell)
    assert chosen is not None, "click knows these shells"
    click.echo(chosen(program, {}, "retinue", VARIABLE).source())


def complete_agent(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """The names of agents that start with ``incomplete``."""
    return _complete(incomplete, ((card["name"], card.get("description")) for card in _read_cards()))


def complete_skill(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """The ids of skills that start with ``incomplete``."""
    skills = (skill for card in _read_cards() for skill in card.get("skills") or ())
    return _complete(
        incomplete,
        ((skill.get("id"), skill.get("description")) for skill in skills if isinstance(skill, dict)),
    )


def _complete(incomplete: str, names: Iterator[tuple[Any, Any]]) -> list[CompletionItem[str]]:
    from click.shell_completion import CompletionItem

    from retinue.cli.output import clean

    candidates = {
        name: clean(help_text) or None
        for name, help_text in names
        if isinstance(name, str) and name.startswith(incomplete) and clean(name) == name
    }
    return [CompletionItem(name, help=candidates[name]) for name in sorted(candidates)]


def _read_cards() -> Iterator[dict[str, Any]]:
    """The cards in the state folder's registry; unreadable ones are skipped."""
    import asyncio

    import orjson

    from retinue.cli.session import find_state
    from retinue.core.errors import RetinueError
    from retinue.oci.codec.reference import Reference
    from retinue.oci.layout.folder_registry import LayoutRegistry

    registry = LayoutRegistry(find_state().registry)

    async def read() -> list[bytes]:
        contents = []
        for repository in await registry.list_repositories():
            if repository.startswith("agents/"):
                try:
                    contents.append((await registry.pull(Reference(repository))).content)
                except RetinueError:
                    continue
        return contents

    for content in asyncio.run(read()):
        try:
            card = orjson.loads(content)
        except orjson.JSONDecodeError:
            continue
        if isinstance(card, dict) and isinstance(card.get("name"), str):
            yield card
