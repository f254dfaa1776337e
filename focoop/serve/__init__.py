"""A trained model behind HTTP: predictions in batches, limits, keys, numbers, and the page at `/`.

    from focoop.serve import serve
    serve(["runs/demo/focoop_plus"], port=8080)      # until it is told to stop

`Engine` answers images without HTTP; `make_app` wraps one in an ASGI app. Images live in memory
alone, as long as their answer takes. FastAPI and uvicorn come with the extra `serve`.

May import: errors, threads, data, clip, features, runs, predict.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.serve.app import make_app
    from focoop.serve.engine import Answered, Engine, Question
    from focoop.serve.keys import KeyFile, add_key
    from focoop.serve.limits import Limits
    from focoop.serve.running import require_extra, serve

__all__ = [
    "Answered",
    "Engine",
    "KeyFile",
    "Limits",
    "Question",
    "add_key",
    "make_app",
    "require_extra",
    "serve",
]

__getattr__ = lazy_names(__name__, __file__)
