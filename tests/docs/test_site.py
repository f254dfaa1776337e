"""The documentation site builds strictly, loads nothing from a network and has no broken link."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from typer.testing import CliRunner

import focoop
from focoop.cli import app
from focoop.config import loading, writing
from focoop.methods import available
from tools.site_hooks import on_page_markdown

ROOT = Path(__file__).resolve().parents[2]
# Tags whose address a browser loads by itself, and the attribute that holds it.
LOADED = {
    **dict.fromkeys(("script", "img", "iframe", "source", "video", "audio", "embed"), "src"),
    **dict.fromkeys(("link", "use"), "href"),
}


class Page(HTMLParser):
    """What a page loads, where it links to, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADED and LOADED[tag] in given:
            self.loads.append(given[LOADED[tag]])
        self.loads += re.findall(r"url\(['\"]?([^)'\"]+)", given.get("style", ""))


def outside(address: str) -> bool:
    return bool(urlsplit(address).scheme not in ("", "data") or address.startswith("//"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = ["-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


def test_make_builds_it_and_so_does_the_check() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^docs:.*\n\t.*mkdocs build .*--strict", makefile, flags=re.M)
    assert re.search(r"^check:.* docs\b", makefile, flags=re.M)


@pytest.mark.slow
def test_a_browser_loads_nothing_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    assert len(pages) > 30
    assert sum(len(page.loads) for page in pages.values()) > 100
    wrong = {(path.name, one) for path, page in pages.items() for one in page.loads if outside(one)}
    assert wrong == set()
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        addresses = re.findall(r"(?:url\(|@import )['\"]?([^)'\" ]+)", text)
        assert not [one for one in addresses if outside(one)], style.name


def broken(path: Path, site: Path, pages: dict[Path, Page]) -> Iterator[str]:
    """Links of a page that lead nowhere."""
    for link in (*pages[path].links, *pages[path].loads):
        if outside(link) or link.startswith("data:"):
            continue
        parts = urlsplit(link)
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if target.is_dir():
            target /= "index.html"
        there = target.is_file() and site in target.parents
        anchor = unquote(parts.fragment)
        if not there or (anchor and anchor not in pages[target].anchors):
            yield link


@pytest.mark.slow
def test_no_link_and_no_anchor_is_broken(site: Path, pages: dict[Path, Page]) -> None:
    wrong = {
        (path.relative_to(site).as_posix(), link)
        for path in pages
        if path.name != "404.html"  # served for any address: its links begin at the root
        for link in broken(path, site, pages)
    }
    assert wrong == set()


@pytest.mark.slow
def test_a_broken_link_would_be_noticed(tmp_path: Path) -> None:
    path = tmp_path / "index.html"
    path.write_text('<a href="gone.html">x</a><a href="#gone">y</a><p id="here"><a href="#here">z')
    read = {path: Page(path.read_text())}
    assert list(broken(path, tmp_path, read)) == ["gone.html", "#gone"]
    assert outside("https://example.org/x.js") and outside("//example.org/x.js")


def test_the_mark_of_a_quoted_result_does_not_end_a_paragraph() -> None:
    marked = "FOCoOp answers\n<!-- cifar100 focoop own -->76.3<!-- end -->% of its images."
    assert on_page_markdown(marked) == "FOCoOp answers\n76.3% of its images."
    for other in ("<!-- table results -->", "<!-- exits 3 -->"):
        assert on_page_markdown(other) == other


def cells(text: str) -> list[list[str]]:
    """Rows of the tables of a page, as plain text."""
    rows = re.findall(r"<tr>(.*?)</tr>", text, flags=re.S)
    split = [re.findall(r"<td[^>]*>(.*?)</td>", row, flags=re.S) for row in rows]
    plain = [[re.sub(r"<[^>]+>", "", cell) for cell in row] for row in split if row]
    swap = (("&quot;", '"'), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&"))
    for old, new in swap:
        plain = [[cell.replace(old, new) for cell in row] for row in plain]
    return plain


@pytest.mark.slow
def test_the_settings_page_has_every_setting_with_its_default(site: Path) -> None:
    text = (site / "reference" / "settings.html").read_text(encoding="utf-8")
    common, _, rest = text.partition('<h2 id="method">')
    assert rest
    flat = {row[0]: row[1] for row in cells(common)}
    known = loading.load(None)
    wanted = [(key, value) for key, value, _ in writing.describe(known)]
    assert set(flat) == {key for key, _ in wanted if not key.startswith("method.")}
    toml = tomllib.loads(writing.to_toml(known))
    for key, default in flat.items():
        section, _, name = key.rpartition(".")
        depends = ("data.corrupted", "data.ood", "partition.shots", "partition.clients")
        if key not in depends:  # on the data
            value = toml[section][name] if section else toml[name]
            assert tomllib.loads(f"x = {default}")["x"] == pytest.approx(value), key
    for name in available():
        part = re.search(rf'<h3 id="{name}">(.*?)(?:<h3|</article>)', rest, flags=re.S)
        assert part is not None, name
        own = writing.describe(loading.from_dict({"method": {"name": name}}))
        keys = {key for key, _, _ in own if key.startswith("method.")} - {"method.name"}
        assert {row[0] for row in cells(part[1])} == keys


@pytest.mark.slow
def test_the_page_of_commands_has_every_option_of_their_helps(site: Path) -> None:
    text = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    parts = dict(re.findall(r'<h2 id="focoop-([\w-]+)">(.*?)(?=<h2|</article>)', text, flags=re.S))
    assert len(parts) > 20
    found = 0
    for name, part in parts.items():
        words = name.split("-")
        help_ = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"}).stdout
        options = set(re.findall(r"^│ [* ]*(--[a-z][a-z-]+)", help_, flags=re.M)) - {"--help"}
        shown = {option for row in cells(part) for option in row[0].split()}
        assert options <= shown, name
        found += len(options)
    assert found > 100


@pytest.mark.slow
def test_doctests_of_docstrings_are_shown_as_code(site: Path) -> None:
    text = (site / "reference" / "python-functional.html").read_text(encoding="utf-8")
    assert "&gt;&gt;&gt; " in text and "<blockquote" not in text
    for name in ("mcm", "energy", "fpr95", "semi_unbalanced_dual"):
        assert f">{name}</span>" in text or f">{name}<" in text, name


@pytest.mark.slow
def test_the_reference_has_every_public_name(site: Path) -> None:
    """Modules of functions have a page; every other name of `focoop` stands under its own."""
    texts = [path.read_text(encoding="utf-8") for path in site.glob("reference/python*.html")]
    anchors = {anchor for text in texts for anchor in Page(text).anchors}
    aliases, modules = {"Batch", "Params"}, {"metrics", "scores", "transport"}
    missing = {name for name in focoop.__all__ if f"focoop.{name}" not in anchors}
    assert missing == {"__version__", *aliases, *modules}
    for name in aliases:
        assert any(f"<code>{name}</code>" in text for text in texts)
    for module in modules:
        assert any(anchor.startswith(f"focoop.functional.{module}.") for anchor in anchors)
