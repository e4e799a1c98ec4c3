"""Writes what a real cluster prints into `tests/captures/slurm/`: `python -m tests.slurm.capture`.

Each job's uid says what it is. What is there stays as it was printed; a newer Slurm's gets a folder of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from dispatch_core.adapters.slurm import accounts as accounting
from dispatch_core.adapters.slurm import reading
from dispatch_core.names import object_name
from tests.slurm.cluster import Cluster, Options, running

OPTIONS = Options(nodes=2, accounting=True, message_timeout=2, kill_wait=8)
FOLDER = Path(__file__).parents[1] / "captures" / "slurm" / "22.05"


def submit(cluster: Cluster, uid: str, script: str, *options: str, name: str = "") -> str:
    told = (f"--job-name={name or object_name(uid, 1, 1)}", f"--comment=dispatch:job of {uid}")
    return cluster.command("sbatch", "--parsable", *told, *options, "--wrap", script, user="hpc", check=True).stdout[
        :-1
    ]


def until(cluster: Cluster, id: str, *states: str) -> None:
    cluster.wait_until(lambda: cluster.job(id).state in states, f"{id} to be {states}", 60.0)


def play(cluster: Cluster) -> None:
    """Jobs in every state that can be had at once."""
    control: Callable[..., object] = lambda *argv: cluster.command("scontrol", *argv, user="hpc", check=True)  # noqa: E731
    submit(cluster, "gated000", "true", "--hold")
    held = submit(cluster, "held0000", "true", "--hold")
    control("update", f"JobId={held}", "StartTime=2038-01-01")
    control("release", held)
    both = submit(cluster, "gatedheld", "true", "--hold")
    control("update", f"JobId={both}", "StartTime=2038-01-01")
    submit(cluster, "pending0", "true", "--cpus-per-task=4", "--nodes=2")
    ended = {
        "completed": submit(cluster, "completed", "true"),
        "exit0003": submit(cluster, "exit0003", "exit 3"),
        "exit0137": submit(cluster, "exit0137", "exit 137"),
        "signal09": submit(cluster, "signal09", "kill -9 $$"),
        "nostart0": submit(cluster, "nostart0", "true", "--output=/nowhere/out"),
    }
    submit(cluster, "strange0", "sleep 600", name="a|b, not ours")
    cancelled = submit(cluster, "cancelled", "sleep 600")
    again = submit(cluster, "requeued", "exit 4", "--requeue")
    running = submit(cluster, "running0", "sleep 600", "--requeue")
    for id in (*ended.values(), again):
        until(cluster, id, "COMPLETED", "FAILED")
    for id in (cancelled, running):
        until(cluster, id, "RUNNING")
    cluster.command("scancel", cancelled, user="hpc", check=True)
    control("requeuehold", again)
    until(cluster, cancelled, "CANCELLED")
    stubborn = "trap '' TERM; while :; do sleep 1; done"
    rerun = submit(cluster, "rerunning", stubborn, "--requeue")
    ending = submit(cluster, "completing", stubborn)
    for id in (rerun, ending):
        until(cluster, id, "RUNNING")
    control("uhold", running)
    cluster.command("scancel", ending, user="hpc", check=True)
    control("requeue", rerun)
    time.sleep(2.5)  # accounting is a moment behind


def write(cluster: Cluster) -> None:
    cluster.env["TZ"] = "UTC0"
    fields = ",".join(f"{field}%-1024" if field == "JobName" else field for field in accounting.ACCOUNTS_FIELDS)
    printed = {
        "squeue.txt": ("squeue", "-h", "-t", "all", "-O", reading.QUEUE_FORMAT),
        "squeue.json": ("squeue", "-t", "all", "--json"),
        "sacct.txt": ("sacct", "-D", "-n", "-P", "-X", f"--delimiter={reading.GAP}", "-S", "1970-01-01", "-o", fields),
        "config.txt": ("scontrol", "show", "config"),
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, command in printed.items():
        (FOLDER / name).write_text(cluster.command(*command, check=True).stdout)


if __name__ == "__main__":
    with running(OPTIONS) as shown:
        play(shown)
        write(shown)
