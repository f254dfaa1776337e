"""CIFAR-100 (Krizhevsky 2009): the Python version, with its 100 fine classes."""

from focoop.data.dataset import Dataset, Download
from focoop.data.datasets.cifar10 import read

NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch
crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo
keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain
plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CLASSES = [name.replace("_", " ") for name in NAMES.split()]
BATCHES = {"train": ["train"], "test": ["test"]}


DATASET = Dataset(
    title="CIFAR-100",
    folder="cifar-100-python",
    marks=("train", "test"),
    layout="cifar-100-python/train and test (pickled batches)",
    classes=100,
    counts={"train": 50_000, "test": 10_000},
    licence="none stated; cite Krizhevsky (2009)",
    page="https://www.cs.toronto.edu/~kriz/cifar.html",
    read=lambda base: read(base, BATCHES, "fine_labels", CLASSES),
    corrupted="cifar100_c",
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "cifar-100-python.tar.gz",
            "md5:eb9058c3a382ffc7106e4002c42a8d85",
            169_001_437,
            unpack="",
        ),
    ),
)
