"""Tables of what tests saw: each test tells its row, and they are printed together after the run.

One rule: a table judges nothing; the test that told a row has asserted what must hold.
"""

import pytest

ROW = "row of a table"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Tables())


def tell(request: pytest.FixtureRequest, table: str, **cells: object) -> None:
    """One row of a table; its cells are printed under their names. It travels from another process too."""
    told = {name.replace("_", " "): str(value) for name, value in cells.items()}
    request.node.user_properties.append((ROW, {"table": table, "cells": told}))


class Tables:
    """The rows of one run, by table."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, str]]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "teardown":  # every report carries the rows told so far: the last has all of them
            return
        for name, value in report.user_properties:
            if name == ROW and isinstance(value, dict):
                self.rows.setdefault(value["table"], []).append(value["cells"])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for table, rows in self.rows.items():
            terminalreporter.section(table)
            names = list(rows[0])
            widths = [max(len(name), *(len(row.get(name, "")) for row in rows)) for name in names]
            for row in [dict(zip(names, names, strict=True)), *rows]:
                cells = [row.get(name, "").ljust(width) for name, width in zip(names, widths, strict=True)]
                terminalreporter.write_line("  ".join(cells).rstrip())
