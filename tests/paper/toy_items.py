"""Items small enough to wait for: the toy setting as a table, a sweep and a map."""

from pathlib import Path

from tests.toy_setting import write_setting

TABLE = """
title = "Toy table"
paper = "Table 1"
also = ["T7"]
methods = [{methods}]
figure = "bars"
notes = ["A note with 100% of the signs: _ & #."]

[columns]
ACC = "own"
FPR95 = "fpr95"

[[parts]]
name = "toy, K=2"
setting = "settings/toy"
runs = "toy"

[[parts]]
name = "toy, K=3"
setting = "settings/toy"
runs = "toy-k3"
set = {{ "partition.clients" = 3 }}

[[parts]]
name = "not here"
setting = "settings/cifar100"
runs = "absent"

[[averages]]
name = "both"
parts = ["toy, K=2", "toy, K=3"]
"""
SWEEP = """
title = "Toy sweep"
paper = "Figure 5"
methods = [{methods}]
figure = "lines"

[columns]
ACC = "own"

[[parts]]
name = "toy"
setting = "settings/toy"
runs = "toy-shots"
sweep = "partition.shots=1,2"
"""
MAP = """
title = "Toy map"
paper = "Figure 6"
methods = ["focoop"]
figure = "map"

[columns]
ACC = "own"

[[parts]]
name = "toy"
setting = "settings/toy"
runs = "toy-map"
set = { "negatives.count" = 3 }
"""
PUBLISHED = """part,method,column,value
"toy, K=2",fedncm,ACC,61.25
"toy, K=2",PromptFL,FPR95,40.5
both,fedncm,ACC,50.0
"""
ON_SWEEP = "part,point,method,column,value\ntoy,2,fedncm,ACC,33.3\n"


def write_items(folder: Path, methods: tuple[str, ...], *, rounds: int = 1) -> Path:
    """A folder with the items T1, F5 and F6 of these methods, and published values of T1 and F5."""
    write_setting(folder, rounds=rounds)
    listed = ", ".join(f'"{name}"' for name in methods)
    items = folder / "items"
    (items / "published").mkdir(parents=True)
    (items / "settings").mkdir()
    (folder / "toy.toml").rename(items / "settings" / "toy.toml")
    for name, item in (("T1", TABLE), ("F5", SWEEP)):
        (items / f"{name}.toml").write_text(item.format(methods=listed))
    (items / "F6.toml").write_text(MAP)
    (items / "published" / "T1.csv").write_text(PUBLISHED)
    (items / "published" / "F5.csv").write_text(ON_SWEEP)
    return items
