"""A deferred package is the package itself as soon as it is used."""

import subprocess
import sys
from pathlib import Path

import pytest

from focoop import lazy

PACKAGE = {
    "__init__.py": """
import time
from slowly import inner
time.sleep(0.05)
number = inner.number + 1
def __getattr__(name):
    if name == "asked":
        return "for"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
""",
    "inner.py": "number = 1\nfrom slowly import deep\n",
    "deep/__init__.py": "",
    "deep/down.py": "word = 'down'\n",
}
SCRIPT = """
import sys
from focoop.lazy import defer
defer("slowly")
import slowly, slowly.deep.down as down
assert "slowly.inner" not in sys.modules
assert slowly.__name__ == "slowly" and hasattr(slowly, "__path__")
{use}
"""
USES = {
    "an attribute": "assert slowly.number == 2",
    "a name": "from slowly import number\nassert number == 2",
    "a part": "assert down.word == 'down' and slowly.number == 2",
    "the package's own lazy names": "assert slowly.asked == 'for'",
    "one object": (
        "slowly.number\nimport slowly.deep.down as again\n"
        "assert slowly is sys.modules['slowly'] and type(slowly) is type(sys)\n"
        "assert slowly.deep.down is again and again.word == down.word"
    ),
    "a name that is not there": (
        "try:\n    slowly.missing\nexcept AttributeError as error:\n"
        "    assert str(error) == \"module 'slowly' has no attribute 'missing'\"\n"
        "else:\n    raise AssertionError"
    ),
    "many threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    assert list(pool.map(lambda _: slowly.number, range(8))) == [2] * 8"
    ),
}


@pytest.mark.parametrize("use", USES)
def test_a_deferred_package_behaves_like_itself(use: str, tmp_path: Path) -> None:
    for name, text in PACKAGE.items():
        path = tmp_path / "slowly" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r})" + SCRIPT.format(use=USES[use])
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_what_is_loaded_or_absent_is_left_alone() -> None:
    finders = list(sys.meta_path)
    lazy.defer("json")
    lazy.defer("no_such_package_at_all")
    assert sys.meta_path == finders
