# %% [markdown]
# # Your own images
# Three sites have images of the same classes in folders of their own, `sites/SITE/CLASS/*.png`.
# Here they are drawn, so that the example needs no download; put your own folders in their place.
#
# What is printed stands behind `# >`; on another processor numbers agree within 5.

# %%
import random
from pathlib import Path

from PIL import Image, ImageDraw

import focoop

COLOURS = {"red ball": (210, 40, 40), "green ball": (40, 160, 60), "blue ball": (50, 80, 210)}


def draw(path: Path, colour: tuple[int, int, int], kind: str, dice: random.Random) -> None:
    """Draw one shape on a grey ground, at a place of its own."""
    image = Image.new("RGB", (96, 96), (dice.randint(150, 220),) * 3)
    x, y, size = dice.randint(5, 40), dice.randint(5, 40), dice.randint(30, 45)
    shape = ImageDraw.Draw(image)
    (shape.ellipse if kind == "ball" else shape.rectangle)((x, y, x + size, y + size), fill=colour)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


dice = random.Random(0)
for site in ("oslo", "lima", "pune"):
    for name, colour in COLOURS.items():
        for number in range(10):
            draw(Path("sites") / site / name / f"{number}.png", colour, "ball", dice)
for number in range(30):  # what no site has a class for
    grey = (dice.randint(0, 255),) * 3
    draw(Path("foreign") / f"{number}.png", grey, "box", dice)

# %% [markdown]
# Who holds what, before anything is trained: a row per site, a column per class.

# %%
settings = {
    "data.id": "clients:sites",
    "data.ood": ["folder:foreign"],
    "partition.kind": "given",
    "partition.clients": 0,
    "method.name": "focoop_plus",
    "federation.rounds": 2,
    "negatives.count": 20,
}
held = focoop.partition(overrides=settings)
print(held.names, held.train.tolist())
# > ('lima', 'oslo', 'pune') [[8, 8, 8], [8, 8, 8], [8, 8, 8]]

# %% [markdown]
# Two of ten images of each class are held out as test images. Images are encoded once; the next run
# reads them from the cache.

# %%
run = focoop.run(overrides=settings, out="runs/own", resume=True)
print(f"own test images right: {100 * run.summary['accuracy_own']:.0f} %")
print(f"boxes told from balls: AUROC {100 * run.summary['ood']['foreign']['auroc']:.0f} %")
# > own test images right: 100 %
# > boxes told from balls: AUROC 100 %

# %% [markdown]
# Ask a site's model about further images: encode them with the same backbone.

# %%
new = focoop.encode("folder:foreign", run.config.backbone.name)
scores = run.scores(new, client="oslo")
limit = {row["name"]: row["threshold"] for row in run.clients}["oslo"]
print(f"oslo flags {(scores > limit).sum()} of {len(new)} foreign images")
# > oslo flags 30 of 30 foreign images
