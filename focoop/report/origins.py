"""Where the runs of a report are, and by which commands, versions and machines they were made."""

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from focoop.report.records import Collection, RunRecord

HEADS = ("method", "seed", "folder", "status", "round", "started", "commit")


def run_index(rows: Mapping[str, Sequence[RunRecord]], anchor: str, out: Path) -> str:
    """List the runs of one setting with links to their folders.

    Args:
        rows: Runs by method.
        anchor: What the identifiers of the methods begin with.
        out: The report's own file, to which links are relative.

    Returns:
        The folder that holds them all, and a table with a short name for each.
    """
    here = out.resolve().parent
    paths = [record.folder.path.resolve() for records in rows.values() for record in records]
    top = Path(os.path.commonpath([path.parent for path in paths]))
    body = []
    for place, (label, records) in enumerate(rows.items()):
        for number, record in enumerate(records):
            mark = f' id="{anchor}-{place}"' if number == 0 else ""
            path = record.folder.path.resolve()
            manifest = record.folder.manifest
            commit = str((manifest.get("code") or {}).get("commit") or "")[:8]
            body.append(
                f'<tr{mark}><th scope="row">{escape(label)}</th><td>{record.seed}</td>'
                f"<td>{_link(path, here, str(path.relative_to(top)))}</td>"
                f"<td>{escape(record.folder.status)}</td><td>{record.last['round']}</td>"
                f"<td>{escape(str(manifest.get('started', ''))[:16])}</td><td>{escape(commit)}</td>"
                "</tr>"
            )
    head = "".join(f'<th scope="col">{name}</th>' for name in HEADS)
    return (
        f'<p class="note">Folders in {_link(top, here)}</p>'
        f'<div class="wide" tabindex="0"><table class="runs"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _link(path: Path, here: Path, text: str = "") -> str:
    """A link to a folder, relative to the report; without a text it shows that path."""
    target = os.path.relpath(path, here)
    return f'<a href="{escape(target)}/">{escape(text or target)}</a>'


def origin(collection: Collection) -> str:
    """Say by which commands, versions and machines the runs were made.

    Args:
        collection: The runs.

    Returns:
        A list.
    """
    commands: dict[str, int] = {}
    versions: dict[str, int] = {}
    for record in collection.records:
        manifest = record.folder.manifest
        command = " ".join(map(str, manifest.get("command", [])))
        commands[command] = commands.get(command, 0) + 1
        made = manifest.get("versions", {})
        text = ", ".join(
            f"{name} {made[name]}" for name in ("focoop", "torch", "python") if name in made
        )
        text += f", {(manifest.get('hardware') or {}).get('device', '')}"
        versions[text] = versions.get(text, 0) + 1
    lines = [f"<li><code>{escape(c)}</code> ({n} runs)</li>" for c, n in commands.items() if c]
    lines += [f"<li>{escape(v)} ({n} runs)</li>" for v, n in versions.items()]
    lines += [
        f"<li>left out: {escape(path)}: {escape(reason)}</li>"
        for path, reason in collection.unused.items()
    ]
    return f'<ul class="origin">{"".join(lines)}</ul>'
