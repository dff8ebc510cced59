"""The operator's page and the example file say what the types say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from governor.config import Config, load_config, parse_config
from governor.config.explain import ARRAYS, TABLES
from governor.config.reference import table, tables

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "configuration.md").read_text()


def test_the_page_holds_the_table_of_every_section_word_for_word() -> None:
    """Run `python -m governor.config.reference` and paste its tables after a change of the types."""
    for heading, text in tables().items():
        assert f"## `{heading}`" in PAGE
        assert text in PAGE, f"the table of {heading} in docs/configuration.md is out of date"
    assert set(TABLES) | set(ARRAYS) == set(Config.model_fields)


def test_every_key_has_a_name_a_default_and_a_meaning() -> None:
    for model in {**TABLES, **ARRAYS}.values():
        rows = table(model).splitlines()[2:]
        assert len(rows) == len(model.model_fields)
        for key, row in zip(model.model_fields, rows, strict=True):
            cells = [cell.strip() for cell in row.strip("|").split(" | ")]
            assert len(cells) == 4, row
            assert cells[0] == f"`{key}`"
            assert all(cells), row
            assert cells[3].endswith("."), row


@pytest.mark.parametrize("block", re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
def test_every_configuration_on_the_page_loads(block: str) -> None:
    assert isinstance(parse_config(block), Config)


def test_the_variables_on_the_page_set_what_it_says() -> None:
    variables = dict(re.findall(r"`(GOVERNOR__[A-Z0-9_]+)=([^`]*)`", PAGE))
    assert len(variables) == 5
    variables["GOVERNOR__TOKENS__API"] = "0123456789abcdef"
    config = load_config(ROOT / "governor.example.toml", environ=variables)
    assert config.server.port == 4171
    assert config.backends[0].url == "http://triton:8000"
    assert config.backends[0].evidence.on_fall == "hold"


def test_the_example_file_loads_and_shows_every_section() -> None:
    path = ROOT / "governor.example.toml"
    config = load_config(path)
    assert [model.name for model in config.models] == ["storyteller", "sentiment"]
    text = path.read_text()
    for heading in tables():
        assert f"\n{heading}\n" in text
