"""Every command of the runbook, in its order, in one shell: its exit status and what it is said to print."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import protea
from farm import load
from protea.settings import Settings
from worlds import random_world

RUNBOOK = Path(__file__).parents[2] / "docs" / "runbooks" / "export-resume-and-minijobs.md"
OVER = "status of the last command: "


def commands(text: str) -> Iterator[tuple[str, int, list[str]]]:
    """The commands of the fenced blocks, the exit status that each has, and the lines that it prints."""
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, *lines = part.splitlines()
            status = re.search(r"# exit status (\d)", command)
            yield command, int(status[1]) if status else 0, lines


def pattern(lines: list[str]) -> str:
    """A regular expression for the output: a line `...` is any number of lines, `...` in a line is anything."""
    out = ""
    for line in lines:
        words = [r"[ ]+".join(map(re.escape, re.split(" +", part))) for part in line.split("...")]
        out += r"(.*\n)*?" if line == "..." else ".*".join(words) + r"[ ]*\n"
    return out


@pytest.fixture
def shell(settings: Settings, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A shell where `protea` has a proteome, `worm.toml`, and an export of it that was interrupted after one cut."""
    world = random_world(3, size=12)
    world = replace(world, train_versions=world.train_versions[:2], test_versions=world.test_versions[:1])
    load(settings, world, tmp_path / "files")
    values = {**world.names(), "name": "worm"}
    (tmp_path / "worm.toml").write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in values.items()))

    def interrupt(kind: str, **what: object) -> None:
        if kind == "cut.finished":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        protea.export(tmp_path / "worm.toml", settings=settings, report=interrupt)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "protea"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m protea "$@"\n')
    program.chmod(0o755)
    env = os.environ | settings.environment() | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    bash = subprocess.Popen(
        ["bash", "--norc"], cwd=tmp_path, env=env, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    with bash:
        yield bash
        bash.kill()


def test_every_command(shell: subprocess.Popen[str], settings: Settings) -> None:
    assert shell.stdin is not None
    assert shell.stdout is not None
    text = RUNBOOK.read_text().replace("/shared/protea", str(settings.home))
    text = text.replace("postgresql://protea@db.example.org/protea", f"'{settings.database_url}'")
    ran = list(commands(text))
    assert len(ran) > 15
    for command, status, lines in ran:
        shell.stdin.write(f"{command}\necho '{OVER}'$?\n")
        shell.stdin.flush()
        printed = ""
        while not (line := shell.stdout.readline()).startswith(OVER):
            assert line, f"{command}: the shell ended"
            printed += line
        assert int(line.removeprefix(OVER)) == status, f"{command}: {printed}"
        assert re.fullmatch(pattern(lines), printed), f"{command} printed\n{printed}\nand not\n" + "\n".join(lines)


def test_every_variable_is_one() -> None:
    """The variables that it names exist."""
    known = {f"PROTEA_{name.upper()}" for name in Settings.model_fields}
    named = set(re.findall(r"PROTEA_[A-Z_]+", RUNBOOK.read_text()))
    assert named - known <= {"PROTEA_STORAGE_URL"}
