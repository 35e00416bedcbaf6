"""The report of a night as one self-contained HTML page.

In: `Contents`. Out: HTML that contains plotly.js and all figures, compressed. The page fetches nothing, and draws a
figure when the reader scrolls to it. Jinja2 escapes text and figures are base64, so job output cannot become markup.
"""

from __future__ import annotations

import base64
import gzip
import json
import math

import jinja2
from plotly.offline import get_plotlyjs

from nightjar_ci.formats.verdict import STATUS_TEXT, WORST_FIRST, Verdict
from nightjar_ci.judges.finding import percent, show_change, show_p
from nightjar_ci.report.contents import Contents, with_unit
from nightjar_ci.report.figures import Figure
from nightjar_ci.report.history import SPARK_HEIGHT, SPARK_WIDTH

HOT_LINES = 10
MOST_MEMBERS = 8  # series that the card of a cause names


def make_templates(room: str) -> jinja2.Environment:
    """The templates of a room, then those and the styles of the report; text from jobs is escaped."""
    loaders = [jinja2.PackageLoader(name, ".") for name in dict.fromkeys((room, "nightjar_ci.report"))]
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["duration"] = show_duration
    return environment


def render_html(contents: Contents) -> str:
    environment = make_templates("nightjar_ci.report")
    environment.filters |= {
        "share": show_share,
        "number": "{:,.0f}".format,
        "effect": show_effect,
        "p": show_p,
        "change": show_detectable,
    }
    environment.filters |= {"flops": show_flops, "unit": with_unit}
    figures: dict[str, Figure] = {}

    def place(figure: Figure) -> str:
        figures[name := f"figure-{len(figures)}"] = figure
        return name

    counts = {status: sum(v.status == status for v in contents.verdicts.verdicts) for status in WORST_FIRST}
    return environment.get_template("page.html.j2").render(
        contents=contents,
        counts=counts,
        watched=sum(verdict.watch for verdict in contents.verdicts.verdicts),
        most_members=MOST_MEMBERS,
        status_text=STATUS_TEXT,
        place=place,
        pack=lambda: pack(json.dumps(figures, separators=(",", ":"))),
        hot_lines=HOT_LINES,
        spark=(SPARK_WIDTH, SPARK_HEIGHT),
        plotly=pack(get_plotlyjs()),
    )


def pack(text: str) -> str:
    """A text in a form that is safe in a page: compressed, as base64.

    >>> import gzip, base64
    >>> gzip.decompress(base64.b64decode(pack("</script>"))).decode()
    '</script>'
    """
    return base64.b64encode(gzip.compress(text.encode("utf-8"), 9, mtime=0)).decode("ascii")


def show_effect(verdict: Verdict) -> str:
    """The effect of a verdict in percent, or as a factor, with its interval; empty if it has none, or in a unit."""
    is_linear = verdict.judge == "history" and verdict.policy.get("scale") == "linear"
    if verdict.effect is None or not math.isfinite(verdict.effect.value) or is_linear:
        return ""
    text = show_change(verdict.effect.value, digits=2)
    if verdict.interval is not None and all(map(math.isfinite, verdict.interval)):
        low, high = (show_change(end, digits=2).removesuffix(" %") for end in verdict.interval)
        text += f" ({low} to {high})"
    return text


def show_detectable(size: float) -> str:
    """The smallest detectable change.

    >>> show_detectable(0.0), show_detectable(0.025), show_detectable(math.inf)
    ('any', '+2.5 %', 'none')
    """
    if size == 0:
        return "any"
    if not math.isfinite(size):
        return "none"
    return percent(size)


def show_duration(seconds: float) -> str:
    """A duration for people.

    >>> show_duration(7.25), show_duration(754)
    ('7.2 s', '12 min 34 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def show_share(fraction: float) -> str:
    """A fraction in percent.

    >>> show_share(0.9612)
    '96.1 %'
    """
    return f"{100 * fraction:.1f} %"


def show_flops(value: float | None) -> str:
    """FLOPs of one execution, or a dash if the backend has no cost analysis.

    >>> show_flops(1.53e9), show_flops(None)
    ('1.53 GFLOP', '-')
    """
    if value is None or not math.isfinite(value):
        return "-"
    exponent = min(5, max(0, int(math.log10(max(abs(value), 1))) // 3))
    return f"{value / 1000**exponent:.3g} {' kMGTP'[exponent].strip()}FLOP"
