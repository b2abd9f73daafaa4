"""The command line as a user meets it: processes on small files, what they print and how they end."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from protea.cli import export as export_commands
from protea.cli import output, progress
from protea.cli.main import main
from protea.core.config import ExportConfig
from protea.settings import Settings
from worlds import CORNERS, World, random_world

PROGRAM = [sys.executable, "-c", "from protea.cli.main import main; raise SystemExit(main())"]
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

pytestmark = pytest.mark.xdist_group("cli")


@dataclass
class Ended:
    """What a process left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line of an error of the user's."""
        assert (self.code, self.out) == (2, "")
        assert self.err.startswith("protea: error: ")
        assert self.err.count("\n") == 1
        return self.err


@dataclass
class Home:
    """A home with a world's files loaded into it."""

    path: Path
    url: str
    world: World
    files: dict[str, Any]

    @property
    def environment(self) -> dict[str, str]:
        plain = {k: v for k, v in os.environ.items() if not k.startswith("PROTEA_")}
        return plain | {"PROTEA_HOME": str(self.path / "home"), "PROTEA_DATABASE_URL": self.url, "COLUMNS": "40"}

    def start(self, *args: object, **how: Any) -> "subprocess.Popen[str]":
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **how}
        return subprocess.Popen([*PROGRAM, *map(str, args)], env=self.environment, cwd=self.path, **pipes)

    def process(self, *args: object) -> Ended:
        """Run it as a user does."""
        process = self.start(*args)
        out, err = process.communicate(timeout=300)
        assert not CONTROL.search(out + err)
        return Ended(process.returncode, out, err)

    def __call__(self, *args: object) -> Ended:
        """Run it in this process, which is many times faster."""
        out, err = io.StringIO(), io.StringIO()
        with (
            mock.patch.dict(os.environ, self.environment, clear=True),
            contextlib.chdir(self.path),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = main([str(a) for a in args])
        assert not CONTROL.search(out.getvalue() + err.getvalue())
        return Ended(code, out.getvalue(), err.getvalue())

    def ok(self, *args: object) -> Ended:
        ended = self(*args)
        assert ended.code == 0, ended.err
        return ended

    def settings(self, name: str, **more: Any) -> Path:
        """A TOML file."""
        values = {**self.world.names(), "name": name, "k": 3, **more}
        text = "\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items())
        path = self.path / f"{name}.toml"
        path.write_text(text)
        return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, _new_database: Callable[[str], str], _migrated: str) -> Home:
    path = tmp_path_factory.mktemp("cli")
    world = random_world(5, 12, set(CORNERS) - {"malformed", "derived"})
    files = world.write(path / "files")
    taxdump = path / "taxdump"
    taxdump.mkdir()
    (taxdump / "nodes.dmp").write_text("1\t|\t1\t|\tno rank\t|\n9606\t|\t1\t|\tspecies\t|\n")
    home = Home(path, _new_database(_migrated), world, {**files, "taxonomy": taxdump})
    for kind in ("ontology", "proteins"):
        assert home.process("load", kind, files[kind]).code == 0
    home.ok("load", "embeddings", files["embeddings"]["h5"])
    home.ok("load", "taxonomy", taxdump, "--name", "small")
    for v, file in files["annotations"].items():
        home.ok("load", "annotations", file, "--source", "goa", "--version", v)
    return home


def _tree(path: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in path.rglob("*")}


# -- loading and listing


def test_list(home: Home) -> None:
    listed = home.process("list")
    assert listed.err == ""
    table = listed.out.splitlines()
    assert table[0].split() == ["KIND", "NAME", "VERSION", "CONTENT", "SIZE", "WHEN"]
    for v in home.world.releases:
        assert any(re.match(rf"annotations  goa:{v} +{v} ", line) for line in table)
    assert any(line.startswith("embeddings   vectors") for line in table)
    assert any(f"{len(home.world.proteins)} sequences" in line for line in table)
    found = home.ok("list", "--json").json
    inputs = [
        "ontology",
        "annotations",
        "proteins",
        "embeddings",
        "taxonomy",
        "term-vectors",
        "interpro",
        "scores",
        "ia",
    ]
    assert list(found) == [*inputs, "datasets"]
    assert [row["name"] for row in found["annotations"]] == [f"goa:{v}" for v in home.world.releases]
    (vectors,) = found["embeddings"]
    assert vectors["stats"]["vectors"] == len(home.world.embeddings)
    assert vectors["source_file"] == "vectors.h5"
    assert vectors["bytes"] > 0
    assert found["ontology"][0]["version"] == "2020-01-01"
    assert list(home.ok("list", "proteins", "--json").json) == ["proteins"]


def test_tables_of_later_families(home: Home) -> None:
    folder = home.path / "tables"
    folder.mkdir()
    known = sorted(home.world.proteins)[0]
    contents = {
        "term-vectors": "GO:0005515 1 2\nGO:0003674 3 4\n",
        "scores": f"accession\tgo_id\tscore\n{known}\tGO:0005515\t0.5\nNOBODY\tGO:0005515\t1\n",
        "ia": "GO:0005515\t1.5\n",
        "interpro": f"{known}\tIPR000003\tName\tPF1\t1\t9\nNOBODY\tIPR000003\tName\tPF1\t1\t9\n",
    }
    (folder / "mapping").write_text("InterPro:IPR000003 Name > GO:DNA binding ; GO:0003677\n")
    said = {
        "term-vectors": "2 vectors of 2 float64",
        "scores": "1 rows, 1 proteins",
        "ia": "1 terms",
        "interpro": "1 rows, 1 proteins",
    }
    (proteins,) = (row["name"] for row in home.ok("list", "proteins", "--json").json["proteins"])
    for kind, text in contents.items():
        (folder / f"{kind}.tsv").write_text(text)
        more = ("--interpro2go", folder / "mapping") if kind == "interpro" else ()
        report = home.ok("inspect", kind, folder / f"{kind}.tsv", *more, "--json").json
        assert report["rows"] == report["kept"] == (1 if kind == "ia" else 2)
        restricted = ("--proteins", proteins) if kind in ("scores", "interpro") else ()
        out = home.ok("load", kind, folder / f"{kind}.tsv", "--name", "t", *more, *restricted).out
        assert out.startswith("loaded ")
        assert said[kind] in out
        assert ("left out: 1 not_in_proteins" in out) == bool(restricted)
        assert re.search(rf"^{kind} +t +{said[kind]}", home.ok("list").out, re.M)
        assert home.ok("load", kind, folder / f"{kind}.tsv", "--name", "t", *more, *restricted).out.startswith(
            "already"
        )
        assert home.ok("list", kind, "--json").json[kind][0]["name"] == "t"
        assert len(home.ok("inspect", kind, folder / f"{kind}.tsv", *more).out.splitlines()) > 5
    assert "--interpro2go" in home("load", "interpro", folder / "interpro.tsv").error
    assert "--interpro2go goes with interpro" in home("inspect", "ia", folder / "ia.tsv", *more).error


def test_list_of_an_unknown_kind(home: Home) -> None:
    assert "did you mean 'annotations'" in home("list", "anotations").error


def test_the_same_again_is_recognised(home: Home) -> None:
    again = home.ok("load", "ontology", home.files["ontology"])
    assert again.out == home.ok("load", "ontology", home.files["ontology"]).out
    assert again.out.startswith("already loaded: ontology 2020-01-01: ")
    v, file = next(iter(home.files["annotations"].items()))
    found = home.ok("load", "annotations", file, "--source", "goa", "--version", v, "--json").json
    assert (found["kind"], found["already_loaded"], found["inputs"][0]["new"]) == ("annotations", True, False)
    assert found["inputs"][0]["source"] == "goa"


def test_another_file_under_a_taken_name(home: Home) -> None:
    before = home.ok("list", "--json").json
    other = home.path / "other.fasta"
    other.write_text(">P1\nMKV\n")
    assert "'proteins'" in home("load", "proteins", other, "--name", "proteins").error
    first, second = list(home.files["annotations"].items())[:2]
    assert f"goa:{first[0]}" in home("load", "annotations", second[1], "--source", "goa", "--version", first[0]).error
    assert home.ok("list", "--json").json == before


def test_options_of_annotations(home: Home) -> None:
    file = next(iter(home.files["annotations"].values()))
    args = ("load", "annotations", file, "--source", "opt")
    found = home.ok(
        *args, "--version", "1", "--proteins", "proteins", "--databases", "UniProtKB, ComplexPortal", "--json"
    )
    stats = found.json["inputs"][0]["stats"]
    assert stats["restricted_to"] == "proteins"
    assert stats["databases"] == ["ComplexPortal", "UniProtKB"]
    days = "2030-01-01,2031-01-01"
    found = home.ok("load", "annotations", file, "--source", "dated", "--cut-dates", days, "--json")
    assert [row["version"] for row in found.json["inputs"]] == days.split(",")
    assert all(row["derived_by_date"] for row in found.json["inputs"])
    assert "(by date)" in home.ok("list", "annotations").out
    broken = home.path / "broken.gaf"
    broken.write_text(file.read_text() + "UniProtKB\tP1\tbroken\n" if file.suffix == ".gaf" else "x")
    args = ("load", "annotations", broken, "--source", "broken", "--version", "1")
    assert "--max-rejected" in home(*args).error
    left_out = home.ok(*args, "--max-rejected", "0.5").out
    assert "1 columns" in left_out
    assert re.search(r"line \d+: columns: 'UniProtKB", left_out)


def test_ids_beside_a_matrix(home: Home) -> None:
    import numpy as np

    ids = home.path / "ids.txt"
    ids.write_text("P1\nP2\n")
    np.save(home.path / "matrix.npy", np.eye(2, 4, dtype=np.float32))
    assert "--ids" in home("load", "embeddings", home.path / "matrix.npy").error
    found = home.ok("load", "embeddings", home.path / "matrix.npy", "--ids", ids, "--name", "npy", "--json").json
    assert found["inputs"][0]["stats"]["dim"] == 4


def test_embed(home: Home) -> None:
    first = home.ok("embed", "--backend", "kmer", "--proteins", "proteins")
    assert first.out.startswith("loaded embedding config kmer-proteins: ")
    assert "vectors of 512 float32" in first.out
    found = home.ok("embed", "--backend", "kmer", "--json").json
    assert found["already_loaded"] is True
    assert "did you mean 'proteins'" in home("embed", "--backend", "kmer", "--proteins", "protein").error


def test_a_file_that_is_not_there(home: Home) -> None:
    for kind in ("ontology", "proteins", "embeddings", "taxonomy", "term-vectors", "interpro", "scores", "ia"):
        assert "nowhere" in home("inspect", kind, "nowhere").error
        assert "nowhere" in home("load", kind, "nowhere").error
    odd = "[red]x\x1b[31m\n.obo"
    assert r"[red]x\x1b[31m\n.obo" in home("inspect", "ontology", odd).error


def test_inspect_starts_nothing(home: Home) -> None:
    args = ("inspect", "ontology", home.files["ontology"], "--json", "--resolve", "GO:0003674", "GO:0008150")
    lone = Home(home.path / "lone", "postgresql:///nowhere?host=/nowhere", home.world, home.files)
    lone.path.mkdir()
    found = lone.ok(*args, "--closure", "GO:0005515,GO:0005575").json
    assert found["resolve"] == {i: i for i in ("GO:0003674", "GO:0008150")}
    assert found["closure"]["GO:0005515"] == ["GO:0003674", "GO:0005488", "GO:0005515"]
    assert found["closure"]["GO:0005575"] == ["GO:0005575"]
    assert lone.ok("inspect", "taxonomy", home.files["taxonomy"], "--json").json["nodes"] == 2
    assert "--resolve goes with ontology" in lone("inspect", "proteins", "x", "--resolve", "GO:0003674").error
    assert list(lone.path.iterdir()) == []


# -- exports and datasets


def test_plan_run_and_look(home: Home) -> None:
    file = home.settings("one")
    before = _tree(home.path)
    planned = home.ok("export", "plan", file, "--json").json
    shown = home.ok("export", "plan", file)
    assert _tree(home.path) == before
    assert shown.out.splitlines()[0].startswith("CUT ")
    for cut in planned["cuts"]:
        assert cut["pair"] in shown.out
    explained = home.ok("export", "explain", file, "--json").json
    assert (explained["published"], explained["fingerprint"]) == (False, planned["fingerprint"])

    ran = home.process("export", "run", file)
    assert ran.code == 0
    assert (
        ran.out.splitlines()[0].split()
        == "CUT CATEGORY ASPECT MEMBERS QUERIED NOVEL TERMS REACHED ROWS POSITIVES".split()
    )
    assert len(re.findall(r"^v\S+  +[nlp]k +(?:mfo|bpo|cco) ", ran.out, re.M)) == 9 * len(planned["cuts"])
    said = ran.err.splitlines()
    assert all(line.startswith("protea: ") for line in said)
    assert any("published one" in line for line in said)
    directory = Path(home.ok("dataset", "path", "one").out.strip())
    for name in ("train", "eval", "truth", "known"):
        assert f"{directory / name}.parquet" in ran.out
        assert home.ok("dataset", "path", "one", "--split", name).out == f"{directory / name}.parquet\n"

    again = home.ok("export", "run", file, "--json")
    assert again.json["path"] == str(directory)
    assert again.json["fingerprint"] == planned["fingerprint"]
    assert "there already" in again.err
    total = sum(n["rows"] for c in again.json["counts"].values() for a in c.values() for n in a.values())
    assert total == again.json["n_train_rows"] + again.json["n_eval_rows"]
    assert f"{total:,}" in next(line for line in ran.out.splitlines() if line.startswith("total"))
    assert home.ok("export", "explain", "one", "--json").json["published"] is True
    assert "published" in home.ok("export", "explain", "one").out

    assert home.ok("dataset", "list", "--json").json[0]["name"] == "one"
    assert "one " in home.ok("dataset", "list").out
    assert home.ok("dataset", "show", "one", "--json").json["path"] == str(directory)
    assert "annotation sets" in home.ok("dataset", "show", "one").out
    rows = home.ok("dataset", "head", "one", "--split", "truth", "-n", "2", "--json").json
    assert list(rows[0]) == ["snapshot_pair", "protein_accession", "aspect", "category", "go_term_id", "reached"]
    assert len(rows) == 2
    assert home.ok("dataset", "head", "one", "-n", "2").out.splitlines()[0].split() == "COLUMN ROW 1 ROW 2".split()
    assert "did you mean 'one'" in home("dataset", "show", "onne").error
    assert "onne" in home("export", "explain", "onne").error


def test_settings_as_options(home: Home) -> None:
    names = home.world.names()
    options = ["--name", "opts", "--annotation-source", "goa", "--embedding-config", "vectors", "--k", "2"]
    for key in ("train_versions", "test_versions"):
        options += [f"--{key.replace('_', '-')}", ",".join(map(str, names[key]))]
    options += ["--expand-votes-to-ancestors", "--no-exclude-binding-only", "--donor-evidence", "IEA,IDA"]
    more = {"expand_votes_to_ancestors": True, "exclude_binding_only": False, "donor_evidence": ["IDA", "IEA"]}
    file = home.settings("opts", k=2, **more)
    by_options = home.ok("export", "plan", *options, "--json").json
    by_file = home.ok("export", "plan", file, "--json").json
    by_both = home.ok(
        "export", "plan", home.settings("other", k=9, **more), "--k", "2", "--name", "opts", "--json"
    ).json
    assert {**by_options, "free_disk_bytes": 0} == {**by_file, "free_disk_bytes": 0}
    assert by_both["fingerprint"] == by_file["fingerprint"]


def test_wrong_settings(home: Home) -> None:
    file = home.settings("right")
    backwards = ",".join(map(str, home.world.train_versions[::-1]))
    assert "--kk" in home("export", "plan", file, "--kk", "3").error
    assert "--k" in home("export", "plan", file, "--k", "x").error
    assert "metric" in home("export", "run", file, "--metric", "cosin").error
    assert (
        "did you mean 'expand_votes_to_ancestors'"
        in home("export", "run", home.settings("wrong", expand_votes_to_ancestor=True)).error
    )
    assert "k must be" in home("export", "run", home.settings("wrong", k="3")).error
    assert "ascend" in home("export", "plan", file, "--train-versions", backwards).error
    assert "taxonomy" in home("export", "run", home.settings("wrong"), "--compute-taxonomy").error
    assert "did you mean 'vectors'" in home("export", "run", file, "--embedding-config", "vectrs").error
    assert "required" in home("export", "run").error
    assert "no such file" in home("export", "run", "nowhere.toml").error
    assert home("export", "run").code == 2


def test_a_taken_dataset_name(home: Home) -> None:
    home.ok("export", "run", home.settings("taken"))
    assert "--replace" in home("export", "run", home.settings("taken"), "--k", "1").error
    home.ok("export", "run", home.settings("taken"), "--k", "1", "--replace")
    assert home.ok("dataset", "show", "taken", "--json").json["k"] == 1


def test_every_setting_is_an_option() -> None:
    assert set(export_commands.HELP) == ExportConfig.model_fields.keys()
    assert export_commands.SETTINGS.keys() == ExportConfig.model_fields.keys()
    given = {"train_versions": "1, 2", "donor_evidence": "all", "experimental_codes": "IDA", "k": 3, "metric": None}
    assert export_commands.given(given) == {
        "train_versions": ["1", "2"],
        "donor_evidence": "all",
        "experimental_codes": ["IDA"],
        "k": 3,
    }


# -- how it ends


def test_usage() -> None:
    lone = Home(Path.cwd(), "", None, {})  # type: ignore[arg-type]
    assert lone.ok("--version").out == f"protea {version('protea')}\n"
    assert "No such command 'lst'. Did you mean 'list'" in lone("lst").error
    assert "Missing argument" in lone("load", "ontology").error
    assert "--source" in lone("load", "annotations", "x.gaf").error
    assert "'kmer', 'unirep'" in lone("embed", "--backend", "foo").error
    bare = lone()
    assert bare.code == 2
    for command in ("load", "embed", "inspect", "list", "export", "dataset", "demo", "db"):
        assert re.search(rf"^  {command} ", bare.out, re.M)
        assert f"Usage: protea {command}" in lone.ok(command, "--help").out
    (script,) = entry_points(group="console_scripts", name="protea")
    assert script.load() is main


@pytest.mark.parametrize(
    ("args", "without"),
    [
        (["--help"], "pyarrow numba sqlalchemy rich pydantic numpy"),
        (["list"], "pyarrow numba rich numpy alembic h5py fastobo"),
        (["inspect", "proteins", "nowhere"], "sqlalchemy psycopg rich fastobo h5py"),
    ],
)
def test_start_up_imports_little(settings: Settings, args: list[str], without: str) -> None:
    code = (
        "import sys; from protea.cli.main import main; main(sys.argv[2:]);"
        "print('\\nLOADED', *set(sys.argv[1].split()) & set(sys.modules))"
    )
    environment = {**os.environ, "PROTEA_HOME": str(settings.home), "PROTEA_DATABASE_URL": str(settings.database_url)}
    done = subprocess.run(
        [sys.executable, "-c", code, without, *args], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "LOADED"


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_load_leaves_nothing(home: Home, number: signal.Signals, code: int, after: float) -> None:
    """Also while it waits for a pipe out of which nothing comes."""
    fifo = home.path / f"{code}-{after}.gaf"
    os.mkfifo(fifo)
    process = home.start("load", "annotations", fifo, "--source", "never", "--version", "1")
    with fifo.open("wb") as f:  # open once the load has come to read it
        f.write(b"!gaf-version: 2.2\n")
        f.flush()
        time.sleep(after)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "")
    if number == signal.SIGINT:
        assert err.startswith("protea: interrupted: ")
    assert err.count("\n") == (number == signal.SIGINT)
    assert all(row["source"] != "never" for row in home.ok("list", "annotations", "--json").json["annotations"])
    assert [p for p in (home.path / "home/storage/tmp").iterdir() if p.is_dir()] == []


def test_closed_pipe_is_quiet(home: Home) -> None:
    process = home.start("list")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(60) == 141


def test_full_disk() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*PROGRAM, "--version"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert re.fullmatch(r"protea: error: .*[Nn]o space left.*\n", done.stderr)


def test_what_should_not_happen(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise RuntimeError("first\n  second \x1b[1m")

    monkeypatch.setattr("protea.cli.listing.read_settings", fail)
    assert main(["list"]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("protea: error: RuntimeError: first; second \\x1b[1m; this should not happen")
    assert err.count("\n") == 1
    assert "--debug" in err
    assert main(["list", "--debug"]) == 1
    assert "Traceback" in capfd.readouterr().err
    monkeypatch.setenv("PROTEA_DEBUG", "1")
    assert main(["list"]) == 1
    assert "Traceback" in capfd.readouterr().err


def test_a_variable_that_makes_no_sense(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PROTEA_THREADS", "many")
    assert main(["list"]) == 2
    assert "PROTEA_THREADS=many" in capfd.readouterr().err


def test_db_upgrade(
    blank_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROTEA_HOME", str(tmp_path))
    monkeypatch.setenv("PROTEA_DATABASE_URL", blank_url)
    assert main(["list"]) == 1
    assert "protea db upgrade" in capfd.readouterr().err
    assert main(["db", "upgrade"]) == 0
    assert "revision" in capfd.readouterr().out
    assert main(["list"]) == 0


def test_embedded_database(own_settings: Settings, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setenv("PROTEA_HOME", str(own_settings.home))
    assert main(["list", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["ontology"] == []


# -- what is written, and progress


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("a [bold]name[/bold]", 1234567, "some words that go on and on for a while"), ("b\n\x1b", None, "")]
    output.table(("NAME", "ROWS", "TEXT"), rows, text=2)
    plain = capsys.readouterr().out
    assert plain.splitlines()[1] == "a [bold]name[/bold]  1,234,567  some words that go on and on for a while"
    assert plain.splitlines()[2] == "b\\n\\x1b"
    monkeypatch.setenv("COLUMNS", "60")
    terminal = Terminal()
    with contextlib.redirect_stdout(terminal):
        output.table(("NAME", "ROWS", "TEXT"), rows, text=2)
    lines = terminal.getvalue().splitlines()
    assert lines[0].startswith("\x1b[1mNAME")
    assert max(map(len, lines[1:])) <= 60
    assert "a [bold]name[/bold]  1,234,567  some words that go on and on" in lines[1]
    assert lines[2].split() == ["for", "a", "while"]


@pytest.mark.parametrize(
    ("n", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1234, "1.23 kB"), (345_678, "346 kB"), (4 * 10**13, "40 TB")]
)
def test_sizes(n: int, text: str) -> None:
    assert output.size(n) == text


def test_plain_progress(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    with progress.reading("load [x]", 10_000_000) as tell:
        for done in range(1_000_000, 10_000_001, 1_000_000):
            tell(done)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "protea: load [x]: 3 MB of 10 MB (30%), 500 kB/s, 0:00:14 left"
    assert len(lines) == 3  # of ten, 2 s apart


EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("export.started", {"name": "[n]", "fingerprint": "f", "staging": "/s"}),
    ("cut.discarded", {"reason": "a shard is gone"}),
    ("cut.started", {}),
    ("cut.prepared", {"members": 4000, "queries": 1000, "donors": 2000}),
    *[("cut.progress", {"done": n, "queries": 1000, "rows": 50 * n}) for n in (200, 400, 600, 800, 1000)],
    ("cut.finished", {"rows": 50_000, "seconds": 9.0}),
    ("assembly.started", {"file": "train.parquet", "shards": 3}),
    ("export.warning", {"text": "scopes differ"}),
    ("export.something_new", {"a": 1}),
    ("export.published", {"name": "[n]", "path": "/p", "n_train_rows": 1, "n_eval_rows": 2}),
]
WHERE = {"cut": "v1-v2", "label": "train-1", "number": 1, "of": 2}


def _play(shown: progress.Exporting) -> None:
    with shown:
        for kind, what in EVENTS:
            shown(kind, **what, **(WHERE if kind.startswith("cut.") else {}))
            if shown.progress:
                shown.progress.refresh()  # which a thread does ten times a second


def test_plain_export_progress(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    clock = iter(range(0, 1000, 3))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    _play(progress.Exporting())
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "protea: export [n], staged in /s"
    assert "cut 1/2 train-1 (v1-v2): computed again: a shard is gone" in lines[1]
    assert "4,000 members, 1,000 queries, 2,000 donors" in lines[3]
    rates = [line for line in lines if "rows/s" in line or "/s, " in line]
    assert len(rates) == 3  # of five, 3 s apart
    assert "200 of 1,000 queries (20%), 10,000 rows, 3,333/s, 0:00:12 left" in rates[0]
    assert lines[-1] == "protea: published [n] in /p"
    assert not any(CONTROL.search(line) for line in lines)


def test_progress_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    _play(progress.Exporting())
    with progress.reading("load [x]", 100) as tell:
        tell(60)
        tell(120)
    drawn = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "1000/1000" in drawn
    assert "published [n] in /p" in drawn
    assert "load [x]" in drawn
