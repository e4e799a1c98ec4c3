"""One SSH connection to a submission host, and the sessions on it.

One rule: the host's key is in the known hosts, or nothing is sent. No password is asked for, no agent is forwarded and
no terminal is made. This is the only room that imports the SSH library; it repeats nothing and connects once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shlex
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import asyncssh

from dispatch_core.adapters.slurm.cluster import SshHost
from dispatch_core.adapters.slurm.transport import LARGEST_OUTPUT, Finished, Lost
from dispatch_core.errors import SchedulerUnavailable

COMMAND = "exec /bin/sh"
"""All that the user's login shell is given to read, whichever it is."""

SESSIONS = 8
"""At a time; sshd allows ten on a connection unless it is told otherwise (MaxSessions)."""

REFUSED_SECONDS = 60.0
"""A host that refuses a session while others are open is asked for one less, for so long."""


async def connect(ssh: SshHost) -> Connection:
    """Log in. Raises SchedulerUnavailable, in one line."""
    log = logging.getLogger("asyncssh")
    if log.level == logging.NOTSET:
        log.setLevel(logging.WARNING)  # it tells of each session; who has set a level wants to read that
    where = ssh.host if ssh.port is None else f"{ssh.host}:{ssh.port}"
    hosts = await asyncio.to_thread(KnownHosts, where, ssh.known_hosts)
    chosen: dict[str, Any] = {}
    if ssh.key_file is not None:
        chosen = {"client_keys": [ssh.key_file], "agent_path": None}
    client = _Client()
    try:
        connection = await asyncssh.connect(
            ssh.host,
            () if ssh.port is None else ssh.port,
            username=() if ssh.user is None else ssh.user,
            client_factory=lambda: client,
            known_hosts=hosts.keys,
            x509_trusted_certs=None,
            gss_kex=False,  # it would take Kerberos' word for the host, instead of the known hosts'
            password_auth=False,
            kbdint_auth=False,
            agent_forwarding=False,
            x11_forwarding=False,
            connect_timeout=ssh.connect_seconds,
            keepalive_interval=ssh.keepalive_seconds,
            keepalive_count_max=2,
            **chosen,
        )
    except TimeoutError:
        raise SchedulerUnavailable(f"{where} could not be logged in to within {ssh.connect_seconds:g} s") from None
    except (asyncssh.HostKeyNotVerifiable, asyncssh.KeyExchangeFailed) as error:
        if isinstance(error, asyncssh.KeyExchangeFailed) and "host key" not in str(error):
            raise SchedulerUnavailable(f"{where} cannot be logged in to: {_line(error)}") from error
        raise SchedulerUnavailable(hosts.another_key(error)) from error
    except asyncssh.KeyImportError as error:
        advice = "a key with a passphrase has to be in ssh-agent, with no key_file given"
        raise SchedulerUnavailable(f"the key for {where} cannot be used ({advice}): {_line(error)}") from error
    except (asyncssh.Error, OSError, ValueError) as error:
        raise SchedulerUnavailable(f"{where} cannot be logged in to: {hosts.not_yet(client, error)}") from error
    return Connection(where, connection, client.broken)


class KnownHosts:
    """The file that says which key a host has; one that is not there says so of none."""

    def __init__(self, where: str, file: str | None) -> None:
        """Reads the file. Raises SchedulerUnavailable."""
        self._where = where
        self._file = Path(file or "~/.ssh/known_hosts").expanduser()
        self._name = ""
        self._scan = ""
        self._kinds = ""
        try:
            self._known = asyncssh.read_known_hosts(str(self._file))
        except FileNotFoundError:
            self._known = asyncssh.import_known_hosts("")
        except (OSError, ValueError) as error:
            raise SchedulerUnavailable(f"the known hosts cannot be read from {self._file}: {_line(error)}") from error

    def keys(self, host: str, address: str, port: int | None) -> Sequence[Sequence[asyncssh.SSHKey]]:
        """A host's keys, its authorities' and the revoked ones. Raises SchedulerUnavailable if it has none."""
        self._name = host if port is None else f"[{host}]:{port}"
        self._scan = shlex.join(["ssh-keyscan", *([] if port is None else ["-p", str(port)]), host])
        keys, authorities, revoked = self._known.match(host, address, port)[:3]
        if not keys and not authorities:
            raise SchedulerUnavailable(
                f"the host key of {self._where} is not known, so nothing was sent: {self._file} does not name"
                f" {self._name}. Compare what `{self._scan}` prints with the key that its administrators publish,"
                f" and append it to that file"
            )
        self._kinds = ", ".join(sorted({key.get_algorithm() for key in [*keys, *authorities]}))
        return keys, authorities, revoked

    def another_key(self, error: Exception) -> str:
        return (
            f"{self._where} has not the host key that {self._file} has for {self._name}, so nothing was sent: it was"
            f" set up anew, or another host answers in its place ({_line(error)}). If its administrators confirm the"
            f" new key, run `{shlex.join(['ssh-keygen', '-f', str(self._file), '-R', self._name])}` and append what"
            f" `{self._scan}` prints"
        )

    def not_yet(self, client: _Client, error: Exception) -> str:
        """The error; and what the file says, if the host went away before it showed a key. So it does if it has none
        of the types that the file has for it."""
        if client.verified or not self._kinds:
            return _line(error)
        return f"{_line(error)}, before it showed a host key ({self._file} has {self._kinds} for {self._name})"


class Connection:
    """An open connection; one that broke stays broken."""

    def __init__(self, where: str, connection: asyncssh.SSHClientConnection, broken: asyncio.Event) -> None:
        self._where = where
        self._connection = connection
        self._broken = broken
        self._places = asyncio.Semaphore(SESSIONS)
        self._used = 0

    @property
    def broken(self) -> bool:
        return self._broken.is_set()

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A shell that waits for its script; closed at the end. Raises SchedulerUnavailable if none is to be had."""
        session = await self._session()
        try:
            yield session
        finally:
            self._leave(session)

    async def close(self) -> None:
        """End it without asking the host, which may be the reason; sessions on it are lost."""
        self._break()
        await self._connection.wait_closed()

    def _break(self) -> None:
        self._broken.set()
        self._connection.abort()

    def _leave(self, session: Session, _: object = None) -> None:
        session.close()
        self._used -= 1
        self._places.release()

    async def _session(self) -> Session:
        while True:
            await self._places.acquire()
            self._used += 1
            session = Session(self._where, self._broken)
            opening = asyncio.ensure_future(self._create(session))
            try:
                await asyncio.wait({opening})
            except asyncio.CancelledError:
                # The host may open it later on. The library would forget it then, and the host would keep it.
                opening.add_done_callback(partial(self._leave, session))
                raise
            error = opening.result()
            if error is None:
                return session
            self._used -= 1
            refused = isinstance(error, asyncssh.ChannelOpenError) and not self.broken
            if refused and self._used:
                asyncio.get_running_loop().call_later(REFUSED_SECONDS, self._places.release)
                continue
            self._places.release()
            if refused:
                # Sessions that were given up may be running there still; they count on this connection only.
                self._break()
                raise SchedulerUnavailable(f"{self._where} refused a session, nothing was sent: {_line(error)}")
            raise SchedulerUnavailable(f"the connection to {self._where} broke, nothing was sent: {_line(error)}")

    async def _create(self, session: Session) -> Exception | None:
        try:
            await self._connection.create_session(
                lambda: session, COMMAND, encoding=None, request_pty=False, x11_forwarding=False
            )
        except (asyncssh.Error, OSError) as error:
            return error
        return None


class Session(asyncssh.SSHClientSession[bytes]):
    """One shell on the host."""

    def __init__(self, where: str, broken: asyncio.Event) -> None:
        self._where = where
        self._broken = broken
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._pieces: tuple[list[bytes], list[bytes]] = ([], [])
        self._bytes = 0
        self._end: asyncio.Future[Finished | Lost] = asyncio.get_running_loop().create_future()

    def send(self, script: bytes) -> None:
        """Write the whole script, or raise SchedulerUnavailable."""
        assert self._channel is not None  # noqa: S101 - connection_made() comes first
        try:
            self._channel.write(script)
            self._channel.write_eof()
        except BrokenPipeError:
            raise SchedulerUnavailable(f"{self._where} ended the session before it took a script") from None

    async def finished(self) -> Finished:
        """What the script left behind. Raises Lost."""
        end = await self._end
        if isinstance(end, Lost):
            raise end
        return end

    def close(self) -> None:
        if self._channel is not None:
            self._channel.abort()

    # What the library calls.

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = chan

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._bytes += len(data)
        if self._bytes > LARGEST_OUTPUT:
            self._ended(Lost(f"it printed more than {LARGEST_OUTPUT} bytes"))
        else:
            self._pieces[datatype == asyncssh.EXTENDED_DATA_STDERR].append(data)

    def eof_received(self) -> bool:
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        # Whether the host closed the session or the whole connection went is known only after this call.
        asyncio.get_running_loop().call_soon(self._closed, exc)

    def _closed(self, error: Exception | None) -> None:
        code = None if error or self._broken.is_set() or self._channel is None else self._channel.get_returncode()
        if code is None:
            self._ended(Lost(f"the connection to {self._where} broke: {_line(error) if error else 'it was closed'}"))
        else:
            out, err = (b"".join(pieces) for pieces in self._pieces)
            self._ended(Finished(code, out, err))

    def _ended(self, end: Finished | Lost) -> None:
        if not self._end.done():
            self._end.set_result(end)


class _Client(asyncssh.SSHClient):
    """Notices how far a connection has come, and that it is gone."""

    def __init__(self) -> None:
        self.verified = False
        self.broken = asyncio.Event()

    def begin_auth(self, username: str) -> None:
        self.verified = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.broken.set()


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
