"""Loaded by every program of the tests' Airflow: in a triggerer, writes down how often the spool was listed.

The count is the adapter's own. A line a second goes to `listings-PID`: the seconds, the listings so far, and how many
triggers share them.
"""

import os
import sys
import threading
import time


def watch(folder: str) -> None:
    while True:
        time.sleep(1.0)
        sites = sys.modules.get("airflow_provider.sites")
        shared = [] if sites is None else list(sites._shared.values())
        counts = [
            (adapter.listings, place.users)
            for place in shared
            if isinstance(place.open, sites.Site)  # the clusters beside them are those that the sites share
            for adapter in list(place.open._adapters.values())
        ]
        if counts:
            listings, users = map(sum, zip(*counts, strict=True))
            with open(os.path.join(folder, f"listings-{os.getpid()}"), "a") as file:
                file.write(f"{time.time()} {listings} {users}\n")


def begin() -> None:
    folder = os.environ.get("DISPATCH_TEST_FOLDER")
    if folder and "triggerer" in sys.argv:
        threading.Thread(target=watch, args=(folder,), daemon=True).start()


# The triggers run in a child that the triggerer forks, and threads are not forked along.
os.register_at_fork(after_in_child=begin)
