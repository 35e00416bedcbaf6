"""A flag that also has a type is set where it is given (pallets/click#2894)."""

import click
from click.testing import CliRunner


@click.command()
@click.option("--transpose", type=str, is_flag=True)
def table(transpose: object) -> None:
    click.echo(repr(transpose))


assert "None" not in CliRunner().invoke(table, ["--transpose"]).output
