"""Assemble a report: one HTML file that needs nothing beside it."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from focoop.errors import FocoopError
from focoop.report import drawings, sections
from focoop.report.detection import Detection, detection
from focoop.report.origins import origin, run_index
from focoop.report.records import Collection, RunRecord, collect_runs
from focoop.report.summary import summary
from focoop.report.swept import Swept, find_sweeps, sweep_charts
from focoop.runs import SLIM, write

Told = Callable[[str], None]
FEW = 8  # settings that are all shown open; of more, each opens by a click
WITHOUT_MODELS = "the run folders are copies without models"


def write_report(
    runs: str | Path | Iterable[str | Path],
    out: str | Path = "report.html",
    *,
    details: bool = True,
    told: Told = lambda text: None,
    weights: str | Path | None = None,
) -> Path:
    """Write a report about runs: tables with paired tests, curves, histograms, partition, traffic.

    The file needs no network and nothing beside it; numbers link to the run folders.

    Args:
        runs: Run folders, or folders with runs below, such as `runs/compare`.
        out: The HTML file to write; an old one is replaced.
        details: Ask the models of one run per method again, for histograms of scores, ROC and
            precision-recall curves and the names near to prompts. Without it the runs' data is
            not opened.
        told: Is called with a line about every step that takes long.
        weights: The backbone's weights, where they are no longer where the runs had them.

    Returns:
        The file.

    Raises:
        RunError: There is no such folder, or no run with a result.

    Example:
        focoop.write_report("runs/compare", "report.html")
    """
    paths = [runs] if isinstance(runs, str | Path) else list(runs)
    collection, out = collect_runs(paths), Path(out)
    settings = collection.by_setting()
    articles: dict[str, str] = {}
    charts = {}
    asked, all_rows = 0, sum(map(len, settings.values()))
    for number, (name, rows) in enumerate(settings.items()):
        found: dict[str, Detection | str] = {}
        for label, records in rows.items() if details else ():
            asked += 1
            told(f"[{asked}/{all_rows}] asking {label} on {name} about its images")
            records[0].folder.look_for_weights(weights)
            found[label] = _detection(records[0])
        anchor = f"s{number}"
        html, charts[anchor] = _setting(anchor, name, rows, found, out)
        articles[name] = _article(anchor, name, html, is_open=len(settings) <= FEW)
    body = []
    sweeps = {f"w{number}": swept for number, swept in enumerate(find_sweeps(settings))}
    for anchor, swept in sweeps.items():
        charts[anchor] = {"sweep": sweep_charts(swept, settings)}
        points = "".join(articles.pop(name) for name in swept.points.values())
        body.append(_sweep(anchor, swept, charts[anchor], points))
    body += articles.values()
    page = _filled(
        _asset("report.html"),
        {
            "NAME": escape(_name(paths, collection)),
            "STYLE": _asset("uplot.css") + _asset("report.css"),
            "MADE": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "SUMMARY": summary(
                collection,
                settings,
                {at: (one.title, one.points) for at, one in sweeps.items()},
            ),
            "ORIGIN": origin(collection),
            "BODY": "\n".join(body),
            "DATA": json.dumps(charts, allow_nan=False).replace("</", "<\\/"),
            "LICENCE": _asset("uplot.LICENSE").replace("--", "- -"),
            "SCRIPT": _asset("uplot.js") + "\n" + _asset("report.js"),
        },
    )
    write(out, page.encode())
    return out


def _name(paths: Sequence[str | Path], collection: Collection) -> str:
    """What a report is called: as its only run, or as the folders that were given."""
    if len(collection.records) == 1:
        folder = collection.records[0].folder
        return folder.config.name or folder.path.resolve().name
    return ", ".join(dict.fromkeys(Path(path).resolve().name for path in paths))


def _detection(record: RunRecord) -> Detection | str:
    """A run's scores, or why they cannot be had: a moved dataset must not cost the whole report."""
    if record.folder.manifest.get(SLIM):
        return WITHOUT_MODELS
    thresholds = {row["client"]: row["threshold"] for row in record.last["clients"]}
    try:
        return detection(record.folder, thresholds)
    except FocoopError as error:
        return str(error)


def _sweep(anchor: str, swept: Swept, drawn: Mapping[str, list[Any]], points: str) -> str:
    """The section of a sweep: lines over its values, and below them the settings it is made of."""
    note = (
        '<p class="note">Means over seeds; the band is from the lowest seed to the highest. Every '
        "point is a setting with a section of its own:</p>"
    )
    return (
        f'<article id="{anchor}" class="sweep"><h2>{escape(swept.title)}</h2>'
        f"<section>{_charts(anchor, 'sweep', drawn)}{note}</section>{points}</article>"
    )


def _article(anchor: str, name: str, html: str, *, is_open: bool) -> str:
    """A setting's section, which its heading opens and closes."""
    return (
        f'<article id="{anchor}"><details{" open" if is_open else ""}>'
        f"<summary><h2>{escape(name)}</h2></summary>{html}</details></article>"
    )


def _setting(
    anchor: str,
    name: str,
    rows: Mapping[str, list[RunRecord]],
    found: Mapping[str, Detection | str],
    out: Path,
) -> tuple[str, dict[str, Any]]:
    """The section of one setting, and the charts that its script draws."""
    any_run = next(iter(rows.values()))[0]
    asked = {label: one for label, one in found.items() if not isinstance(one, str)}
    drawn = {
        "curves": drawings.learning_curves(rows),
        "clients": drawings.client_curves(rows),
        "frontier": drawings.frontier(rows),
        "server": drawings.server_curves(rows),
        "histograms": drawings.histograms(asked),
        "detection": drawings.detection_curves(asked),
    }
    failed = {label: reason for label, reason in found.items() if isinstance(reason, str)}
    plans = {label: sections.transport_plan(records[0]) for label, records in rows.items()}
    links = f"{anchor}-runs"
    parts = [
        ("Results", sections.results_tables(rows, links) + NOTE),
        ("Learning curves", _charts(anchor, "curves", drawn)),
        ("Every client", _charts(anchor, "clients", drawn)),
        ("Fairness between clients", sections.fairness(rows)),
        ("Own against other classes", _charts(anchor, "frontier", drawn)),
        ("OOD sets", sections.bars_table(rows, "ood", links)),
        ("Corrupted images", sections.bars_table(rows, "corrupted_by_type", links)),
        ("Scores", _charts(anchor, "histograms", drawn) + _unanswered(failed)),
        ("ROC and precision-recall, mean of clients", _charts(anchor, "detection", drawn)),
        ("Names near to learned prompts", sections.nearest(found)),
        ("What the server saw", _charts(anchor, "server", drawn) + sections.steady(rows)),
        (
            "Transport plan of the last round",
            "".join(f"<h4>{escape(label)}</h4>{plan}" for label, plan in plans.items() if plan),
        ),
        ("Bytes and seconds", sections.traffic(rows, links)),
        ("Partition", sections.partition(any_run)),
        ("Notes", sections.told(rows)),
        ("Runs", run_index(rows, links, out)),
    ]
    there = {f"{anchor}-{at}": part for at, part in enumerate(parts) if part[1]}
    jumps = "".join(f'<a href="#{at}">{title}</a> ' for at, (title, _) in there.items())
    inner = "".join(
        f'<section id="{at}"><h3>{title}</h3>{html}</section>'
        for at, (title, html) in there.items()
    )
    nav = f'<nav aria-label="{escape(name)}"><a href="#top">top</a> {jumps}</nav>'
    return nav + inner, drawn


NOTE = (
    '<p class="note">Percent, last round, mean ± sample deviation over seeds. <b>Bold</b>: best of '
    "a column. <u>Underlined</u>: second best. °: a paired t-test over seeds does not tell it "
    "apart from the best (p ≥ 0.05, corrected by Holm's method for the number of tests of this "
    "setting). ↑: more is better, ↓: less is better. fpr95: OOD images "
    "accepted when 95% of ID images are kept; fpr95_oodpos: ID flagged when 95% of OOD is; "
    "alarm: other clients' images flagged; ausuc: area under own against other classes. A number "
    "links to its runs; point at it for its seeds. Seeds change which shots are drawn, first "
    "prompts, batches and who takes part; which client holds which classes stays "
    "(partition.seed).</p>"
)


def _charts(anchor: str, kind: str, drawn: Mapping[str, list[Any]]) -> str:
    if not drawn[kind]:
        return ""
    return f'<div class="charts" data-setting="{anchor}" data-kind="{kind}"></div>'


def _unanswered(failed: Mapping[str, str]) -> str:
    """Why there are no scores, each reason once."""
    labels: dict[str, list[str]] = {}
    for label, reason in failed.items():
        labels.setdefault(reason, []).append(label)
    return "".join(
        f'<p class="note">{escape(", ".join(names))} {sections.DAMAGED}: {escape(reason)}</p>'
        for reason, names in labels.items()
    )


def _asset(name: str) -> str:
    return (resources.files("focoop.report") / "page" / name).read_text(encoding="utf-8")


def _filled(template: str, values: Mapping[str, str]) -> str:
    """The template with its {{NAME}} replaced; what is put in is not looked at again."""
    pieces = template.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        filled += [values[name], rest]
    return "".join(filled)
