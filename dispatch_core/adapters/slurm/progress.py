"""Whether runs get on: what a listing looks at for those whose plan or options ask for it.

One rule: it is looked at in the listing's own script, on the host, and costs the same few commands however many runs
there are; logs are read only where they have grown, from their last lines back, a few in each listing. What cannot be
told is not told: a rule never fires on it.

Start leaves a file `progress/NAME` that says what shows progress. A pattern's file `progress/NAME.RUN` has how far the
two streams were read, and when a matching line was last new.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

from dispatch_core.adapters.contract import Launch
from dispatch_core.adapters.slurm.output import NOTE
from dispatch_core.adapters.slurm.reading import FIELDS, GAP

PROGRESS_FILE, PROGRESS_PATTERN, OUTPUT = "progress_file", "progress_pattern", "output"

LARGEST_READ = 65536
"""Bytes of a log that one listing reads at most, its last ones."""
LATE_SECONDS = 60
"""After so long without a look, a log that has grown by more than is read counts as progress."""
READ_AT_ONCE = 40
"""Logs that one listing reads at most; the next one goes on with others."""

NAME = "^dispatch-[0-9a-z]+-[0-9]+-[0-9]+$"
"""Our names, for awk; nothing else is ever taken for the name of a file."""


def noted(launch: Launch) -> str:
    """The shell in Start that says what shows progress; it refuses a pattern that grep does not take."""
    options = launch.spec.options
    told = next((f"{name} {options[name]}" for name in (PROGRESS_FILE, PROGRESS_PATTERN) if name in options), "")
    if not told and launch.watches_progress:
        told = OUTPUT
    if not told:
        return ""
    checked = ""
    if told.startswith(PROGRESS_PATTERN):
        checked = f"""told=$(LC_ALL=C grep -E -e {shlex.quote(str(options[PROGRESS_PATTERN]))} </dev/null 2>&1)
if [ $? -gt 1 ]; then refuse "progress_pattern: $told"; return; fi
"""
    return f"""{checked}if ! printf '%s\\n' {shlex.quote(told)} >"$directory/progress/{launch.name}"; then
    refuse "nothing can be written below $directory/progress"; return
fi
"""


def body(turn: int) -> str:
    """What a listing's script does with the queue in $shown. `turn`: the number of the listing."""
    columns = {name: f"${FIELDS.index(name) + 1}" for name in FIELDS}
    return f"""{NOTE}{_EXAMINE}
watch() {{
    cd "$directory/progress" 2>/dev/null || return 0
    names=$(ls)
    [ "$names" ] || return 0
    runs=$(printf '%s\\n.\\n%s\\n' "$names" "$shown" | LC_ALL=C awk -F '{GAP}' '
        !rows {{ if ($0 == ".") rows = 1; else if ($0 ~ /{NAME}/) watched[$0] = 1; next }}
        {columns["State"]} ~ /^(RUNNING|RESIZING|SIGNALING)/ && {columns["Name"]} in watched {{
            print {columns["Name"]}, {columns["RestartCnt"]} + 1
        }}')
    [ "$runs" ] || return 0
    patterns=$(printf '%s\\n' "$runs" | while read -r name run; do
        read -r kind told <"$name"; [ "$kind" != {PROGRESS_PATTERN} ] || echo .
    done | wc -l)
    number=0 first=0
    if [ "$patterns" -gt 0 ]; then first=$(({turn * READ_AT_ONCE} % patterns)); fi
    watched=$(printf '%s\\n' "$runs" | while read -r name run; do
        read -r kind told <"$name" || continue
        case $kind in
        {PROGRESS_FILE}) printf '%s\\n' "$name{GAP}$run{GAP}file{GAP}$told{GAP}${{told%/*}}/" ;;
        {PROGRESS_PATTERN})
            at='?'
            if [ $(((number - first + patterns) % patterns)) -lt {READ_AT_ONCE} ]; then examine "$told"; fi
            number=$((number + 1))
            printf '%s\\n' "$name{GAP}$run{GAP}at{GAP}$at{GAP}" ;;
        {OUTPUT}) if note "../runs/$name.$run.out"; then
            printf '%s\\n' "$name{GAP}$run{GAP}output{GAP}$out{GAP}$err"; fi ;;
        esac
    done)
    printf '%s\\n' "$watched" | LC_ALL=C awk -F '{GAP}' '$3 != "at" {{ print $4; print $5 }}' | sort -u |
        tr '\\n' '\\0' | LC_ALL=C timeout 10 xargs -0 stat -L -c '%.6Y{GAP}%n' -- 2>/dev/null
    printf '{GAP}\\n%s' "$watched"
}}
(watch)"""


_EXAMINE = f"""examine() {{
    note "../runs/$name.$run.out" || return 0
    read_out=$out_from read_err=$err_from matched=-
    if [ -r "$name.$run" ]; then read -r read_out read_err matched <"$name.$run"; fi
    case $read_out$read_err in '' | *[!0-9]*) return 0 ;; esac
    before="$read_out $read_err $matched"
    grown "$1" "$out" "$read_out" || return 0
    read_out=$reached
    if [ "$err" != "$out" ]; then grown "$1" "$err" "$read_err" || return 0; read_err=$reached; fi
    at=$matched
    if [ "$before" != "$read_out $read_err $matched" ]; then
        printf '%s\\n' "$read_out $read_err $matched" >"$name.$run.$$" && mv "$name.$run.$$" "$name.$run"
    fi
}}
grown() {{
    told=$(LC_ALL=C stat -L -c '%s %.6Y' -- "$2" 2>/dev/null) || return 1
    size=${{told% *}} reached=$3
    if [ "$size" -lt "$reached" ]; then reached=0; fi
    if [ "$size" = "$reached" ]; then return 0; fi
    unread='' hit=''
    if [ $((size - reached)) -gt {LARGEST_READ} ]; then unread=yes reached=$((size - {LARGEST_READ})); fi
    counted=$(export LC_ALL=C; {{
        {{ tail -c +$((reached + 1)) -- "$2" | head -c $((size - reached)); printf x; }} | tr '\\r\\000' '\\n ' |
            awk 'NR > 1 {{ print last; bytes += length(last) + 1 }}
                {{ last = $0 }} END {{ print "b" bytes + 0 >"/dev/stderr" }}' 2>&3 |
            timeout 5 grep -E -c -e "$1" >&3
    }} 3>&1)
    for told_count in $counted; do
        case $told_count in
        b*) reached=$((reached + ${{told_count#b}})) ;;
        0) ;;
        *) hit=yes ;;
        esac
    done
    if [ ! "$hit" ] && [ "$unread" ]; then
        looked=$(stat -c %Y -- "$name.$run" 2>/dev/null || echo 0)
        if [ $(($(date +%s) - looked)) -gt {LATE_SECONDS} ]; then hit=yes; fi
    fi
    if [ "$hit" ]; then matched=${{told#* }}; fi
}}"""
"""`examine PATTERN` sets $at: `?` unknown, `-` no matching line yet, or when the latest was written. It reads whole
lines only, and takes a carriage return for the end of one, as bars of progress are drawn. Where nobody has looked for
long, and more was written than is read, it is taken for progress: nothing is stopped for what nobody looked at."""


def read(text: str) -> Mapping[tuple[str, int], datetime | None]:
    """What that said: for a name and a run the time of its last progress; None: none since it began."""
    stats, _, rows = text.partition(f"{GAP}\n")
    times = dict(_times(stats))
    found: dict[tuple[str, int], datetime | None] = {}
    for row in rows.split("\n"):
        parts = row.split(GAP)
        if len(parts) != 5 or not parts[1].isdecimal():
            continue
        name, run, kind, first, second = parts[0], int(parts[1]), *parts[2:]
        if kind == "at" and first == "-":
            found[name, run] = None
        elif kind == "at" and (at := _moment(first)) is not None:
            found[name, run] = at
        elif kind == "file" and (first in times or second in times):
            found[name, run] = times.get(first)
        elif kind == "output" and (first in times or second in times):
            found[name, run] = max(times[path] for path in (first, second) if path in times)
    return found


def _times(text: str) -> Iterator[tuple[str, datetime]]:
    for line in text.split("\n"):
        time, _, path = line.partition(GAP)
        at = _moment(time)
        if at is not None:
            yield path, at


def _moment(seconds: str) -> datetime | None:
    """A file's time can be set to years that no date has."""
    try:
        return datetime.fromtimestamp(0, UTC) + timedelta(seconds=float(seconds))
    except (ValueError, OverflowError):
        return None
