"""The HTTP interface: routes, their description, and the page's files."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from focoop import __version__
from focoop.errors import FocoopError
from focoop.serve import schemas
from focoop.serve.batching import QueueFull, Stopped
from focoop.serve.engine import TOP, Answered, Engine
from focoop.serve.forms import label_of, question_of, read_form
from focoop.serve.guard import App, Guard
from focoop.serve.keys import KeyFile
from focoop.serve.numbers import Numbers
from focoop.serve.refusals import Refusal, busy

PAGE = Path(__file__).parent / "page"
CURL = "curl -F images=@a.jpg"  # how the description's examples begin
STATUSES = {"format": 415, "size": 413, "damaged": 422}
log = logging.getLogger("focoop.serve")


def make_app(engine: Engine, *, keys: KeyFile | None = None, local_only: bool = True) -> App:
    """Make the ASGI app of a server.

    Args:
        engine: Answers the images. The app stops it when it ends.
        keys: Keys that are asked for; None: everybody is let in.
        local_only: Answer requests alone that call this machine by its loopback name.

    Returns:
        The app.
    """
    numbers = Numbers(engine)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(engine.stop)

    api = FastAPI(
        title="focoop",
        version=__version__,
        summary="Which class is it: one of mine, another site's, or nobody's?",
        docs_url=None,  # those pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    _add_errors(api, numbers)
    _add_state(api, engine, numbers)
    _add_answers(api, engine, numbers)
    _add_page(api)
    _describe(api, keys is not None)
    return Guard(api, engine.limits, keys, local_only, numbers.request, numbers.refusal)


def _add_errors(api: FastAPI, numbers: Numbers) -> None:
    """Answer all that goes wrong with the same document."""

    @api.exception_handler(Refusal)
    async def refused(_: Request, refusal: Refusal) -> Response:
        numbers.refusal(refusal.kind)
        return JSONResponse(refusal.body(), refusal.status, refusal.headers())

    @api.exception_handler(HTTPException)
    async def unknown(_: Request, error: HTTPException) -> Response:
        kinds = {404: "path", 405: "method"}
        refusal = Refusal(error.status_code, kinds.get(error.status_code, "http"), error.detail)
        return JSONResponse(refusal.body(), refusal.status, error.headers)

    @api.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> Response:
        body = Refusal(500, "server", "an error of the server; its log has it").body()
        return JSONResponse(body, 500)


def _add_state(api: FastAPI, engine: Engine, numbers: Numbers) -> None:
    @api.get("/health", summary="Is the process alive?")
    async def health() -> schemas.State:
        return schemas.State(status="ok")

    @api.get("/ready", summary="Does it answer images?", responses=_errors(503))
    async def ready() -> schemas.State:
        if not engine.ready:
            raise busy("the server is stopping")
        return schemas.State(status="ready")

    @api.get("/metrics", summary="Numbers for Prometheus.", response_class=Response)
    async def metrics() -> Response:
        return Response(numbers.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @api.get("/v1/models", summary="Models, clients, calibration and drift.")
    async def models() -> schemas.ModelList:
        limits = engine.limits
        return schemas.ModelList.model_validate(
            {
                "models": [served.describe() for served in engine.served.values()],
                "limits": {name: getattr(limits, name) for name in schemas.Bounds.model_fields},
            }
        )


def _add_answers(api: FastAPI, engine: Engine, numbers: Numbers) -> None:
    limits = engine.limits

    @api.post(
        "/v1/predict",
        summary="Which class is on each image, and whose is it?",
        description=f"`{CURL} -F images=@b.jpg -F client=3 http://127.0.0.1:8080/v1/predict`",
        response_model=schemas.PredictAnswer,
        responses=_errors(400, 404, 408, 411, 413, 415, 422, 503),
        openapi_extra=_form(limits.images, "client", "open_share", "top"),
    )
    async def predict(request: Request) -> Response:
        form = await read_form(request, limits, limits.images)
        served, question = question_of(form.fields, engine)
        with _admitted(engine, len(form.images)):
            prepared = await _prepared(
                request,
                [engine.prepare(content, served) for _, content in form.images],
                [name for name, _ in form.images],
                limits.seconds,
            )
            work = engine.ask(prepared, question)
            answers: list[Answered] = await _all(request, work, limits.seconds)
        client = served.client_name(question.client)
        for found in answers:
            numbers.image(served.name, client, found.answer.verdict, found.answer.p_value)
        return JSONResponse(
            {
                "model": served.name,
                "client": client,
                "open_share": question.open_share,
                "predictions": [
                    found.answer.to_dict() | {"source": name or f"image {place}"}
                    for place, (found, (name, _)) in enumerate(
                        zip(answers, form.images, strict=True)
                    )
                ],
            }
        )

    @api.post(
        "/v1/explain",
        summary="Where in an image is a class?",
        description=f"`{CURL} -F label=whale http://127.0.0.1:8080/v1/explain`",
        response_model=schemas.Explanation,
        responses=_errors(400, 404, 408, 411, 413, 415, 422, 503),
        openapi_extra=_form(1, "client", "label"),
    )
    async def explain(request: Request) -> Response:
        form = await read_form(request, limits, 1)
        served, question = question_of(form.fields, engine)
        label = label_of(form.fields, served)
        name, content = form.images[0]
        with _admitted(engine, 1):
            work = engine.explain(content, served, question.client, label)
            (found,) = await _prepared(request, [work], [name], limits.seconds)
        rows, columns = found.shape
        return JSONResponse(
            {
                "model": served.name,
                "label": label,
                "rows": rows,
                "columns": columns,
                "values": [[round(float(value), 5) for value in row] for row in found],
            }
        )


class _admitted:
    """A context in which images are inside the engine."""

    def __init__(self, engine: Engine, images: int) -> None:
        self.engine, self.images = engine, images

    def __enter__(self) -> None:
        try:
            self.engine.admit(self.images)
        except QueueFull as error:
            raise busy("the queue is full: try again soon") from error
        except Stopped as error:
            raise busy("the server is stopping") from error

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.engine.release(self.images)
        if kind is not None and issubclass(kind, QueueFull | Stopped):
            raise busy("the server is stopping")


async def _prepared(
    request: Request, work: "Sequence[Future[Any]]", names: Sequence[str], seconds: float
) -> list[Any]:
    """What threads make of the images; one refusal for all images that cannot be read."""
    found = await _all(request, work, seconds, errors=True)
    bad = [(place, error) for place, error in enumerate(found) if isinstance(error, BaseException)]
    if not bad:
        return found
    for _, error in bad:
        if isinstance(error, asyncio.CancelledError):
            raise busy("the server is stopping")
        if not isinstance(error, FocoopError):
            raise error
    listed = [
        {"index": place, "source": names[place], "reason": str(error)} for place, error in bad
    ]
    kinds = [getattr(error, "kind", "damaged") for _, error in bad]
    status = max((STATUSES[kind] for kind in kinds), default=422)
    first = f"{listed[0]['source'] or 'image ' + str(bad[0][0])}: {listed[0]['reason']}"
    text = f"{len(bad)} of {len(found)} images cannot be answered ({first})"
    raise Refusal(status, "image", text, listed)


async def _all(
    request: Request, work: "Sequence[Future[Any]]", seconds: float, *, errors: bool = False
) -> list[Any]:
    """Wait for futures of threads, for so long, and as long as anybody waits for the answer."""
    waits = asyncio.gather(*map(asyncio.wrap_future, work), return_exceptions=errors)
    # Work that was given up ends with an error that nobody asks for: asyncio would log each.
    waits.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    leaving = asyncio.ensure_future(request.receive())  # all that can come is the connection's end
    try:
        await asyncio.wait((waits, leaving), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if waits.done():
            return waits.result()
        if leaving.done():
            raise Refusal(499, "left", "whoever asked has left")
        raise busy(f"no answer within {seconds:g} seconds: try again soon")
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise busy("the server is stopping") from error
    except FocoopError as error:  # the model cannot do what is asked
        raise Refusal(422, "model", str(error)) from error
    finally:
        leaving.cancel()
        waits.cancel()
        for one in work:
            one.cancel()


def _add_page(api: FastAPI) -> None:
    files = {path.name: path for path in PAGE.iterdir() if path.suffix in (".js", ".css", ".svg")}

    @api.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE / "index.html")

    @api.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "there is no such file")
        return FileResponse(files[name])


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route, for its description."""
    texts = {
        400: "The body or a header is malformed.",
        404: "No such model or client.",
        408: "The body came in too slowly.",
        411: "The header Content-Length is missing.",
        413: "Too many bytes, pixels or images.",
        415: "Not multipart, or not an image of a format that is read.",
        422: "A damaged image, or a field that cannot be understood.",
        503: "Full, or stopping: try again after Retry-After.",
    }
    return {
        status: {"model": schemas.ErrorAnswer, "description": texts[status]} for status in statuses
    }


def _form(images: int, *names: str) -> dict[str, Any]:
    """The multipart body of a route, for its description."""
    known: dict[str, Any] = {
        "client": {
            "type": "string",
            "description": "Name or number of a client, or global.",
            "examples": ["3", "global"],
        },
        "open_share": {
            "type": "number",
            "minimum": 0,
            "maximum": 1,
            "description": "0: own classes alone. 1: all classes alike. Default: the model's.",
            "examples": [0.5],
        },
        "top": {"type": "integer", "minimum": 1, "maximum": TOP, "default": 5, "examples": [5]},
        "label": {"type": "string", "description": "Name of a class.", "examples": ["whale"]},
    }
    many: dict[str, Any] = {
        "type": "array",
        "items": {"type": "string", "format": "binary", "contentMediaType": "image/*"},
        "minItems": 1,
        "maxItems": images,
    }
    properties: dict[str, Any] = {
        "images": many,
        "model": {"type": "string", "description": "Default: the first.", "examples": ["mine"]},
    }
    properties |= {name: known[name] for name in names}
    schema = {
        "type": "object",
        "properties": properties,
        "required": ["images", *(["label"] if "label" in names else [])],
        "additionalProperties": False,
    }
    return {
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
    }


def _describe(api: FastAPI, keyed: bool) -> None:
    """Say in the OpenAPI description that keys are asked for."""
    if not keyed:
        return
    plain = api.openapi

    def described() -> dict[str, Any]:
        document = plain()
        schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes["key"] = {"type": "http", "scheme": "bearer"}
        document["security"] = [{"key": []}]
        return document

    api.openapi = described  # type: ignore[method-assign]
