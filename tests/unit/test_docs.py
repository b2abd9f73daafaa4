"""The documentation says what the code does: the generated column reference, the settings, the README's commands."""

import re
from pathlib import Path

from protea.core import features, schema
from protea.core.describe import describe, markdown
from protea.settings import Settings

ROOT = Path(__file__).parents[2]


def test_the_column_reference_is_current() -> None:
    assert (ROOT / "docs" / "columns.md").read_text() == markdown()


def test_every_column_is_described() -> None:
    for c in describe():
        assert all(c[key] for key in ("description", "range", "null_when", "producer", "needs", "section")), c["name"]
    assert [c["name"] for c in describe()] == list(schema.NAMES)


def test_every_family_has_one_producer() -> None:
    produced = [family for p in features.PRODUCERS for family in p.families]
    assert sorted([*produced, "identity"]) == sorted(schema.FAMILIES)


def test_the_readme_names_real_files_and_variables() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.index("make demo") < text.index("make test") < text.index("##")
    for path in re.findall(r"`((?:tests|docs|src|bench)/[\w./]+)`", text):
        assert (ROOT / path).exists(), path
    variables = {f"PROTEA_{name.upper()}" for name in Settings.model_fields} | {"PROTEA_TEST_DATA"}
    planned = {"PROTEA_EXPORT_MINIJOBS"}
    assert set(re.findall(r"PROTEA_[A-Z_]+", text)) <= variables | planned
