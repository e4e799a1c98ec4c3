"""The clusters file: which clusters there are beside the machine itself, by the names that jobs call them by.

One rule: it holds no secret, and is read as strictly as a job file: what is wrong with it is one line with file and
line number, before anything is connected. The name `local` is built in and needs no file, so that a mistake in the file
never stands in the way of a job on this machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.kubernetes.kinds import SORTS
from dispatch_core.adapters.slurm.cluster import SlurmCluster, SshHost
from dispatch_core.amounts import LONGEST_SECONDS
from dispatch_core.errors import BadInput
from dispatch_core.fields import Reader, boolean, fields_of, finite, many, one_of, seconds, string, whole
from dispatch_core.parts import Part, from_fields, from_yaml
from dispatch_core.plan import Value

LOCAL = "local"

LARGEST_FILE_BYTES = 1_000_000
NAME_LENGTH = 63
LEAST_KEPT_SECONDS = 1200.0
"""A secret is on its way until its Start has landed, and the latest Start lands long before this."""

_NAME = re.compile(rf"[A-Za-z0-9][\w.-]{{0,{NAME_LENGTH - 1}}}", re.ASCII)


class LocalCluster(Value, frozen=True):
    """This machine as a cluster: a spool, and how many runs it has room for."""

    name: str
    spool: str
    slots: int | None = None
    """Runs at a time; None: one for each processor."""


Cluster = SlurmCluster | KubernetesCluster | LocalCluster


class UnknownCluster(BadInput):
    """A name that no cluster has; there is nothing wrong with the file that was looked at."""


class Clusters:
    """The clusters of one file, beside the one that is built in."""

    def __init__(self, file: Path, named: Mapping[str, Cluster], *, there: bool) -> None:
        self.file = file
        self.named = dict(named)
        self._there = there

    def find(self, name: str) -> Cluster:
        """The cluster of this name. Raises UnknownCluster, with the file and the names there are."""
        if name not in self.named:
            names = ", ".join((LOCAL, *self.named))
            where = f"{self.file} has {names}" if self._there else f"there is {names}, and no file {self.file}"
            raise UnknownCluster(f"no cluster is named {name!r}; {where}: add it there, or name one that there is")
        return self.named[name]


def load_clusters(file: Path, *, needed: bool) -> Clusters:
    """What a clusters file says; one that is not there says nothing, unless it is `needed`. Raises BadInput."""
    try:
        with file.open("rb") as opened:
            data = opened.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        if needed:
            raise BadInput(f"{file}: the clusters file is not there; check the path") from None
        return Clusters(file, {}, there=False)
    except OSError as error:
        raise BadInput(f"{file}: it cannot be read: {error.strerror or error}; check the path") from None
    if len(data) > LARGEST_FILE_BYTES:
        raise BadInput(f"{file}: it is longer than {LARGEST_FILE_BYTES} bytes; this is no clusters file")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{file}:{line}: it is not UTF-8 text; save it as UTF-8") from None
    return Clusters(file, read_clusters(text, str(file)), there=True)


def read_clusters(text: str, name: str) -> dict[str, Cluster]:
    """The clusters in a YAML text; `name` is what its lines are counted under. Raises BadInput."""
    written = from_yaml(text, name, needs="a clusters file has clusters: with a mapping of their names")
    found: dict[str, Cluster] = fields_of(written, {"clusters": _clusters}, ("clusters",))["clusters"]
    return found


def read_kubernetes(name: str, fields: Mapping[str, object], where: str) -> KubernetesCluster:
    """The same for a Kubernetes cluster. Raises BadInput."""
    return _kubernetes(from_fields({"type": "kubernetes", **fields}, where), name)


def read_slurm(name: str, fields: Mapping[str, object], where: str) -> SlurmCluster:
    """The Slurm cluster in fields named as in a clusters file, without `type`, as an engine is given them; `where`
    begins what is said of a mistake. Raises BadInput."""
    return _slurm(from_fields({"type": "slurm", **fields}, where), name)


def _clusters(part: Part) -> dict[str, Cluster]:
    if not isinstance(part.value, dict):
        raise part.refuse(f"it is {part.shown}; write a mapping of names, each with a type and more")
    return {name: _cluster(inner, name) for name, inner in part.value.items()}


def _cluster(part: Part, name: str) -> Cluster:
    if name == LOCAL:
        raise part.refuse("this name is built in, for the user's own spool on this machine; choose another one")
    if not _NAME.fullmatch(name):
        raise part.refuse(f"a name is 1 to {NAME_LENGTH} letters, digits, and after the first also . _ -; change it")
    if not isinstance(part.value, dict):
        raise part.refuse(f"it is {part.shown}; write a mapping, like {{type: slurm, host: login.example}}")
    if "type" not in part.value:
        raise part.refuse("type is missing; add it: slurm, kubernetes or local")
    return _TYPES[one_of(*_TYPES)(part.value["type"])](part, name)


def _slurm(part: Part, name: str) -> SlurmCluster:
    readers: dict[str, Reader] = {
        "type": string,
        "host": _host,
        "port": _between(1, 65535),
        "user": _word,
        "key_file": _key_file,
        "known_hosts": _path_here,
        "directory": _folder_there,
        "bin": _path_there,
        "slurm_conf": _path_there,
        "poll": _poll,
        "absence": _lasting(1.0, 86400.0, "1s to 1d"),
        "submits_per_second": _rate,
        "live_jobs": _between(1, 1_000_000),
        "keep": _lasting(3600.0, LONGEST_SECONDS, "1h to 3650d"),
        "keep_secrets": _lasting(LEAST_KEPT_SECONDS, LONGEST_SECONDS, "20m to 3650d"),
    }
    fields = fields_of(part, readers, ())
    ssh = {field: fields[field] for field in ("host", "port", "user", "key_file", "known_hosts") if field in fields}
    if ssh and "host" not in ssh:
        stray = next(iter(ssh))
        raise part.at((stray,)).refuse(f"there is no host that it is for; add host, or leave {stray} out")
    rest = {
        f"{field}_seconds" if field in _LASTING else field: value
        for field, value in fields.items()
        if field not in (*ssh, "type")
    }
    cluster = SlurmCluster(name=name, ssh=SshHost(**ssh) if ssh else None, **rest)
    if cluster.absence_seconds < cluster.poll_seconds:
        raise part.at(("absence",)).refuse("absence is shorter than poll, the time between two listings; raise it")
    return cluster


_LASTING = ("poll", "absence", "keep", "keep_secrets", "proxy")


def _kubernetes(part: Part, name: str) -> KubernetesCluster:
    readers: dict[str, Reader] = {
        "type": string,
        "namespace": _label,
        "kubeconfig": _path_here,
        "context": _filled,
        "kinds": _kinds,
        "kueue": boolean,
        "queue": _label,
        "held_queue": _label,
        "image": _word,
        "poll": _poll,
        "absence": _lasting(1.0, 86400.0, "1s to 1d"),
        "keep": _lasting(3600.0, LONGEST_SECONDS, "1h to 3650d"),
        "proxy": _lasting(0.0, 3600.0, "0s to 1h"),
    }
    fields = fields_of(part, readers, ())
    for stray in ("queue", "held_queue"):
        if stray in fields and not fields.get("kueue"):
            raise part.at((stray,)).refuse("it is a queue of Kueue; write kueue: true beside it, or leave it out")
    rest = {
        f"{field}_seconds" if field in _LASTING else field: value for field, value in fields.items() if field != "type"
    }
    return KubernetesCluster(name=name, **rest)


def _label(part: Part) -> str:
    """A name as Kubernetes takes it."""
    word = _word(part)
    if not _DNS_LABEL.fullmatch(word):
        raise part.refuse(f"{part.shown} is no name of Kubernetes: small letters, digits and -; change it")
    return word


_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)


def _kinds(part: Part) -> tuple[str, ...]:
    kinds = many(string)(part)
    for kind in kinds:
        if kind not in SORTS:
            raise part.refuse(f"{kind!r} is not one of {', '.join(SORTS)}; change it")
    if not kinds:
        raise part.refuse(f"it is empty; name some of {', '.join(SORTS)}, or leave it out")
    return kinds


def _local(part: Part, name: str) -> LocalCluster:
    readers: dict[str, Reader] = {"type": string, "spool": _path_here, "slots": _between(1, 100_000)}
    fields = fields_of(part, readers, ("spool",))
    return LocalCluster(name=name, spool=fields["spool"], slots=fields.get("slots"))


_TYPES: Mapping[str, Callable[[Part, str], Cluster]] = {
    "slurm": _slurm,
    "kubernetes": _kubernetes,
    "local": _local,
}


# --- one value


def _filled(part: Part) -> str:
    text = string(part)
    if not text.isprintable() or not text.strip():
        raise part.refuse("it is empty, or holds a character that cannot be printed; write it, or leave it out")
    return text


def _word(part: Part) -> str:
    word = _filled(part)
    if word.startswith("-") or any(character.isspace() for character in word):
        raise part.refuse(f"{part.shown} holds a space or begins with -; write the bare name")
    return word


def _host(part: Part) -> str:
    host = _word(part)
    if "@" in host or "/" in host or host.count(":") == 1:
        # A password may stand here: it is not shown.
        raise part.refuse("it is more than a host; give its user and port as user: and port:")
    return host


def _path_here(part: Part) -> str:
    """A path on this machine; `~` is the home directory of the user who runs this."""
    path = os.path.expanduser(_filled(part))
    if not path.startswith("/"):
        raise part.refuse("the path is not absolute, and a supervisor may run anywhere; begin it with / or ~/")
    return path


def _key_file(part: Part) -> str:
    # What stands here may be the key itself: it is not shown.
    if not isinstance(part.value, str) or "\n" in part.value or "PRIVATE KEY" in part.value:
        raise part.refuse("it is no path; write where the private key lies, never the key itself")
    return _path_here(part)


def _path_there(part: Part) -> str:
    """A path on the cluster."""
    path = _filled(part)
    if not path.startswith("/"):
        raise part.refuse(f"{part.shown} is not absolute; write the path on the cluster, beginning with /")
    return path


def _folder_there(part: Part) -> str:
    path = _filled(part)
    if path != "~" and not path.startswith(("/", "~/")):
        raise part.refuse(f"{part.shown} is not absolute; write the path on the cluster, beginning with / or ~/")
    return path


def _between(least: int, most: int) -> Callable[[Part], int]:
    def read(part: Part) -> int:
        number = whole(part)
        if not least <= number <= most:
            raise part.refuse(f"it is {part.shown}; it goes from {least} to {most}")
        return number

    return read


def _lasting(least: float, most: float, said: str) -> Callable[[Part], float]:
    def read(part: Part) -> float:
        lasting = seconds(part)
        if not least <= lasting <= most:
            raise part.refuse(f"it is {part.shown}; it goes from {said}")
        return lasting

    return read


_poll = _lasting(0.1, 15.0, "100ms to 15s")
"""Whoever waits for the next listing gives up after the longest step, which is not much longer."""


def _rate(part: Part) -> Any:
    rate = finite(part)
    if not 0.01 <= rate <= 1000:
        raise part.refuse(f"it is {part.shown}; it goes from 0.01 to 1000")
    return rate
