"""The command line `dispatch`.

One rule: what is asked for is on standard output and nothing else is; progress, advice and errors are on standard
error. An error of the family is one line and its exit code, never a traceback. What a command does is imported when it
is called, so that help and status are quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from dispatch_core.cli.exits import BAD_INPUT, BROKEN_PIPE, UNEXPECTED
from dispatch_core.errors import DispatchError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns what to exit with (`exits` lists the codes)."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # What the terminal cannot show is shown escaped: no key or message may break a command.
            stream.reconfigure(errors="backslashreplace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given)
    except BrokenPipeError:
        # The reader has left. Without this, Python complains once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _run(given: list[str]) -> int:
    import typer

    from dispatch_core.cli.showing import app

    try:
        code = app(args=given, prog_name="dispatch", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except DispatchError as error:
        return _fail(given, type(error).__name__, str(error), error.exit_code)
    except typer.TyperException as error:
        hint = "" if "\n" in error.format_message() else " (dispatch --help lists what there is)"
        return _fail(given, "Usage", error.format_message() + hint, BAD_INPUT)
    except SystemExit as left:
        # The library leaves by itself where a reader has left.
        if isinstance(left.__context__, BrokenPipeError):
            raise left.__context__ from None
        raise
    except (typer.Abort, KeyboardInterrupt):
        return _fail(given, "Interrupted", "interrupted; nothing more was done", 130)
    except BrokenPipeError:
        raise
    except Exception as error:
        if os.environ.get("DISPATCH_TRACEBACK"):
            raise
        text = f"unexpected {type(error).__name__}: {error}; DISPATCH_TRACEBACK=1 shows where"
        return _fail(given, type(error).__name__, text, UNEXPECTED)


def _fail(given: list[str], kind: str, text: str, code: int) -> int:
    """One line on standard error; where JSON was asked for, an object on standard output too."""
    from dispatch_core.cli.screen import clean, json_text

    if _wants_json(given):
        error = {"kind": kind, "message": text, "exit_code": code}
        sys.stdout.write(json_text({"error": error}) + "\n")
        sys.stdout.flush()
    sys.stderr.write(f"dispatch: {clean(' '.join(text.split()))}\n")
    return code


def _wants_json(given: list[str]) -> bool:
    """Whether JSON was asked for, also where the arguments could not be read to their end."""
    pairs = zip(given, [*given[1:], ""], strict=True)
    return any(
        (name in ("-o", "--output") and value == "json") or name in ("-ojson", "--output=json") for name, value in pairs
    )
