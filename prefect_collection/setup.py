"""`python -m prefect_collection.setup`: make the store in the Prefect server's own database, or bring it up to date.

Run where the server's database settings are, while the server is up: that is what proves that the database is the
server's. Safe at any time, any number of times.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from dispatch_core.errors import DispatchError
from prefect_collection.server_database import set_up


def main() -> None:
    """Exits with 0, or with the error's code and one line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m prefect_collection.setup", description=__doc__)
    parser.add_argument("--schema", help="the PostgreSQL schema for the tables (default: dispatch)")
    options = parser.parse_args()
    try:
        database, revision = asyncio.run(set_up(options.schema))
    except DispatchError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    print(f"the records of jobs are kept in {database}, in tables of revision {revision}")


if __name__ == "__main__":
    main()
