"""Cells of a table as Markdown and as LaTeX: the one shape that all tables of results have."""

import re
from collections.abc import Sequence

BOOKTABS = "% needs \\usepackage{booktabs} and \\usepackage{graphicx}"
NO_LABEL = r"[^\w.=+]+"  # what a label may not hold
SIGNS = {
    "±": r"$\pm$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
}


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return a table in Markdown.

    Args:
        heads: Names of the columns.
        rows: Cells of each line, as Markdown.
        left: How many columns, from the first on, are text; the others are numbers, set right.

    Returns:
        The table without a line end.

    >>> print(markdown_table(["method", "own"], [["promptfl", "1.0"]]))
    | method | own |
    | --- | ---: |
    | promptfl | 1.0 |
    """
    rule = ["---"] * left + ["---:"] * (len(heads) - left)
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, rule, *rows])


def latex_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: int = 1,
    *,
    caption: str = "",
    name: str = "",
    fitted: bool = False,
) -> str:
    """Return a `table` environment with booktabs' rules.

    Args:
        heads: Names of the columns, as plain text.
        rows: Cells of each line: those of text columns plain, the others LaTeX.
        left: How many columns, from the first on, are text; the others are numbers, set right.
        caption: What stands above it, as plain text; empty: nothing.
        name: What it is of, for its label: `cifar100` is `tab:cifar100`; empty: it has no label.
        fitted: Whether it is made as wide as the page's text, which takes graphicx.

    Returns:
        LaTeX without a line end.
    """
    body = [" & ".join([*map(escaped, row[:left]), *row[left:]]) for row in rows]
    top, bottom = (r"\resizebox{\linewidth}{!}{%", "}") if fitted else ("", "")
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            *([f"\\caption{{{escaped(caption)}}}"] if caption else []),
            *([f"\\label{{tab:{re.sub(NO_LABEL, '-', name)}}}"] if name else []),
            *([top] if top else []),
            f"\\begin{{tabular}}{{{'l' * left}{'r' * (len(heads) - left)}}}",
            r"\toprule",
            " & ".join(map(escaped, heads)) + r" \\",
            r"\midrule",
            *(f"{line} \\\\" for line in body),
            r"\bottomrule",
            rf"\end{{tabular}}{bottom}",
            r"\end{table}",
        ]
    )


def escaped(text: str) -> str:
    r"""Return text with all of LaTeX's own signs escaped.

    Args:
        text: The text.

    Returns:
        LaTeX.

    >>> escaped("fpr95_oodpos, 5% of #1")
    'fpr95\\_oodpos, 5\\% of \\#1'
    """
    plain = re.sub(r"([&%$#_{}])", r"\\\1", text.replace("\\", "/"))
    for sign, command in SIGNS.items():
        plain = plain.replace(sign, command)
    return plain
