"""A Slack-compatible webhook, such as those of Slack, Mattermost, Rocket.Chat and Discord (at `/slack`).

In: a message and the secret address. Out: one line that says what was done. It is sent when something became red or all
is well again, not every night.
"""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from nightjar_ci.errors import NightjarError
from nightjar_ci.notify.message import Message, render_chat
from nightjar_ci.web.http import HttpError, request


def send_chat(message: Message, url: str) -> str:
    """Sends the message, where it is news."""
    if not message.is_news:
        return "webhook: nothing new to say"
    try:
        host = urlsplit(url).hostname or "the address"
    except ValueError:
        raise NightjarError("webhook: the address is not a valid URL.", "check NIGHTJAR_WEBHOOK_URL") from None
    body = json.dumps(render_chat(message)).encode()
    try:
        request(url, method="POST", body=body, headers={"Content-Type": "application/json"})
    except HttpError as error:
        why = f"status {error.status}" if error.status else "it cannot be reached"
        raise NightjarError(f"webhook: {host}: {why}.", "check NIGHTJAR_WEBHOOK_URL") from None
    return f"webhook: sent to {host}"
