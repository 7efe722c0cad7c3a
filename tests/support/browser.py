"""A headless Chromium that has no network."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed.")


@contextmanager
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed.")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def open_page(browser: Any, path: str, messages: list[str], **options: Any) -> Iterator[Any]:
    """Open a file in a page without a network. Messages of the console and requests for anything else are collected."""
    context = browser.new_context(offline=True, **options)
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.on("console", lambda message: messages.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: messages.append(f"error: {error}"))
    page.on(
        "request",
        lambda request: request.url.startswith(("file:", "data:")) or messages.append(f"request: {request.url}"),
    )
    page.goto(f"file://{path}")
    yield page
    context.close()
