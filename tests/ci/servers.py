"""A small web server on loopback for tests of what asks an index or a registry."""

import http.server
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Served:
    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)


@contextmanager
def serve(answer: Callable[[str, str, str | None], Answer]) -> Iterator[Served]:
    served = Served()

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            served.asked.append((self.command, self.path))
            served.authorizations.append(self.headers["Authorization"])
            served.bodies.append(self.rfile.read(int(self.headers["Content-Length"] or 0)))
            status, headers, body = answer(self.command, self.path, self.headers["Authorization"])
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_POST = do_PATCH = do_PUT = do_DELETE = _answer  # noqa: N815 - the library's names

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def listen(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that hands each connection to a function, without a library that minds the protocol; its host."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            talk(self.request)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
