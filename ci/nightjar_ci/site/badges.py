"""Badges of the nights: SVG that needs no service, and JSON for a shields.io endpoint.

In: a label and an answer. Out: the text of the two files. Text widths are estimated, which is precise enough for the
dozen short words that badges use.

Source: https://shields.io/badges/endpoint-badge
"""

from __future__ import annotations

import json
from html import escape
from typing import NamedTuple

from nightjar_ci.causes.status import ANSWER_TEXT, Answer

LETTER_WIDTH = 6.6  # of an 11 px sans-serif, on average, measured in Chromium
PADDING = 12


class Colour(NamedTuple):
    """A colour in SVG and its name on shields.io."""

    svg: str
    shields: str


COLOURS: dict[Answer, Colour] = {
    "ok": Colour("#237a3c", "brightgreen"),
    "regressed": Colour("#c92a2a", "red"),
    "failed": Colour("#b5480a", "orange"),
    "unfinished": Colour("#b5480a", "orange"),
    "cannot_tell": Colour("#8a6100", "yellow"),
    "not_judged": Colour("#5b6577", "lightgrey"),
}


def render_svg(label: str, answer: Answer) -> str:
    """The badge as SVG, with its text for screen readers."""
    message = ANSWER_TEXT[answer]
    left, right = (round(PADDING + LETTER_WIDTH * len(text)) for text in (label, message))
    description = escape(f"{label}: {message}")
    texts = "".join(
        f'<text x="{middle:g}" y="14" text-anchor="middle">{escape(text)}</text>'
        for text, middle in ((label, left / 2), (message, left + right / 2))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{description}"><title>{description}</title>'
        f'<clipPath id="round"><rect width="{left + right}" height="20" rx="3"/></clipPath>'
        f'<g clip-path="url(#round)"><rect width="{left}" height="20" fill="#3b4250"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{COLOURS[answer].svg}"/></g>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{texts}</g></svg>\n'
    )


def render_endpoint(label: str, answer: Answer) -> str:
    """The badge as JSON that shields.io draws."""
    badge = {"schemaVersion": 1, "label": label, "message": ANSWER_TEXT[answer], "color": COLOURS[answer].shields}
    return json.dumps(badge, indent=1) + "\n"
