"""Tables that fit the screen without breaking a number or a word.

A sheet that is too wide first breaks its headers and its prose between words, then continues its
columns in further tables below, and at last becomes a list with a few lines per row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

GAP = 2  # columns between two cells
PROSE = 24  # a usual least width of a column of prose: in less, sentences are not readable
STICKY = "\u00a0"  # a space where no line is broken, as in "train 1600"
Cell = str | Text


@dataclass(frozen=True)
class Column:
    """A column of a sheet.

    Attributes:
        name: the header, which may be broken between words.
        right: whether cells stand at the right, as numbers do.
        prose: least width of cells that may be broken between words; 0: cells stay whole.
        group: neighbours of the same group stay in one table; empty: of no group.
    """

    name: str
    right: bool = False
    prose: int = 0
    group: str = ""


def wrapped(text: str, width: int, hang: int = 0) -> str:
    r"""Break a text into lines between words.

    A word that is wider than a line stays whole, so that a path can be copied from the screen.

    Args:
        text: the text; its own line breaks and the spaces at the start of its lines are kept.
        width: columns of a line.
        hang: spaces before the second and further lines; an indented line goes on deeper than it
            begins.

    Returns:
        The text with line breaks.

    >>> wrapped("loss 4.581 own classes 12.5", 16, hang=2)
    'loss 4.581 own\n  classes 12.5'
    >>> wrapped("missing:\n  dtd: focoop data fetch dtd", 20)
    'missing:\n  dtd: focoop data\n    fetch dtd'
    """
    lines: list[str] = []
    for part in text.split("\n"):
        indent = len(part) - len(part.lstrip(" "))
        lines += _lines(_words(part), " ", width, max(hang, indent + 2) if indent else hang)
    return "\n".join(lines)


def joined(items: Sequence[str], width: int, indent: int = 0) -> str:
    """Set items side by side, two spaces apart, breaking lines between items alone.

    Args:
        items: The items.
        width: Columns of the screen.
        indent: Spaces before further lines.

    Returns:
        Text.
    """
    inside = max(1, width - indent)
    return "\n".join(" " * indent + line for line in _lines(items, " " * GAP, inside, 0))


class Sheet:
    """A table as wide as its content, or as the screen where that is less.

    Args:
        columns: the first `keys` of them name a row and are repeated in every table below.
        rows: the cells, one for each column.
        title: a line above the table.
        keys: how many columns name a row.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        rows: Sequence[Sequence[Cell]],
        title: str = "",
        keys: int = 1,
    ) -> None:
        self.columns, self.rows = tuple(columns), [tuple(row) for row in rows]
        self.title, self.keys = title, keys

    @property
    def width(self) -> int:
        """Return the columns of a screen on which nothing is broken."""
        full = [self._full(i) for i in range(len(self.columns))]
        return sum(full) + GAP * (len(full) - 1)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render for a screen; used by rich."""
        if self.title:
            yield _whole(Text(wrapped(self.title, options.max_width), style="bold"))
        rule = "-" if options.ascii_only else "─"
        yield from self._fitted(options.max_width, rule)

    def _fitted(self, width: int, rule: str) -> Iterator[Text]:
        """The lines of the first layout that fits."""
        widths = self._widths(width)
        if widths is not None:
            return self._table(widths, rule)
        groups = self._groups(width)
        if groups is None:
            return self._list(width)
        return self._tables(groups, width, rule)

    def _widths(self, width: int) -> list[int] | None:
        """The width of each column, or None if the table does not fit."""
        room = width - GAP * (len(self.columns) - 1)
        full = [self._full(i) for i in range(len(self.columns))]
        if sum(full) <= room:
            return full
        widths = [self._least(i) for i in range(len(self.columns))]
        spare = room - sum(widths)
        if spare < 0:
            return None
        prose = [i for i, column in enumerate(self.columns) if column.prose]
        for place, i in enumerate(sorted(prose, key=lambda i: full[i])):
            given = min(full[i] - widths[i], spare // (len(prose) - place))  # an equal share
            widths[i], spare = widths[i] + given, spare - given
        return widths

    def _full(self, i: int) -> int:
        """The width of a column in which nothing is broken."""
        return max(cell_len(self.columns[i].name), *(_length(row[i]) for row in self.rows), 1)

    def _least(self, i: int) -> int:
        """The width of a column in which no word of it is broken, nor a cell that must not be."""
        texts = [self.columns[i].name]
        if self.columns[i].prose:
            texts += [_plain(row[i]) for row in self.rows]
            least = min(self.columns[i].prose, self._full(i))
        else:
            least = max((_length(row[i]) for row in self.rows), default=1)
        return max(least, *(cell_len(word) for text in texts for word in text.split(" ")))

    def _groups(self, width: int) -> list[list[int]] | None:
        """Columns of each table where they go below each other; None where that does not help."""
        needs = [self._least(i) + GAP for i in range(len(self.columns))]
        free = width - sum(needs[: self.keys]) + GAP  # beside the columns that name a row
        prose = any(column.prose for column in self.columns)
        if prose or free < width // 2 or max(needs[self.keys :], default=0) > free:
            return None
        groups: list[list[int]] = []
        room = 0
        for i in range(self.keys, len(self.columns)):
            group = self.columns[i].group
            starts = not group or group != self.columns[i - 1].group
            whole = sum(needs[i : i + self._alike(i)])
            if not groups or needs[i] > room or (starts and room < whole <= free):
                groups.append([])
                room = free
            groups[-1].append(i)
            room -= needs[i]
        return groups

    def _alike(self, i: int) -> int:
        """How many columns from this one on are of its group."""
        group = self.columns[i].group
        after = takewhile(lambda column: group and column.group == group, self.columns[i + 1 :])
        return 1 + len(list(after))

    def _tables(self, groups: Sequence[Sequence[int]], width: int, rule: str) -> Iterator[Text]:
        """One table below the other, each with the columns that name a row."""
        for number, group in enumerate(groups):
            chosen = [*range(self.keys), *group]
            part = Sheet(
                [self.columns[i] for i in chosen], [[row[i] for i in chosen] for row in self.rows]
            )
            if number:
                yield Text("")
            yield from part._fitted(width, rule)

    def _table(self, widths: Sequence[int], rule: str) -> Iterator[Text]:
        """A header, a rule and the rows, in columns of these widths."""
        names = [wrapped(c.name, w).split("\n") for c, w in zip(self.columns, widths, strict=True)]
        height = max(len(lines) for lines in names)
        for line in range(height):  # headers end at the rule
            cells = [n[line - height] if line >= height - len(n) else "" for n in names]
            yield self._line(cells, widths, "bold")
        yield Text(rule * (sum(widths) + GAP * (len(widths) - 1)))
        for row in self.rows:
            split = [
                [cell] if isinstance(cell, Text) else wrapped(cell, width).split("\n")
                for cell, width in zip(row, widths, strict=True)
            ]
            for line in range(max(len(cell) for cell in split)):
                yield self._line([c[line] if line < len(c) else "" for c in split], widths)

    def _line(self, cells: Sequence[Cell], widths: Sequence[int], style: str = "") -> Text:
        line = Text(style=style)
        for i, (cell, width, column) in enumerate(zip(cells, widths, self.columns, strict=True)):
            text = cell if isinstance(cell, Text) else Text(_shown(cell))
            pad = " " * (width - text.cell_len)
            line.append(" " * GAP if i else "")
            line.append_text(Text(pad) + text if column.right else text + Text(pad))
        line.rstrip()
        return _whole(line)

    def _list(self, width: int) -> Iterator[Text]:
        """Each row as lines: what names it, its values, its prose."""
        for row in self.rows:
            cells = [_plain(cell) for cell in row]
            yield _whole(Text("  ".join(cells[: self.keys]), style="bold"))
            pairs = [*zip(self.columns, cells, strict=True)][self.keys :]
            values = [
                f"{column.name}{STICKY}{cell}"
                for column, cell in pairs
                if cell and not column.prose
            ]
            if values:
                yield _whole(Text(joined(values, width, indent=2)))
            for column, cell in pairs:
                if column.prose and cell:
                    yield _whole(Text(wrapped(f"  {column.name}: {cell}", width, hang=4)))


def _lines(items: Sequence[str], between: str, width: int, hang: int) -> Iterator[str]:
    """Lines of as many items as fit, at least one each."""
    line = items[0] if items else ""
    for item in items[1:]:
        if cell_len(line) + len(between) + cell_len(item) <= width:
            line += between + item
        elif item:  # an empty one is a double space, which ends with its line
            yield _shown(line)
            line = " " * hang + item
    yield _shown(line)


def _words(line: str) -> list[str]:
    """The words of a line; the first keeps the spaces before it, and double spaces stay."""
    bare = line.lstrip(" ")
    words = bare.split(" ")
    return [" " * (len(line) - len(bare)) + words[0], *words[1:]]


def _length(cell: Cell) -> int:
    return cell_len(_plain(cell))


def _plain(cell: Cell) -> str:
    return cell.plain if isinstance(cell, Text) else cell


def _shown(text: str) -> str:
    return text.replace(STICKY, " ").rstrip()


def _whole(text: Text) -> Text:
    """The text as lines that rich leaves as they are."""
    text.no_wrap, text.overflow = True, "ignore"
    return text
