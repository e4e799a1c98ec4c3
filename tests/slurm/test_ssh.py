"""Scripts on a real SSH server: one connection for all, nothing sent to a host that is not known, and an honest answer
about whether a script was sent, whatever breaks."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dispatch_core.adapters.slurm import ssh_connection
from dispatch_core.adapters.slurm.cluster import SshHost
from dispatch_core.adapters.slurm.ssh import SshTransport
from dispatch_core.adapters.slurm.transport import Lost, whole
from dispatch_core.errors import BadInput, SchedulerUnavailable
from tests.slurm.sshd import USER, Sshd, make_key
from tests.slurm.test_transport import AWKWARD, PATIENCE, copying, ended, number_in


@pytest.fixture
async def ssh(sshd: Sshd) -> AsyncIterator[SshTransport]:
    transport = SshTransport(sshd.host())
    yield transport
    await transport.close()


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that the user on the host can write to."""
    with tempfile.TemporaryDirectory(prefix="dispatch-ssh-") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


async def refused(host: SshHost, place: Path) -> str:
    """Why a host takes no script; the script that it does not take would show."""
    transport = SshTransport(host)
    try:
        with pytest.raises(SchedulerUnavailable) as caught:
            await transport.run(f"touch {place}/ran", PATIENCE)
    finally:
        await transport.close()
    assert not (place / "ran").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("shell", [None, "/bin/dash"])
async def test_text_arrives_whole(sshd: Sshd, ssh: SshTransport, shell: str | None) -> None:
    sshd.shell = shell
    sshd.restart()
    for text in AWKWARD.values():
        assert await ssh.run(copying(text), PATIENCE) == (0, f"{text}\nit's".encode(), b"")
    assert sshd.logins() == 1


async def test_what_a_script_leaves_behind(ssh: SshTransport) -> None:
    assert await ssh.run("id -un; echo err >&2; exit 3", PATIENCE) == (3, f"{USER}\n".encode(), b"err\n")
    assert (await ssh.run("kill -9 $$", PATIENCE)).code == -9
    assert (await ssh.run("cat", PATIENCE)).out == b"", "a script reads nothing of itself"
    finished = await ssh.run("head -c 30000000 /dev/zero; head -c 3000000 /dev/zero >&2", PATIENCE)
    assert (len(finished.out), len(finished.err)) == (30_000_000, 3_000_000)


async def test_too_much_output_is_lost(ssh: SshTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_connection, "LARGEST_OUTPUT", 1_000_000)
    with pytest.raises(Lost, match="printed more than 1000000 bytes"):
        await ssh.run("head -c 10000000 /dev/zero", PATIENCE)
    assert (await ssh.run("head -c 1000000 /dev/zero", PATIENCE)).code == 0


async def test_many_share_one_connection(sshd: Sshd, ssh: SshTransport) -> None:
    runs = await asyncio.gather(*(ssh.run(f"sleep 0.1; echo {number}", PATIENCE) for number in range(50)))
    assert [run.out for run in runs] == [f"{number}\n".encode() for number in range(50)]
    assert sshd.logins() == 1


async def test_a_host_that_allows_two_sessions(sshd: Sshd, ssh: SshTransport) -> None:
    sshd.max_sessions = 2
    sshd.restart()
    runs = await asyncio.gather(*(ssh.run("sleep 0.1; echo done", PATIENCE) for _ in range(20)))
    assert {run.out for run in runs} == {b"done\n"}
    assert sshd.logins() == 1
    assert "no more sessions" in sshd.log(), "more than two were asked for"


async def test_sessions_that_hang_are_left_behind(sshd: Sshd, ssh: SshTransport) -> None:
    """What was given up counts against the host's limit until it ends: then another connection is opened."""
    sshd.max_sessions = 2
    sshd.restart()
    for _ in range(2):
        with pytest.raises(Lost, match="did not answer within 1 s"):
            await ssh.run("sleep 600", 1)
    with pytest.raises(SchedulerUnavailable, match="refused a session"):
        await ssh.run("echo", PATIENCE)
    assert (await ssh.run("echo", PATIENCE)).code == 0
    assert sshd.logins() == 2


async def test_time_out_is_lost_and_leaves_the_connection(sshd: Sshd, ssh: SshTransport, place: Path) -> None:
    with pytest.raises(Lost, match="did not answer within 1 s"):
        await ssh.run(f"echo $$ >{place}/pid; while echo; do sleep 0.1; done", 1)
    assert await ended(await number_in(place / "pid")), "nobody reads it any more"
    assert (await ssh.run("echo", PATIENCE)).code == 0
    assert sshd.logins() == 1


async def test_cancelling_closes_the_session(sshd: Sshd, ssh: SshTransport, place: Path) -> None:
    run = asyncio.create_task(ssh.run(f"echo $$ >{place}/pid; while echo; do sleep 0.1; done", PATIENCE))
    pid = await number_in(place / "pid")
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert await ended(pid)
    assert (await ssh.run("echo", PATIENCE)).code == 0
    assert sshd.logins() == 1


async def test_closing_gives_up_what_is_under_way(sshd: Sshd, place: Path) -> None:
    ssh = SshTransport(sshd.host())
    run = asyncio.create_task(ssh.run(f"echo $$ >{place}/pid; sleep 600", PATIENCE))
    await number_in(place / "pid")
    await ssh.close()
    with pytest.raises(Lost):
        await run
    with pytest.raises(SchedulerUnavailable, match="closed"):
        await ssh.run("echo", PATIENCE)
    assert sshd.logins() == 1


async def test_an_exit_code_is_no_end_of_the_output(sshd: Sshd, place: Path) -> None:
    """The host tells the code while something may still print; if the connection goes then, the output is not whole."""
    ssh = SshTransport(sshd.host())
    run = asyncio.create_task(ssh.run(f"sleep 600 & echo $! >{place}/pid; exit 0", PATIENCE))
    await number_in(place / "pid")
    await asyncio.sleep(0.5)
    await ssh.close()
    with pytest.raises(Lost):
        await run


async def test_closing_while_it_is_being_opened(sshd: Sshd) -> None:
    ssh = SshTransport(sshd.host())
    run = asyncio.create_task(ssh.run("echo", PATIENCE))
    await asyncio.sleep(0.01)
    await ssh.close()
    with pytest.raises(SchedulerUnavailable, match="closed"):
        await run


async def test_a_peer_that_hangs_is_noticed(sshd: Sshd, place: Path) -> None:
    ssh = SshTransport(sshd.host(keepalive_seconds=0.5))
    run = asyncio.create_task(ssh.run(f"echo $$ >{place}/pid; sleep 600", 600))
    await number_in(place / "pid")
    sshd.freeze()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(Lost, match="not responding to keepalive"):
            await run
    sshd.drop()
    assert (await ssh.run("echo", PATIENCE)).code == 0
    assert sshd.logins() == 2
    await ssh.close()


async def test_a_peer_that_hangs_takes_no_script(sshd: Sshd, ssh: SshTransport, place: Path) -> None:
    """And what was asked of it meanwhile is closed when it comes back, so that its sessions do not run out."""
    assert (await ssh.run("echo", PATIENCE)).code == 0
    pids = sshd.freeze()
    for _ in range(12):
        with pytest.raises(SchedulerUnavailable, match="took no script within"):
            await ssh.run(f"touch {place}/ran", 0.1)
    sshd.thaw(pids)
    assert (await asyncio.gather(*(ssh.run("sleep 0.2", PATIENCE) for _ in range(8)))) == [(0, b"", b"")] * 8
    assert sshd.logins() == 1
    assert not (place / "ran").exists()


async def test_a_broken_connection_is_opened_again_once(sshd: Sshd, ssh: SshTransport, place: Path) -> None:
    run = asyncio.create_task(ssh.run(f"echo $$ >{place}/pid; sleep 600", 600))
    await number_in(place / "pid")
    sshd.drop()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(Lost, match=r"127\.0\.0\.1:\d+ broke"):
            await run
    await asyncio.gather(*(ssh.run("echo", PATIENCE) for _ in range(20)))
    assert sshd.logins() == 2


async def test_attempts_are_spaced_and_shared() -> None:
    """A host that hangs up on everyone is asked a few times, however many wait and however often."""
    attempts = 0

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    ssh = SshTransport(SshHost(host="127.0.0.1", port=server.sockets[0].getsockname()[1], known_hosts=os.devnull))

    async def ask() -> None:
        for _ in range(15):
            with pytest.raises(SchedulerUnavailable):
                await ssh.run("echo", 0.2)

    await asyncio.gather(*(ask() for _ in range(20)))
    assert 2 <= attempts <= 6
    with pytest.raises(SchedulerUnavailable, match=r"took no script within 0\.1 s; before that: .*host key"):
        await ssh.run("echo", 0.1)
    await ssh.close()
    server.close()
    await server.wait_closed()


async def test_a_server_that_is_restarted(sshd: Sshd, ssh: SshTransport) -> None:
    assert (await ssh.run("echo", PATIENCE)).code == 0
    sshd.stop()
    with pytest.raises(SchedulerUnavailable, match="nothing was sent"):
        await ssh.run("echo", PATIENCE)
    with pytest.raises(SchedulerUnavailable, match="Connect call failed"):
        await ssh.run("echo", PATIENCE)
    sshd.start()
    assert (await ssh.run("echo", PATIENCE)).code == 0


async def test_an_unknown_host_is_sent_nothing(sshd: Sshd, place: Path) -> None:
    other = sshd.known_hosts.read_text().replace(str(sshd.port), "1")
    for file, text in (("empty", ""), ("other", other)):
        (sshd.folder / file).write_text(text)
        told = await refused(sshd.host(known_hosts=str(sshd.folder / file)), place)
        assert f"{sshd.folder}/{file} does not name [127.0.0.1]:{sshd.port}" in told
        assert f"`ssh-keyscan -p {sshd.port} 127.0.0.1`" in told
    assert "/not/there" in await refused(sshd.host(known_hosts="/not/there"), place)
    assert sshd.logins() == 0


async def test_a_changed_host_key_is_refused(sshd: Sshd, ssh: SshTransport, place: Path) -> None:
    assert (await ssh.run("echo", PATIENCE)).code == 0
    sshd.change_host_key()
    told = await refused(sshd.host(), place)
    assert f"has not the host key that {sshd.known_hosts} has" in told
    assert f"`ssh-keygen -f {sshd.known_hosts} -R '[127.0.0.1]:{sshd.port}'`" in told
    assert f"`ssh-keyscan -p {sshd.port} 127.0.0.1`" in told
    with pytest.raises(SchedulerUnavailable, match="has not the host key"):
        await ssh.run(f"touch {place}/ran", PATIENCE)
    sshd.change_host_key("ecdsa")
    told = await refused(sshd.host(), place)
    assert f"{sshd.known_hosts} has ssh-ed25519" in told or "has not the host key" in told
    assert not (place / "ran").exists()
    assert sshd.logins() == 1


async def test_a_revoked_host_key_is_refused(sshd: Sshd, place: Path) -> None:
    line = sshd.known_hosts.read_text()
    sshd.known_hosts.write_text(f"{line}@revoked {line}")
    assert "Host key is revoked" in await refused(sshd.host(), place)
    assert sshd.logins() == 0


async def test_another_key_lets_nobody_in(sshd: Sshd, place: Path) -> None:
    make_key(sshd.folder / "other")
    told = await refused(sshd.host(key_file=str(sshd.folder / "other")), place)
    assert f"Permission denied for user {USER}" in told
    assert "/not/there" in await refused(sshd.host(key_file="/not/there"), place)
    make_key(sshd.folder / "other", passphrase="bait")
    told = await refused(sshd.host(key_file=str(sshd.folder / "other")), place)
    assert "passphrase has to be in ssh-agent" in told
    assert "bait" not in told
    assert sshd.logins() == 0


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An ssh-agent without a key."""
    child = subprocess.Popen(["ssh-agent", "-D", "-a", tmp_path / "agent"], stdout=subprocess.DEVNULL)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    yield tmp_path / "agent"
    child.kill()
    child.wait()


@pytest.mark.usefixtures("agent")
async def test_the_users_ssh_configuration(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alias is looked up in it; what it says against the check of host keys, or for a terminal, is not taken."""
    home = sshd.folder / "home"
    (home / ".ssh").mkdir(parents=True)
    lines = ["Host cluster", "HostName 127.0.0.1", f"Port {sshd.port}", f"User {USER}", f"IdentityFile {sshd.key_file}"]
    lines += ["RequestTTY force", "ForwardAgent yes", "RemoteCommand echo no", "UserKnownHostsFile none"]
    (home / ".ssh/config").write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("HOME", str(home))
    told = await refused(SshHost(host="cluster"), sshd.folder)
    assert f"the host key of cluster is not known, so nothing was sent: {home}/.ssh/known_hosts does not name" in told

    (home / ".ssh/known_hosts").write_text(sshd.known_hosts.read_text())
    ssh = SshTransport(SshHost(host="cluster"))
    try:
        run = await ssh.run("id -un; test -t 1 || echo no terminal; echo ${SSH_AUTH_SOCK-no agent}", PATIENCE)
    finally:
        await ssh.close()
    assert run.out.decode().splitlines() == [USER, "no terminal", "no agent"]


def test_a_script_that_is_cut_off_does_nothing(sshd: Sshd, place: Path) -> None:
    script = whole(f"touch {place}/1\ntouch {place}/2")
    trust = [f"-oUserKnownHostsFile={sshd.known_hosts}", "-oIdentitiesOnly=yes", "-oBatchMode=yes", "-F", "none"]
    login = ["ssh", *trust, "-i", str(sshd.key_file), "-p", str(sshd.port), f"{USER}@127.0.0.1", "exec /bin/sh"]
    half = script[: script.index("touch", script.index("touch") + 1) + 9 + len(str(place))]
    for sent, done in ((half, set()), (script, {"1", "2"})):
        subprocess.run(login, input=sent.encode(), check=False, capture_output=True, timeout=PATIENCE)
        assert {path.name for path in place.iterdir()} == done
    assert sshd.logins() == 2


async def test_a_key_in_the_agent(sshd: Sshd, agent: Path, place: Path) -> None:
    assert "Permission denied" in await refused(sshd.host(key_file=None), place)
    await (await asyncio.create_subprocess_exec("ssh-add", "-q", sshd.key_file)).wait()
    ssh = SshTransport(sshd.host(key_file=None))
    assert (await ssh.run("echo", PATIENCE)).code == 0
    await ssh.close()


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(BadInput, match=r"pip install 'dispatch-supervisor\[ssh\]'"):
        SshTransport(SshHost(host="cluster"))


def test_the_library_is_loaded_when_it_is_used() -> None:
    room = "dispatch_core.adapters.slurm.ssh"
    program = f"import sys, {room}; {room}.SshTransport({room}.SshHost(host='x')); sys.exit('asyncssh' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)
