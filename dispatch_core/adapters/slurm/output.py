"""What runs have written: found by the note that each run leaves of where its output goes, and from where on.

One rule: a run's output is what lies between the note of this run and that of the next, so that a requeued object,
which goes on writing into the same file, is told apart run by run.
"""

from __future__ import annotations

import shlex

from dispatch_core.adapters.contract import Target

STREAMS = (1, 2)


def chunk_body(target: Target, stream: int, offset: int, length: int) -> str:
    """The body of a script that prints `length` bytes of a stream of a run after `offset`: between the mark `bytes` and
    the mark `end`; or that says `none`, where the run has not begun, or writes both streams into one file."""
    note = f'"$directory/runs/"{shlex.quote(target.name)}'
    return f"""note() {{
    [ -r "$1" ] || return 1
    {{ read -r out; read -r out_from; read -r err; read -r err_from; }} <"$1"
    if [ {stream} = 1 ]; then file=$out from=$out_from; else file=$err from=$err_from; fi
}}
left={length}
if note {note}.{target.run + 1}.out; then left=$from; fi
until=$left
note {note}.{target.run}.out || {{ say none; return; }}
if [ {stream} = 2 ] && [ "$err" = "$out" ]; then say none; return; fi
begin=$((from + {offset}))
if [ -r {note}.{target.run + 1}.out ]; then left=$((until - begin)); fi
[ "$left" -gt {length} ] && left={length}
[ "$left" -gt 0 ] && [ -r "$file" ] || {{ say none; return; }}
say bytes
tail -c +$((begin + 1)) "$file" | head -c "$left"
say end"""
