"""report.html in a browser without a network."""

import pytest

from penstock.reports.report_html import read_page
from support.browser import chromium, needs_chromium, open_page
from support.programs import Program

pytestmark = [pytest.mark.slow, needs_chromium]

DRAW_ALL = "plots.forEach((plot) => plot.u || drawPlot(plot))"
READ_BACK = """() => Object.fromEntries(plots.map((plot) => [
    plot.holder.dataset.chart,
    {data: plot.u.data.map((values) => Array.from(values)), width: plot.u.ctx.canvas.width},
]))"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    program = Program(tmp_path_factory.mktemp("work"))
    flags = "--tokenizer builtin --streaming --isl 20 --osl 20 --concurrency 4 --request-count 80"
    more = "--warmup-request-count 4 --server-metrics --max-error-rate 1"
    url = "mock://?ttft=5&itl=1&error=500&error_rate=0.1"
    run = program.begin(url, *flags.split(), *more.split(), texts=None).wait()
    program.end()
    assert run.status == 0, run.err
    return str(run.folder / "report.html")


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


# The values of one chart are enough: all of them are thousands of cells, and axe looks at each.
OPEN_DETAILS = """for (const each of document.querySelectorAll("details")) {
  each.open = !each.closest("figure") || each.closest("#chart-ttft-cdf") !== null;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_shows_every_chart_with_the_data_of_the_run(browser, path, scheme):
    messages = []
    document = read_page(path)
    with open_page(browser, path, messages, color_scheme=scheme) as page:
        page.evaluate(DRAW_ALL)
        shown = page.evaluate(READ_BACK)
        headings = page.locator("h2").all_text_contents()
        verdict = page.locator(".verdict strong").text_content()
    charts = [chart for part in ("distributions", "timeline", "gaps") for chart in document[part]]
    assert shown.keys() == {chart["id"] for chart in charts} | {"lanes"}
    for chart in charts:
        rows = [chart["x"], *(series["values"] for series in chart["series"])]
        if chart["end"] is not None:  # the last step lasts until the end
            rows = [[*chart["x"], chart["end"]], *([*values, values[-1]] for values in rows[1:])]
        assert shown[chart["id"]]["data"] == rows
        assert shown[chart["id"]]["width"] > 0
    assert headings == [
        "Result",
        "Distributions",
        "Time line",
        "Gaps by token position",
        "Sessions",
        "Slowest and failed requests",
        "Settings, machine and command",
        "Checklist of good practice",
        "All metrics",
    ]
    assert verdict == document["verdict"]["verdict"]
    assert messages == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_has_no_serious_accessibility_findings(browser, path, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed.")
    with open_page(browser, path, [], color_scheme=scheme) as page:
        page.evaluate(DRAW_ALL)
        page.evaluate(OPEN_DETAILS)
        found = axe.Axe().run(page).response["violations"]
    assert [(v["id"], v["nodes"][0]["html"]) for v in found if v["impact"] in ("serious", "critical")] == []


def test_arrow_keys_read_the_values_of_a_chart(browser, path):
    chart = next(each for each in read_page(path)["distributions"] if each["id"] == "ttft-cdf")
    with open_page(browser, path, []) as page:
        page.evaluate(DRAW_ALL)
        page.locator('[data-chart="ttft-cdf"]').focus()
        page.keyboard.press("End")
        text = page.locator("#chart-ttft-cdf .readout").text_content()
    assert text.startswith(chart["x_label"])
    assert text.endswith(f"{chart['series'][0]['label']} 100")


def test_all_columns_of_a_sweep_fit_1280_pixels(browser, tmp_path):
    program = Program(tmp_path)
    flags = "--tokenizer builtin --streaming --isl 20,2000 --osl 20 --concurrency 4,16 --request-count 24"
    more = "--num-profile-runs 2 --goodput time_to_first_token:9"
    run = program.begin("mock://?ttft=5&itl=1&slots=4", *flags.split(), *more.split(), texts=None).wait()
    program.end()
    assert run.status == 0, run.err
    with open_page(browser, str(run.folder / "report.html"), [], viewport={"width": 1280, "height": 900}) as page:
        widths = page.evaluate("[...document.querySelectorAll('.scroll')].map((e) => [e.scrollWidth, e.clientWidth])")
        assert len(widths) >= 2
        for needed, room in widths:
            assert needed <= room


def test_page_fits_a_phone_and_prints(browser, path, tmp_path):
    messages = []
    with open_page(browser, path, messages, viewport={"width": 360, "height": 740}) as page:
        page.evaluate(DRAW_ALL)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.pdf(path=str(tmp_path / "report.pdf"), format="A4")
    assert (tmp_path / "report.pdf").stat().st_size > 50_000
    assert messages == []
