"""A headless browser that opens a page, for tests of what it shows there.

It is driven by a script that is added to the page, and answers by what it leaves in it. No driver is needed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
LIMIT = 300.0
"""Seconds, for a machine under load."""

_CATCH = """<script>
"use strict";
const errors = [];
addEventListener("error", event => errors.push(String(event.message)));
addEventListener("unhandledrejection", event => errors.push(String(event.reason)));
console.error = (...what) => errors.push(what.join(" "));
</script>"""

_TELL = """<script>
(() => {
  const said = document.createElement("script");
  said.id = "said"; said.type = "application/json";
  let value = null;
  try { value = (() => { %s })(); } catch (error) { errors.push(String(error)); }
  said.textContent = JSON.stringify({value, errors}).replaceAll("<", "\\u003c");
  document.body.append(said);
})();
</script>"""


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def ask(page: str, script: str, folder: Path, width: int = 1400) -> tuple[Any, list[str]]:
    """What the body of a function, `script`, returns in the opened page, and the errors of both."""
    assert "<head>" in page and "</body>" in page
    asked = page.replace("<head>", "<head>" + _CATCH).replace("</body>", _TELL % script + "</body>")
    file = folder / "asked.html"
    file.write_text(asked)
    shown = _run(folder, f"--window-size={width},900", "--dump-dom", file.as_uri())
    match = re.search(r'<script id="said"[^>]*>(.*?)</script>', shown, re.DOTALL)
    assert match, shown[-2000:]
    said = json.loads(match[1])
    return said["value"], said["errors"]


def picture(page: str, folder: Path) -> Path:
    """A screenshot."""
    file = folder / "page.html"
    file.write_text(page)
    picture = folder / "page.png"
    _run(folder, "--window-size=1400,900", f"--screenshot={picture}", file.as_uri())
    return picture


def _run(folder: Path, *arguments: str) -> str:
    browser = find()
    assert browser is not None
    command = [
        browser,
        "--headless",
        "--no-sandbox",  # refused to root
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={folder / 'profile'}",
    ]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
