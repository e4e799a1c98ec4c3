"""The Airflow side of dispatch: the provider that Airflow discovers by entry point.

One rule: Airflow reads this in every process that it starts, so nothing is imported here but what describes the rest.
Dags import `airflow_provider.operator.DispatchOperator`.
"""

INTEGRATION = "dispatch"

CONNECTION_FIELDS = {
    "url": {
        "label": "Database URL",
        "description": "A SQLAlchemy URL, like postgresql://user:password@host/name; it is used instead of the fields"
        " above",
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


def get_provider_info() -> dict[str, object]:
    """What Airflow knows of this package: its tables, its connection type, its modules."""
    return {
        "package-name": "dispatch-supervisor",
        "name": "Dispatch",
        "description": "Launches long external jobs, never twice, and keeps one durable record of each.",
        "integrations": [{"integration-name": INTEGRATION, "tags": ["service"]}],
        "operators": [{"integration-name": INTEGRATION, "python-modules": ["airflow_provider.operator"]}],
        "triggers": [{"integration-name": INTEGRATION, "python-modules": ["airflow_provider.trigger"]}],
        "hooks": [{"integration-name": INTEGRATION, "python-modules": ["airflow_provider.hook"]}],
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
            }
        ],
        "db-managers": ["airflow_provider.db.DispatchDBManager"],
    }
