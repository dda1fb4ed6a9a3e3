"""A real browser for tests and benchmarks of the dashboard; without one, tests are skipped and say so."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


def missing() -> str:
    """Why there is no browser; empty if there is one."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"no {program} on this machine (Debian: apt-get install chromium chromium-driver)"
    return ""


@contextlib.contextmanager
def browser(*, width: int = 1400, height: int = 1000, downloads: Path | None = None) -> Iterator[object]:
    """Chromium with an empty profile, which logs its console and its requests."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = Options()
        options.binary_location = shutil.which("chromium")
        for argument in (*ARGUMENTS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        if downloads is not None:
            settings = {"download.default_directory": str(downloads), "download.prompt_for_download": False}
            settings["profile.default_content_setting_values.automatic_downloads"] = 1
            options.add_experimental_option("prefs", settings)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            driver.set_script_timeout(30)
            yield driver
        finally:
            driver.quit()


def size(driver, width: int, height: int, *, dark: bool = False) -> None:
    """The size of the page itself, and its colors."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})


def wait(driver, script: str, *, seconds: float = 60.0):
    """The value of a script as soon as it is true."""
    end = time.monotonic() + seconds
    while True:
        if found := driver.execute_script(f"return {script}"):
            return found
        assert time.monotonic() < end, f"not true within {seconds} s: {script}"
        time.sleep(0.05)


def painted(driver) -> None:
    """Wait until everything has been drawn."""
    wait(driver, "typeof KM !== 'undefined' && KM.app && KM.app.painted && KM.app.drawn")


def complaints(driver) -> list[str]:
    """Errors and warnings on the console."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def requests(driver) -> list[str]:
    """The addresses that the page has asked."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
