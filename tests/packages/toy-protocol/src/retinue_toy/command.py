"""``retinue toy URL``."""

import json
import urllib.request

import click


@click.command()
@click.argument("url")
def toy(url: str) -> None:
    """List the skills of a toy server."""
    with urllib.request.urlopen(f"{url}/toy") as reply:
        for agent in json.load(reply):
            click.echo(f"{agent['name']}: {', '.join(skill['id'] for skill in agent['skills'])}")
