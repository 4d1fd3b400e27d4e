"""The view of replicas in a real browser: all of them and their sum."""

from playwright.sync_api import expect

FACTS = {"running": 3, "waiting": 1, "held": 1200, "cells": 8192}
FOUND = {"n": 2, "sums": {"all": {**FACTS, "running": 4}, "<b>one": FACTS}, "replicas": {}}


def test_replicas_are_summed_up_where_the_server_is_one_of_several(server, new_page):
    server.state.labels = {"replica": "one"}
    try:
        page = new_page(server.url)
        page.route("**/stretto/replicas", lambda route: route.fulfill(json=FOUND))
        page.get_by_role("link", name="Load", exact=True).click()
        section = page.locator("section", has=page.get_by_role("heading", name="Replicas"))
        expect(section).to_contain_text("all 4 running, 1 waiting · 1,200 of 8,192 cells held")
        expect(section).to_contain_text("<b>one 3 running")  # a name is text
    finally:
        server.state.labels = {}


def test_a_server_alone_shows_no_replicas_and_asks_for_none(server, new_page):
    page, asked = new_page(server.url), []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_role("link", name="Load", exact=True).click()
    expect(page.get_by_role("heading", name="Requests")).to_be_visible()
    expect(page.get_by_role("heading", name="Replicas")).to_have_count(0)
    assert [url for url in asked if url.endswith("/stretto/replicas")] == []
