"""Mails: what is not ok, to whom it was asked for, and no password over an open line."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy

import pytest

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.notify.mail import MailServer, make_mail, parse_server, send_mail
from nightjar_ci.notify.send import Channels, plan_sending, send_all
from nightjar_ci.settings import read_settings
from tests.ci.notify.test_message import EVIL, make_cause, make_message


class FakeMailServer(socketserver.ThreadingTCPServer):
    """A mail server without encryption that keeps what it is told."""

    daemon_threads = allow_reuse_address = True

    def __init__(self, refuse: str = "") -> None:
        super().__init__(("127.0.0.1", 0), Conversation)
        self.refuse, self.commands, self.mails = refuse, list[str](), list[bytes]()

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self.server_address[1]}"


class Conversation(socketserver.StreamRequestHandler):
    """One client."""

    server: FakeMailServer

    def handle(self) -> None:
        self.wfile.write(b"220 fake\r\n")
        while line := self.rfile.readline():
            command = line.decode().strip()
            self.server.commands.append(command)
            word = command.upper().partition(" ")[0]
            if self.server.refuse and command.upper().startswith(self.server.refuse):
                self.wfile.write(b"550 no\r\n")
            elif word == "DATA":
                self.wfile.write(b"354 go\r\n")
                lines = []
                while (part := self.rfile.readline()) != b".\r\n":
                    lines.append(part)
                self.server.mails.append(b"".join(lines))
                self.wfile.write(b"250 ok\r\n")
            elif word == "QUIT":
                self.wfile.write(b"221 bye\r\n")
                return
            else:
                self.wfile.write(b"250 ok\r\n")


@contextmanager
def run_server(refuse: str = "") -> Iterator[FakeMailServer]:
    with FakeMailServer(refuse) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_red_night_is_a_mail_with_all_that_one_asks() -> None:
    with run_server() as server:
        environ = {
            "NIGHTJAR_SMTP_URL": server.url,
            "NIGHTJAR_MAIL_FROM": "ci@example.org",
            "NIGHTJAR_MAIL_TO": "a@example.org, b@example.org",
        }
        done, failed = send_all(
            make_message(1, report="https://example.org/r"), plan_sending(Channels(mail=True), read_settings(environ))
        )
    assert (done, failed) == (["mail: sent by 127.0.0.1"], [])
    assert [line for line in server.commands if line.upper().startswith("RCPT")] == [
        "rcpt TO:<a@example.org>",
        "rcpt TO:<b@example.org>",
    ]
    mail = message_from_bytes(server.mails[0], policy=policy.default)
    assert mail["Subject"] == "Nightjar, nightly-cpu: 2 series regressed"
    text = mail.get_content()
    for part in ("https://example.org/r", "15 % slower.", "jax 0.10.1 -> 0.10.2", "nightjar-ci bisect", "@nightjar/"):
        assert part in text


@pytest.mark.parametrize(("before", "sent"), [("ok", 0), (None, 0), ("regressed", 1)])
def test_a_good_night_is_a_mail_only_after_a_bad_one(before: str | None, sent: int) -> None:
    with run_server() as server:
        line = send_mail(make_message(0, before=before), parse_server(server.url), "a@example.org", "b@example.org")
    assert len(server.mails) == sent
    assert line == ("mail: sent by 127.0.0.1" if sent else "mail: nothing new to say")
    assert not sent or b"Subject: Recovered: Nightjar" in server.mails[0]


def test_what_a_job_wrote_adds_no_header_and_acts_in_no_terminal() -> None:
    cause = make_cause(title=EVIL + "\nBcc: all@example.org", explanation="a\x1b[2Kb\r\nSubject: x")
    mail = make_mail(
        make_message(1, cause, exit_text=EVIL + "\r\nBcc: x@example.org"), "a@example.org", "b@example.org"
    )
    assert mail.keys() == [
        "Subject",
        "From",
        "To",
        "Auto-Submitted",
        "Content-Type",
        "Content-Transfer-Encoding",
        "MIME-Version",
    ]
    assert "\x1b" not in mail.get_content()
    assert not [line for line in mail.get_content().splitlines() if line.startswith(("Bcc", "Subject"))]


def test_a_password_is_not_sent_over_an_open_line() -> None:
    with run_server() as server:
        url = server.url.replace("smtp://", "smtp://me:s3cret@")
        with pytest.raises(NightjarError, match="SMTPNotSupportedError") as caught:
            send_mail(make_message(1), parse_server(url), "a@example.org", "b@example.org")
    assert "s3cret" not in str(caught.value)
    assert not [line for line in server.commands if line.upper().startswith("AUTH")]
    assert not server.mails


@pytest.mark.parametrize(
    ("refuse", "why"), [("MAIL", "SMTPSenderRefused|status 550"), ("RCPT", "SMTPRecipientsRefused")]
)
def test_a_server_that_refuses_is_named(refuse: str, why: str) -> None:
    with run_server(refuse) as server, pytest.raises(NightjarError, match=f"mail: 127.0.0.1: ({why})"):
        send_mail(make_message(1), parse_server(server.url), "a@example.org", "b@example.org")


def test_a_receiver_that_is_refused_is_named_and_the_others_get_the_mail() -> None:
    with run_server("RCPT TO:<B@") as server, pytest.raises(NightjarError, match=r"refused b@example.org"):
        send_mail(make_message(1), parse_server(server.url), "a@example.org", "a@example.org,b@example.org")
    assert len(server.mails) == 1


def test_a_server_that_is_not_there_is_not_a_bug() -> None:
    with run_server() as server:
        pass
    with pytest.raises(NightjarError, match=r"mail: 127.0.0.1: Connection refused\. *") as caught:
        send_mail(make_message(1), parse_server(server.url), "a@example.org", "b@example.org")
    assert caught.value.hint is not None


@pytest.mark.parametrize("url", ["mail.example.org", "http://a", "smtp://", "smtp://a:port", "smtp://[x"])
def test_an_address_that_is_not_one_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(InputError, match="NIGHTJAR_SMTP_URL is not a valid address"):
        parse_server(url)


def test_an_address_names_all_that_is_needed() -> None:
    assert parse_server("smtps://me%40x:p%2Fw@mail.example.org") == MailServer(
        host="mail.example.org", port=465, encrypted=True, user="me@x", password="p/w"
    )
    assert parse_server("smtp://mail:25").port == 25


def test_missing_settings_are_said_before_it_sends() -> None:
    with pytest.raises(InputError, match="--mail: NIGHTJAR_SMTP_URL, NIGHTJAR_MAIL_TO must be set"):
        plan_sending(Channels(mail=True), read_settings({"NIGHTJAR_MAIL_FROM": "a@example.org"}))
    environ = {"NIGHTJAR_SMTP_URL": "smtp://a", "NIGHTJAR_MAIL_FROM": "a@x\nBcc: b@x", "NIGHTJAR_MAIL_TO": "b@x"}
    with pytest.raises(NightjarError, match="mail: Header values"):
        plan_sending(Channels(mail=True), read_settings(environ))[0](make_message(1))
