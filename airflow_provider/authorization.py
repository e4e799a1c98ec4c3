"""What a user of Airflow may do with jobs, as its auth manager says.

One rule: who asks is who Airflow says it is, and a valid user alone may do nothing. Each right is a question that
Airflow asks itself for what amounts to the same:

- READ a job: may they read its DAG, and that DAG's task instances? A job shows what the instance's own page and log do.
- ACT on a job: may they change them? Airflow asks this before it marks an instance failed or clears it, and a cancel or
  a hold does no more than these.
- STORE: may they change connections? Who writes records says what runs on the clusters, with the secrets that jobs are
  given; and whoever can change the connection `dispatch_default` could lead tasks to records of their own making
  already. It is the right of a service user, and includes the other two.

A job that no DAG made, and a list of all jobs, are about every DAG: the question is then asked without one. Written
against `BaseAuthManager`; tried with `SimpleAuthManager`, where READ is the role viewer, ACT user, and STORE op. With
FAB, which is untested, the service user's role needs `can edit on Connections`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_provider.hook import DEFAULT
from airflow_provider.identity import PREFIX
from dispatch_core.web.access import Denied, Right

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
    from starlette.requests import Request

METHODS = {Right.READ: "GET", Right.ACT: "PUT"}

_KEY_PARTS = 6


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


async def _user(request: Request) -> BaseUser:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.core_api.security import bearer_scheme, get_user
    from fastapi import HTTPException

    try:
        return await get_user(request, None, await bearer_scheme(request))
    except HTTPException as error:
        login = get_auth_manager().get_url_login(next_url=str(request.url))
        raise Denied(401, f"Airflow does not know who asks: {error.detail}", login=login) from None


def _may(user: BaseUser, right: Right, key: str) -> bool:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails

    manager: Any = get_auth_manager()
    if right is not Right.STORE and _may_with_dag(manager, user, METHODS[right], dag_of(key)):
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


def dag_of(key: str) -> str | None:
    """The DAG whose task a job is, as its key says; None: no DAG, or one whose name was too long for the key.

    >>> dag_of("airflow/etl%2Fdaily/manual__2026-11-29/train/-1/0")
    'etl/daily'
    """
    parts = key.split("/")
    if len(parts) != _KEY_PARTS or parts[0] != PREFIX or "~" in parts[4]:
        return None
    return unquote(parts[1])
