"""The Airflow side of dispatch: the provider that Airflow discovers by entry point.

One rule: Airflow reads this in every process that it starts, so nothing is imported here but what describes the rest.
Dags import `airflow_provider.operator.DispatchOperator`.
"""

INTEGRATION = "dispatch"

CONNECTION_FIELDS = {
    "url": {
        "label": "URL",
        "description": "Used instead of the fields above: a SQLAlchemy URL, like postgresql://user:password@host/name;"
        " or a server's address, like https://airflow.example.org/dispatch, with the service user's name and password"
        " above (without a name: a token as the password)",
        "schema": {"type": ["string", "null"], "format": "password"},
    },
    "driver": {
        "label": "Database",
        "description": "postgresql, mysql, mariadb or sqlite (then the file's path is in Schema)",
        "schema": {"type": ["string", "null"], "default": "postgresql"},
    },
    "tables_schema": {
        "label": "Schema of the tables",
        "description": "The PostgreSQL schema that holds the dispatch tables; empty: the role's own search path",
        "schema": {"type": ["string", "null"]},
    },
    "spool": {
        "label": "Spool",
        "description": "The local scheduler's directory on the triggerer's host; empty: the user's own",
        "schema": {"type": ["string", "null"]},
    },
}

CLUSTER_FIELDS = {
    "key_file": {
        "label": "Private key",
        "description": "Its path on the triggerer's host, never the key itself; empty: the agent's and the user's own",
        "schema": {"type": ["string", "null"]},
    },
    "known_hosts": {
        "label": "Known hosts",
        "description": "The file that the host's key must be in; empty: the user's own",
        "schema": {"type": ["string", "null"]},
    },
    "directory": {
        "label": "Directory",
        "description": "A folder on the cluster that every node sees; empty: ~/.dispatch",
        "schema": {"type": ["string", "null"]},
    },
    "bin": {
        "label": "Slurm's commands",
        "description": "Their folder on the cluster; empty: they are found on PATH",
        "schema": {"type": ["string", "null"]},
    },
    "slurm_conf": {
        "label": "slurm.conf",
        "description": "Its path on the cluster; empty: as the host has it set up",
        "schema": {"type": ["string", "null"]},
    },
    "poll": {
        "label": "Poll",
        "description": "The shortest time between two listings, like 3s",
        "schema": {"type": ["string", "null"]},
    },
    "absence": {
        "label": "Absence",
        "description": "What listings must span before a job that is missing from them is gone, like 60s",
        "schema": {"type": ["string", "null"]},
    },
    "submits_per_second": {
        "label": "Submits a second",
        "description": "At most so many; empty: 5",
        "schema": {"type": ["number", "null"]},
    },
    "live_jobs": {
        "label": "Live jobs",
        "description": "At most so many in the queue; empty: no cap",
        "schema": {"type": ["integer", "null"]},
    },
    "keep": {
        "label": "Keep",
        "description": "How long logs and notes of jobs that left the queue are kept, like 30d",
        "schema": {"type": ["string", "null"]},
    },
    "keep_secrets": {
        "label": "Keep secrets",
        "description": "How long their secrets are kept, like 1h",
        "schema": {"type": ["string", "null"]},
    },
}


def get_provider_info() -> dict[str, object]:
    """What Airflow knows of this package: its tables, its connection type, its modules."""
    return {
        "package-name": "dispatch-supervisor",
        "name": "Dispatch",
        "description": "Launches long external jobs, never twice, and keeps one durable record of each.",
        "integrations": [{"integration-name": INTEGRATION, "tags": ["service"]}],
        "operators": [
            {
                "integration-name": INTEGRATION,
                "python-modules": ["airflow_provider.operator", "airflow_provider.janitor"],
            }
        ],
        "triggers": [{"integration-name": INTEGRATION, "python-modules": ["airflow_provider.trigger"]}],
        "task-decorators": [{"name": "dispatch", "class-name": "airflow_provider.decorator.dispatch_task"}],
        "hooks": [
            {"integration-name": INTEGRATION, "python-modules": ["airflow_provider.hook", "airflow_provider.clusters"]}
        ],
        "connection-types": [
            {
                "connection-type": "dispatch",
                "hook-class-name": "airflow_provider.hook.DispatchHook",
                "hook-name": "dispatch",
                "ui-field-behaviour": {
                    "hidden-fields": ["extra"],
                    "relabeling": {"schema": "Database", "login": "User"},
                    "placeholders": {"host": "db.example.org", "schema": "airflow", "login": "dispatch_app"},
                },
                "conn-fields": CONNECTION_FIELDS,
            },
            {
                "connection-type": "slurm_ssh",
                "hook-class-name": "airflow_provider.clusters.SlurmSshHook",
                "hook-name": "Slurm for dispatch",
                "ui-field-behaviour": {
                    "hidden-fields": ["extra", "schema", "password"],
                    "relabeling": {"host": "Submission host", "login": "User"},
                    "placeholders": {"host": "empty: Slurm's commands run on the triggerer's own host", "port": "22"},
                },
                "conn-fields": CLUSTER_FIELDS,
            },
        ],
        "extra-links": ["airflow_provider.links.DispatchJobLink"],
        "db-managers": ["airflow_provider.db.DispatchDBManager"],
    }
