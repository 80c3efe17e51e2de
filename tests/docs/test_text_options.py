"""The page about data names every option of the `text` loader, with the default that the loader has."""

import json
import re

from doc_pages import ROOT

from fedwidth.data import options_of


def test_the_table_of_text_options_is_the_loaders():
    page = (ROOT / "docs" / "bring-your-own-data.md").read_text(encoding="utf-8")
    table = page.partition("Those of `text`:\n\n")[2].partition("\n\n")[0]
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    named = {name: default for first, default, *_ in rows for name in re.findall(r"`(\w+)`", first)}
    found = options_of("text")
    assert sorted(named) == sorted(found)
    for name, default in found.items():
        if default is not None:
            assert json.loads(named[name]) == default
