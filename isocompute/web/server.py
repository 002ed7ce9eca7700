"""Serving a study to this machine and nowhere else: the port, the browser, and work done before it is asked for."""

from __future__ import annotations

import errno
import importlib
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec

from isocompute.core.errors import InputError
from isocompute.web.ahead import Ahead
from isocompute.web.cache import PendingError
from isocompute.web.hearing import heard
from isocompute.web.reading import Reading
from isocompute.web.results import Results, Scope
from isocompute.web.source import Source

__all__ = ["HOST", "PORT", "Served", "bind", "serve", "warm"]

HOST = "127.0.0.1"
PORT = 8321
_TRIED = 20
"""Ports after the usual one, where none was asked for."""


@dataclass(frozen=True)
class Served:
    """A study and the socket that it will be served from."""

    results: Results
    socket: socket.socket

    @property
    def url(self) -> str:
        """Where the first page is."""
        return f"http://{HOST}:{self.socket.getsockname()[1]}/"


def bind(address: str, *, port: int | None = None, reading: Reading | None = None) -> Served:
    """Look at the study and take a port; what is wrong with either is known before anything runs."""
    _check_installed()
    source = Source(address, reading)
    snapshot = source.snapshot()
    if not snapshot.specs and not snapshot.parts[-1].runs:
        _check_loads(source)
    elif source.reading.chooses:
        with heard():
            source.load("")  # says what there is to choose from where it leaves no run
    listener = _listen(port)
    ahead = None
    if _cores() > 1:  # on one, a second process would only keep the first page waiting
        with suppress(OSError):  # no more processes, or no interpreter to start: the app does it all
            ahead = Ahead(source, snapshot.version)
    return Served(Results(source, ahead=ahead), listener)


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_installed() -> None:
    """What is missing is said before anything starts; loading it takes half a second, and comes later."""
    for module in ("fastapi", "uvicorn"):
        if find_spec(module) is None:
            raise InputError(f"the web app needs {module}; pip install 'isocompute[ui]'.")


def _check_loads(source: Source) -> None:
    """A table or a trainer's logs will do too; an error says what else would."""
    from isocompute.core import files

    try:
        with heard():  # the app reads them again, and says it on its pages
            source.load("")
    except InputError as error:
        if source.reading.chooses or not files.is_folder(source.address):
            raise
        raise InputError(
            f"{source.address}: no study.toml, no run folder and no log that can be read in it; give a study's folder, "
            "or make one with isocompute study run SPEC.toml or isocompute import LOGS."
        ) from error


def _listen(port: int | None) -> socket.socket:
    ports = [port] if port is not None else [*range(PORT, PORT + _TRIED), 0]
    for candidate in ports:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, candidate))
            listener.listen(128)
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                continue
            raise InputError(f"--port {candidate}: {error.strerror}; give one from 1024 to 65535.") from error
        return listener
    raise InputError(f"--port {port}: in use by another program; leave --port out to take a free one.")


def serve(served: Served, *, browser: bool) -> None:
    """Answer until Ctrl-C."""
    import uvicorn

    from isocompute.web.app import create_app

    config = uvicorn.Config(
        create_app(served.results),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    threading.Thread(target=warm, args=(served.results,), name="warm", daemon=True).start()
    if browser:
        import webbrowser

        threading.Thread(target=webbrowser.open, args=(served.url,), name="browser", daemon=True).start()
    try:
        uvicorn.Server(config).run(sockets=[served.socket])
    finally:
        served.results.close()


def warm(results: Results) -> None:
    """Make what the first pages show, so that it is there when they ask: the charts' script, the law, the limit.

    One after the other: two at once would take as long together, and the law is wanted first. Until it is there, what
    the first page asks for has this process to itself.
    """
    with suppress(InputError):
        scope = results.scope()
        _try(results.law_json, scope)
        threading.Thread(target=_try_script, name="vega", daemon=True).start()
        _try(results.diagnosis, scope)
    for module in ("isocompute.report.figures", "isocompute.api"):  # what the other pages need: a second to load
        importlib.import_module(module)


def _try_script() -> None:
    from isocompute.web import vega

    with suppress(subprocess.CalledProcessError, OSError):  # it is ended with the app; who asks for it again is told
        vega.script()


def _try(make: Callable[[Scope], object], scope: Scope) -> None:
    """Ask for a result; the page that shows it says what is wrong with it, if anything is."""
    with suppress(InputError, PendingError):
        make(scope)
