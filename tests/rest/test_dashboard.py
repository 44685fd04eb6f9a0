"""The dashboard of a job on a real Spark, in a real browser."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from awaiting import until
from holdfast.common import Configuration, JobClient, RestartStrategies, Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from holdfast.datastream.connectors.datagen import PaymentsSource
from holdfast.rest.server import RestServer
from holdfast.runtime.driver.job_registry import JobRecord, register

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

expect.set_options(timeout=300_000)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(BROWSER is None and "CI" not in os.environ, reason="no Chromium: apt-get install chromium"),
]


class Totals(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.DOUBLE()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.total.update((self.total.value() or 0.0) + value["amount"])
        yield ctx.get_current_key(), self.total.value()


def environment(directory: Path, name: str) -> StreamExecutionEnvironment:
    config = Configuration.from_dict(
        {
            "rest.port": "0",
            "execution.checkpointing.dir": (directory / name).as_uri(),
            "s3.secret-key": "hush",
        }
    )
    return StreamExecutionEnvironment.get_execution_environment(config).set_parallelism(2)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dashboard")


@pytest.fixture(scope="module")
def job(directory: Path) -> Iterator[JobClient]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(directory / "home"))
        env = environment(directory, "checkpoints")
        payments = env.from_source(
            PaymentsSource(rate_per_second=500), WatermarkStrategy.for_monotonous_timestamps(), "payments"
        )
        totals = payments.uid("payments").key_by(lambda payment: payment["merchant_id"]).process(Totals())
        totals.name("Totals of the shops").uid("totals").filter(lambda total: False).print()
        client = env.execute_async("payments")
        until(lambda: view(client)["epochs"][1:])
        yield client
        if not client.get_job_execution_result().done():
            client.cancel().result(600)
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def server() -> RestServer:
    return until(RestServer.running)


def view(client: JobClient) -> dict[str, Any]:
    answer = httpx.get(f"{server().url}/jobs/{client.get_job_id()}/view", timeout=300)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    yield from opened(browser)


def opened(browser: Browser, **options: Any) -> Iterator[Page]:
    """A page that tolerates no error and no request to another host."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(300_000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
    home = server().url
    page.on("request", lambda asked: wrong.append(asked.url) if not asked.url.startswith(home) else None)
    yield page
    context.close()
    assert wrong == []


def address(client: JobClient, tab: str = "", token: str = "") -> str:
    return f"{server().url}/#/jobs/{client.get_job_id()}{tab}" + (f"?token={token}" if token else "")


def the_driver_with_one_job_shows_it_at_once(page: Page, job: JobClient) -> None:
    page.goto(server().url)
    expect(page.get_by_role("heading", level=1)).to_contain_text("payments")
    expect(page.locator(".badge")).to_have_text("running")
    expect(page.locator(".vertex")).to_have_count(2)
    expect(page.locator(".edge-label")).to_have_text("HASH")
    expect(page.locator(".findings")).to_contain_text("The job keeps up with its input")
    assert page.locator(".epoch").count() >= 2


def the_page_leads_to_the_jobs_of_other_drivers(page: Page, job: JobClient) -> None:
    url = "http://localhost:8099"
    record = JobRecord("e" * 32, "elsewhere", os.getppid(), socket.gethostname(), url, "", time.time_ns() // 1_000_000)
    other = register(record)
    assert other is not None
    try:
        page.goto(server().url)
        link = page.locator("main").get_by_role("link", name="elsewhere")
        expect(link).to_have_attribute("href", f"{url}/#/jobs/{record.job_id}")
        expect(page.get_by_role("navigation", name="Jobs")).to_contain_text("elsewhere")
    finally:
        other.end("CANCELED")


def the_page_follows_the_job(page: Page, job: JobClient) -> None:
    page.goto(address(job))
    number = page.locator(".figure", has_text="Epoch").locator(".dim")
    before = number.inner_text()
    expect(number).not_to_have_text(before, timeout=300_000)


def a_vertex_opens_by_keyboard_and_names_its_operators_and_subtasks(page: Page, job: JobClient) -> None:
    page.goto(address(job))
    vertex = page.get_by_role("button", name=re.compile("^Totals of the shops"))
    vertex.focus()
    page.keyboard.press("Enter")
    details = page.locator(".details")
    expect(details.get_by_role("table", name="Functions and operators")).to_contain_text("Totals of the shops")
    expect(details.get_by_role("table", name="Subtasks").locator("tbody tr")).to_have_count(2)
    expect(vertex).to_be_focused()
    assert vertex.get_attribute("aria-pressed") == "true"


def an_edge_shows_some_of_its_records_and_frequent_keys(page: Page, job: JobClient) -> None:
    page.goto(address(job, token=server().token))
    edge = page.get_by_role("button", name="Records from Source: payments to")
    edge.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("table", name="Records", exact=True)).to_contain_text("'merchant_id'", timeout=300_000)
    expect(page.get_by_role("table", name="Most frequent keys")).to_contain_text("%")
    assert edge.get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("table", name="Most frequent keys")).to_have_count(0)


def the_largest_keys_of_an_operator_are_shown_on_demand(page: Page, job: JobClient) -> None:
    page.goto(address(job, "/state", token=server().token))
    page.get_by_role("button", name="Largest keys of Totals of the shops").click()
    expect(page.get_by_role("table", name="Keys", exact=True)).to_contain_text("'m0", timeout=300_000)
    expect(page.get_by_role("table", name="Key groups")).to_contain_text("%")
    expect(page.get_by_role("table", name="States")).to_contain_text("%")
    expect(page.locator(".details")).to_contain_text("in all 128 key groups")


def an_epoch_shows_its_phases_and_the_arrow_keys_move(page: Page, job: JobClient) -> None:
    page.goto(address(job))
    bars = page.locator(".epoch")
    expect(bars.nth(1)).to_be_visible()
    bars.last.click()
    expect(page.locator(".details h3")).to_contain_text("Epoch ")
    shown = page.locator(".details h3").inner_text().split(":")[0]
    expect(page.get_by_role("table", name="Phases in the driver")).to_contain_text("running the tasks")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".details h3")).not_to_contain_text(shown + ":")
    expect(page.get_by_role("table", name="Longest phases of a task")).to_contain_text("processing")


def test_each_page_has_its_content(page: Page, job: JobClient) -> None:
    page.goto(address(job, "/state"))
    expect(page.get_by_role("table")).to_contain_text("Totals of the shops")
    page.goto(address(job, "/settings"))
    expect(page.get_by_role("table")).to_contain_text("execution.checkpointing.dir")
    expect(page.get_by_role("table")).to_contain_text("******")
    expect(page.locator("body")).not_to_contain_text("hush")
    page.goto(address(job, "/metrics"))
    expect(page.locator("main")).to_contain_text("numRecordsInPerSecond")
    page.goto(address(job, "/epochs"))
    expect(page.locator("main")).to_contain_text("0 failed")
    page.goto(address(job, "/failures"))
    expect(page.locator("main")).to_contain_text("No failure since this driver started the job.")
    page.goto(address(job, "/late"))
    expect(page.locator("main")).to_contain_text("No record was dropped because it was late.")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_keeps_a_screen_reader_out_or_overflows(browser: Browser, job: JobClient, scheme: Any, width: int) -> None:
    for page in opened(browser, color_scheme=scheme, viewport={"width": width, "height": 900}, reduced_motion="reduce"):
        for tab in ("", "/epochs", "/state", "/settings"):
            page.goto(address(job, tab))
            expect(page.get_by_role("heading", level=1)).to_contain_text("payments")
            expect(page.locator(".card").first).to_be_visible()
            found = Axe().run(page)
            assert found.violations_count == 0, found.generate_report()
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_without_the_token_a_button_asks_for_it_and_a_wrong_one_changes_nothing(page: Page, job: JobClient) -> None:
    page.goto(address(job))
    page.get_by_role("button", name="Cancel").click()
    page.get_by_label("Token").fill("guess")
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.get_by_role("alert")).to_contain_text("shows a wrong token")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert view(job)["state"] == "RUNNING"


def the_token_leaves_the_address_and_a_savepoint_is_written(page: Page, job: JobClient, directory: Path) -> None:
    page.goto(address(job, token=server().token))
    expect(page.locator(".vertex").first).to_be_visible()
    assert "token" not in page.url
    page.get_by_role("button", name="Savepoint", exact=True).click()
    page.get_by_label("Directory").fill("/proc/nothing")
    page.get_by_role("button", name="Write savepoint").click()
    expect(page.get_by_role("alert")).to_contain_text("no savepoint can be written into /proc/nothing")
    page.get_by_label("Directory").fill(str(directory / "savepoints"))
    page.get_by_role("button", name="Write savepoint").click()
    expect(page.get_by_role("status")).to_contain_text("Savepoint: file://", timeout=300_000)
    assert list((directory / "savepoints").glob("savepoint-*/_metadata"))
    assert view(job)["state"] == "RUNNING"


def a_job_is_rescaled_by_a_button(page: Page, job: JobClient) -> None:
    page.goto(address(job, token=server().token))
    page.get_by_role("button", name="Rescale", exact=True).click()
    page.get_by_role("spinbutton", name="Parallelism").fill("3")
    page.get_by_role("dialog").get_by_role("button", name="Rescale").click()
    expect(page.get_by_role("status")).to_contain_text("runs at parallelism 3", timeout=300_000)
    page.goto(address(job, "/failures"))
    expect(page.get_by_role("table")).to_contain_text("The job runs at parallelism 3.")
    job.rescale(2).result(600)


def the_cost_of_a_job_is_shown_and_its_pace_changed(page: Page, job: JobClient) -> None:
    page.goto(address(job, "/epochs", token=server().token))
    cost = page.locator("section", has=page.get_by_role("heading", name="What this job costs"))
    expect(cost).to_contain_text(
        "A checkpoint as soon as there is input. Requests to the checkpoint storage: 0.00 $ a month"
    )
    expect(cost.get_by_role("row", name=re.compile(r"^write [1-9]"))).to_be_visible()
    cost.get_by_role("button", name="Change the pace").click()
    page.get_by_role("spinbutton", name="Seconds between two checkpoints").fill("0.4")
    page.get_by_role("dialog").get_by_role("button", name="Change the pace").click()
    expect(page.get_by_role("status")).to_contain_text("takes checkpoints at the new pace")
    expect(cost).to_contain_text("A checkpoint every 400 ms.")
    httpx.patch(
        f"{server().url}/jobs/{job.get_job_id()}/checkpoints/config?interval=0&min_pause=0",
        headers={"Authorization": f"Bearer {server().token}"},
    ).raise_for_status()


def a_failure_shows_the_users_traceback(page: Page, job: JobClient, directory: Path) -> None:
    env = environment(directory, "failing")
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1000, 500))
    env.from_collection([{"amount": 1}, {"amount": 0}]).map(lambda payment: 1 / payment["amount"]).name("Rates").print()
    failing = env.execute_async("failing")
    try:
        until(lambda: view(failing)["failures"])
        page.goto(address(failing, "/failures"))
        expect(page.locator("pre").first).to_contain_text("ZeroDivisionError: shown to requests with the token")
        page.goto(address(failing, "/failures", token=server().token))
        expect(page.locator("pre").first).to_contain_text("ZeroDivisionError: division by zero")
        expect(page.locator("pre").first).to_contain_text('payment["amount"]')
        expect(page.get_by_role("table")).to_contain_text("failed; restart after")
        page.goto(address(failing))
        expect(page.locator(".findings")).to_contain_text("ZeroDivisionError")
        expect(page.locator(".jobs-nav a")).to_have_count(2)
    finally:
        failing.cancel().result(600)


def a_job_is_cancelled_by_its_button_and_the_page_says_so(page: Page, job: JobClient) -> None:
    page.goto(address(job, token=server().token))
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel the job").click()
    job.get_job_execution_result().result(600)
    expect(page.get_by_role("status")).to_contain_text("The driver does not answer", timeout=300_000)
