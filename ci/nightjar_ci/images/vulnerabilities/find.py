"""The known vulnerabilities of packages: which, how bad, where fixed, since which night, and which do not apply.

In: components of an SBOM, a database, exceptions, and earlier nights. Out: one `Vulnerability` for each package and
fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packaging.version import Version

from nightjar_ci.images.vulnerabilities.components import Component
from nightjar_ci.images.vulnerabilities.debian_version import debian_key
from nightjar_ci.images.vulnerabilities.osv import Affected, Entry
from nightjar_ci.images.vulnerabilities.vex import Exceptions
from nightjar_ci.untrusted.terminal import show_controls

RANGES = ("ECOSYSTEM", "SEMVER")  # ranges of git commits say nothing about a version


@dataclass(frozen=True, slots=True, kw_only=True)
class Vulnerability:
    """A known fault of a package.

    Attributes:
        id: of the database.
        aliases: other names, such as a CVE.
        component: the package.
        level: how severe it is, as the database says.
        summary: one line.
        published: date, YYYY-MM-DD; empty where unknown.
        fixed: the first version without it; empty where there is none.
        since: the first night in a row that had an affected version; empty where no nights are known.
        reason: why it does not apply; None where it does.
    """

    id: str
    aliases: tuple[str, ...]
    component: Component
    level: str
    summary: str
    published: str
    fixed: str
    since: str = ""
    reason: str | None = None

    @property
    def line(self) -> str:
        """It in one line, without control characters."""
        parts = [f"{self.component.name} {self.component.version}", self.level, self.id, self.summary or "no summary"]
        if self.aliases:
            parts[2] += f" ({', '.join(self.aliases[:3])})"
        parts.append(f"fixed in {self.fixed or 'no version'}")
        if self.published:
            parts.append(f"published {self.published}")
        if self.since:
            parts.append(f"in images since {self.since}")
        if self.reason is not None:
            parts.append(f"does not apply: {self.reason}")
        return show_controls("; ".join(parts)).replace("\n", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierNight:
    """The packages of an earlier night: name to version, by ecosystem."""

    date: str
    packages: Mapping[str, Mapping[str, str]]


def find_vulnerabilities(
    components: Sequence[Component],
    entries: Iterable[Entry],
    exceptions: Exceptions,
    nights: Sequence[EarlierNight] = (),
    debian: str = "",
) -> list[Vulnerability]:
    """The vulnerabilities of packages, those that apply first, then by package.

    Args:
        components: of the image.
        entries: about them.
        exceptions: what does not apply.
        nights: of the same image, newest first, tonight included.
        debian: the release of the image, such as `13`; empty: any release counts.
    """
    by_source: dict[tuple[str, str], list[Component]] = {}
    for component in components:
        by_source.setdefault((component.ecosystem, component.source), []).append(component)
    faults: dict[tuple[str, Component], Vulnerability] = {}
    for entry in entries:
        for affected in entry.affected:
            ecosystem, _, release = affected.package.ecosystem.partition(":")
            if ecosystem == "Debian" and debian and release and release != debian:
                continue
            for component in by_source.get((ecosystem, affected.package.name), ()):
                if is_affected(affected, component.version, ecosystem):
                    faults[entry.id, component] = _describe(entry, affected, component, exceptions, nights)
    return sorted(_merge(faults.values()), key=lambda fault: (fault.reason is not None, fault.component, fault.id))


def _merge(faults: Iterable[Vulnerability]) -> list[Vulnerability]:
    """One fault for each package and set of names: databases list one CVE under several ids."""
    merged: list[Vulnerability] = []
    for fault in sorted(faults, key=lambda fault: (fault.level == "unknown", fault.id)):
        names = {fault.id, *fault.aliases}
        same = next((m for m in merged if m.component == fault.component and names & {m.id, *m.aliases}), None)
        if same is None:
            merged.append(fault)
            continue
        aliases = tuple(sorted({*same.aliases, *names} - {same.id}))
        merged[merged.index(same)] = replace(same, aliases=aliases, reason=same.reason or fault.reason)
    return merged


def is_affected(affected: Affected, version: str, ecosystem: str) -> bool:
    """Whether a version is affected: it is listed, or in a range."""
    if version in affected.versions:
        return True
    key = _find_key(ecosystem)
    ranges = [part for part in affected.ranges if part.type in RANGES]
    try:
        return any(_is_inside(part.events, key(version), key) for part in ranges)
    except ValueError:
        return False  # a version that its ecosystem does not know is only found where it is listed


def _is_inside(events: Sequence[Mapping[str, str]], version: Any, key: Callable[[str], Any]) -> bool:
    """Whether a version is between an `introduced` and the next `fixed`, or up to the next `last_affected`."""
    inside = False
    ordered = sorted(
        ((kind, text) for event in events for kind, text in event.items() if kind != "limit"),
        key=lambda event: (event[1] != "0", key(event[1])),
    )
    for kind, text in ordered:
        if text == "0":
            inside = inside or kind == "introduced"
            continue
        limit = key(text)
        if kind == "introduced":
            inside = inside or version >= limit
        elif kind == "fixed":
            inside = inside and version < limit
        elif kind == "last_affected":
            inside = inside and version <= limit
    return inside


def _describe(
    entry: Entry, affected: Affected, component: Component, exceptions: Exceptions, nights: Sequence[EarlierNight]
) -> Vulnerability:
    since = ""
    for night in nights:
        version = night.packages.get(component.ecosystem, {}).get(component.name)
        if version is None or not is_affected(affected, version, component.ecosystem):
            break
        since = night.date
    return Vulnerability(
        id=entry.id,
        aliases=tuple(name for name in entry.names if name != entry.id),
        component=component,
        level=entry.level,
        summary=" ".join(entry.summary.split()),
        published=entry.published[:10],
        fixed=_find_fixed(affected, component),
        since=since,
        reason=exceptions.find_reason(entry.names, component.purl),
    )


def _find_fixed(affected: Affected, component: Component) -> str:
    """The oldest fixed version that is newer than the installed one."""
    key = _find_key(component.ecosystem)
    fixed = [
        event["fixed"] for part in affected.ranges if part.type in RANGES for event in part.events if "fixed" in event
    ]
    try:
        return min((text for text in fixed if key(text) > key(component.version)), key=key, default="")
    except ValueError:
        return ""


def _find_key(ecosystem: str) -> Callable[[str], Any]:
    return debian_key if ecosystem == "Debian" else Version
