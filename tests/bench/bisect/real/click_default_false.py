"""A flag with the default False is not a string where it is not given (pallets/click#3054)."""

import click
from click.testing import CliRunner


@click.command()
@click.option("--all", "every", flag_value="like", default=False)
def edit(every: object) -> None:
    click.echo(repr(every))


assert CliRunner().invoke(edit, []).output != "'False'\n"
