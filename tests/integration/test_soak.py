"""A minute of `bench/soak.py`; and that its oracle can fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.soak import Round, Violation, soak, soak_of

from protea.catalog import Dataset, open_catalog


def test_a_minute(tmp_path: Path) -> None:
    said: list[str] = []
    tally = soak(tmp_path, 0.5, 7, said.append, worlds=2)
    assert sum(tally.exports.values()) > 0
    assert sum(tally.faults.values()) > 0, said


def test_the_oracle_can_fail(tmp_path: Path) -> None:
    """Without faults and processes: an export in place, then one thing wrong after another."""
    with soak_of(tmp_path, 1, worlds=1) as made:
        round_ = Round(made, 0, lambda text: None)
        round_.way = "in place"
        wanted = round_.undisturbed()
        import protea

        place = protea.export(settings=made.settings, **round_.values).path
        round_.verify(wanted)

        def violates(what: str) -> None:
            with pytest.raises(Violation, match=what):
                round_.verify(wanted)

        data = (place / "known.parquet").read_bytes()
        (place / "known.parquet").write_bytes(data[:-9] + b"x" + data[-8:])
        violates("known.parquet differs")
        (place / "known.parquet").write_bytes(data)
        (made.settings.resume_dir / "left").mkdir()
        violates("staging is left")
        (made.settings.resume_dir / "left").rmdir()
        with open_catalog(made.settings) as catalog:
            (job, *_) = (j for j in catalog.jobs.recent() if j.id not in round_.before)
            cut = next(e.payload["cut"] for e in catalog.jobs.events(job.id) if e.kind == "cut.finished")
            catalog.jobs.append(job.id, "cut.started", {"cut": cut})
            violates(f"{cut} was finished, and is started again")
            with catalog.session() as session:
                session.query(Dataset).delete()
        violates("not one row")
