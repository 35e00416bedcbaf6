"""A mail about a night by SMTP: the causes that are not ok, red first, as plain text.

In: a message, the secret address of the mail server, sender and receivers. Out: one line about the action. A night that
is ok after one that was ok sends none.
"""

from __future__ import annotations

import smtplib
import ssl
from dataclasses import dataclass
from email.errors import MessageError
from email.message import EmailMessage
from urllib.parse import unquote, urlsplit

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.notify.message import Message, render_mail

_TIMEOUT_S = 30
_PORTS = {"smtp": 587, "smtps": 465}


@dataclass(frozen=True, slots=True, kw_only=True)
class MailServer:
    """The server that accepts mail.

    Attributes:
        encrypted: TLS from the start; else STARTTLS if the server has it, and always before a password is sent.
    """

    host: str
    port: int
    encrypted: bool
    user: str | None
    password: str | None


def parse_server(url: str) -> MailServer:
    """The server of `smtps://user:password@host:465` or `smtp://host:25`; error messages contain no password."""
    hint = "expected smtps://USER:PASSWORD@HOST or smtp://HOST:PORT"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InputError("NIGHTJAR_SMTP_URL is not a valid address.", hint) from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise InputError("NIGHTJAR_SMTP_URL is not a valid address.", hint)
    user, password = (None if text is None else unquote(text) for text in (parts.username, parts.password))
    return MailServer(
        host=parts.hostname,
        port=port or _PORTS[parts.scheme],
        encrypted=parts.scheme == "smtps",
        user=user,
        password=password,
    )


def send_mail(message: Message, server: MailServer, sender: str, receivers: str) -> str:
    """Sends the message, unless all is well and was so before."""
    if message.state == "ok" and not message.is_news:
        return "mail: nothing new to say"
    mail = make_mail(message, sender, receivers)
    try:
        with _connect(server) as connection:
            refused = connection.send_message(mail)
    except (OSError, smtplib.SMTPException, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        if isinstance(error, smtplib.SMTPResponseException):
            why = f"status {error.smtp_code}"
        raise NightjarError(
            f"mail: {server.host}: {why}.", "check NIGHTJAR_SMTP_URL, NIGHTJAR_MAIL_FROM and _TO"
        ) from None
    if refused:
        raise NightjarError(f"mail: {server.host} refused {', '.join(refused)}.", "the others were sent one")
    return f"mail: sent by {server.host}"


def make_mail(message: Message, sender: str, receivers: str) -> EmailMessage:
    """The mail about a night."""
    subject, text = render_mail(message)
    mail = EmailMessage()
    try:
        mail["Subject"], mail["From"], mail["To"] = subject, sender, receivers
    except (ValueError, MessageError) as error:
        raise NightjarError(f"mail: {error}.", "check NIGHTJAR_MAIL_FROM and NIGHTJAR_MAIL_TO") from None
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no automatic replies
    mail.set_content(text)
    return mail


def _connect(server: MailServer) -> smtplib.SMTP:
    context = ssl.create_default_context()
    connection: smtplib.SMTP
    if server.encrypted:
        connection = smtplib.SMTP_SSL(server.host, server.port, timeout=_TIMEOUT_S, context=context)
    else:
        connection = smtplib.SMTP(server.host, server.port, timeout=_TIMEOUT_S)
    try:
        connection.ehlo()
        if not server.encrypted and (connection.has_extn("starttls") or server.password is not None):
            connection.starttls(context=context)
            connection.ehlo()
        if server.user is not None:
            connection.login(server.user, server.password or "")
    except BaseException:
        connection.close()
        raise
    return connection
