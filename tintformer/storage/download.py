"""Downloads that go on where they stopped, through the proxy and with the certificates that pip uses."""

from __future__ import annotations

import base64
import netrc
import os
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from tintformer.errors import LoadError
from tintformer.version import __version__

Say = Callable[[str, float], None]
"""Is told what is being done, and which share of it is behind."""

ATTEMPTS = 5
"""Connections in one run, as long as each brings something: few give up on a poor line, many hide a dead one."""
_CHUNK = 1 << 18


class BrokenDownload(Exception):
    """The server, or the way to it, failed; `received` bytes came before."""

    def __init__(self, message: str, received: int = 0):
        super().__init__(message)
        self.received = received


@dataclass(frozen=True)
class Connection:
    """How to ask a server."""

    opener: OpenerDirector = field(default_factory=build_opener)
    authorization: str | None = None
    timeout: float = 30.0
    """Seconds of silence: a short one breaks slow lines off, a long one waits for dead ones."""

    @classmethod
    def of(cls, url: str, settings: Mapping[str, str]) -> Connection:
        """As pip would connect, by its settings; what they can say beyond this is left to pip itself."""
        proxy = settings.get("proxy")
        try:
            handlers = [
                HTTPSHandler(context=_certificates(settings.get("cert"))),
                ProxyHandler({"http": proxy, "https": proxy} if proxy else None),
            ]
            timeout = float(settings.get("default-timeout") or settings.get("timeout") or cls.timeout)
        except (OSError, ValueError) as error:
            raise BrokenDownload(f"pip's settings cannot be used ({error})") from error
        return cls(build_opener(*handlers), _credentials(urlsplit(url), settings), timeout)

    def open(self, url: str, begin: int) -> Any:
        """The answer from byte `begin` on, if the server can do that."""
        address = urlsplit(url)
        if address.scheme not in ("http", "https"):
            raise BrokenDownload(f"{address.scheme}: is not read here")
        # pip blanks out the password; the opener would take all of it for the host.
        request = Request(address._replace(netloc=address.netloc.rpartition("@")[2]).geturl())
        request.add_header("User-Agent", f"tintformer/{__version__}")
        request.add_header("Accept-Encoding", "identity")
        if begin:
            request.add_header("Range", f"bytes={begin}-")
        if self.authorization:  # not for the host of a redirection
            request.add_unredirected_header("Authorization", self.authorization)
        try:
            return self.opener.open(request, timeout=self.timeout)
        except HTTPError as error:
            error.close()
            if error.code == 416 and begin:
                raise _NoSuchRange from error
            raise BrokenDownload(f"the server answers {error.code} {error.reason}") from error
        except URLError as error:
            raise BrokenDownload(str(error.reason)) from error
        except (OSError, HTTPException, ValueError) as error:
            raise BrokenDownload(str(error) or type(error).__name__) from error


class _NoSuchRange(Exception):
    """The server has fewer bytes than are here already."""


def download(url: str, part: Path, size: int, connection: Connection, say: Say) -> None:
    """Bring a file of `size` bytes to `part`, from where an earlier run stopped; its content is not judged here."""
    received = 0

    def count(number: int, position: int) -> None:
        nonlocal received
        received += number
        say(f"{position / 1e6:.1f} of {size / 1e6:.1f} MB", position / size)

    for attempt in range(ATTEMPTS):
        try:
            _go_on(url, part, size, connection, count)
            return
        except BrokenDownload as error:
            # Where nothing ever came, trying again is left to pip.
            if not received or attempt == ATTEMPTS - 1:
                raise BrokenDownload(str(error), received) from error
            time.sleep(0.5 * 2**attempt)


def _go_on(url: str, part: Path, size: int, connection: Connection, count: Callable[[int, int], None]) -> None:
    """One connection, until all bytes are there."""
    begin = part.stat().st_size if part.exists() else 0
    if begin == size:
        return
    if begin > size:
        begin = 0
    try:
        answer = connection.open(url, begin)
    except _NoSuchRange:
        begin, answer = 0, connection.open(url, 0)
    with answer:
        position = _first(answer, begin, size)
        with part.open("r+b" if position else "wb") as file:
            file.seek(position)
            file.truncate()
            while chunk := _read(answer):
                position += len(chunk)
                if position > size:
                    raise _other_file(f"more than {size}")
                file.write(chunk)
                count(len(chunk), position)
    if position < size:
        raise BrokenDownload(f"the connection ended after {position} of {size} bytes")


def _first(answer: Any, begin: int, size: int) -> int:
    """The position of the first byte of an answer: 0 from a server that knows no ranges."""
    if answer.status == 206:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
        if match and match[2] not in (str(size), "*"):
            raise _other_file(match[2])
        if match and int(match[1]) == begin:
            return begin
        raise BrokenDownload("the server answers with another range than it was asked for")
    length = answer.headers.get("Content-Length")
    if length is not None and length != str(size):
        raise _other_file(length)
    return 0


def _other_file(size: str) -> LoadError:
    return LoadError(f"the index has another file of this name: it has {size} bytes; use another index of packages")


def _read(answer: Any) -> bytes:
    try:
        return answer.read(_CHUNK)
    except (OSError, HTTPException) as error:
        raise BrokenDownload(str(error) or type(error).__name__) from error


def _certificates(given: str | None) -> ssl.SSLContext:
    """What pip trusts: its own setting, then the variables of its HTTP library; OpenSSL knows SSL_CERT_FILE itself."""
    path = given or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    if not path:
        return ssl.create_default_context()
    return ssl.create_default_context(capath=path) if os.path.isdir(path) else ssl.create_default_context(cafile=path)


def _credentials(address: SplitResult, settings: Mapping[str, str]) -> str | None:
    """Name and password for a host, from the address of the index or from netrc, as a header."""
    indexes = f"{settings.get('index-url', '')} {settings.get('extra-index-url', '')}".split()
    host = address.netloc.rpartition("@")[2]
    for index in map(urlsplit, indexes):
        if index.username and (index.scheme, index.netloc.rpartition("@")[2]) == (address.scheme, host):
            return _basic(unquote(index.username), unquote(index.password or ""))
    try:
        found = netrc.netrc(os.environ.get("NETRC")).authenticators(address.hostname or "")
    except (OSError, netrc.NetrcParseError):  # none, or none that can be read
        return None
    return _basic(found[0], found[2] or "") if found else None


def _basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()
