"""Runs the tests of the Python package with pytest, and prints their number as other test programs do.

run.py TEST_FILE...
"""

import sys

import pytest


class Count:
    """Counts outcomes as pytest reports them."""

    def __init__(self):
        self.n = {'passed': 0, 'failed': 0, 'skipped': 0}

    def pytest_runtest_logreport(self, report):
        if report.when == 'call' or report.outcome != 'passed':
            self.n[report.outcome] += 1


def main():
    count = Count()
    status = pytest.main(['-q', '-p', 'no:cacheprovider', *sys.argv[1:]], plugins=[count])
    n = count.n
    failed = n['failed'] or int(status not in (0, 1))
    print(f"{n['passed']} passed, {failed} failed" + (f", {n['skipped']} skipped" if n['skipped'] else ''))
    return status


if __name__ == '__main__':
    sys.exit(main())
