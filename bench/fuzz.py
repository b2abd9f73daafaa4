"""Fuzzing of everything that reads a file: mutations of good files, minutes of them, and what they bring to light.

    python -m bench.fuzz [READER ...] --minutes N [--seed N] [--keep DIRECTORY]

Every input must give a result or a ProteaError of one line. Anything else is a crash: another exception, an error of
several lines, a process that dies, takes over `--seconds` or over `--memory`. Readers run in child processes, each with
a memory limit; a crash is written to `--keep` as a file, and counted once by where it happened. `tests` call `check`.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import tarfile
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from protea.core import (  # noqa: E402
    accretion,
    annotations,
    config,
    interpro,
    limits,
    ontology,
    proteins,
    scores,
    taxonomy,
    term_vectors,
)
from protea.core.embeddings import inspect_embeddings, trial  # noqa: E402
from protea.errors import ProteaError  # noqa: E402
from worlds import World, random_world  # noqa: E402

SMALL_BLOCK = 512


def _gaf(path: Path, block_size: int) -> Any:
    rows: list[Any] = []
    report = annotations.read_gaf(path, detail=True, block_size=block_size, sink=lambda b: rows.extend(b.to_pylist()))
    return report.to_json(), rows


def _table(read: Callable[..., Any]) -> Callable[[Path, int], Any]:
    def run(path: Path, block_size: int) -> Any:
        with tempfile.TemporaryDirectory() as out:
            report = read(path, Path(out), block_size=block_size)
            import pyarrow.parquet as pq

            found = [pq.read_table(p).to_pylist() for p in sorted(Path(out).glob("*.parquet"))]
            return report.to_json(), found

    return run


def _config(path: Path, _: int) -> Any:
    return config.load(path).model_dump()


def _interpro(path: Path, out: Path, block_size: int) -> Any:
    return interpro.read_interpro(path, out, block_size=block_size)


READERS: dict[str, tuple[Callable[[Path, int], Any], bool]] = {
    "obo": (lambda path, _: ontology.read_obo(path)[1].to_json(), False),
    "gaf": (_gaf, True),
    "fasta": (lambda path, _: [t := proteins.read_fasta(path), t[1].to_json(t[0])][1], False),
    "npz": (lambda path, _: inspect_embeddings(path).to_json(detail=True), False),
    "hdf5": (lambda path, _: inspect_embeddings(path, pool="mean").to_json(detail=True), False),
    "parquet": (lambda path, _: inspect_embeddings(path).to_json(detail=True), False),
    "taxonomy": (lambda path, _: taxonomy.read_taxdump(path)[1].to_json(), False),
    "interpro": (_table(_interpro), True),
    "scores": (_table(scores.read_scores), True),
    "ia": (_table(accretion.read_ia), True),
    "term-vectors": (_table(term_vectors.read_term_vectors), True),
    "config": (_config, False),
}
"""Name -> (reads a file with a block size, whether the block size is used)."""


# --------------------------------------------------------------------------------------------------------------- seeds


def seeds(reader: str, directory: Path) -> list[bytes]:
    """Good files of a kind, small."""
    world = random_world(7, size=8, families=True)
    files = world.write(directory)
    made = _SEEDS[reader](world, files, directory)
    text = reader not in ("npz", "hdf5", "parquet", "config")
    return made + ([gzip.compress(made[0], mtime=0)] if text else [])


def _taxdumps(world: World, files: dict[str, Any], directory: Path) -> list[bytes]:
    def tar(compression: str, form: int) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode=f"w{compression}", format=form) as archive:  # type: ignore[call-overload]
            for path in sorted(files["taxonomy"].iterdir()):
                archive.add(path, f"{'long/' * 30}{path.name}")
        return out.getvalue()

    return [tar("", tarfile.GNU_FORMAT), tar(":gz", tarfile.PAX_FORMAT)]


def _npzs(world: World, files: dict[str, Any], directory: Path) -> list[bytes]:
    matrix = np.stack(list(world.embeddings.values()))
    out = io.BytesIO()
    np.savez_compressed(out, ids=np.array(list(world.embeddings)), embeddings=np.asfortranarray(matrix))
    return [files["embeddings"]["npz"].read_bytes(), out.getvalue()]


def _hdf5s(world: World, files: dict[str, Any], directory: Path) -> list[bytes]:
    import h5py

    with h5py.File(directory / "two.h5", "w") as f:
        matrix = np.stack(list(world.embeddings.values()))
        f.create_dataset("ids", data=list(world.embeddings))
        f.create_dataset("embeddings", data=matrix, chunks=True, compression="gzip")
    with h5py.File(directory / "other.h5", "w", libver="latest") as f:
        for i, (name, vector) in enumerate(list(world.embeddings.items())[:4]):
            f.create_dataset(f"g/{i}", data=np.stack([vector] * 3), chunks=True).attrs["original_id"] = name
        f["soft"] = h5py.SoftLink("/g/0")
        f["external"] = h5py.ExternalLink("other.h5", "/g/0")
    return [files["embeddings"]["h5"].read_bytes(), *((directory / f"{n}.h5").read_bytes() for n in ("two", "other"))]


def _parquets(world: World, files: dict[str, Any], directory: Path) -> list[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = np.stack(list(world.embeddings.values())).astype(np.float32)
    table = pa.table({"id": list(world.embeddings)} | {f"v{i}": rows[:, i] for i in range(min(3, rows.shape[1]))})
    pq.write_table(table, directory / "flat.parquet", compression="zstd", use_dictionary=["id"], row_group_size=3)
    return [files["embeddings"]["parquet"].read_bytes(), (directory / "flat.parquet").read_bytes()]


def _scores(world: World, files: dict[str, Any], directory: Path) -> list[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    a, t, s = (list(x) for x in zip(*world.scores, strict=True))
    pq.write_table(pa.table({"accession": a, "go_id": t, "score": s}), directory / "s.parquet")
    cafa = "AUTHOR X\nMODEL 1\n" + "".join(f"{x} {y} {z!r}\n" for x, y, z in world.scores) + "END\n"
    return [files["external_scores"].read_bytes(), cafa.encode(), (directory / "s.parquet").read_bytes()]


def _interpros(world: World, files: dict[str, Any], directory: Path) -> list[bytes]:
    row = "P1\tmd5\t300\tPfam\tPF00001\tname\t1\t90\t1.0E-5\tT\t01-01-2020\tIPR000001\tentry\tGO:0005515|GO:0003674\n"
    return [files["interpro"].read_bytes(), row.encode() * 3]


def _terms(world: World, files: dict[str, Any], directory: Path) -> list[bytes]:
    vectors = {k: np.asarray(v, np.float64) for k, v in world.term_vectors.items()}
    text = "".join(f"{k} {' '.join(map(repr, v.tolist()))}\n" for k, v in vectors.items())
    pickled = io.BytesIO()
    np.savez(pickled, data=np.array(vectors, dtype=object))
    return [text.encode(), files["term_vectors"].read_bytes(), pickled.getvalue()]


def _configs(world: World, files: dict[str, Any], directory: Path) -> list[bytes]:
    values = {**world.names(), "k": 5, "distance_threshold": 0.5, "donor_evidence": ["EXP", "IDA"]}
    return [
        "".join(f"{k} = {str(v).lower() if isinstance(v, bool) else repr(v)}\n" for k, v in values.items()).encode()
    ]


_SEEDS: dict[str, Callable[[World, dict[str, Any], Path], list[bytes]]] = {
    "obo": lambda w, f, d: [f["ontology"].read_bytes()],
    "gaf": lambda w, f, d: [next(p for p in f["annotations"].values() if p.suffix == ".gaf").read_bytes()],
    "fasta": lambda w, f, d: [f["proteins"].read_bytes()],
    "npz": _npzs,
    "hdf5": _hdf5s,
    "parquet": _parquets,
    "taxonomy": _taxdumps,
    "interpro": _interpros,
    "scores": _scores,
    "ia": lambda w, f, d: [f["information_accretion"].read_bytes()],
    "term-vectors": _terms,
    "config": _configs,
}


# ----------------------------------------------------------------------------------------------------------- mutations

_WORDS = (
    b"\0", b"\n", b"\r\n", b"\t", b" ", b"|", b">", b"!", b"#", b"{", b"}", b'"', b"[", b"]", b"[Term]\n", b"id: ", b"GO:",
    b"GO:0005515", b"is_a: ", b"NOT|", b"taxon:", b"nan", b"inf", b"-1", b"1e999", b"99999999999999999999", b"\xff\xfe",
    b"\xef\xbb\xbf", b"\xed\xa0\x80", "é".encode(), b"\x1f\x8b", b"PAR1", b"PK\x03\x04", b"sp|", b"\\", b"a.b.", b"'''",
)  # fmt: skip
_NUMBERS = (0, 1, 2, 7, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)


def mutate(data: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """A few random changes; what is compressed is, half of the time, changed inside."""
    if data[:2] == b"\x1f\x8b" and chance.random() < 0.6:
        with contextlib.suppress(OSError, EOFError):
            whole = mutate(gzip.decompress(data), chance, [])
            at = chance.randrange(len(whole) + 1)  # one member or two
            parts = [whole[:at], whole[at:]] if chance.random() < 0.3 else [whole]
            return b"".join(gzip.compress(p, 1, mtime=0) for p in parts)
    if data[:2] == b"PK" and chance.random() < 0.7:
        with contextlib.suppress(zipfile.BadZipFile, OSError, ValueError):
            return _mutate_zip(data, chance)
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6, 20))):
        at, n = chance.randrange(len(out) + 1), chance.choice((1, 1, 2, 4, 8, 40, 300))
        kind = chance.randrange(10)
        if kind == 0:
            del out[at : at + n]
        elif kind == 1:
            out[at : at + n] = bytes(chance.randrange(256) for _ in range(n))
        elif kind == 2:
            out[at:at] = chance.choice(_WORDS) * chance.choice((1, 1, 1, 3, 2000))
        elif kind == 3:
            where = chance.randrange(len(out) + 1)
            out[at:at] = out[where : where + n * 4]
        elif kind == 4:
            size = chance.choice((1, 2, 4, 8))
            number = (chance.choice(_NUMBERS) % (1 << 8 * size)).to_bytes(size, chance.choice(("little", "big")))
            out[at : at + size] = number
        elif kind == 5 and chance.random() < 0.3:
            del out[at:]
        elif kind == 6 and others:
            other = chance.choice(others)
            where = chance.randrange(len(other) + 1)
            out[at : at + n] = other[where : where + n]
        elif at < len(out):
            out[at] ^= 1 << chance.randrange(8)
    return bytes(out)


def _mutate_zip(data: bytes, chance: random.Random) -> bytes:
    """The members changed, their checksums right."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", chance.choice((0, 8))) as new:
        for name in old.namelist():
            member = old.read(name)
            if chance.random() < 0.6:
                member = mutate(member, chance, [])
            if chance.random() < 0.95:
                new.writestr(name, member)
    return out.getvalue()


# --------------------------------------------------------------------------------------------------------------- checks


def check(reader: str, path: Path) -> str | None:
    """What is wrong with how a file is read; None if nothing is. A different result for another block size is."""
    read, blocks = READERS[reader]
    found = [_outcome(read, path, size) for size in ([1 << 24, SMALL_BLOCK] if blocks else [1 << 24])]
    for outcome in found:
        if isinstance(outcome, str) and outcome.startswith("CRASH"):
            return outcome
    if all(isinstance(outcome, str) for outcome in found):
        return None  # which of several mistakes is named may depend on it
    if found[0] != found[-1] and repr(found[0]) != repr(found[-1]):  # NaN differs from itself
        return f"CRASH the block size matters:\n{found[0]!r:.3000}\n{found[-1]!r:.3000}"
    return None


def _outcome(read: Callable[[Path, int], Any], path: Path, block_size: int) -> Any:
    try:
        return read(path, block_size)
    except ProteaError as e:
        if e.exit_code != 2 or "\n" in str(e):
            return f"CRASH exit code {e.exit_code}, {str(e)!r}"
        return f"refused: {e}"
    except BaseException as e:
        where = traceback.extract_tb(e.__traceback__)[-1]
        return (
            f"CRASH {type(e).__name__} at {where.filename}:{where.lineno}: {e!s:.300}\n{traceback.format_exc():.5000}"
        )


def _fork(kind: str, path: Path) -> Any:
    """`trial.ask`, ten times as fast."""
    r, w = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (2, 2))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.write(w, json.dumps(trial.answer(kind, str(path))).encode())
        except BaseException:
            os._exit(1)
        os._exit(0)
    os.close(w)
    with open(r, "rb") as f:
        said = f.read()
    if os.waitpid(pid, 0)[1]:
        raise ValueError("no answer")
    return json.loads(said)


def _child(reader: str, jobs: Any, memory: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    trial.ask = _fork
    limits.LARGE = 1 << 24  # so that small files can be too large
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    path = Path(jobs.recv())
    check(reader, path)  # compiles
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    jobs.send(None)
    while (path := jobs.recv()) is not None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        said = check(reader, Path(path))
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        jobs.send(said or (f"CRASH memory grew by {grown >> 20} MB" if grown > memory // 2 else None))


class Reader:
    """A child process that reads files."""

    def __init__(self, reader: str, example: Path, seconds: float, memory: int) -> None:
        self.ours, theirs = multiprocessing.Pipe()
        self.seconds = seconds
        self.process = multiprocessing.get_context("fork").Process(target=_child, args=(reader, theirs, memory))
        self.process.start()
        theirs.close()
        self.ours.send(str(example))
        self.ours.recv()

    def __call__(self, path: Path) -> tuple[str | None, bool]:
        """(what is wrong or None, whether the process can go on)."""
        try:
            self.ours.send(str(path))
            if not self.ours.poll(self.seconds):
                return f"CRASH over {self.seconds:g} seconds", False
            return self.ours.recv(), True
        except (EOFError, OSError):
            self.process.join()
            return f"CRASH the process ended with {self.process.exitcode}", False

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self.ours.close()


def fuzz(
    reader: str,
    minutes: float,
    seed: int,
    keep: Path,
    seconds: float = 20,
    memory: int = 2 << 30,
    at_most: int = 1 << 62,
) -> dict[str, Any]:
    """Fuzz one reader; {"executions": number, "crashes": message -> how often}."""
    chance, crashes, executions = random.Random(f"{reader} {seed}"), dict[str, int](), 0
    with tempfile.TemporaryDirectory() as place:
        pool = seeds(reader, Path(place) / "seeds")
        path = Path(place) / "input"
        path.write_bytes(pool[0])
        child: Reader | None = None
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end and executions < at_most:
            child = child or Reader(reader, path, seconds, memory)
            data = mutate(chance.choice(pool), chance, pool)
            path.write_bytes(data)
            said, goes_on = child(path)
            executions += 1
            if said is not None:
                head = said.splitlines()[0].replace(place, "")[:160]
                if head not in crashes:
                    keep.mkdir(parents=True, exist_ok=True)
                    name = f"{reader}-{seed}-{executions}"
                    (keep / name).write_bytes(data)
                    (keep / f"{name}.txt").write_text(said)
                    print(f"{reader}: {head} ({keep / name})", flush=True)
                crashes[head] = crashes.get(head, 0) + 1
            if not goes_on:
                child.close()
                child = None
                path.write_bytes(pool[0])
        if child is not None:
            child.close()
    return {"executions": executions, "crashes": crashes}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="*", metavar="READER", help=f"one of {', '.join(READERS)}; default: all")
    parser.add_argument("--minutes", type=float, default=1, help="for each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20, help="that reading one file may take")
    parser.add_argument("--memory", type=int, default=2 << 30, help="bytes that reading may add")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "protea-crashes")
    given = parser.parse_args()
    if unknown := set(given.readers) - READERS.keys():
        parser.error(f"no reader {', '.join(sorted(unknown))}")
    failed = False
    for reader in given.readers or READERS:
        start = time.monotonic()
        found = fuzz(reader, given.minutes, given.seed, given.keep, given.seconds, given.memory)
        failed |= bool(found["crashes"])
        print(
            f"{reader:12} {found['executions']:8,} executions in {time.monotonic() - start:.0f} s, "
            f"{sum(found['crashes'].values())} crashes in {len(found['crashes'])} places", flush=True,
        )  # fmt: skip
    return int(failed)


if __name__ == "__main__":
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    raise SystemExit(main())
