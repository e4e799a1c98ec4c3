"""The way from Airflow's own pages to those of dispatch: a link at each task, a tab, and a place in the menu.

One rule: a link names a job by what lasts, its key and uid or the task instance itself, never by anything that a server
holds; so it leads to the job from before the task is deferred until long after it has ended.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode, urlsplit

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowRuntimeError

PREFIX = "/dispatch"
"""Where the plugin is mounted in the api-server."""

OF = "/of"
"""Below it: the newest job of a task instance."""

XCOM = "dispatch_job"
"""Where a task's job is, by key and uid."""


class DispatchJobLink(BaseOperatorLink):
    """The page of the task's job. Airflow calls it when a try ends; `push` has made it known when it began."""

    name = "dispatch job"

    @property
    def xcom_key(self) -> str:
        """Where Airflow reads the link."""
        return "_link_dispatch_job"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The page of the job that the task submitted; where it got to none, of the newest under its name."""
        from airflow.sdk.execution_time.xcom import XCom  # not at the top: the api-server needs none of it

        try:
            job = XCom.get_value(ti_key=ti_key, key=XCOM)
        except AirflowRuntimeError:
            job = None
        if isinstance(job, dict) and "key" in job and "uid" in job:
            return job_url(str(job["key"]), str(job["uid"]))
        map_index = -1 if ti_key.map_index is None else ti_key.map_index
        return of_url(ti_key.dag_id, ti_key.run_id, ti_key.task_id, map_index)

    def push(self, ti: Any, key: str, uid: str) -> None:
        """Make the link known while the task is yet to end."""
        ti.xcom_push(self.xcom_key, job_url(key, uid))


def job_url(key: str, uid: str) -> str:
    """The page of one record."""
    return f"{_base()}{PREFIX}/job?{urlencode({'key': key, 'uid': uid})}"


def of_url(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    """The page of a task instance's newest job."""
    names = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": map_index}
    return f"{_base()}{PREFIX}{OF}?{urlencode(names)}"


def external_views() -> list[dict[str, str]]:
    """What the plugin adds to Airflow's menu, and to each task instance; Airflow fills the names in."""
    path = urlsplit(_base()).path
    names = "dag_id={DAG_ID}&run_id={RUN_ID}&task_id={TASK_ID}&map_index={MAP_INDEX}"
    return [
        {
            "name": "dispatch",
            "href": f"{path}{PREFIX}/",
            "destination": "nav",
            "category": "browse",
            "url_route": "dispatch",
        },
        {
            "name": "dispatch job",
            "href": f"{path}{PREFIX}{OF}?{names}",
            "destination": "task_instance",
            "url_route": "dispatch_job",
        },
    ]


def _base() -> str:
    """Where Airflow is reached, as far as this process is told; without it, links begin at the host."""
    return str(conf.get("api", "base_url", fallback="") or "").rstrip("/")
