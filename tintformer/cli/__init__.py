"""The command `tint`. Heavy imports happen inside the commands, so that `tint --help` answers at once."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress


def command() -> None:
    """What the script `tint` runs: the command line, and an end of the process when all is said and cleaned up.

    Python would go on to take apart the modules of torch and transformers, for a fifth of a short command's time.
    """
    ended = [1]
    atexit.register(lambda: _leave(ended[0]))  # the first to be registered, so the last to be called
    try:
        main()
        ended[0] = 0
    except SystemExit as asked:
        ended[0] = asked.code if isinstance(asked.code, int) else int(asked.code is not None)
        raise


def _leave(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def main() -> None:
    """Run the command line; bad input ends in one line on standard error and exit code 2, Ctrl-C quietly in 130."""
    from tintformer.console import greeting
    from tintformer.errors import TintError
    from tintformer.threads import use_sleeping_threads

    use_sleeping_threads()
    _write_what_can_be_written()

    try:
        with greeting("starting"):
            from tintformer.cli.app import app

        try:
            app()
        finally:
            _flush()
    except KeyboardInterrupt:  # while the commands were being imported; once they run, typer does the same
        sys.exit(130)
    except BrokenPipeError:  # nobody reads on, as after `| head`
        sys.exit(1)
    except TintError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    except BaseException as error:
        # A panic within the library tokenizers, which is no Exception; most are caught where a tokenizer is called.
        if type(error).__name__ != "PanicException":
            raise
        _fail(f"the library tokenizers failed ({str(error)[:200]}); use another tokenizer")


def _write_what_can_be_written() -> None:
    """Spell out characters that the terminal's encoding lacks; where the shell has closed an output, write nowhere."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _flush() -> None:
    """Write out what was printed while a full disk can still be reported in one line."""
    try:
        sys.stdout.flush()
    except OSError:
        # The interpreter would try once more at its end, and say so.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _fail(message: str) -> None:
    from tintformer.console import complain

    complain(message)
    sys.exit(2)
