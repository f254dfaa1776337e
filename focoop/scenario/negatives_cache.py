"""Keep the negative words of a task on disk, because choosing them anew takes about a second."""

import hashlib
import json
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from focoop import __version__
from focoop.caching import SUM, cache_folder, is_intact, parse_json, sealed, write_whole
from focoop.config import NegativesConfig
from focoop.scenario.wordnet import WORDNET, content_hash


def remembered(
    settings: NegativesConfig,
    fingerprint: str,
    classes: Sequence[str],
    mine: Callable[[], Sequence[str]],
    cache_dir: Path | None = None,
) -> tuple[str, ...]:
    """Return the negative words of a task, chosen now where the cache does not have them.

    Args:
        settings: The settings of the choice.
        fingerprint: The backbone's fingerprint.
        classes: Names of the ID classes.
        mine: Chooses the words.
        cache_dir: The folder of the cache; None: the default one.

    Returns:
        The words.
    """
    source = Path(settings.words).expanduser() if settings.words else WORDNET
    try:
        version = hashlib.sha256(source.read_bytes()).hexdigest()
    except OSError:
        return tuple(mine())  # it says what is wrong with the list
    parts = [__version__, fingerprint, sorted(classes), asdict(settings), version]
    path = cache_folder(cache_dir, "negatives") / f"words-{content_hash(parts)}.json"
    try:
        entry = parse_json(path.read_text("utf-8"))
        if is_intact(entry) and entry["file"] == path.name:
            return tuple(entry["words"])
        if SUM in entry:  # those of an earlier focoop have none
            warnings.warn(f"{path} is damaged: its words are chosen again", stacklevel=2)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError) as error:
        warnings.warn(f"{path} cannot be read ({error}): words are chosen again", stacklevel=2)
    words = list(mine())
    content = json.dumps(sealed({"file": path.name, "words": words}))
    with suppress(OSError):  # then the next process mines them again
        write_whole(path, content.encode())
    return tuple(words)
