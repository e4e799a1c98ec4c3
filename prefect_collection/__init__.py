"""The Prefect side of dispatch: the collection that Prefect discovers by entry point."""
