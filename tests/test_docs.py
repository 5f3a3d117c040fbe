"""The documentation's own links: each leads to a file, and to a heading in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.adapter_process import ROOT

PAGES = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.md", "docs/*.md", "bench/*.md", "client/*.md", "examples/*.md")
    for path in ROOT.glob(pattern)
)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def headings(page: Path) -> set[str]:
    """Return the anchors of a page, as the usual renderers make them of its headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(page: Path) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    found = []
    for link in LINK.findall(page.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in headings(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(ROOT / page) == []


def test_every_page_of_docs_is_linked_from_another() -> None:
    linked = {
        ((ROOT / page).parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in LINK.findall((ROOT / page).read_text())
        if "://" not in link and link.partition("#")[0]
    }
    docs = {path.resolve() for path in (ROOT / "docs").glob("*.md")}

    assert {path.name for path in docs - linked} == set()
