"""Vulnerabilities that do not apply, and why: an OpenVEX document.

In: a file in JSON. Out: the reason for a vulnerability and a package. Source: github.com/openvex/spec.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nightjar_ci.errors import InputError

NOT_AFFECTED = ("not_affected", "fixed")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Vulnerability(_Part):
    name: str
    aliases: tuple[str, ...] = ()


class _Product(_Part):
    id: str = Field("", alias="@id")
    identifiers: dict[str, str] = {}
    subcomponents: tuple[_Product, ...] = ()


class _Statement(_Part):
    vulnerability: _Vulnerability
    products: tuple[_Product, ...] = ()
    status: Literal["not_affected", "affected", "fixed", "under_investigation"]
    justification: str = ""
    impact_statement: str = ""


class _Document(_Part):
    statements: tuple[_Statement, ...]


@dataclass(frozen=True, slots=True)
class Exceptions:
    """What a document says; later statements count more."""

    statements: tuple[_Statement, ...] = ()

    def find_reason(self, names: Collection[str], purl: str) -> str | None:
        """Why a vulnerability does not apply to a package; None where it does, or nothing is said.

        Args:
            names: of the vulnerability, its id and its aliases.
            purl: of the package, without version.
        """
        reason = None
        for statement in self.statements:
            named = {statement.vulnerability.name, *statement.vulnerability.aliases}
            if named.isdisjoint(names) or not _is_about(statement.products, purl):
                continue
            reason = None
            if statement.status in NOT_AFFECTED:
                reason = statement.impact_statement or statement.justification or statement.status
        return reason


def read_exceptions(path: Path) -> Exceptions:
    """The statements of an OpenVEX document.

    Raises:
        InputError: the file is missing or not such a document, or a statement excuses without a reason.
    """
    try:
        parsed: Any = json.loads(path.read_bytes())
        document = _Document.model_validate(parsed)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
    except (ValueError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise InputError(f"{path}: not a valid OpenVEX document: {first}.", "https://github.com/openvex/spec") from None
    for statement in document.statements:
        if statement.status == "not_affected" and not (statement.justification or statement.impact_statement):
            raise InputError(
                f"{path}: {statement.vulnerability.name}: not_affected without a reason.",
                "add justification or impact_statement",
            )
    return Exceptions(document.statements)


def _is_about(products: Collection[_Product], purl: str) -> bool:
    """Whether one of the products is the package, or names it as a part; no products means all."""
    if not products:
        return True
    for product in products:
        if product.subcomponents:
            if _is_about(product.subcomponents, purl):
                return True
        elif purl in {_without_version(name) for name in (product.id, product.identifiers.get("purl", ""))}:
            return True
    return False


def _without_version(purl: str) -> str:
    return purl.partition("?")[0].partition("@")[0].lower()
