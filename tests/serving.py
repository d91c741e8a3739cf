# pyright: basic
"""Real servers on this machine: an index of packages, and as much of the hub as a download needs."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit
from zipfile import ZIP_DEFLATED, ZipFile

DISTRIBUTION, VERSION = "tiny-model", "1.0"
WHEEL = "tiny_model-1.0-py3-none-any.whl"
MEMBER = "tiny_model/weights.bin"
INFO = "tiny_model-1.0.dist-info"
METADATA = f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {VERSION}\n"


@dataclass
class Site:
    """What a server has and how it behaves; tests change it while it runs."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    stop_after: list[int] = field(default_factory=list)
    """For each of the next answers to a GET of a wheel: how many bytes come before the connection ends."""
    statuses: dict[str, int] = field(default_factory=dict)
    """Errors by path."""
    pause: float = 0.0
    """Seconds between pieces of a wheel."""
    password: str | None = None
    """The header that wheels are given for."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of all requests."""


@contextmanager
def serving(site: Site) -> Generator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            site.asked.append((self.command, path))
            content, wheel = site.files.get(path), path.endswith(".whl")
            status = site.statuses.get(path, 404 if content is None else 200)
            if wheel and site.password and self.headers.get("Authorization") != site.password:
                status = 401
            if status != 200 or content is None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200)
            kind = "application/json" if path.startswith("/api/") else "text/html"
            extra = {"Content-Type": kind, **site.headers.get(path, {})}
            for name, value in {**extra, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.send_body(content, wheel)

        def send_body(self, body: bytes, wheel: bool) -> None:
            if wheel and site.stop_after:
                body = body[: site.stop_after.pop(0)]
                self.close_connection = True
            step = 1 << 12 if wheel and site.pause else len(body) or 1
            try:
                for start in range(0, len(body), step):
                    self.wfile.write(body[start : start + step])
                    time.sleep(site.pause if wheel else 0)
            except OSError:  # whoever asked is gone
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    site.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def make_wheel(members: dict[str, bytes]) -> bytes:
    """A zip of these files that pip takes for a wheel."""
    buffer = io.BytesIO()
    with ZipFile(buffer, "w", ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(f"{INFO}/METADATA", METADATA)
        archive.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{INFO}/RECORD", "")
    return buffer.getvalue()


def put_wheel(site: Site, wheel: bytes, *, sha256: str | None = None) -> None:
    """An index with one wheel; its metadata lie beside it, so that pip need not download it to read them."""
    digest = sha256 or hashlib.sha256(wheel).hexdigest()
    link = f'<a href="/files/{WHEEL}#sha256={digest}" data-dist-info-metadata="true">{WHEEL}</a>'
    site.files[f"/simple/{DISTRIBUTION}/"] = f"<!doctype html><html><body>{link}</body></html>".encode()
    site.files[f"/files/{WHEEL}"] = wheel
    site.files[f"/files/{WHEEL}.metadata"] = METADATA.encode()


def put_hub_model(site: Site, name: str, revision: str, commit: str, directory: Path) -> None:
    """A repository of the hub with the files of a directory, at one revision."""
    paths = sorted(path for path in directory.iterdir() if path.is_file())
    tree = []
    for path in paths:
        content = path.read_bytes()
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entry = {"type": "file", "path": path.name, "size": len(content), "oid": blob}
        if path.suffix not in (".json", ".txt"):
            blob = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": blob, "size": len(content), "pointerSize": 100}
        tree.append(entry)
        for way in (commit, revision):
            file = f"/{name}/resolve/{way}/{path.name}"
            site.files[file] = content
            site.headers[file] = {"ETag": f'"{blob}"', "X-Repo-Commit": commit}
    listed = [{"rfilename": path.name} for path in paths]
    about = json.dumps({"id": name, "modelId": name, "sha": commit, "private": False, "siblings": listed}).encode()
    for way in (revision, commit):
        site.files[f"/api/models/{name}/revision/{way}"] = about
        site.files[f"/api/models/{name}/tree/{way}"] = json.dumps(tree).encode()
    if revision == "main":
        site.files[f"/api/models/{name}"] = about
