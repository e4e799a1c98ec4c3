"""What a user of Airflow may do with jobs, as its auth manager says.

One rule: who asks is who Airflow says it is, and a valid user alone may do nothing. Each right is a question that
Airflow asks itself for what amounts to the same:

- READ a job: may they read its DAG, and that DAG's task instances? A job shows what the instance's own page and log do.
- ACT on a job: may they change them? Airflow asks this before it marks an instance failed or clears it, and a cancel or
  a hold does no more than these.
- STORE: may they change connections? Who writes records says what runs on the clusters, with the secrets that jobs are
  given; and whoever can change the connection `dispatch_default` could lead tasks to records of their own making
  already. It is the right of a service user, and includes the other two.

A list shows of its jobs those that they may read. Asked without a DAG, some auth managers say whether there is any that
the user may read: that lets them in to a list. A job that no DAG made, or whose key does not name it, is about every
DAG: then the question is asked of a name that no DAG can have, which only a right on all of them covers. Written
against `BaseAuthManager`; tried with `SimpleAuthManager`, where READ is the role viewer, ACT user, and STORE op. With
FAB, which is untested, the service user's role needs `can edit on Connections`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow_provider import tasks
from airflow_provider.hook import DEFAULT
from dispatch_core.web.access import Denied, Right

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
    from starlette.requests import Request

EVERY = "every DAG"
"""The name of none: those of DAGs have no spaces."""

METHODS = {Right.READ: "GET", Right.ACT: "PUT"}


class AuthManagerAccess:
    """Airflow's users, with the rights that its auth manager gives them."""

    async def admit(self, request: Request, right: Right, key: str = "") -> str:
        """The user's name. Raises Denied."""
        user = await _user(request)
        # In a thread, as Airflow does: an auth manager may ask its database.
        if not await asyncio.to_thread(_may, user, right, key):
            about = f"job {key!r}" if key else "these jobs"
            raise Denied(403, f"{user.get_name()} has no right to {right.value} {about} here; nothing was done")
        return f"person {user.get_name()}"

    async def readable(self, request: Request, keys: frozenset[str]) -> frozenset[str]:
        """Those of the keys whose jobs they may read."""
        user = await _user(request)
        return await asyncio.to_thread(_readable, user, keys)


async def _user(request: Request) -> BaseUser:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.core_api.security import bearer_scheme, get_user
    from fastapi import HTTPException

    try:
        return await get_user(request, None, await bearer_scheme(request))
    except HTTPException as error:
        login = get_auth_manager().get_url_login(next_url=str(request.url))
        raise Denied(401, f"Airflow does not know who asks: {error.detail}", login=login) from None


def _readable(user: BaseUser, keys: frozenset[str]) -> frozenset[str]:
    """One question for each DAG, and one for all jobs that are of none."""
    dags = {key: _dag(key) for key in keys}
    seen = {dag for dag in set(dags.values()) if _may_on(user, Right.READ, dag)}
    return frozenset(key for key, dag in dags.items() if dag in seen)


def _may(user: BaseUser, right: Right, key: str) -> bool:
    return _may_on(user, right, _dag(key) if key else None)


def _may_on(user: BaseUser, right: Right, dag: str | None) -> bool:
    """`dag`: None for any."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails

    manager: Any = get_auth_manager()
    if right is not Right.STORE and _may_with_dag(manager, user, METHODS[right], dag):
        return True
    return bool(manager.is_authorized_connection(method="PUT", user=user, details=ConnectionDetails(conn_id=DEFAULT)))


def _may_with_dag(manager: Any, user: BaseUser, method: str, dag: str | None) -> bool:
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
    from airflow.configuration import conf
    from airflow.models.dag import DagModel

    details = None
    if dag is not None:
        team = DagModel.get_team_name(dag) if conf.getboolean("core", "multi_team", fallback=False) else None
        details = DagDetails(id=dag, team_name=team)
    return all(
        manager.is_authorized_dag(method=method, access_entity=entity, details=details, user=user)
        for entity in (None, DagAccessEntity.TASK_INSTANCE)
    )


def _dag(key: str) -> str:
    """The DAG whose task a job is, as its key says; EVERY for one that no task made, or whose key had to be cut."""
    instance = tasks.of_key(key)
    return EVERY if instance is None else instance.dag_id
