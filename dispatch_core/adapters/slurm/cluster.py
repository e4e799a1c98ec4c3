"""What a person says about one Slurm cluster: how it is reached, and what dispatch may do there.

One rule: what the cluster itself can be asked (its timeouts, its accounting) is not set here.
"""

from __future__ import annotations

from dispatch_core.plan import Value


class SshHost(Value, frozen=True):
    """How the submission host is reached."""

    host: str
    port: int | None = None
    """None: as `~/.ssh/config` has it, else 22."""
    user: str | None = None
    """None: as `~/.ssh/config` has it, else the user who runs this."""
    key_file: str | None = None
    """A private key; None: those of the agent, and the user's default ones."""
    known_hosts: str | None = None
    """The file that the host's key must be in; None: the user's `~/.ssh/known_hosts`. It is always checked."""
    connect_seconds: float = 15.0
    keepalive_seconds: float = 15.0


class SlurmCluster(Value, frozen=True):
    """One cluster, under the name that jobs and records call it by."""

    name: str
    ssh: SshHost | None = None
    """None: Slurm's commands run on this machine, as this user."""
    directory: str = "~/.dispatch"
    """A folder of the user's on the cluster, seen by the submission host and by every node: logs, and secrets on their
    way. `~` is the home directory there. Each cluster needs one of its own, else what is old in it is never removed."""
    bin: str | None = None
    """The folder with Slurm's commands there; None: they are found on PATH."""
    slurm_conf: str | None = None
    """The path of slurm.conf there; None: as the host has it set up."""
    poll_seconds: float = 3.0
    """The shortest time between two listings, however many jobs there are."""
    absence_seconds: float = 60.0
    """What complete listings in a row must span before anything missing from them is gone."""
    submits_per_second: float = 5.0
    live_jobs: int | None = None
    """New objects are refused a place, and wait, while so many of ours are in the queue; None: no cap."""
    keep_seconds: float = 30 * 86400.0
    """How long notes and logs below `directory` are kept of objects that have left the queue."""
    keep_secrets_seconds: float = 3600.0
    """The same for secrets; those of whatever is in the queue are never removed."""
    message_timeout_seconds: float = 10.0
    """MessageTimeout, until the cluster has been asked."""
    credential_seconds: float = 300.0
    """How long the controller accepts a message after it was made (AuthInfo's `ttl`), until the cluster was asked."""
