"""The report and the live page in a real browser: Chromium, driven by Playwright."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pages import serving, write_deployed_run, write_run, write_sweep
from thistle.protocol.verdict import Verdict
from thistle.report.page import file_page, report_data

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 120_000
"""Milliseconds: on a busy machine a browser takes its time."""
pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(600),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]


class Visit:
    """A page, what it has said in the console, and whom it has asked."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.page = browser.new_page(viewport={"width": 1280, "height": 900}, **options)
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("dialog", lambda dialog: self.errors.append(f"dialog: {dialog.message}"))
        self.page.set_default_timeout(PATIENCE)
        self.page.add_init_script(DEEP)
        self.page.goto(address)
        self.until(lambda: self.errors or self.page.locator("body[data-ready]").count())
        assert not self.errors

    def colours(self, host: str) -> set[tuple[int, ...]]:
        """The colours that are drawn in a chart, as the screen has them."""
        from io import BytesIO

        from PIL import Image

        shot = self.page.locator(host).screenshot()
        return {colour for _, colour in Image.open(BytesIO(shot)).convert("RGB").getcolors(1 << 24)}

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait for it; the page's policy forbids Playwright's own way of waiting for scripts."""
        for _ in range(PATIENCE // 200):
            found = condition()
            if found:
                return found
            self.page.wait_for_timeout(200)
        raise AssertionError(f"never came: {condition}")

    def hover(self, host: str, x: float, y: float) -> str:
        """What the chart says at this place, given in parts of its width and height."""
        place = self.page.locator(host)
        place.scroll_into_view_if_needed()
        box = place.bounding_box()
        self.page.mouse.move(box["x"] + box["width"] * x - 3, box["y"] + box["height"] * y)
        self.page.mouse.move(box["x"] + box["width"] * x, box["y"] + box["height"] * y, steps=3)
        return str(self.until(lambda: self.page.evaluate("deepTip()")))


DEEP = """
// Bokeh draws into shadow trees, which selectors do not enter.
window.deepTip = () => {
  const texts = [];
  const walk = (node) => {
    if (node.classList?.contains("tip") && node.offsetParent !== null) texts.push(node.innerText);
    for (const child of [...(node.shadowRoot?.children ?? []), ...node.children]) walk(child);
  };
  walk(document.body);
  return texts.join("\\n");
};
"""


BOTH = {"fedavg": 0.3, "rofsl": 0.9}
FOCUSED = "(one => one.id || one.name || one.textContent.trim().slice(0, 20))(document.activeElement)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE)
        yield made
        made.close()


@pytest.fixture(autouse=True)
def tidy(browser: Any) -> Iterator[None]:
    """Close each test's pages, which would keep their charts in memory."""
    yield
    for context in browser.contexts:
        context.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    good = write_run(folder / "one", robust=True, rounds=30)
    other = write_run(folder / "<b>two", robust=True, level=0.5, malicious=0, rounds=30)
    with good.verdicts.open("a") as file:
        file.writelines(
            json.dumps(Verdict(one, "rejected", "guard", reason="<script>alert(1)").line(31)) + "\n"
            for one in range(12)
        )
    target = folder / "report.html"
    target.write_text(file_page(report_data([good.path, other.path], []), "Thistle"), encoding="utf-8")
    return target


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_sweep(tmp_path_factory.mktemp("sweeps") / "sweep")
    target = folder / "report.html"
    target.write_text(file_page(report_data([], [folder]), "Sweep"), encoding="utf-8")
    return target


def test_the_page_begins_with_what_was_found(browser: Any, tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, level=level, **{"strategy.name": name}) for name, level in BOTH.items()]
    page = tmp_path / "report.html"
    page.write_text(file_page(report_data([run.path for run in runs], []), "Thistle"), encoding="utf-8")
    visit = Visit(browser, page.as_uri())
    told = visit.page.locator(".headline").all_inner_texts()
    assert len(told) == 1 and told[0].replace("\u00a0", " ").startswith(
        "With 33.3 % malicious clients (sign-flip), rofsl keeps "
    )
    assert "; fedavg " in told[0] and visit.errors == []


def test_sites_have_their_table_and_their_own_tests(browser: Any, tmp_path: Path) -> None:
    run = write_deployed_run(tmp_path / "hospitals", rounds=3)
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    said = {"North": {"accepted": 1, "filtered": 0}, "South": {"filtered": 1, "step": "loss", "reason": "too low"}}
    lines = [line | {"sites": said} for line in lines]
    lines[-1] |= {
        "sensitivity": [0.5, 1.0],
        "site_scores": [{"client": 0, "accuracy": 0.25, "loss": 1.5, "examples": 8}],
    }
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = tmp_path / "report.html"
    page.write_text(file_page(report_data([run.path], []), "Thistle"), encoding="utf-8")
    visit = Visit(browser, page.as_uri())
    sites = visit.page.locator("#sites").inner_text()
    assert "mostly left out by" in sites and "South" in sites and "too low" in sites and "null" not in sites
    assert "25.0" in visit.page.locator("#quality").inner_text() and visit.errors == []


def test_many_runs_are_folded_away(browser: Any, tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"run{number}", rounds=2) for number in range(13)]
    page = tmp_path / "report.html"
    page.write_text(file_page(report_data([run.path for run in runs], []), "Thistle"), encoding="utf-8")
    visit = Visit(browser, page.as_uri())
    chips = visit.page.locator("#chips")
    assert not chips.locator("[data-run]").first.is_visible()
    chips.locator("summary").click()
    assert chips.locator("summary").inner_text() == "8 of 13 runs are shown; choose"
    chips.get_by_role("button", name="all", exact=True).click()
    assert chips.locator("summary").inner_text() == "13 of 13 runs are shown; choose"
    assert chips.locator("[data-run]").first.is_visible() and visit.errors == []


def test_the_report_draws_and_asks_nobody(browser: Any, report: Path) -> None:
    visit = Visit(browser, report.as_uri())
    assert visit.errors == []
    assert [url for url in visit.asked if not url.startswith(("data:", "blob:"))] == [report.as_uri()]
    visit.until(lambda: {(0, 114, 178), (213, 94, 0)} <= visit.colours("#curves .chart >> nth=0"))
    visit.until(lambda: {(169, 207, 232), (230, 159, 0), (181, 23, 158)} <= visit.colours("#map"))
    visit.until(lambda: {(0, 114, 178), (213, 94, 0)} <= visit.colours("#robust .chart"))
    assert visit.errors == []


def test_hovering_tells_the_numbers(browser: Any, report: Path) -> None:
    visit = Visit(browser, report.as_uri())
    told = visit.hover("#curves .chart >> nth=0", 0.5, 0.5)
    assert "one" in told and "<b>two" in told and "round" in told and "%" in told
    visit.page.mouse.move(0, 0)
    told = visit.hover("#map", 0.97, 0.5)
    assert "round 31" in told and "rejected by guard: <script>alert(1)" in told
    assert visit.errors == []


def test_toggles_change_the_plot(browser: Any, report: Path) -> None:
    visit = Visit(browser, report.as_uri())
    chart = "#curves .chart >> nth=0"
    chip = visit.page.locator("#chips button").first
    chip.focus()
    visit.page.keyboard.press("Space")
    assert visit.page.locator("#chips button").first.get_attribute("aria-pressed") == "false"
    assert visit.page.locator(chart).get_attribute("data-series") == "1"
    visit.until(lambda: (0, 114, 178) not in visit.colours(chart))
    before = visit.colours("#map")
    visit.page.get_by_label("right or wrong").check()
    assert (42, 157, 117) not in before
    visit.until(lambda: (42, 157, 117) in visit.colours("#map"))
    visit.page.get_by_role("radio", name="traffic").check()
    visit.page.get_by_label("logarithmic").check()
    visit.page.get_by_text("the numbers").first.click()
    visit.page.wait_for_selector("#curves details[open] td")
    assert visit.page.locator("#curves details[open] td").count() > 20
    assert visit.errors == []


def test_everything_is_reached_by_keyboard(browser: Any, report: Path) -> None:
    visit = Visit(browser, report.as_uri())
    reached = set()
    for _ in range(80):
        visit.page.keyboard.press("Tab")
        reached.add(visit.page.evaluate(FOCUSED))
    assert {"theme", "print", "Skip to the charts", "Overview", "the numbers", "one"} <= reached


def test_dark_light_and_print(browser: Any, report: Path, tmp_path: Path) -> None:
    visit = Visit(browser, report.as_uri(), color_scheme="dark")
    assert (20, 24, 27) in visit.colours("body")
    visit.page.locator("#theme").select_option("light")
    assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    visit.page.pdf(path=tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").stat().st_size > 20_000
    assert visit.errors == []


def test_a_sweep_has_maps_and_curves(browser: Any, sweep: Path) -> None:
    visit = Visit(browser, sweep.as_uri())
    told = visit.hover("#sweep-0-maps .chart >> nth=0", 0.5, 0.45)
    assert "worst case: attack.kind = label-flip" in told and "3 seeds" in told
    visit.page.mouse.move(0, 0)
    told = visit.hover("#sweep-0-maps .chart >> nth=1", 0.3, 0.45)
    assert "next: rfa" in told and "p = " in told
    visit.page.locator("#sweep-0-maps select").select_option("attack.fraction × task.alpha")
    assert visit.page.locator("#sweep-0-maps .card").count() == 4
    visit.page.locator("#sweep-0-curves").get_by_label("sign-flip").check()
    visit.page.locator("#sweep-0-curves .key").get_by_label("rofsl").uncheck()
    assert visit.page.locator("#sweep-0-curves .chart").get_attribute("data-series") == "2"
    assert visit.errors == []


def test_paper_shows_the_screen_made_smaller(browser: Any, tmp_path: Path) -> None:
    """Charts are as wide as on the screen, whatever the sheet: they must neither overlap nor be cut off."""
    run = write_run(tmp_path / "one")
    target = tmp_path / "report.html"
    target.write_text(file_page(report_data([run.path], []), "one"), encoding="utf-8")
    visit = Visit(browser, target.as_uri())
    visit.page.wait_for_selector("#map canvas")
    visit.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    visit.page.emulate_media(media="print")
    boxes = "[...document.querySelectorAll('%s')].map((one) => one.getBoundingClientRect())"
    boxes += ".map((box) => [box.left, box.right])"
    (sheet,) = visit.page.evaluate(boxes % "body")
    charts = visit.page.evaluate(boxes % ".chart canvas, .chart > div")
    assert sheet[1] - sheet[0] <= 701 and len(charts) > 5
    assert all(sheet[0] - 1 <= left and right <= sheet[1] + 1 for left, right in charts)
    colours = "getComputedStyle(document.querySelector('.swatch.block')).printColorAdjust"
    assert visit.page.evaluate(colours) == "exact"
    assert visit.errors == []


def test_a_deployed_run_promises_no_truth(browser: Any, tmp_path: Path) -> None:
    run = write_deployed_run(tmp_path / "hospitals", rounds=3)
    target = tmp_path / "report.html"
    target.write_text(file_page(report_data([run.path], []), "hospitals"), encoding="utf-8")
    visit = Visit(browser, target.as_uri())
    visit.page.wait_for_selector("#map canvas")
    assert "only the nodes know" in visit.page.locator("#clients").inner_text()
    assert "colour by" not in visit.page.locator("#clients").inner_text()
    assert not visit.page.locator("#detection").is_visible()
    assert "Detection" not in visit.page.locator("#contents").inner_text()
    assert "unknown" in visit.page.locator("#overview table").first.inner_text()
    assert visit.errors == []


def test_the_live_page_of_a_sweep_leads_to_its_runs(browser: Any, tmp_path: Path) -> None:
    axes: dict[str, list[Any]] = {"strategy.name": ["rfa", "rofsl"]}
    write_sweep(tmp_path / "sweep", seeds=2, axes=axes)
    with serving(tmp_path / "sweep") as address:
        visit = Visit(browser, address)
        visit.page.locator("#sweep-0-table").get_by_role("button", name="seed 1").first.click()
        visit.page.wait_for_selector("#chips [data-run][aria-pressed='true']")
        assert visit.page.locator("#chips [data-run][aria-pressed='true']").count() == 1
        assert visit.errors == []


def test_the_live_page_follows_a_run(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "growing", rounds=3, finished=False)
    with serving(tmp_path / "runs") as address:
        visit = Visit(browser, address)
        visit.page.wait_for_selector("body[data-rounds='growing 3']")
        with run.metrics.open("a") as file:
            file.write('{"round": 4, "accuracy": 0.77, "seconds": 1}\nnonsense\n')
        visit.page.wait_for_selector("body[data-rounds='growing 4']")
        assert "1 damaged line" in visit.page.locator("#overview .problem").inner_text()
        write_run(tmp_path / "runs" / "second", rounds=2)
        visit.page.wait_for_selector("body[data-rounds='growing 4, second 2']")
        assert visit.page.locator("#chips [data-run]").count() == 2
        run.set_status("failed", message="<img src=x onerror=alert(1)>")
        visit.page.wait_for_selector("#overview .state.failed")
        assert "<img src=x" in visit.page.locator("#overview").inner_text()
        assert all(url.startswith((address, "data:", "blob:")) for url in visit.asked)
        assert visit.errors == []


@pytest.mark.slow
def test_a_thousand_rounds_of_a_thousand_clients(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "big", rounds=1000, clients=1000, malicious=300)
    target = tmp_path / "big.html"
    target.write_text(file_page(report_data([run.path], []), "big"), encoding="utf-8")
    assert target.stat().st_size < 10_000_000
    visit = Visit(browser, target.as_uri())
    visit.page.wait_for_selector("#map[data-cells='1000000']")
    assert visit.errors == []
    print(f"drawn after {visit.page.evaluate('performance.getEntriesByName(`drawn`)[0].startTime'):.0f} ms")
