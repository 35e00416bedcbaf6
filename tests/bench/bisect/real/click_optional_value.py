"""An option whose value is optional takes its `flag_value` (pallets/click#3084, #3163)."""

import click
from click.testing import CliRunner


@click.command()
@click.option("--name", is_flag=False, flag_value="Flag", default="Default")
def hello(name: str) -> None:
    click.echo(name)


assert CliRunner().invoke(hello, ["--name"]).output == "Flag\n"
