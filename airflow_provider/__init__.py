"""The Airflow side of dispatch: the provider that Airflow discovers by entry point."""


def get_provider_info() -> dict[str, object]:
    """What Airflow reads at every start, in every process: without it, `import airflow` fails."""
    return {
        "package-name": "dispatch-supervisor",
        "name": "Dispatch",
        "description": "Launches long external jobs, never twice, and keeps one durable record of each.",
    }
