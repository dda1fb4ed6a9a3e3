"""The dashboard in a real browser: Chromium, driven by selenium. Without one, these tests are skipped."""

import csv
import shutil
import threading
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

import browser
from kernelmesh import Diffusion, Gradient, Penalty
from kernelmesh.dashboard.export import write_report
from kernelmesh.dashboard.live_source import LiveSource
from kernelmesh.dashboard.recorder import Recorder
from kernelmesh.dashboard.recording import AGENT, EDGE, FILE, TOTALS, Frame, Recording, State, Subject
from kernelmesh.dashboard.serving import Dashboard
from kernelmesh.dashboard.sources import FolderSource, News, Shown, Source
from test_dashboard import AGENT_2D, a_network, finish, learn

pytestmark = [
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(bool(browser.missing()), reason=browser.missing() or "there is a browser"),
    # uvicorn drops the connections that a browser still holds when it stops
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two runs on the same data: one class per agent, averaging functions and with the penalty."""
    out = []
    for protocol in (Diffusion(), Penalty(coupling=0.01)):
        folder = tmp_path_factory.mktemp("runs") / type(protocol).__name__.lower()
        folder.mkdir()
        learn(a_network(replace(AGENT_2D, learner=Gradient(step_size=1.0), protocol=protocol), held=99), Recorder(folder))
        finish(folder)
        out.append(folder)
    return out


@pytest.fixture(scope="module")
def downloads(tmp_path_factory):
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def driver(downloads):
    with browser.browser(downloads=downloads) as driver:
        yield driver


@pytest.fixture(scope="module")
def finished(folders):
    with Dashboard([FolderSource(folders[0])], port=0) as page:
        yield page


@pytest.fixture
def opened(driver, finished):
    """The page of a finished run, at its end."""
    if driver.current_url != finished.url:
        visit(driver, finished)
    driver.execute_script("KM.app.clock.pause(); KM.app.clock.set(KM.app.end); KM.app.choose(0)")
    yield driver
    check_quiet(driver, finished)


def visit(driver, page, *, width=1400, height=850):
    leave(driver)
    browser.size(driver, width, height)
    driver.get(page.url)
    browser.painted(driver)


def leave(driver):
    """Close the page before, and forget what it said."""
    driver.get("about:blank")
    browser.complaints(driver), browser.requests(driver)


def check_quiet(driver, page):
    """No error on the console, and no request to another machine."""
    assert browser.complaints(driver) == []
    asked = [url for url in browser.requests(driver) if url.startswith(("http", "ws"))]
    assert [url for url in asked if not url.startswith(page.url)] == []


def text(driver, selector):
    return driver.find_element(By.CSS_SELECTOR, selector).text


def count_of(driver):
    """The number of samples that the page shows."""
    return int(text(driver, "#clock").split()[0].replace(",", ""))


def test_a_finished_run_is_shown(opened, folders):
    recording = Recording.read(folders[0] / FILE)
    assert text(opened, "h1") == "diffusion"
    assert text(opened, "#status") == "Finished"
    assert text(opened, "#subtitle") == "4 agents, gradient, seed 3"
    assert len(opened.find_elements(By.CSS_SELECTOR, ".node")) == 4
    assert len(opened.find_elements(By.CSS_SELECTOR, "[data-edge]")) == len(recording.subject.edges)
    assert len(opened.find_elements(By.CSS_SELECTOR, "#curves .figure")) == 5
    last = recording.frames[-1].totals
    assert count_of(opened) == last["samples"]
    assert f"{100 * last['score_mean']:.1f}%" in text(opened, "#numbers")
    browser.wait(opened, "document.querySelector('#functions image').getAttribute('href')")


def test_scrubbing_changes_what_is_shown(opened, folders):
    recording = Recording.read(folders[0] / FILE)
    totals = [frame.totals for frame in recording.frames]
    body = opened.find_element(By.TAG_NAME, "body")
    opened.find_element(By.CSS_SELECTOR, "#agents-details summary").click()
    body.send_keys(Keys.ARROW_LEFT)
    assert count_of(opened) == totals[-2]["samples"]
    wanted = [f"{100 * score:.1f}%" for score in recording.frames[-2].agents[:, AGENT.index("score")]]
    cells = "[...document.querySelectorAll('#agents-table td:nth-child(5)')].map((cell) => cell.textContent)"
    browser.wait(opened, f"JSON.stringify({cells}) === JSON.stringify({wanted})")
    opened.find_element(By.CSS_SELECTOR, "#agents-details summary").click()
    body.send_keys(Keys.HOME, Keys.ARROW_RIGHT)
    shown = count_of(opened)
    assert shown == totals[1]["samples"]
    browser.wait(opened, f"document.querySelector('#numbers').innerText.includes('{100 * totals[1]['score_mean']:.1f}%')")
    wanted = f"after {shown} samples"
    browser.wait(opened, f"document.querySelector('#functions .caption').textContent.includes('{wanted}')")
    slider = opened.find_element(By.ID, "scrub")
    ActionChains(opened).move_to_element(slider).click().perform()
    browser.wait(opened, f"Math.abs(KM.app.clock.samples - {totals[-1]['samples'] / 2}) < 40")
    assert abs(count_of(opened) - totals[-1]["samples"] / 2) < 40
    browser.wait(opened, "document.querySelector('#summary').textContent.includes('accuracy')")  # for those who listen


def test_playing_and_pausing(opened):
    Select(opened.find_element(By.ID, "speed")).select_by_value("20")
    opened.find_element(By.TAG_NAME, "h1").click()
    ActionChains(opened).send_keys(" ").perform()
    assert opened.find_element(By.ID, "play").get_attribute("aria-label") == "Pause"
    browser.wait(opened, "KM.app.clock.samples > 20 && KM.app.clock.samples < KM.app.end")
    ActionChains(opened).send_keys(" ").perform()
    there = count_of(opened)
    browser.wait(opened, "document.querySelector('#summary').textContent.length")
    assert count_of(opened) == there
    opened.find_element(By.ID, "play").click()
    browser.wait(opened, "KM.app.clock.samples === KM.app.end && !KM.app.clock.playing")


def test_clicking_an_agent_shows_its_function(opened):
    image = browser.wait(opened, "document.querySelector('#functions image').getAttribute('href')")
    opened.find_element(By.CSS_SELECTOR, '.node[data-agent="2"]').click()
    browser.wait(opened, "document.querySelector('#functions .caption').textContent.startsWith('Agent 2 after')")
    assert opened.execute_script("return document.querySelector('#functions image').getAttribute('href')") != image
    assert "none" in text(opened, "#functions svg")  # the classes that it has not seen
    label = opened.find_element(By.CSS_SELECTOR, "#functions svg").get_attribute("aria-label")
    assert label.endswith("Its own samples are of class 2.")
    assert Select(opened.find_element(By.ID, "agent")).first_selected_option.text == "2"
    Select(opened.find_element(By.ID, "agent")).select_by_visible_text("3")  # the way by keyboard
    browser.wait(opened, "document.querySelector('#functions .caption').textContent.startsWith('Agent 3 after')")


def saved(downloads, ending, *, seconds=60):
    end = time.monotonic() + seconds
    while not (found := [path for path in downloads.iterdir() if path.suffix == ending]):
        assert time.monotonic() < end, f"no {ending} within {seconds} s"
        time.sleep(0.05)
    return found[0]


@pytest.mark.parametrize("figure", ["#networks", "#functions", "#curves .figure:nth-child(2)"])
def test_every_figure_is_saved(opened, downloads, figure, folders):
    browser.wait(opened, "document.querySelector('#functions image').getAttribute('href')")
    for file in downloads.iterdir():
        file.unlink()
    for button in opened.find_elements(By.CSS_SELECTOR, f"{figure} .saves button"):
        opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        if button.text in ("PNG", "SVG", "CSV"):
            button.click()
    with Image.open(saved(downloads, ".png")) as image:
        image.load()
        assert image.format == "PNG"
        assert len(np.unique(np.asarray(image.convert("L")))) > 10  # it is not empty
    assert saved(downloads, ".svg").read_text().startswith("<svg")
    rows = list(csv.reader(saved(downloads, ".csv").read_text().splitlines()))
    if "curves" in figure:
        recording = Recording.read(folders[0] / FILE)
        assert rows[0][:3] == ["run", "samples", "mean"]
        means = [frame.totals["disagreement"] / 4 for frame in recording.frames]
        np.testing.assert_allclose([float(row[2]) for row in rows[1:]], means, rtol=1e-4)
    assert len(rows) > 4


def test_focus_can_be_seen_and_everything_is_reached_by_keyboard(opened):
    reached = set()
    for _ in range(40):
        ActionChains(opened).send_keys(Keys.TAB).perform()
        name, outline = opened.execute_script(
            "const e = document.activeElement;"
            "return [e === document.body ? '' : e.id || e.textContent, getComputedStyle(e).outlineStyle]"
        )
        reached.add(name)
        assert outline != "none" or not name
    assert {"theme", "color-by", "agent", "play", "scrub", "speed", "PNG", "SVG", "CSV"} <= reached


def test_comparing_draws_both(driver, folders):
    with Dashboard([FolderSource(folder) for folder in folders], port=0) as page:
        visit(driver, page)
        assert text(driver, "h1") == "diffusion and penalty"
        assert len(driver.find_elements(By.CSS_SELECTOR, "#networks svg")) == 2
        assert len(driver.find_elements(By.CSS_SELECTOR, "#functions svg")) == 2
        names = driver.execute_script(
            "return KM.app.figures.curves[2].canvas.data.map((trace) => trace.name).filter(Boolean)"
        )
        assert names == ["A mean", "A worst", "B mean", "B worst"]
        same = "KM.app.runs.map((run) => run.scale)"
        assert len(set(driver.execute_script(f"return {same}"))) == 1  # colors mean the same
        check_quiet(driver, page)


def test_a_live_run_grows(driver, tmp_path):
    recorder, gate, ended = Recorder(tmp_path), threading.Semaphore(0), threading.Event()

    def wait_for_the_test():
        assert gate.acquire(timeout=60)

    def run():
        finish(tmp_path)
        learn(a_network(), recorder, each=wait_for_the_test)
        ended.set()

    with Dashboard([LiveSource(recorder, "live", tmp_path)], port=0) as page:
        thread = threading.Thread(target=run)
        thread.start()
        try:
            leave(driver)
            browser.size(driver, 1400, 850)
            driver.get(page.url)
            browser.wait(driver, "KM.app.runs[0] && KM.app.runs[0].frames.length === 1")
            assert text(driver, "#status") == "Live"
            lengths = []
            for count in (2, 4, 7):
                gate.release(count - 1 - sum(b - a for a, b in pairwise([1, *lengths])))
                browser.wait(driver, f"KM.app.runs[0].frames.length === {count}")
                lengths.append(count)
                browser.wait(
                    driver, f"KM.app.figures.curves[0].canvas.data.at(-1).x.length === {count}"
                )  # the curve has grown
                assert count_of(driver) == int(driver.execute_script("return KM.app.end"))  # it is followed
        finally:
            gate.release(1000)
            thread.join(timeout=60)
        assert ended.is_set()
        browser.wait(driver, "document.querySelector('#status').textContent === 'Finished'")
        browser.wait(driver, "document.querySelectorAll('#about details').length > 2")  # summary, settings, figures
        check_quiet(driver, page)


class Growing(Source):
    """A source that a test adds frames to."""

    live = True

    def __init__(self):
        super().__init__("reported")
        self.shown = Shown(Recording(Subject(names=("a", "b", "c"), edges=np.array([[0, 1], [1, 2]]))))
        self.remarks = ()

    def news(self):
        return News(0, self.shown.recording.version, "running", "", self.remarks)

    def add(self, rounds, *, samples, away=False, refused=0):
        agents = np.ones((3, len(AGENT)), dtype=np.float32)
        agents[:, AGENT.index("state")] = [State.LEARNING, State.AWAY if away else State.LEARNING, State.ENDED]
        agents[:, AGENT.index("refused")] = [refused, 0, 0]
        totals = {**dict.fromkeys(TOTALS, 1.0), "round": rounds, "samples": samples}
        self.shown.recording.add(Frame(totals, agents, np.ones((2, len(EDGE)), dtype=np.float32)))


def test_absence_refused_messages_and_remarks_are_shown_as_they_happen(driver):
    source = Growing()
    source.add(1, samples=100)
    with Dashboard([source], port=0) as page:
        visit(driver, page)
        fills = (
            "[...document.querySelectorAll('.node')].map((node) => node.querySelectorAll('circle')[1].getAttribute('fill'))"
        )
        before = driver.execute_script(f"return {fills}")
        source.remarks = ("a: 2 invalid rows",)
        source.add(2, samples=200, away=True, refused=7)
        browser.wait(driver, "KM.app.runs[0].frames.length === 2")
        browser.wait(driver, "document.querySelector('#networks .caption').textContent.includes('1 away (hollow)')")
        after = driver.execute_script(f"return {fills}")
        assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True]
        rings = (
            "[...document.querySelectorAll('.node')].map((node) => node.querySelector('circle').getAttribute('visibility'))"
        )
        assert driver.execute_script(f"return {rings}") == ["visible", "hidden", "hidden"]
        ActionChains(driver).move_to_element(driver.find_element(By.CSS_SELECTOR, '.node[data-agent="0"]')).perform()
        assert "neighbors refused 7 of its messages" in browser.wait(driver, "document.querySelector('#tip').textContent")
        assert text(driver, "#remarks summary") == "1 remark"
        browser.wait(driver, "KM.app.figures.curves[0].canvas.layout.shapes.length === 1")  # a mark on every curve
        assert driver.execute_script("return document.querySelector('#marks i.away').title") == "Agent b went away."
        assert "agent away or back" in text(driver, "#curves-key")
        check_quiet(driver, page)


def test_rounds_without_samples_do_not_stop_the_arrow_keys(driver):
    source = Growing()
    for number, samples in enumerate((100, 200, 200, 200, 200, 300, 300), start=1):
        source.add(number, samples=samples)
    with Dashboard([source], port=0) as page:
        visit(driver, page)
        shown = []
        for key in (Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT):
            driver.find_element(By.TAG_NAME, "body").send_keys(key)
            shown.append(count_of(driver))
        assert shown == [200, 100, 200, 300, 300]
        check_quiet(driver, page)


def test_a_broken_file_is_reported_until_it_is_whole_again(driver, folders, tmp_path):
    folder = shutil.copytree(folders[0], tmp_path / "run")
    good = (folder / FILE).read_bytes()
    with Dashboard([FolderSource(folder)], port=0) as page:
        visit(driver, page)
        assert not driver.find_element(By.ID, "banner").is_displayed()
        (folder / FILE).write_bytes(good[:1000])
        browser.wait(driver, "document.querySelector('#banner').textContent.includes('Cannot read the run')")
        assert text(driver, "#status") == "Unreadable"
        assert len(driver.find_elements(By.CSS_SELECTOR, ".node")) == 4  # what was shown stays
        (folder / FILE).write_bytes(good)
        browser.wait(driver, "document.querySelector('#banner').hidden")
        assert text(driver, "#status") == "Finished"
        check_quiet(driver, page)


def test_a_page_reconnects_to_its_server(driver, folders):
    with Dashboard([FolderSource(folders[0])], port=0) as page:
        visit(driver, page)
        port = page.policy.port
    browser.wait(driver, "document.querySelector('#status').textContent === 'Disconnected'")
    assert "no longer responds" in text(driver, "#banner")
    with Dashboard([FolderSource(folders[0])], port=port):
        browser.wait(driver, "document.querySelector('#status').textContent === 'Finished'")
    browser.complaints(driver)


def test_a_report_works_without_a_server(driver, folders, tmp_path):
    file = write_report(folders, tmp_path / "report.html")
    leave(driver)
    driver.get(file.as_uri())
    browser.painted(driver)
    assert text(driver, "h1") == "diffusion and penalty"
    image = browser.wait(driver, "document.querySelector('#functions image').getAttribute('href')")
    driver.find_element(By.TAG_NAME, "body").send_keys(Keys.HOME)
    browser.wait(driver, f"document.querySelector('#functions image').getAttribute('href') !== {image!r}")
    assert browser.complaints(driver) == []
    assert [url for url in browser.requests(driver) if url.startswith(("http", "ws"))] == []


@pytest.mark.parametrize(("width", "dark"), [(390, True), (2560, False)])
def test_pages_fit_every_screen_and_are_labeled(driver, folders, width, dark):
    with Dashboard([FolderSource(folders[0])], port=0) as page:
        visit(driver, page, width=width, height=1200)
        browser.size(driver, width, 1200, dark=dark)
        browser.wait(driver, "document.querySelector('#networks svg').getAttribute('aria-label')")
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        unnamed = """return [...document.querySelectorAll('button, select, input, [role=img]')].filter((element) =>
            element.offsetParent !== null && !(element.getAttribute('aria-label') || element.textContent.trim()
            || (element.labels && element.labels.length))).map((element) => element.outerHTML)"""
        assert driver.execute_script(unnamed) == []
        paper = driver.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
        assert (sum(map(int, paper[4:-1].split(","))) < 200) == dark
        check_quiet(driver, page)
