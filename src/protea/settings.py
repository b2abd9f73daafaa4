"""Every `PROTEA_*` environment variable, and where PROTEA keeps its files.

Called by the command line and the Python API; the core gets plain paths.
"""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

if TYPE_CHECKING:
    from .core.remote import Remote


def _default_home() -> Path:
    """The repository root when run from a checkout, else the platform's user data directory."""
    root = Path(__file__).resolve().parents[2]
    if (root / "pyproject.toml").is_file() and (root / "src" / "protea").is_dir():
        return root
    import platformdirs

    return Path(platformdirs.user_data_dir("protea"))


class Settings(BaseSettings):
    """Process-wide settings, read once from the environment."""

    model_config = SettingsConfigDict(env_prefix="PROTEA_", env_ignore_empty=True, extra="ignore", frozen=True)

    home: Path | None = None
    """PROTEA_HOME: everything PROTEA writes lies under `<home>/storage/`."""

    database_url: str | None = None
    """PROTEA_DATABASE_URL: a PostgreSQL server; unset, an embedded server is started on demand."""

    storage_url: str | None = None
    """PROTEA_STORAGE_URL: `s3://bucket/prefix[?endpoint_override=host:port&scheme=http&region=...]`, for workers that share
    no disk: inputs, staging and datasets lie there, `<home>/storage/` holds copies. Keys come from the AWS_* variables."""

    export_resume_dir: Path | None = None
    """PROTEA_EXPORT_RESUME_DIR: where exports keep their staging directories (default `<home>/storage/export_resume/`)."""

    threads: Annotated[int, Field(ge=0)] = 0
    """PROTEA_THREADS: threads of the neighbour search and the alignments (0: one per core; of a worker's process, its share
    of the machine's cores beside all other processes of workers). It changes no byte."""

    alignment_cache_bytes: Annotated[int, Field(ge=0)] = 2 << 30
    """PROTEA_ALIGNMENT_CACHE_BYTES: how large the cache of alignments under `<home>/storage/alignments/` may grow."""

    export_minijobs: bool = False
    """PROTEA_EXPORT_MINIJOBS: 1, and a worker cuts the exports that it coordinates into minijobs for all workers; unset
    or 0, it runs them in place, cut after cut. The bytes are the same."""

    export_queries_per_block: Annotated[int, Field(ge=1)] = 2000
    """PROTEA_EXPORT_QUERIES_PER_BLOCK: queries of one minijob. It changes no byte."""

    lease_seconds: Annotated[float, Field(ge=1)] = 30
    """PROTEA_LEASE_SECONDS: a worker that was not heard of for so long is taken for dead; others do its minijobs. The same
    for all workers of a database."""

    retry_seconds: Annotated[float, Field(ge=0)] = 5
    """PROTEA_RETRY_SECONDS: how long a minijob that failed waits before its second attempt; five times that before the
    third."""

    debug: bool = False
    """PROTEA_DEBUG: tracebacks instead of one-line errors."""

    @cached_property
    def storage(self) -> Path:
        """`<home>/storage`, absolute."""
        return ((self.home or _default_home()) / "storage").expanduser().absolute()

    def environment(self) -> dict[str, str]:
        """These settings as variables, for a process of ours."""
        words = {True: "1", False: "0"}
        values = self.model_dump(exclude_none=True).items()
        return {f"PROTEA_{k.upper()}": words[v] if isinstance(v, bool) else str(v) for k, v in values}

    @cached_property
    def remote(self) -> "Remote | None":
        """The place in an object store that PROTEA_STORAGE_URL names, if it does."""
        from .core.remote import Remote

        return Remote(self.storage_url) if self.storage_url else None

    @property
    def resume_dir(self) -> Path:
        """Where staging directories lie; with an object store, the local copies of its own."""
        base = (self.export_resume_dir or self.storage / "export_resume").expanduser().absolute()
        return base / f"bucket-{self.remote.label}" if self.remote else base

    @property
    def datasets_dir(self) -> Path:
        return self.storage / "datasets"
