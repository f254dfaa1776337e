"""The page in a browser: upload, paste, drop, camera, dial, switch, themes, widths."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("playwright", reason="playwright is not installed")

from focoop.serve import Engine, KeyFile, Limits, add_key
from tests.serve.fake_model import FakeModel, picture
from tests.serve.live import live

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or ""
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not BROWSER, reason="no chromium on this machine"),
]
COLOURS = {"red": (230, 10, 20), "green": (10, 230, 20), "grey": (120, 120, 120)}
LIMITS = Limits(pixels=10**6, image_bytes=240_000)
WAYS = [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")]
ARGUMENTS = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
# Screenshots are kept where this names a folder, for people to look at.
SHOTS = os.environ.get("FOCOOP_SCREENSHOTS", "")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("images")
    for name, colour in COLOURS.items():
        (folder / f"{name}.png").write_bytes(picture(colour, (120, 90)))
    (folder / "broken.png").write_bytes(picture()[:60])
    (folder / "huge.png").write_bytes(picture(COLOURS["red"], (1300, 1000)))
    grain = np.random.default_rng(0).integers(0, 60, (300, 400, 3), np.uint8)
    Image.fromarray(grain + np.array([190, 0, 0], np.uint8)).save(folder / "heavy.png")
    assert (folder / "heavy.png").stat().st_size > LIMITS.image_bytes
    return {path.stem: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with live(Engine({"colours": FakeModel()}, LIMITS)) as address:
        yield address


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, address: str, width: int = 1280, theme: str = "light") -> Iterator[Any]:
    """The page; anything in the console fails the test."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=theme,
        permissions=["clipboard-read", "clipboard-write", "camera"],
    )
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.set_default_timeout(15_000)
    page.goto(address)
    page.said = said
    try:
        yield page
        assert said == []
    finally:
        context.close()


def verdict(page: Any, text: str) -> None:
    """Wait until the live region says something."""
    page.wait_for_function(
        "text => document.getElementById('verdict-line').textContent.includes(text)", arg=text
    )


def look(page: Any, name: str) -> None:
    """No sideways scrolling, nothing that axe calls serious; a screenshot for people."""
    from axe_playwright_python.sync_playwright import Axe

    page.wait_for_timeout(400)  # bars grow
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = Axe().run(page).response["violations"]
    bad = [(one["id"], [node["html"] for node in one["nodes"]]) for one in found
           if one["impact"] in ("serious", "critical")]  # fmt: skip
    assert bad == []
    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


@pytest.mark.parametrize(("width", "theme"), WAYS)
def test_three_images_have_three_answers(
    chromium: Any, address: str, images: dict[str, Path], width: int, theme: str
) -> None:
    with opened(chromium, address, width, theme) as page:
        page.select_option("#client", "north")
        look(page, f"empty-{width}-{theme}")
        page.set_input_files("#files", [images[name] for name in COLOURS])
        verdict(page, "This is: red")
        assert page.inner_text("#bars-title") == "Classes"
        assert "Right class among (95%)\nred" in page.inner_text("#facts")
        look(page, f"own-{width}-{theme}")
        page.locator("#strip button").nth(1).click()
        verdict(page, "Another site knows this: green")
        assert "Held by south" in page.inner_text("#verdict-text")
        page.check("#heat")
        look(page, f"other-{width}-{theme}")
        page.locator("#strip button").nth(2).click()
        verdict(page, "I do not know this")
        assert page.inner_text("#bars-title") == "If it were a known class"
        assert "Right class" not in page.inner_text("#facts")
        assert page.get_attribute("#verdict", "aria-live") == "polite"
        label = page.get_attribute("#axis svg", "aria-label")
        assert "above the threshold" in label
        look(page, f"unknown-{width}-{theme}")


def test_paste_drop_and_photograph(chromium: Any, address: str, images: dict[str, Path]) -> None:
    with opened(chromium, address) as page:
        page.select_option("#client", "north")
        page.evaluate(
            """async (bytes) => {
                const blob = new Blob([new Uint8Array(bytes)], { type: "image/png" });
                await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
            }""",
            list(images["green"].read_bytes()),
        )
        page.keyboard.press("Control+V")
        verdict(page, "Another site knows this: green")
        page.evaluate(
            """(bytes) => {
                const moved = new DataTransfer();
                const blob = new Blob([new Uint8Array(bytes)], { type: "image/png" });
                moved.items.add(new File([blob], "red.png", { type: "image/png" }));
                const event = { dataTransfer: moved, bubbles: true, cancelable: true };
                document.getElementById("drop").dispatchEvent(new DragEvent("drop", event));
            }""",
            list(images["red"].read_bytes()),
        )
        verdict(page, "This is: red")
        page.click("#photograph")
        page.wait_for_function("() => document.getElementById('video').videoWidth > 0")
        page.click("#shoot")
        page.wait_for_selector("#canvas[aria-label='photograph.jpg']")
        page.wait_for_selector("#bars li")
        assert not page.is_visible("#camera-dialog")


def test_the_dial_and_the_switch_change_the_answer(
    chromium: Any, address: str, tmp_path: Path
) -> None:
    mixed = tmp_path / "mixed.png"
    mixed.write_bytes(picture((150, 200, 20)))
    with opened(chromium, address) as page:
        page.select_option("#client", "north")
        page.set_input_files("#files", [mixed])
        verdict(page, "Another site knows this: green")
        page.focus("#dial")
        for _ in range(10):
            page.keyboard.press("ArrowLeft")
        assert page.inner_text("#dial-value") == "0.00"
        verdict(page, "This is: red")
        page.click("#dial-reset")
        verdict(page, "Another site knows this: green")
        assert page.inner_text("#dial-value") == "0.50" and not page.is_visible("#dial-reset")
        page.select_option("#client", "south")
        page.wait_for_selector("#verdict-text:has-text('A class of south')")
        page.select_option("#client", "global")
        page.wait_for_selector("#verdict-text:has-text('Held by south')")
        verdict(page, "This is: green")
        assert page.is_disabled("#dial") and "no classes of its own" in page.inner_text(".dial")
        page.select_option("#client", "north")
        assert page.is_enabled("#dial") and page.inner_text("#dial-value") == "0.50"


def test_the_keyboard_alone_is_enough(chromium: Any, address: str, images: dict[str, Path]) -> None:
    with opened(chromium, address) as page:
        page.wait_for_selector("#client option", state="attached")
        chosen = [images["red"], images["grey"]]
        page.on("filechooser", lambda chooser: chooser.set_files(chosen))
        seen = []
        for _ in range(4):
            page.keyboard.press("Tab")
            seen.append(page.evaluate("document.activeElement.id"))
        assert seen == ["client", "dial", "choose", "photograph"]
        page.focus("#choose")
        page.keyboard.press("Enter")
        verdict(page, "This is: red")
        page.focus("#strip li:nth-child(2) button")
        page.keyboard.press("Enter")
        verdict(page, "I do not know this")


def test_what_cannot_be_read_is_said_and_what_is_too_large_is_made_smaller(
    chromium: Any, address: str, images: dict[str, Path]
) -> None:
    with opened(chromium, address) as page:
        page.select_option("#client", "north")
        page.set_input_files("#files", [images["broken"], images["huge"], images["heavy"]])
        page.wait_for_selector("#verdict-text:has-text('cut off')")
        for place in (1, 2):
            page.locator("#strip button").nth(place).click()
            page.wait_for_selector(f"#strip li:nth-child({place + 1}) [data-verdict='own']")
            verdict(page, "This is: red")
        # The browser itself reports a refused request; nothing else may be said.
        assert [line for line in page.said if "422" not in line] == []
        page.said.clear()


def test_more_images_than_a_page_shows_are_said(
    chromium: Any, address: str, images: dict[str, Path]
) -> None:
    with opened(chromium, address) as page:
        page.wait_for_selector("#client option", state="attached")
        page.set_input_files("#files", [images["red"]] * 201)
        page.wait_for_selector("#notice:has-text('The first 200 of 201 images')")
        verdict(page, "This is: red")
        page.set_input_files("#files", [images["grey"]])
        verdict(page, "I do not know this")
        assert not page.is_visible("#notice")


def test_a_key_is_asked_for_once(chromium: Any, images: dict[str, Path], tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys.txt", "me")
    keyed = Engine({"colours": FakeModel()})
    keys = KeyFile(tmp_path / "keys.txt")
    with live(keyed, keys=keys) as address, opened(chromium, address) as page:
        page.fill("#key", key)
        page.click("#key-save")
        page.wait_for_selector("#client option", state="attached")
        page.set_input_files("#files", [images["red"]])
        verdict(page, "This is: red")
        page.reload()
        page.wait_for_selector("#client option", state="attached")
        assert not page.is_visible("#key-dialog")
        assert [line for line in page.said if "401" not in line] == []
        page.said.clear()
