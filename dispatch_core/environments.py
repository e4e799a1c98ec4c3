"""An environment of its own for each engine, made from this project's lock: Airflow and Prefect cannot share one.

One rule: an environment is a cache. It lies under the user's cache directory, in a folder named after all that it was
made from, so that a second caller finds it, two at once make one, and removing it costs only the time to make it again.
This room knows no engine, only the extra that is named like it, and leaves every choice of packages to uv and the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dispatch_core.errors import BadInput, DispatchError
from dispatch_core.plan import Value

ENGINES = ("airflow", "prefect")

MAKING_SECONDS = 1500.0
"""The longest wait for uv, which may have some 300 MB to download, and for another that makes the same environment."""
NEWS_SECONDS = 10.0
"""How often somebody who waits is told that it goes on."""

CLAIM, ROOT = ".claim", ".root"
"""What lies beside an environment: the file that is held while it is made, and the path of its checkout."""

LEFTOVERS = (
    *("VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONWARNINGS"),
    *("PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__"),
    *("UV", "UV_PROJECT_ENVIRONMENT", "UV_PROJECT", "UV_PYTHON", "UV_RUN_RECURSION_DEPTH", "UV_WORKING_DIRECTORY"),
    *("UV_FROZEN", "UV_LOCKED", "UV_NO_SYNC", "UV_NO_DEV", "UV_NO_EDITABLE", "UV_ISOLATED"),
)
"""Variables that point into the environment of the caller, or change how uv makes one."""


class Environment(Value, frozen=True):
    """One engine's environment, ready to be used."""

    engine: str
    folder: Path
    root: Path
    """The checkout that it was made from, and imports this project from."""

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def python(self) -> Path:
        return self.bin / "python"


def tell(text: str) -> None:
    """Say it to the person who waits: on standard error, at once."""
    print(text, file=sys.stderr, flush=True)


def make_environment(
    engine: str, *, dev: bool = False, python: str | None = None, say: Callable[[str], None] = tell
) -> Environment:
    """Make the engine's environment, or bring the one that is there up to date; a fraction of a second if it is.

    `dev` adds the development group, pytest with it; what another call has added stays. `python` is an interpreter, by
    default the one that runs this. Raises DispatchError, with one line, where it cannot be made.
    """
    if engine not in ENGINES:
        raise BadInput(f"no engine is named {engine!r}; this version knows {', '.join(ENGINES)}")
    root, uv = checkout(), find_uv()
    interpreter = python or sys.executable
    folder = cache_directory() / "environments" / _name(engine, root, interpreter)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.with_name(f"{folder.name}{CLAIM}"), say):
            folder.with_name(f"{folder.name}{ROOT}").write_text(f"{root}\n")
            _bring_up(uv, root, engine, folder, interpreter, dev=dev, say=say)
    except OSError as error:
        raise DispatchError(f"the {engine} environment {folder} cannot be made: {error}") from error
    return Environment(engine=engine, folder=folder, root=root)


def outside() -> dict[str, str]:
    """This program's environment variables, without those that would lead another environment's Python back here."""
    return {name: value for name, value in os.environ.items() if name not in LEFTOVERS}


def checkout() -> Path:
    """The folder with this project's lock. Raises BadInput where this was installed without it."""
    root = Path(__file__).resolve().parents[1]
    if not (root / "uv.lock").is_file():
        raise BadInput(
            f"there is no uv.lock in {root}: engine environments are made from a checkout of dispatch; "
            "clone its repository and use `uv run` there"
        )
    return root


def find_uv() -> str:
    """uv's path: `uv run` tells its own; else the one on PATH, or where the README puts it. Raises BadInput."""
    candidates = (os.environ.get("UV"), shutil.which("uv"), str(Path.home() / ".dispatch" / "bin" / "uv"))
    for found in candidates:
        if found and os.access(found, os.X_OK) and os.path.isfile(found):
            return found
    raise BadInput("uv is not found: python3 -m venv ~/.dispatch && ~/.dispatch/bin/pip install uv")


def cache_directory() -> Path:
    """`dispatch` in the user's cache directory (XDG)."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache).absolute() / "dispatch"


def _name(engine: str, root: Path, interpreter: str) -> str:
    """The folder's name. The checkout is part of it: the environment imports this project from there."""
    made_from = hashlib.sha256((root / "uv.lock").read_bytes())
    for part in (root, Path(interpreter).resolve()):
        made_from.update(b"\0" + os.fsencode(part))
    return f"{engine}-{made_from.hexdigest()[:16]}"


def _bring_up(
    uv: str, root: Path, engine: str, folder: Path, interpreter: str, *, dev: bool, say: Callable[[str], None]
) -> None:
    fresh = not (folder / "pyvenv.cfg").is_file()
    if fresh:
        _clear(folder.parent)
        say(f"making the {engine} environment in {folder} (downloads its packages the first time)")
    command = [uv, "sync", "--locked", "--inexact", "--no-default-groups", "--extra", engine]
    command += ["--group", "dev"] if dev else []
    command += ["--project", str(root), "--python", interpreter, "--color", "never", "--no-progress"]
    began = time.monotonic()
    child = subprocess.Popen(
        command,
        # uv leaves a file in the temporary directory for each environment, to keep others from it.
        env={**outside(), "UV_PROJECT_ENVIRONMENT": str(folder), "TMPDIR": str(folder.parent)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        told = _followed(child, engine, began, say)
    except BaseException:
        child.kill()
        child.wait()
        raise
    if child.returncode:
        raise DispatchError(f"the {engine} environment could not be made: {_in_one_line(told)}")
    if fresh:
        say(f"the {engine} environment is ready after {time.monotonic() - began:.0f} s")


def _clear(environments: Path) -> None:
    """Remove the environments of checkouts that are not there any more: nothing could be imported in them."""
    for told in environments.glob(f"*{ROOT}"):
        name = told.name.removesuffix(ROOT)
        if (Path(told.read_text().strip()) / "uv.lock").is_file():
            continue
        with open(told.with_name(f"{name}{CLAIM}"), "w") as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(told.with_name(name), ignore_errors=True)
            told.unlink(missing_ok=True)


def _followed(child: subprocess.Popen[str], engine: str, began: float, say: Callable[[str], None]) -> str:
    """What it wrote to its standard error, once it has ended. Raises DispatchError if it takes too long."""
    while True:
        try:
            return child.communicate(timeout=NEWS_SECONDS)[1]
        except subprocess.TimeoutExpired:
            took = time.monotonic() - began
            if took > MAKING_SECONDS:
                raise DispatchError(
                    f"the {engine} environment is not ready after {took:.0f} s; is the network slow?"
                ) from None
            say(f"still making the {engine} environment, after {took:.0f} s")


def _in_one_line(told: str) -> str:
    """uv's error with its causes; the packages that led to it are left out."""
    lines = [line.strip() for line in told.splitlines()]
    begin = next((at for at, line in enumerate(lines) if line.startswith("error:")), None)
    wanted = lines[-3:] if begin is None else lines[begin:]
    causes = [line.removeprefix("error:").removeprefix("cause:").strip() for line in wanted]
    return ": ".join(cause for cause in causes if cause and not cause.startswith("hint:")) or "uv said nothing"


@contextlib.contextmanager
def _alone(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the flock on this file: whoever else makes the same environment waits, and then finds it made."""
    began = told = time.monotonic()
    with open(path, "w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = time.monotonic() - began
            if waited > MAKING_SECONDS:
                raise DispatchError(f"another program has been making {path.stem} for {waited:.0f} s")
            if time.monotonic() - told > NEWS_SECONDS:
                told = time.monotonic()
                say(f"waiting for another program that is making the same environment, {waited:.0f} s so far")
            time.sleep(0.1)
        yield
