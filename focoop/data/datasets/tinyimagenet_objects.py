"""Objects for detection: the validation images of TinyImageNet classes that CIFAR-100 lacks."""

from pathlib import Path

from focoop.data.class_names import plain
from focoop.data.dataset import Dataset
from focoop.data.datasets.tinyimagenet import DATASET as WHOLE
from focoop.data.datasets.tinyimagenet import read as read_whole
from focoop.data.listing import Listing

# Chosen for detection against CIFAR-100: objects that none of its classes is or holds.
NAMES = """
abacus, academic gown, altar, apron, backpack, barbershop, basketball, bathtub, beaker, bikini,
bow tie, brass, broom, bucket, candle, cash machine, chain, cliff, comic book, confectionery,
coral reef, crane, dam, drumstick, dumbbell, espresso, flagpole, fountain, gasmask, gondola,
guacamole, hourglass, ice cream, ipod, jinrikisha, kimono, lifeboat, magnetic compass,
mashed potato, maypole, military uniform, miniskirt, nail, neck brace, obelisk, oboe, organ,
parking meter, pay-phone, pizza, pole, potpie, punching bag, sandal, scoreboard, snorkel, sock,
sombrero, spider web, stopwatch, sunglasses, swimming trunks, syringe, teapot, torch,
triumphal arch, turnstile, umbrella, vestment, viaduct, volleyball, water jug, water tower, wok,
wooden spoon
"""
WANTED = frozenset(" ".join(name.split()) for name in NAMES.split(","))


def read(base: Path) -> Listing:
    """The test split of TinyImageNet's reader, those classes alone, as one class."""
    whole = read_whole(base)
    labels = {label for label, name in enumerate(whole.classes) if plain(name) in WANTED}
    rows = [(file, 0) for file, label in whole.splits["test"] if label in labels]
    return Listing(base, ["tinyimagenet_objects"], {"test": rows})


DATASET = Dataset(
    title="TinyImageNet objects",
    folder=WHOLE.folder,
    marks=WHOLE.marks,
    layout=WHOLE.layout,
    classes=0,
    counts={"test": 50 * len(WANTED)},
    licence=WHOLE.licence,
    page=WHOLE.page,
    read=read,
    role="ood",
    downloads=WHOLE.downloads,
)
