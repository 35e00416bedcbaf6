"""The news feed of the status page: an item for each series that regressed or recovered.

In: events, newest first, and the address of the page. Out: the text of `feed.xml`. Text from jobs is escaped, and
characters that XML does not allow are removed.

Source: https://www.rssboard.org/rss-specification
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from email.utils import format_datetime
from xml.etree import ElementTree

from nightjar_ci.causes.status import Event

TITLE = "Nightjar: regressions"
_NOT_XML = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


def headline(event: Event) -> str:
    return f"{event.kind}: {event.series} ({event.judge})"


def summary(event: Event) -> str:
    explanation = "It has recovered."
    if event.verdict is not None:
        explanation = event.verdict.explanation
    return f"{explanation} Night {event.night.id} of {event.night.matrix}."


def link(event: Event, address: str) -> str:
    return f"{address}#{event.night.id}"


def render_rss(events: Sequence[Event], address: str) -> str:
    """The feed as RSS 2.0.

    Args:
        address: of the status page; if empty, links are relative.
    """
    rss = ElementTree.Element("rss", {"version": "2.0"})
    channel = ElementTree.SubElement(rss, "channel")
    _add(channel, title=TITLE, link=address, description="Series that became regressed, and that recovered.")
    for event in events:
        item = ElementTree.SubElement(channel, "item")
        published = format_datetime(datetime.fromisoformat(event.night.started_at))
        _add(item, title=headline(event), link=link(event, address), description=summary(event), pubDate=published)
        guid = ElementTree.SubElement(item, "guid", {"isPermaLink": "false"})
        guid.text = _NOT_XML.sub("", event.id)
    ElementTree.indent(rss, " ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(rss, encoding="unicode") + "\n"


def _add(parent: ElementTree.Element, **texts: str) -> None:
    for name, text in texts.items():
        ElementTree.SubElement(parent, name).text = _NOT_XML.sub("", text)
