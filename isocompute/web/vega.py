"""Vega, Vega-Lite and their embedder as one script, from the package that draws our PNGs too.

Putting it together takes two seconds in which Python stands still, so another process does it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

__all__ = ["script"]

_made: list[bytes] = []
_making = threading.Lock()


def script() -> bytes:
    """The script that sets `window.vegaEmbed`; made once."""
    with _making:
        if not _made:
            command = [sys.executable, "-m", "isocompute.web.vega"]
            made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
            _made.append(made.stdout)
    return _made[0]


def main() -> None:
    """Write it to standard output."""
    import vl_convert as vlc

    if hasattr(os, "nice"):
        os.nice(10)  # the law, which the charts wait for anyway, goes first
    sys.stdout.write(vlc.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


if __name__ == "__main__":
    main()
