"""A browser, a server that plays scripts, and pages that are watched for faults."""

import shutil

import pytest
from page_server import SKY, PageServer, ar, threshold, verified

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
WIDE = {"width": 1280, "height": 860}


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as tool:
        started = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def server():
    started = PageServer()
    started.scripts = {"auto": verified(SKY), "ar": ar(SKY), "verified": verified(SKY), "threshold": threshold(SKY)}
    yield started
    started.close()


@pytest.fixture
def visit(browser, request):
    """Opens the page of `live`, where the test has a real server, else of `server`; at the end nothing may have gone
    wrong in it, nor anything been asked of another host."""
    server = request.getfixturevalue("live" if "live" in request.fixturenames else "server")
    contexts, faults, hosts = [], [], set()

    def opened(path="", **options):
        context = browser.new_context(**{"viewport": WIDE, "color_scheme": "light"} | options)
        contexts.append(context)
        context.set_default_timeout(5000)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
        page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
        page.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
        page.goto(server.url + path)
        return page

    opened.faults = faults
    yield opened
    for context in contexts:
        context.close()
    refused = [fault for fault in faults if "Failed to load resource" not in fault]
    assert refused == []
    assert hosts <= {server.url.split("/")[2]}
