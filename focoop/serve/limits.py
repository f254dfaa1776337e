"""What a server takes from strangers, at most."""

from dataclasses import dataclass

from focoop.data import OPEN_FORMATS
from focoop.errors import ConfigError

MEBI = 2**20


@dataclass(frozen=True)
class Limits:
    """Bounds of memory, time and number, all of which a request meets before it costs much.

    Attributes:
        images: images in one request.
        image_bytes: bytes of one image file.
        request_bytes: bytes of one request's body.
        held_bytes: bytes of all bodies that are held at the same time.
        pixels: pixels of one image.
        formats: image formats that are read.
        queue: images that wait for an answer, all requests together.
        batch: images that are encoded together.
        wait: seconds for which the first image of a batch waits for others.
        seconds: seconds in which a request must have come in, and again those it may take.
        stop_seconds: seconds in which a server that is told to stop answers what it has taken.
        connections: connections at the same time.
    """

    images: int = 32
    image_bytes: int = 20_000_000
    request_bytes: int = 64 * MEBI
    held_bytes: int = 256 * MEBI
    pixels: int = 25_000_000
    formats: tuple[str, ...] = OPEN_FORMATS
    queue: int = 256
    batch: int = 8
    wait: float = 0.004
    seconds: float = 30.0
    stop_seconds: float = 20.0
    connections: int = 512

    def __post_init__(self) -> None:
        for name in ("images", "image_bytes", "request_bytes", "held_bytes", "pixels", "queue"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"the limit {name} is {getattr(self, name)}: at least 1 is needed"
                )
        if self.batch < 1 or self.wait < 0 or self.seconds <= 0 or self.stop_seconds < 0:
            raise ConfigError("a batch holds at least 1 image, and no time is negative")
        unknown = [name for name in self.formats if name not in OPEN_FORMATS]
        if unknown or not self.formats:
            raise ConfigError(
                f"unknown image formats {', '.join(unknown)}: choose of {', '.join(OPEN_FORMATS)}"
            )
        if self.images > self.queue:
            raise ConfigError(
                f"a request of {self.images} images never fits a queue of {self.queue}: "
                "raise the queue or lower the images of a request"
            )
