"""Assembling ten times the rows takes no more memory: `bench/assembly_memory.py` at sizes for a test."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench" / "assembly_memory.py"


def test_the_assembly_takes_the_same_memory_for_any_number_of_rows() -> None:
    command = [sys.executable, str(BENCH), "--json", "400000", "4000000"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    few, many = json.loads(run.stdout)
    assert (few["rows"], many["rows"]) == (500_000, 4_000_000)  # whole shards
    assert (few["row_groups"], many["row_groups"]) == (3, 24)
    one_group = many["peak_mb"] - many["start_mb"]
    assert one_group < 1.35 * (few["peak_mb"] - few["start_mb"]) + 16
    assert one_group < many["file_mb"] * 1.5  # holding the file, let alone its rows, would take more
