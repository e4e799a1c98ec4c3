"""The one page that only Airflow needs: the way from a task instance to its newest job.

One rule: it finds and sends on, and shows nothing itself; who may not look at the job is not told whether there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from airflow_provider import identity
from airflow_provider.links import OF
from dispatch_core.errors import BadInput
from dispatch_core.stores.contract import Store
from dispatch_core.web.access import Access, Right

NAMES = ("dag_id", "run_id", "task_id")


def routes(open_store: Callable[[], Store], access: Access) -> list[BaseRoute]:
    """The route, to be mounted beside those of the pages."""

    async def of(request: Request) -> Response:
        given = request.query_params
        if not all(given.get(name) for name in NAMES):
            raise BadInput("the address of this page names no task instance")
        dag_id, run_id, task_id = (given[name] for name in NAMES)
        stem = identity.stem(dag_id, run_id, task_id, _map_index(given.get("map_index", "")))
        await access.admit(request, Right.READ, identity.key(stem, 0))
        rows = await open_store().jobs(key_prefix=f"{stem}/")
        known = [(generation, row) for row in rows if (generation := identity.generation_of(stem, row.key)) is not None]
        base = request.scope.get("root_path", "").rstrip("/")
        if not known:
            return RedirectResponse(f"{base}/?{urlencode({'show': 'all', 'key': f'{stem}/'})}", 303)
        _, newest = max(known, key=lambda pair: pair[0])
        return RedirectResponse(f"{base}/job?{urlencode({'key': newest.key, 'uid': newest.uid})}", 303)

    return [Route(OF, of, name="dispatch-of")]


def _map_index(given: str) -> int:
    """The index of a mapped task; Airflow leaves its placeholder as it is for one that is not mapped."""
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 10 else -1
