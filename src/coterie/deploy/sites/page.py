"""The status page of a hub, which only this machine can open."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from jinja2 import Environment, PackageLoader

from .hub import Hub


def words_for(seconds: float) -> str:
    """A time in words.

    >>> words_for(40), words_for(300), words_for(9000)
    ('40 seconds', '5 minutes', '2.5 hours')
    """
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    if seconds < 6000:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"


def page_of(status: dict[str, Any]) -> str:
    """The page for a status of the hub."""
    environment = Environment(loader=PackageLoader(__package__), autoescape=True)
    left = status["seconds_left"]
    shown = status | {"left": "" if left is None else words_for(left)}
    return environment.get_template("hub.html").render(shown)


@contextmanager
def status_page(hub: Hub, port: int = 0) -> Iterator[str]:
    """Serves the page to this machine while the context lasts; gives its address."""
    # A page of another site that knows the port must not read this one: browsers
    # send the name of the host that they believe to ask.
    hosts: set[str] = set()

    def respond(request: BaseHTTPRequestHandler) -> None:
        if request.headers.get("Host") not in hosts:
            return request.send_error(403)
        if request.path not in ("/", "/status.json"):
            return request.send_error(404)
        plain = request.path != "/"
        status = hub.status()
        text = json.dumps(status) if plain else page_of(status)
        kind = "application/json" if plain else "text/html; charset=utf-8"
        body = text.encode()
        request.send_response(200)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    handler = type(
        "_Page",
        (BaseHTTPRequestHandler,),
        {"do_GET": respond, "log_message": lambda *_: None},
    )
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    hosts |= {f"{name}:{server.server_port}" for name in ("127.0.0.1", "localhost")}
    thread = threading.Thread(target=server.serve_forever, args=(0.1,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
