"""The messy inputs of `shared/cases` through the real `protea inspect KIND FILE --json`: the right answer for each.

They lie in PROTEA_TEST_CASES, else in `shared/cases` beside the checkout.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from protea.cli.main import main

# Read before conftest clears the PROTEA_* of the environment for each test.
CASES = Path(os.environ.get("PROTEA_TEST_CASES") or Path(__file__).resolve().parents[3] / "shared" / "cases")
ENTRIES = json.loads((CASES / "cases.json").read_text()) if (CASES / "cases.json").is_file() else []
NEEDS_DETAIL = {"taxa", "accessions", "lengths"}

pytestmark = pytest.mark.skipif(
    not ENTRIES, reason=f"no cases.json in {CASES}: set PROTEA_TEST_CASES to the directory of the messy inputs"
)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A fresh home and a fresh current directory, which must both stay empty."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("PROTEA_HOME", str(home))
    monkeypatch.chdir(here)
    return [home, here]


def _same(expected: Any, found: Any) -> bool:
    """Whether `found` has all of `expected`; keys that are left out may hold anything."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return all(k in found and _same(v, found[k]) for k, v in expected.items())
    return type(expected) is type(found) and bool(expected == found)


@pytest.mark.parametrize("entry", ENTRIES, ids=[e["id"] for e in ENTRIES])
def test_case(entry: dict[str, Any], places: list[Path], capfd: pytest.CaptureFixture[str]) -> None:
    expect = dict(entry["expect"])
    args = ["inspect", entry["kind"], str(CASES / entry["file"]), "--json"]
    if NEEDS_DETAIL & expect.keys():
        args.append("--detail")
    for option in ("resolve", "closure"):
        if option in expect:
            args += [f"--{option}", *expect[option]]
    code = main(args)
    out, err = capfd.readouterr()
    assert [list(p.iterdir()) for p in places] == [[], []]
    if "error" in expect:
        assert code == 2
        assert out == ""
        assert err.count("\n") == 1
        assert err.startswith("protea: error: ")
        words = expect["error"] if isinstance(expect["error"], list) else [expect["error"]]
        for word in (*words, *expect.get("names", ())):
            assert word in err
        return
    assert (code, err) == (0, "")
    report = json.loads(out)
    for key in ("filtered", "rejected", "edges"):  # these are counts of everything there was
        if key in expect:
            assert report[key] == expect.pop(key)
    assert _same(expect, report), f"expected {expect}, found { ({k: report.get(k) for k in expect}) }"


@pytest.mark.parametrize("entry", [e for e in ENTRIES if "error" not in e["expect"]][::5], ids=lambda e: e["id"])
def test_for_people(entry: dict[str, Any], places: list[Path], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", entry["kind"], str(CASES / entry["file"]), "--detail"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert "sha256" in out or "vectors" in out
    assert all(line.isprintable() for line in out.splitlines())
    assert [list(p.iterdir()) for p in places] == [[], []]
