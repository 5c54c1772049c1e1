"""Links and anchors lead somewhere, and files that are named are there."""

from __future__ import annotations

from pathlib import Path

import pages
import pytest
import yaml

MOST = 15
"""Pages of docs that a reader can keep in view."""


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in pages.links(page):
        target, _, anchor = link.partition("#")
        goal = (page.parent / target).resolve() if target else page
        assert goal.exists(), f"{link}: there is no {goal}"
        if anchor:
            assert anchor in pages.anchors(goal), f"{link}: there are {sorted(pages.anchors(goal))}"


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name_of)
def test_files_that_are_named_are_there(page: Path) -> None:
    files = pages.all_files()
    assert [named for named in pages.files_named(page) if not pages.is_there(named, files)] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    readme, *_ = pages.PAGES
    reached, todo = set(), [readme]
    while todo:
        page = todo.pop()
        if page.suffix == ".md" and page not in reached:
            reached.add(page)
            todo += [(page.parent / link.partition("#")[0]).resolve() for link in pages.links(page)]
    unread = {page for page in pages.PAGES if page.parent.name == "docs"} - reached
    assert {page.name for page in unread} == set()


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    site = yaml.safe_load((pages.REPOSITORY / "docs" / "mkdocs.yml").read_text())
    listed = [
        page
        for part in site["nav"]
        for entries in part.values()
        for entry in entries
        for page in entry.values()
    ]
    generated = ["api.md"]  # ci/docs adds it
    assert sorted(listed) == sorted([*map(pages.name_of, pages.PAGES), *generated])


def test_there_is_a_page_for_each_task_and_no_more() -> None:
    assert len([page for page in pages.PAGES if page.parent.name == "docs"]) <= MOST


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name_of)
def test_a_page_of_docs_begins_with_what_its_reader_can_do_after_it(page: Path) -> None:
    if page.parent.name == "docs":
        title, _, text, *_ = page.read_text().splitlines()
        assert title.startswith("# ")
        assert text.startswith("After this page you ")
