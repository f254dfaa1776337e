"""Tables as pandas DataFrames, for those who have pandas."""

from typing import Any

from focoop.errors import MissingExtra


def pandas() -> Any:
    """Import pandas.

    Returns:
        The module.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        import pandas as module
    except ModuleNotFoundError as error:
        raise MissingExtra("a DataFrame needs pandas: pip install pandas") from error
    return module
