"""The command `tint`. Heavy imports happen inside the commands, so that `tint --help` answers at once."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; bad input ends in one line on standard error and exit code 2."""
    from tintformer.cli.app import app
    from tintformer.errors import TintError

    try:
        app()
    except TintError as error:
        print(f"tint: {error}", file=sys.stderr)
        sys.exit(2)
