"""The items that come with focoop: they parse, plan, and agree with the published values."""

from dataclasses import replace
from pathlib import Path

import pytest

from focoop.errors import ConfigError
from focoop.experiments import Outcome
from focoop.paper import (
    Choices,
    Item,
    choose_items,
    collect_numbers,
    plan_item,
    read_item,
    read_items,
)
from focoop.paper.items import paper_name
from focoop.paper.numbers import entries, measured, seeds_span
from focoop.paper.writing import Remarks, latex, markdown

ITEMS = read_items()
# Numbers per table: rows of methods x columns, counted in the paper.
COUNTS = {
    "T1": 160,
    "T2": 120,
    "T3": 100,
    "T4": 96,
    "T5": 32,
    "T8": 120,
    "T11": 64,
    "T12": 64,
    "T13": 160,
    "T14": 128,
    "F5": 32,
    "F6": 0,
    "F7": 0,
    "ablation": 48,
}
SUMMARY = {
    "accuracy_own": 0.9,
    "accuracy_corrupted": 0.8,
    "corrupted_by_type": {},
    "ood": {},
}


def test_the_items_cover_the_tables_and_figures_that_are_results() -> None:
    names = {name for item in ITEMS for name in (item.name, *item.also)}
    results = {f"T{n}" for n in range(1, 15) if n != 6}  # T6 counts images of datasets
    assert names == results | {f"F{n}" for n in range(1, 11) if n != 2} | {"ablation"}


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_an_item_plans_runs_of_settings_and_methods_that_exist(item: Item) -> None:
    assert item.backbone in ("", "openclip:RN50:openai")
    with_mini = replace(item, backbone="")  # open_clip takes seconds to import
    plans = plan_item(with_mini, Choices(Path("out"), seeds=(0,)), ask=False)
    for plan in plans:
        points = len({cell.point for cell in plan.cells})
        assert len(plan.cells) == points * len(item.methods)
        for cell in plan.cells:
            assert not cell.config.data.validation
            summary = SUMMARY | {
                "ood": {s: {"fpr95": 0.2, "auroc": 0.9} for s in cell.config.data.ood},
                "corrupted_by_type": {
                    spec.partition("#")[2]: 0.5 for spec in cell.config.data.corrupted
                },
            }
            # Each column is a number that a run of these settings measures.
            assert set(item.columns.values()) <= set(measured(summary))


@pytest.mark.slow  # imports open_clip
def test_a_backbone_that_nothing_was_tuned_with_has_coops_optimiser() -> None:
    item = next(one for one in ITEMS if one.name == "T5")
    plans = plan_item(item, Choices(Path("out"), backbone="mini", seeds=(0,)), ask=False)
    configs = [cell.config for plan in plans for cell in plan.cells]
    assert {config.backbone.name for config in configs} == {"openclip:RN50:openai"}
    assert {(c.federation.lr, c.federation.momentum) for c in configs} == {(0.002, 0.9)}
    assert {c.backbone.logit_scale for c in configs} == {0.0}
    assert all("openclip:RN50:openai" in plan.short for plan in plans)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_published_values_are_those_of_the_items_rows_and_columns(item: Item) -> None:
    published = item.published()
    assert len(published) == COUNTS[item.name]
    parts = {part.name for part in item.parts} | {average.name for average in item.averages}
    for (part, point, method, column), value in published.items():
        assert part in parts and column in item.columns
        assert method in {paper_name(label) for label in item.methods}
        assert 0 <= value <= 100
        assert bool(point) == bool(item.parts[0].sweep)


def test_published_averages_are_the_means_of_their_columns() -> None:
    """The paper's own averages, within its rounding, show that no value went astray."""
    for name in ("T13", "T14"):
        item = next(one for one in ITEMS if one.name == name)
        rows: dict[str, list[float]] = {}
        for (_, _, method, column), value in item.published().items():
            if column != "Average":
                rows.setdefault(method, []).append(value)
        for method, values in rows.items():
            average = item.published()[item.parts[0].name, "", method, "Average"]
            assert sum(values) / len(values) == pytest.approx(average, abs=0.011)
    item = next(one for one in ITEMS if one.name == "T4")
    published = item.published()
    for one in item.averages:
        for label in item.methods:
            method = paper_name(label)
            values = [published[part, "", method, "ACC"] for part in one.parts]
            expected = published[one.name, "", method, "ACC"]
            assert sum(values) / len(values) == pytest.approx(expected, abs=0.011)


def test_parts_that_share_runs_have_the_same_settings() -> None:
    seen: dict[str, tuple[object, ...]] = {}
    for item in ITEMS:
        for part in item.parts:
            same = (part.setting, part.set, part.packaged, part.sweep, item.backbone)
            assert seen.setdefault(part.runs, same) == same, part.runs


def test_contradictions_of_the_paper_are_notes() -> None:
    notes = {item.name: " ".join(item.notes) for item in ITEMS}
    assert "19.50/95.42" in notes["T1"] and "15.97/96.47" in notes["T11"]
    assert "digit for digit" in notes["T13"]
    assert "rho = 2" in notes["F7"]
    t13 = next(item for item in ITEMS if item.name == "T13").published()
    for (part, point, method, column), value in t13.items():
        if method == "PromptFolio":
            assert t13[part, point, "FedPGP", column] == value


def test_parts_of_a_single_column_are_one_table() -> None:
    """Table 4 has a row per method and a column per domain; here, being wide, the other way."""
    item = next(one for one in ITEMS if one.name == "T4")
    plans = plan_item(item, Choices(Path("out"), seeds=(0,)), ask=False)
    summary = {"accuracy_own": 0.5}
    outcomes = {
        str(cell.folder): Outcome(cell, "finished", summary=summary)
        for plan in plans
        for cell in plan.cells
    }
    found = entries(item, plans, outcomes, item.methods)
    text = markdown(item, found, Remarks("Made."))
    names = [paper_name(label) for label in item.methods]
    assert f"|  | {' | '.join(names)} |" in text and text.count("\n| ---") == 1
    assert "| DomainNet real | **50.0** (96.77) |" in text
    assert text.count("| Office average |") == 1 and "(98.16) |" in text
    assert latex(item, found, Remarks("Made.")).count(r"\toprule") == 1


def test_every_table_says_over_how_many_seeds_its_numbers_are_means() -> None:
    item = next(one for one in ITEMS if one.name == "ablation")
    choices = Choices(Path("out"), seeds=(0, 1, 2))
    plans = plan_item(item, choices, ask=False)
    outcomes = {}
    for at, plan in enumerate(plans):
        for cell in plan.cells:
            more = cell.label == "focoop" if at == 0 else at == 1
            if at < 3 and (more or cell.config.seed == 1):
                outcomes[str(cell.folder)] = Outcome(cell, "finished", summary=SUMMARY)
    made = collect_numbers(item, plans, outcomes, choices)
    text = markdown(item, made.entries, made.remarks)
    told = [line for line in text.splitlines() if line.startswith("Seeds")]
    assert told == ["Seeds: 3 (FOCoOp), 1 (w/o BOS, w/o GOC).", "Seeds: 3.", "Seeds: 1."]
    assert latex(item, made.entries, made.remarks).count("Seeds: 3 (FOCoOp), 1 (w/o") == 1
    by_part = {part.name: [e for e in made.entries if e.part == part.name] for part in item.parts}
    assert [*map(seeds_span, by_part.values())] == ["1 to 3 seeds", "3 seeds", "1 seed", ""]
    only = {name: one for name, one in outcomes.items() if one.cell.config.seed == 1}
    assert collect_numbers(item, plans, only, choices).remarks.made_with == "Backbone mini, seed 1."


def test_items_are_chosen_by_any_of_their_names() -> None:
    assert [item.name for item in choose_items(["f10", "T9", "t1"], ITEMS)] == ["T1", "T4", "F7"]
    assert choose_items(["all"], ITEMS) == ITEMS
    with pytest.raises(ConfigError, match=r"there is no item 'T99'"):
        choose_items(["T99"], ITEMS)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('title = "', 'titel = "', "titel"),
        ('figure = "bars"', 'figure = "pie"', "pie"),
        ('name = "CIFAR-100, K=10"', 'name = "TinyImageNet, K=10"', "twice"),
        ('setting = "settings/cifar100"', 'seting = "settings/cifar100"', "seting"),
        ("[columns]", "[columns", "cannot read"),
        ("[[parts]]", "[[part]]", "part"),
    ],
)
def test_a_damaged_item_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = (ITEMS[0].folder / "T1.toml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "T1.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=said):
        read_item(path)


def test_a_damaged_published_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "T1.csv").write_text("part,method,column,value\na,b,c,much\n")
    item = replace(ITEMS[0], folder=tmp_path)
    with pytest.raises(ConfigError, match="line 2"):
        item.published()
