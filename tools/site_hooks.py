"""What mkdocs does beside rendering pages: makes the reference from the code, puts drawings in.

`mkdocs.yml` names this file. A page that holds `<!-- generated: settings -->` (or `commands`, or
`rooms`) gets that part when the site is built. Drawings (`*.svg`) of docs/
stand in the page itself, so that they take the colours of the page's theme.
"""

import ast
import dataclasses
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.M)
QUOTED = re.compile(r"<!-- [^<>]+ -->(?P<value>[^\n<>]+)<!-- end -->")  # by tools/quoted_results.py
SIGN = re.compile(r"([<\[*_])(?=(?:[^`]*`[^`]*`)*[^`]*$)")  # outside `code`
DRAWING = re.compile(r'<img alt="(?P<alt>[^"]*)" src="(?P<src>[^":]+\.svg)" ?/?>')


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put generated parts into a page; mkdocs calls it for every page before it is rendered.

    Marks around quoted results are dropped: one at the start of a line would end the paragraph.
    """
    return MARK.sub(lambda found: PARTS[found[1]](), QUOTED.sub(r"\g<value>", markdown))


def on_page_content(html: str, page: Any, config: Any, **_: Any) -> str:
    """Put drawings into a page; mkdocs calls it for every page after it is rendered."""
    folder = Path(config["docs_dir"], os.path.dirname(page.file.src_uri))

    def inlined(found: re.Match[str]) -> str:
        svg = (folder / found["src"]).read_text(encoding="utf-8")
        if not svg.startswith("<svg class="):  # a plot of another program: it stays a picture
            return found[0]
        return f'<span class="drawing">{svg}</span>'

    return DRAWING.sub(inlined, html)


def settings() -> str:
    """Return every setting of the schema and of every method as Markdown tables."""
    from focoop.config.schema import MethodConfig, RunConfig
    from focoop.fields import GROUPS, grouped
    from focoop.methods import available, lookup

    scalars = [one for one in dataclasses.fields(RunConfig) if one.metadata]
    parts = ["## Of the run", "Outside any table of a file.", table(rows(scalars, ""))]
    for one in dataclasses.fields(RunConfig):
        if one.metadata or one.name == "method":
            continue
        section: Any = one.default_factory
        parts += [
            f"## {one.name}",
            sentence(section),
            table(rows(dataclasses.fields(section), f"{one.name}.")),
        ]
    named = [one for one in dataclasses.fields(MethodConfig) if one.name == "name"]
    parts += ["## method", "The method, and its own settings.", table(rows(named, "method."))]
    for name in available():
        own = grouped(lookup(name).Config)
        parts += [f"### {name}", sentence(lookup(name))]
        for group, members in own.items():
            parts += [f"**{group.capitalize()}**: {GROUPS[group]}."] if group else []
            parts.append(table(rows(members, "method.")))
        if not own:
            parts.append("It has no settings of its own.")
    return "\n\n".join(parts)


def rows(fields: Any, prefix: str) -> Iterator[tuple[str, str, str]]:
    """Yield (setting, default, meaning) of documented fields; rules stand behind the meaning."""
    for one in fields:
        meaning, rules = plain(one.metadata["doc"]), bounds(one)
        yield (
            f"`{prefix}{one.name}`",
            f"`{shown(one.default)}`",
            f"{meaning} ({rules})" if rules else meaning,
        )


def bounds(field: Any) -> str:
    """Return what values a field takes, in words."""
    from focoop.fields import bounds_of

    if "choices" in field.metadata:
        return "one of " + ", ".join(f"`{one}`" for one in field.metadata["choices"])
    default = field.default
    first = default[0] if isinstance(default, tuple) and default else default
    found = bounds_of(field, type(first))
    return "" if found is None else str(found)


def shown(value: Any) -> str:
    """Return a default as a TOML file has it."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def commands() -> str:
    """Return every command with its arguments and options as Markdown."""
    import typer

    from focoop.cli import app

    whole: Any = typer.main.get_command(app)
    return "\n\n".join(part for path in leaves(whole, ()) for part in command(*path))


def leaves(found: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command below a group with its path, groups themselves left out."""
    for name, inner in getattr(found, "commands", {}).items():
        if not inner.hidden:
            yield from leaves(inner, (*path, name))
    if path and not hasattr(found, "commands"):
        yield path, found


def command(path: tuple[str, ...], found: Any) -> Iterator[str]:
    """Yield one command: title, purpose, call, table of its arguments and options."""
    params = [one for one in found.params if not getattr(one, "hidden", False)]
    arguments = [one for one in params if one.param_type_name == "argument"]
    words = [f"{one.human_readable_name}" for one in arguments]
    calls = [w if one.required else f"[{w}]" for one, w in zip(arguments, words, strict=True)]
    yield f"## focoop {' '.join(path)}"
    yield plain(found.help)
    yield f"```\nfocoop {' '.join((*path, *calls, '[OPTIONS]'))}\n```"
    if params:
        yield table(described(params), ("argument or option", "default", "meaning"))


def described(params: list[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (names, default, meaning) of a command's parameters."""
    for one in params:
        names = [*one.opts, *one.secondary_opts]
        if one.param_type_name == "argument":
            names = [one.human_readable_name]
        default = one.default
        told = default is not None and not callable(default) and default not in ("", False, ())
        shown_default = f"`{default}`" if told and not isinstance(default, list) else ""
        value = f" {one.metavar}" if one.metavar and one.param_type_name == "option" else ""
        named = " ".join(f"`{name}{value}`" for name in names)
        yield named, shown_default, plain(one.help)


def rooms() -> str:
    """Return every room of the package, from the ground up: what lives there, what it imports."""
    drawn = re.findall(r'data-room="(\w+)"', (ROOT / "docs/images/rooms.svg").read_text("utf-8"))
    lines = []
    for name in reversed(drawn):
        source = (ROOT / "focoop" / name / "__init__.py").read_text(encoding="utf-8")
        told = ast.get_docstring(ast.parse(source)) or ""
        imports = re.search(r"May import: ([^.]*)\.", told)
        lines.append((f"`{name}`", plain(told.split("\n\n")[0]), plain(imports and imports[1])))
    return table(iter(lines), ("room", "what lives there", "may import"))


def table(
    lines: Iterator[tuple[str, str, str]],
    heads: tuple[str, str, str] = ("setting", "default", "meaning"),
) -> str:
    """Return a table that narrow screens show as blocks (`.stacked` in site.css)."""
    body = [f"| {' | '.join(heads)} |", "|---|---|---|"]
    body += ["| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines]
    kind = "stacked defaults" if "default" in heads else "stacked"
    return f'<div class="{kind}" markdown>\n\n' + "\n".join(body) + "\n\n</div>"


def sentence(documented: Any) -> str:
    """Return the first paragraph of a docstring in one line."""
    return plain((documented.__doc__ or "").split("\n\n")[0])


def plain(text: str | None) -> str:
    """Return text of the code as Markdown: a line for each paragraph, signs as they are."""
    paragraphs = [" ".join(part.split()) for part in (text or "").split("\n\n")]
    return "\n\n".join(SIGN.sub(r"\\\1", part) for part in paragraphs if part)


PARTS = {"settings": settings, "commands": commands, "rooms": rooms}
