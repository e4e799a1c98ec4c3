"""What the README says of Slurm, held against the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dispatch_core.adapters.slurm import script
from dispatch_core.adapters.slurm.cluster import SlurmCluster
from dispatch_core.errors import BadInput
from dispatch_core.jobfile import read_job
from dispatch_core.places import problems_of

TEXT = (Path(__file__).parents[2] / "README.md").read_text()
SLURM = TEXT.partition("\n## Slurm\n")[2].partition("\n## ")[0]
JOB = SLURM.partition("```yaml\n")[2].partition("```")[0]


def judged(text: str) -> None:
    job = read_job(text, "train.yaml")
    for path, problem in problems_of(SlurmCluster(name=job.scheduler), job.spec):
        raise job.refuse(path, problem)


def test_its_job_is_one() -> None:
    judged(JOB)


def test_its_refusal_is_what_is_said() -> None:
    with pytest.raises(BadInput) as raised:
        judged(JOB.replace("--mail-type=FAIL", "--array=1-10"))
    assert f"```\n{raised.value}\n```" in SLURM


def test_it_has_every_option_and_no_other() -> None:
    table = "".join(line.split("|")[1] for line in SLURM.splitlines() if line.startswith("| `options`"))
    named = set(re.findall(r"`([a-z_]+)(?::[^`]*)?`", table.replace("`options`", "")))
    assert named == {*script.OPTIONS, "batch_script", "progress_file", "progress_pattern", "sbatch"}


def test_it_has_every_line_that_a_batch_script_may_not_have() -> None:
    lines = SLURM.partition("Lines that no option takes back (")[2].partition(")")[0]
    assert set(re.findall(r"`--([a-z-]+)`", lines)) == set(script.IN_SCRIPT)
