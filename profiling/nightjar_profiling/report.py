"""How is a profile shown on one page? Plain data in, one self-contained HTML text out; light and dark, no network."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from nightjar_profiling.analyse import Profile
from nightjar_profiling.manifest import Manifest
from nightjar_profiling.tables import Tables

BAR_PIXELS = 100


def render_report(profile: Profile, figure: Mapping[str, Any], manifest: Manifest, tables: Tables) -> str:
    """The page.

    Args:
        profile: what is shown.
        figure: the Plotly figure of the flame graph.
        manifest: where it comes from.
        tables: counted on it.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("nightjar_profiling"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        page_data(profile, manifest, tables),
        plotly=Markup(get_plotlyjs().replace("</script", "<\\/script")),
        figure=Markup(embed_json(figure)),
    )


def page_data(profile: Profile, manifest: Manifest, tables: Tables) -> dict[str, Any]:
    """What the template shows, formatted."""
    attributed = profile.direct_fraction + profile.inferred_fraction
    fractions = {
        "direct": profile.direct_fraction,
        "inferred": profile.inferred_fraction,
        "none": profile.unattributed_fraction,
    }
    largest_line = max((line.fraction for line in profile.hot_lines), default=0.0) or 1.0
    largest_ns = max(profile.categories.values(), default=0) or 1
    return {
        "title": title_of(profile.command),
        "command": shlex.join(profile.command),
        "user_share": percent(profile.user_fraction),
        "device_time": duration(profile.device_time_ns),
        "steps": "" if profile.steps is None else f", steps {profile.steps[0]} to {profile.steps[1]}",
        "attributed_share": percent(attributed),
        "shares": {name: percent(value) for name, value in fractions.items()},
        "widths": {name: round(100 * value, 3) for name, value in fractions.items()},
        "ops": f"{tables.ops.height:,}",
        "ran": f"runs of {tables.attribution.height:,} instructions of {tables.programs.height:,} programs",
        "warnings": profile.warnings,
        "hot_lines": [
            {
                "time": duration(line.self_ns),
                "share": percent(line.fraction),
                "width": round(BAR_PIXELS * line.fraction / largest_line, 1),
                "file": line.file,
                "name": PurePath(line.file).name,
                "line": line.line,
                "function": line.function,
                "source": line.source,
            }
            for line in profile.hot_lines
        ],
        "categories": [
            {
                "name": name,
                "time": duration(ns),
                "share": percent(ns / profile.device_time_ns if profile.device_time_ns else 0.0),
                "width": round(BAR_PIXELS * ns / largest_ns, 1),
            }
            for name, ns in profile.categories.items()
        ],
        "environment": describe(manifest),
    }


def title_of(command: tuple[str, ...]) -> str:
    """A short name for a program: its last path component and what follows, without a leading Python."""
    words = [PurePath(word).name or word for word in command]
    while words and (words[0].startswith("python") or words[0] == "-m"):
        words = words[1:]
    return " ".join(words[:3]) or "raw trace"


def percent(fraction: float) -> str:
    """One decimal; what rounds to a whole 100 % but is less says so.

    >>> percent(0.1234), percent(1.0), percent(0.99999)
    ('12.3 %', '100 %', '>99.9 %')
    """
    if fraction == 1.0:
        return "100 %"
    return ">99.9 %" if fraction > 0.9995 else f"{100 * fraction:.1f} %"


def duration(ns: int) -> str:
    """Nanoseconds in a unit that people read.

    >>> duration(1_234_567), duration(890), duration(2_500_000_000)
    ('1.235 ms', '0.890 µs', '2.500 s')
    """
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if ns >= size:
            return f"{ns / size:.3f} {unit}"
    return f"{ns / 1e3:.3f} µs"


def embed_json(value: Mapping[str, Any]) -> str:
    """JSON that can stand inside a script element."""
    return json.dumps(value).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def describe(manifest: Manifest) -> str:
    """One line on where the profile was captured."""
    environment = manifest.environment
    versions = [f"{name} {version}" for name, version in sorted(environment.get("versions", {}).items())]
    devices = sorted(set(environment.get("devices", [])))
    parts = [f"captured with the {manifest.backend} profiler", *versions, *devices]
    if "python" in environment:
        parts.append(f"Python {environment['python']}")
    parts += [f"{name}={value}" for name, value in sorted(environment.get("flags", {}).items())]
    return " · ".join(parts)
