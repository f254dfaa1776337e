"""Oxford 102 Flowers (Nilsback and Zisserman 2008) with CoOp's split; `flowers102/official`."""

from pathlib import Path

from focoop.data.dataset import Dataset, Download, drive
from focoop.data.datasets._matfile import read_mat
from focoop.data.listing import Listing, Row, coop
from focoop.errors import DataError

SPLIT = "split_zhou_OxfordFlowers.json"
OFFICIAL = {"train": "trnid", "val": "valid", "test": "tstid"}
NAMES = """
pink primrose, hard-leaved pocket orchid, canterbury bells, sweet pea, english marigold,
tiger lily, moon orchid, bird of paradise, monkshood, globe thistle, snapdragon, colt's
foot, king protea, spear thistle, yellow iris, globe-flower, purple coneflower, peruvian
lily, balloon flower, giant white arum lily, fire lily, pincushion flower, fritillary, red
ginger, grape hyacinth, corn poppy, prince of wales feathers, stemless gentian, artichoke,
sweet william, carnation, garden phlox, love in the mist, mexican aster, alpine sea holly,
ruby-lipped cattleya, cape flower, great masterwort, siam tulip, lenten rose, barbeton
daisy, daffodil, sword lily, poinsettia, bolero deep blue, wallflower, marigold, buttercup,
oxeye daisy, common dandelion, petunia, wild pansy, primula, sunflower, pelargonium, bishop
of llandaff, gaura, geranium, orange dahlia, pink-yellow dahlia, cautleya spicata, japanese
anemone, black-eyed susan, silverbush, californian poppy, osteospermum, spring crocus,
bearded iris, windflower, tree poppy, gazania, azalea, water lily, rose, thorn apple,
morning glory, passion flower, lotus, toad lily, anthurium, frangipani, clematis, hibiscus,
columbine, desert-rose, tree mallow, magnolia, cyclamen, watercress, canna lily,
hippeastrum, bee balm, ball moss, foxglove, bougainvillea, camellia, mallow, mexican
petunia, bromelia, blanket flower, trumpet creeper, blackberry lily
"""
CLASSES = [" ".join(name.split()) for name in NAMES.split(",")]


def official(base: Path) -> Listing:
    """`imagelabels.mat` (label of image i) and `setid.mat` (numbers of each split)."""
    try:
        labels = [int(label) - 1 for label in read_mat(base / "imagelabels.mat")["labels"].ravel()]
        ids = read_mat(base / "setid.mat")
        splits: dict[str, list[Row]] = {
            split: [(f"jpg/image_{i:05d}.jpg", labels[int(i) - 1]) for i in ids[key].ravel()]
            for split, key in OFFICIAL.items()
        }
    except (KeyError, IndexError) as error:
        raise DataError(f"{base}: imagelabels.mat and setid.mat do not fit ({error})") from error
    return Listing(base, CLASSES, splits)


def _named(name: str) -> str:
    """CoOp's file keeps a question mark and blanks of the list it comes from."""
    return name.replace("?", "").strip()


DATASET = Dataset(
    title="Flowers-102",
    folder="oxford_flowers",
    others=("flowers-102",),
    marks=("jpg",),
    layout=f"oxford_flowers/jpg/image_*.jpg, imagelabels.mat, setid.mat and {SPLIT}",
    classes=102,
    counts={"train": 4_093, "val": 1_633, "test": 2_463},
    licence="none stated; research",
    page="https://www.robots.ox.ac.uk/~vgg/data/flowers/102",
    read=lambda base: coop(base, "jpg", SPLIT, _named),
    official=official,
    downloads=(
        Download(
            "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/102flowers.tgz",
            "102flowers.tgz",
            "md5:52808999861908f626f3c1f4e79d11fa",
            344_862_509,
            unpack="oxford_flowers",
        ),
        Download(
            "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/imagelabels.mat",
            "imagelabels.mat",
            "md5:e0620be6f572b9609742df49c70aed4d",
        ),
        Download(
            "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/setid.mat",
            "setid.mat",
            "md5:a5357ecc9cb78c4bef273ce3793fc85c",
        ),
        Download(
            drive("1Pp0sRXzZFZq15zVOzKjKBu4A9i01nozT"),
            SPLIT,
            "sha256:2f50c42fc1a17ca13c271cb4269b1347bdb43d2be672e34f74a4e4cbfbcca794",
            771_139,
        ),
    ),
)
