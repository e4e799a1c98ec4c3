"""What is in `inside` runs in the environment that has Airflow: `python -m pytest tests/airflow/inside` there."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("airflow") is not None else ["inside"]
