"""In which order tests run, also where pytest-xdist runs several files at once (ci/test)."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests begin, for the others to fill the rest of the time."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
