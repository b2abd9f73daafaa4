"""What is asked of the HDF5 and Parquet libraries in a process of its own, because damaged files make them hang or abort.

Called by the readers of embeddings and scores; runs this file as a program, which imports nothing of ours. Damaged
variable-length text sends HDF5 into an endless loop; damaged statistics in a column's metadata end a process in pyarrow.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS = 20
"""Of processor time, and one more for each megabyte: it takes a tenth of that."""


def answer(kind: str, path: str) -> Any:
    """`hdf5`: reads every variable-length text, and says nothing. `parquet`: [uncompressed bytes of all columns, values of
    the longest chunk of a column]."""
    if kind == "parquet":
        import pyarrow.parquet as pq

        found = pq.ParquetFile(path).metadata
        groups = [found.row_group(i) for i in range(found.num_row_groups)]
        chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
        sizes, values = ([getattr(c, of) for c in chunks] for of in ("total_uncompressed_size", "num_values"))
        return [sum(max(0, size) for size in sizes), max(values, default=0)]
    import h5py

    with h5py.File(path, "r") as file:
        names: list[bytes] = []
        file.id.links.visit(
            lambda name, info: names.append(name) if info.type == h5py.h5l.TYPE_HARD else None, info=True
        )
        for name in names:
            found = file[name]
            if isinstance(found, h5py.Dataset) and found.id.get_type().get_class() == h5py.h5t.STRING:
                found[()]
            found.attrs.get("original_id")
    return None


def ask(kind: str, path: Path) -> Any:
    """The answer of another process. ValueError when it gives none: the file is damaged."""
    seconds = SECONDS + (path.stat().st_size >> 20)
    command = [sys.executable, "-P", __file__, kind, str(path), str(seconds)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode < 0:
        raise ValueError("reading it crashes the library, or does not end")
    if done.returncode:
        raise ValueError(done.stderr.decode(errors="replace").strip().rpartition("\n")[2])
    return json.loads(done.stdout)


if __name__ == "__main__":
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[3]), int(sys.argv[3])))
    print(json.dumps(answer(*sys.argv[1:3])))
