"""The reviewer's page in a real browser: nothing is fetched, players play, and it fits a phone, light and dark."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.page_case import make_page, write_build

webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium and chromedriver are not installed")

_ALONE = (  # a machine without network: Chromium would look for Google's hosts
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium with the page of a small build loaded."""
    root = tmp_path_factory.mktemp("page")
    write_build(root)
    make_page(root)
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*_ALONE, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(20)
    driver.get((root / "reports/index.html").as_uri())
    yield driver
    driver.quit()


def _show(browser: Any, width: int, scheme: str) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def test_nothing_is_fetched_and_nothing_complains(browser: Any) -> None:
    assert browser.get_log("browser") == []
    loaded = browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in loaded if not name.startswith("data:")] == []


def test_every_picture_and_player_works(browser: Any) -> None:
    widths = browser.execute_script("return [...document.images].map(i => i.complete && i.naturalWidth)")
    assert len(widths) == 8
    assert min(widths) > 50
    lengths = browser.execute_async_script(
        """
        const done = arguments[0];
        Promise.all([...document.querySelectorAll('audio')].map(a => new Promise(ok => {
          if (a.readyState >= 1) ok(a.duration);
          a.onloadedmetadata = () => ok(a.duration); a.onerror = () => ok(-1);
        }))).then(done);
        """
    )
    assert lengths == pytest.approx([1.5] * 3 + [1.0] * 3, abs=0.01)


@pytest.mark.parametrize("width", [360, 390, 1280])
def test_it_fits_without_scrolling_sideways(browser: Any, width: int) -> None:
    _show(browser, width, "light")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    # letters of the charts, as they come out on the screen
    smallest = browser.execute_script(
        "return Math.min(...[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height))"
    )
    assert smallest >= 9


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_letters_stand_out_in_both_schemes(browser: Any, scheme: str, dark: bool) -> None:
    _show(browser, 390, scheme)
    colours = browser.execute_script(
        """
        const of = (e, p) => getComputedStyle(e)[p].match(/[\\d.]+/g).slice(0, 3).map(Number);
        const pick = s => document.querySelector(s);
        return {paper: of(document.body, 'backgroundColor'), ink: of(document.body, 'color'),
                faint: of(pick('.faint'), 'color'), chart: of(pick('svg text'), 'fill'),
                card: of(pick('figure'), 'backgroundColor'), good: of(pick('.ok'), 'color')};
        """
    )
    assert (sum(colours["paper"]) < 200) is dark
    for letters, ground in (("ink", "paper"), ("faint", "paper"), ("chart", "card"), ("good", "paper")):
        assert _contrast(colours[letters], colours[ground]) >= 4.5, letters


def _contrast(one: list[float], other: list[float]) -> float:
    """Contrast ratio of two sRGB colours as WCAG 2 defines it."""

    def luminance(colour: list[float]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
