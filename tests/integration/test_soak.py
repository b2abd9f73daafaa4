"""A while of `bench/soak.py`; and that its oracle can fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bench.soak import Round, Soak, Violation, rounds, soak_of

import protea
from objectstore import program
from protea.catalog import Dataset, open_catalog


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Soak]:
    with soak_of(tmp_path_factory.mktemp("soak"), 19, worlds=1) as made:
        yield made


def test_a_while(made: Soak) -> None:
    said: list[str] = []
    tally = rounds(made, 0.1, said.append)
    assert sum(tally.exports.values()) > 0
    assert sum(tally.faults.values()) > 0, said
    if program():
        assert any("bucket" in way for way in tally.exports), said
        assert any("object store" in what for what in tally.faults), said


def test_the_oracle_can_fail(made: Soak) -> None:
    """Without faults and processes: an export in place, then one thing wrong after another; and again in a bucket."""
    round_ = Round(made, 10, lambda text: None)
    assert (round_.way, round_.remote) == ("in place", None)
    wanted = round_.undisturbed()
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
    if made.store is None:
        return
    round_ = Round(made, 7, lambda text: None)
    remote = round_.remote
    assert remote is not None
    wanted = round_.undisturbed()
    place = protea.export(settings=round_.homes[0], **round_.values).path
    round_.verify(wanted)
    (base, name) = (remote.name(str(place)), "known.parquet")
    good = remote.read(f"{base}/{name}")
    assert good
    remote.put(f"{base}/{name}", good[:-9] + b"x" + good[-8:])
    violates("known.parquet differs")
    remote.put(f"{base}/{name}", good)
    remote.put("export_resume/left", b"")
    violates("staging is left in the bucket")
    remote.delete("export_resume/left")
    remote.put(f"datasets/{round_.name}/left/known.parquet", b"")
    violates("beside it")
    remote.delete_all(f"datasets/{round_.name}/left")
    round_.homes[0].resume_dir.mkdir(parents=True)
    (round_.homes[0].resume_dir / "left").mkdir()
    violates("staging is left: ")
