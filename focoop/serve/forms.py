"""Read the images and fields of a multipart request, in memory alone."""

from dataclasses import dataclass
from typing import Any

from focoop.errors import ConfigError
from focoop.serve.engine import TOP, Engine, Question
from focoop.serve.limits import Limits
from focoop.serve.refusals import Refusal
from focoop.serve.served import Served

NAME_LENGTH = 120  # letters of a file's name that come back
FIELDS = ("model", "client", "open_share", "top", "label")
IMAGES = "images"


@dataclass(frozen=True)
class Form:
    """What a request brought.

    Attributes:
        images: names and bytes of the files, in order.
        fields: the other fields.
    """

    images: list[tuple[str, bytes]]
    fields: dict[str, str]


async def read_form(request: Any, limits: Limits, images: int) -> Form:
    """Read a multipart body.

    Args:
        request: A request of Starlette.
        limits: Bounds.
        images: How many files it may have.

    Returns:
        The form.

    Raises:
        Refusal: It is no such body, holds too much, or holds no image.
    """
    from starlette.datastructures import UploadFile
    from starlette.formparsers import MultiPartException, MultiPartParser

    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise Refusal(415, "content-type", "send images as multipart/form-data, field 'images'")

    class InMemory(MultiPartParser):
        """Keeps files in memory; the guard has bounded the body."""

        spool_max_size = limits.request_bytes + 1  # larger ones would go to the disk

    parser = InMemory(
        request.headers,
        request.stream(),
        max_files=images,
        max_fields=len(FIELDS),
        max_part_size=1024,
    )
    try:
        form = await parser.parse()
        found: list[tuple[str, str, bytes]] = []
        fields: dict[str, str] = {}
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                found.append((name, _plain(value.filename or ""), value.file.read()))
            else:
                _add(fields, name, str(value))
    except MultiPartException as error:
        raise _bad_form(str(error.message), images) from error
    except (ValueError, LookupError) as error:  # of the parser below, on bad bytes
        raise Refusal(400, "form", "the body is not valid multipart/form-data") from error
    finally:
        for file in parser._files_to_close_on_error:  # also where the body ended early
            file.close()
    return Form(_checked(found, limits), fields)


def _add(fields: dict[str, str], name: str, value: str) -> None:
    if name not in FIELDS or name in fields:
        raise Refusal(422, "field", f"the fields are {', '.join(FIELDS)}, once each, and {IMAGES}")
    fields[name] = value


def _bad_form(message: str, images: int) -> Refusal:
    if "Too many files" in message:
        return Refusal(413, "images", f"a request may have {images} images")
    return Refusal(400, "form", f"the body is not valid multipart/form-data: {message}")


def _checked(files: list[tuple[str, str, bytes]], limits: Limits) -> list[tuple[str, bytes]]:
    if any(field != IMAGES for field, _, _ in files):
        raise Refusal(422, "field", f"files belong into the field {IMAGES!r}")
    images = [(name, content) for _, name, content in files]
    if not images:
        raise Refusal(422, "images", f"send at least one image in the field {IMAGES!r}")
    large = [
        {"index": place, "source": name, "reason": f"more than {limits.image_bytes} bytes"}
        for place, (name, content) in enumerate(images)
        if len(content) > limits.image_bytes
    ]
    if large:
        raise Refusal(413, "bytes", f"an image may have {limits.image_bytes} bytes", large)
    return images


def _plain(name: str) -> str:
    """The last part of a file's name, without what a terminal or a page could take for orders."""
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(letter if letter.isprintable() else "_" for letter in last)[:NAME_LENGTH]


def question_of(fields: dict[str, str], engine: Engine) -> tuple[Served, Question]:
    """Understand the fields of a request.

    Args:
        fields: The fields.
        engine: Knows models and clients.

    Returns:
        The model, and how its images are answered.

    Raises:
        Refusal: A field cannot be understood.
    """
    try:
        served = engine.find(fields.get("model"))
    except ConfigError as error:
        raise Refusal(404, "model", str(error)) from error
    try:
        client = served.client_number(fields.get("client", ""))
    except ConfigError as error:
        raise Refusal(404, "client", str(error)) from error
    share, top = fields.get("open_share", ""), fields.get("top", "5")
    try:
        open_share = float(share) if share else None
        inside = open_share is None or 0.0 <= open_share <= 1.0
    except ValueError:
        inside, open_share = False, None
    if not inside:
        raise Refusal(422, "open_share", "open_share is a number from 0 to 1")
    if not (top.isascii() and top.isdigit() and 1 <= int(top[:4]) <= TOP):
        raise Refusal(422, "top", f"top is a number from 1 to {TOP}")
    return served, Question(served.name, client, open_share, int(top))


def label_of(fields: dict[str, str], served: Served) -> str:
    """Return the class that a heat map is asked of.

    Args:
        fields: The fields of the request.
        served: The model.

    Returns:
        The class name.

    Raises:
        Refusal: There is no such class.
    """
    label = fields.get("label", "")
    if label not in served.model.classes:
        raise Refusal(422, "label", "label is the name of one of the model's classes")
    return label
