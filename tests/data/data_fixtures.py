"""A web server on loopback and data of which only the labels matter."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch

from fedwidth.data import Data, from_tensors


class Server:
    """A web server on loopback: `files` maps a path to its content, `promised` to a longer Content-Length."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.promised: dict[str, int] = {}
        self.requests: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(self.path)
                if self.path not in server.files:
                    self.send_error(404)
                    return
                content = server.files[self.path]
                self.send_response(200)
                self.send_header("Content-Length", str(server.promised.get(self.path, len(content))))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}/"

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


def labelled(train: list[int], test: list[int] | None = None, classes: int | None = None) -> Data:
    """Data whose input i is the number i: only the labels matter."""
    test = train if test is None else test
    inputs = [torch.arange(float(len(targets)))[:, None] for targets in (train, test)]
    return from_tensors(inputs[0], torch.tensor(train), inputs[1], torch.tensor(test), classes=classes)
