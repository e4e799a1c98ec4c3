"""What runs have written: found by the note that each run leaves of where its output goes, and from where on.

One rule: a run's output is what lies between the note of this run and the next one in the same file, so that a requeued
object, which goes on writing into it, is told apart run by run.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from dispatch_core.adapters.contract import Log, Piece, Target
from dispatch_core.adapters.slurm.guard import Section

NOTE = """note() {
    out='' out_from='' err='' err_from=''
    [ -r "$1" ] || return 1
    { read -r out; read -r out_from; read -r err; read -r err_from; } <"$1"
    case $out_from/$err_from in /* | */ | *[!0-9/]*) return 1 ;; esac
}
"""
"""Reads what a run has noted: the paths of its two streams, and the size that each had when it began."""


def piece_body(target: Target, stream: int, begin: int, length: int) -> str:
    """The body of a script that says `bytes SIZE` and prints some of them, up to the mark `end`; or that says
    `not_begun`, `shared`, or `gone` with the path."""
    file, begun = ("out", "out_from") if stream == 1 else ("err", "err_from")
    return f"""{NOTE}noted="$directory/runs/"{shlex.quote(target.name)}
note "$noted.{target.run}.out" || {{ say not_begun; return; }}
if [ {stream} = 2 ] && [ "$err" = "$out" ]; then say shared; return; fi
mine=${file} from=${begun}
if ! {{ [ -r "$mine" ] && until=$(stat -L -c %s -- "$mine"); }}; then say gone; printf '%s' "$mine"; return; fi
for later in "$noted".*.out; do
    number=${{later%.out}} number=${{number##*.}}
    case $number in *[!0-9]*) continue ;; esac
    if [ "$number" -gt {target.run} ] && note "$later" && [ "${file}" = "$mine" ] && [ "${begun}" -lt "$until" ]
    then until=${begun}; fi
done
size=$((until - from)) left=$((until - from - {begin}))
[ "$size" -gt 0 ] || size=0
[ "$left" -lt {length} ] || left={length}
say bytes $size
if [ "$left" -gt 0 ]; then tail -c +$((from + {begin} + 1)) -- "$mine" | head -c "$left"; fi
say end
printf '%s' "$mine" """


def piece_of(sections: Sequence[Section]) -> Piece:
    """What that script said."""
    mark, *size = sections[1].mark.split(" ")
    if mark == "bytes":
        return Piece(log=Log.THERE, data=sections[1].printed, size=int(size[0]), path=sections[-1].body)
    return Piece(log=Log(mark), path=sections[1].body)
