"""How much does whoever pulls every night download in half a year? Past nights, resolved from the real index."""

from __future__ import annotations

from datetime import UTC, date, datetime
from itertools import pairwise

from nightjar_ci.images.layering.layers import read_layers
from nightjar_ci.images.layering.past_nights import PastNights, list_days
from nightjar_ci.images.layering.replay import layer_per_package, one_layer, replay
from nightjar_ci.settings import read_settings
from tests.bench.images.workshop import CHECKOUT, say
from tests.bench.table import Row

NIGHTS = 179
LAST = date(2026, 11, 20)  # the date of the pins in docker/versions.json
GB = 1e9


def list_goals(flavor: str) -> list[str]:
    """The names of this part's goals."""
    return [f"{NIGHTS} nights, "] if flavor == "cuda12" else []


def measure(flavor: str) -> list[Row]:
    """The cost of 179 nights with our layers, with one, and with one for each package."""
    source = CHECKOUT / f"docker/locks/jax-{flavor}.in"
    past = PastNights(source=source, folder=read_settings().cache_dir / "past-nights")
    last = min(LAST, datetime.now(UTC).date())
    nights = past.resolve(list_days(last, NIGHTS), lambda day: say(f"resolved {day}"))
    ours, naive, finest = (
        replay(nights, one) for one in (read_layers(CHECKOUT).layer_of, one_layer, layer_per_package)
    )
    rows = [
        Row(
            name=f"{NIGHTS} nights, {ours.changed_nights} with a change",
            ours=ours.pulled_bytes / GB,
            goal=16.0 if flavor == "cuda12" else None,
            unit="GB",
            rival="one layer",
            rival_value=naive.pulled_bytes / GB,
        ),
        Row(name="of that, the first pull", ours=nights[0].size_bytes / GB, unit="GB"),
        Row(name="the finest layout: a layer per package", ours=finest.pulled_bytes / GB, unit="GB"),
    ]
    grown = [replay(nights[: len(nights) * part // 4], read_layers(CHECKOUT).layer_of) for part in (1, 2, 3, 4)]
    rows.append(Row(name=f"nights 1 to {grown[0].nights}", ours=grown[0].pulled_bytes / GB, unit="GB"))
    for before, after in pairwise(grown):
        more = (after.pulled_bytes - before.pulled_bytes) / GB
        rows.append(Row(name=f"nights {before.nights + 1} to {after.nights}", ours=more, unit="GB"))
    return rows
