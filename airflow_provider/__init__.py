"""The Airflow side of dispatch: the provider that Airflow discovers by entry point."""
