"""What every process of the tests does."""

import gc


def pytest_collection_finish():
    """Leave what was imported, which stays, out of every later search for garbage."""
    gc.freeze()
