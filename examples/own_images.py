# %% [markdown]
# # Your own images, from folders to a page that answers
# Three sites have photos in folders, `sites/SITE/CLASS/*`. No site holds all classes. They train a
# model together, each site calibrates it, and a web page then answers for each of them: one of my
# classes, another site's class, or unknown.
#
# If there is no folder `sites`, the example draws simple pictures, so it needs no download. To use
# your own images, put them into `sites`, and images of other things into `foreign`.
#
# Lines after `# >` show what is printed; on another processor numbers agree within 5.

# %%
import random
import sys
from pathlib import Path

from PIL import Image, ImageDraw

import focoop

COLOURS = {
    "red ball": (210, 40, 40),
    "green ball": (40, 160, 60),
    "blue ball": (50, 80, 210),
    "yellow ball": (220, 200, 40),
}
HELD = {
    "oslo": ("red ball", "green ball"),
    "lima": ("green ball", "blue ball"),
    "pune": ("blue ball", "yellow ball"),
}


def draw(path: Path, colour: tuple[int, int, int], kind: str, dice: random.Random) -> None:
    """Draw one shape on a grey ground, at a place of its own."""
    image = Image.new("RGB", (96, 96), (dice.randint(150, 220),) * 3)
    x, y, size = dice.randint(5, 40), dice.randint(5, 40), dice.randint(30, 45)
    shape = ImageDraw.Draw(image)
    (shape.ellipse if kind == "ball" else shape.rectangle)((x, y, x + size, y + size), fill=colour)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


if not Path("sites").exists():
    dice = random.Random(0)
    for site, classes in HELD.items():
        for name in classes:
            for number in range(40):
                draw(Path("sites") / site / name / f"{number}.png", COLOURS[name], "ball", dice)
    for number in range(30):  # what no site has a class for
        grey = (dice.randint(0, 255),) * 3
        draw(Path("foreign") / f"{number}.png", grey, "box", dice)

# %% [markdown]
# ## Who holds what
# Before anything is trained, look at the number of training images of each site and class. A
# fifth of each class is held out for testing. `data.calibration` sets three tenths of the others
# aside, to compute thresholds. On the command line: `focoop data show study.toml`.

# %%
settings = {
    "data.id": "clients:sites",
    "data.ood": ["folder:foreign"],
    "data.calibration": 0.3,
    "partition.kind": "given",
    "partition.clients": 0,
    "method.name": "focoop_plus",
    "method.open_share": 1.0,  # sites expect images of all classes, not only of their own
}
held = focoop.partition(overrides=settings)
for name, counts in zip(held.names, held.train.tolist(), strict=True):
    print(name, dict(zip(held.classes, counts, strict=True)))
# > lima {'blue ball': 22, 'green ball': 22, 'red ball': 0, 'yellow ball': 0}
# > oslo {'blue ball': 0, 'green ball': 22, 'red ball': 22, 'yellow ball': 0}
# > pune {'blue ball': 22, 'green ball': 0, 'red ball': 0, 'yellow ball': 22}

# %% [markdown]
# ## The federation
# Images are encoded once; the next run reads them from the cache. On the command line: `focoop run
# study.toml`. For sites on separate machines see `docs/guides/deploy.md`.

# %%
run = focoop.run(overrides=settings, out="runs/own", resume=True)
print(f"own test images right: {100 * run.summary['accuracy_own']:.0f} %")
print(f"foreign images told from own: AUROC {100 * run.summary['ood']['foreign']['auroc']:.0f} %")
# > own test images right: 100 %
# > foreign images told from own: AUROC 100 %

# %% [markdown]
# ## Calibrate
# Find the score above which an image is called unknown, such that a new image of a known class is
# kept with a probability of 95 % or more. That needs 19 images; a site with fewer uses the
# threshold of all sites together. On the command line: `focoop calibrate runs/own`.

# %%
calibration = focoop.calibrate("runs/own", keep=0.95)
for number, name in enumerate(held.names):
    site = calibration.sites[str(number)]
    print(f"{name}: thresholds of {site.images} images, {site.source}")
# > lima: thresholds of 20 images, own
# > oslo: thresholds of 20 images, own
# > pune: thresholds of 20 images, own

# %% [markdown]
# ## Ask
# Oslo asks about three images: of a class it holds, of a class that only others hold, and of no
# known class. On the command line: `focoop predict runs/own photo.png --client oslo`.

# %%
asks = held.names[1]
model = focoop.load_model("runs/own", client=asks)
mine = model.own_classes()[0]
theirs = next(name for name in held.classes if name not in model.own_classes())
photos = [
    sorted(Path("sites").glob(f"{asks}/{mine}/*"))[0],
    sorted(Path("sites").glob(f"*/{theirs}/*"))[0],
    sorted(Path("foreign").iterdir())[0],
]
for answer in model.predict(photos):
    holders = answer.top[0].holders if answer.verdict == "other" else ()
    print(f"{asks} says {answer.verdict}: {answer.label}", *holders)
# > oslo says own: green ball
# > oslo says other: blue ball lima pune
# > oslo says unknown: None

# %% [markdown]
# ## The page
# `python own_images.py --serve` starts a web server, like `focoop serve runs/own`. Drop an image
# on the page and choose which site asks.

# %%
if "--serve" in sys.argv:
    from focoop.serve import serve

    port = int(sys.argv[sys.argv.index("--serve") + 1]) if sys.argv[-1] != "--serve" else 8080
    serve(["runs/own"], port=port, on_ready=lambda at: print(at, flush=True))
