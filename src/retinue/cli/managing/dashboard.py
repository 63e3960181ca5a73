"""``retinue dashboard``: open the hub's pages in a browser, signed in."""

from __future__ import annotations

import click

from retinue.cli.options import hub_option
from retinue.cli.session import open_session, run_command


@click.command()
@click.option("--no-browser", is_flag=True, help="Print the address only.")
@hub_option
def dashboard(no_browser: bool, hub: str | None) -> None:
    """Open the dashboard of the running hub in a browser.

    The printed address signs a browser in once, within a minute, with the rights of the command line. For
    the hub of this state these are the rights of its owner, who approves calls.
    """
    import webbrowser

    from retinue.runtime.commands.dashboard import make_dashboard_link
    from retinue.runtime.imports.browser_login import has_browser

    session = open_session()
    link = run_command(make_dashboard_link(session.as_owner(session.choose_hub(hub))))
    click.echo(link)
    if not no_browser and has_browser():
        webbrowser.open(link)
