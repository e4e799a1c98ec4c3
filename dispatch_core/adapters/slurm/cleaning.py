"""What is removed of dispatch's own folder on a cluster: claims, notes, logs and secrets of objects that are long gone.

One rule: a file goes only in the script of a listing that succeeded, only where no job in the queue, in any state, has
its name, and only once it is old. What is not named like an object is never touched, so no log in a path that a user
gave. Two clusters that share a folder would each remove what is the other's: then nothing is removed.
"""

from __future__ import annotations

import math
import shlex

from dispatch_core.adapters.slurm.cluster import SlurmCluster
from dispatch_core.adapters.slurm.reading import FIELDS, GAP

MOST = 5000
"""Files that are removed at once; the rest goes the next time."""

SEVERAL = "several"


def claimed(cluster: str) -> str:
    """The shell in Start that notes whose folder this is: one cluster's, or that of several."""
    if not cluster:
        return ""
    return f"""if ! read -r owner 2>/dev/null <"$directory/cluster"; then
    printf '%s\\n' {shlex.quote(cluster)} >"$directory/cluster"
elif [ "$owner" != {shlex.quote(cluster)} ]; then
    printf '%s\\n' {SEVERAL} >"$directory/cluster"
fi
"""


def body(cluster: SlurmCluster, name: str) -> str:
    """What a listing's script does with the queue in $shown; `name` is the cluster's own."""
    soon, late = (math.ceil(seconds / 60) for seconds in (cluster.keep_secrets_seconds, cluster.keep_seconds))
    return f"""clean() {{
    cd "$directory" 2>/dev/null && read -r owner 2>/dev/null <cluster && [ "$owner" = {shlex.quote(name)} ] || return 0
    {{
        printf '%s\\n' "$shown"
        echo .
        find secrets progress -type f -name 'dispatch-*' -mmin +{soon}
        find runs logs -type f -name 'dispatch-*' -mmin +{late}
        find starts -type d -name 'dispatch-*' -mmin +{late}
    }} 2>/dev/null | LC_ALL=C awk -F '{GAP}' '
        !files {{ if ($0 == ".") files = 1; else queued[${FIELDS.index("Name") + 1}] = 1; next }}
        /^[a-z]+[/]dispatch-[0-9a-z]+-[0-9]+-[0-9]+([.][0-9a-z.]+)?$/ {{
            name = $0; sub(/^[a-z]+[/]/, "", name); sub(/[.].*/, "", name)
            if (!(name in queued)) print
        }}' | head -n {MOST} | timeout 60 xargs rm -df --
}}
(clean)"""
