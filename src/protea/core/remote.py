"""A place in an object store: whole objects under one prefix of a bucket, through `pyarrow.fs`.

Every operation waits for a store that is away, with growing pauses and for a bounded time; what cannot get better by
waiting (no such bucket, no permission) is a StorageError at once. An object appears when its writer closes it, which a
writer that is interrupted may do too early: readers compare digests. Called by the store of inputs, by staging and by
publication; calls pyarrow.
"""

import contextlib
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from ..errors import ConfigError, StorageError

T = TypeVar("T")
LOG = logging.getLogger(__name__)
PATIENCE = 120.0
"""Seconds that an operation waits for a store that is away."""
CHUNK = 8 << 20
WORDS = ("region", "scheme", "endpoint_override", "allow_bucket_creation")
"""What the query of a URL may say; all else comes from the AWS_* variables and files."""
HOPELESS = re.compile(
    r"AWS Error (ACCESS_DENIED|NO_SUCH_BUCKET|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_\w+|"
    r"UNRECOGNIZED_CLIENT|MISSING_AUTHENTICATION_TOKEN|VALIDATION|ACCOUNT_PROBLEM)|HTTP status 30[17]"
)


class Remote:
    """The objects below `s3://bucket/prefix`; names are relative to it, with slashes.

    Errors: ConfigError for a URL that is none, StorageError for whatever the store says or does not say in time.
    """

    def __init__(self, url: str, patience: float | None = None) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        self.bucket, _, prefix = (parts.netloc.rpartition("@")[2] + unquote(parts.path)).partition("/")
        self.options: dict[str, Any] = dict(parse_qsl(parts.query))
        unknown = [k for k in self.options if k not in WORDS]
        odd = ":" in self.bucket or {".", ".."} & set(prefix.split("/"))
        if parts.scheme != "s3" or not self.bucket or odd or unknown:
            what = f"has the option {unknown[0]!r}" if unknown else "is no URL of a bucket"
            raise ConfigError(
                f"PROTEA_STORAGE_URL {what}",  # not shown: it may hold a key
                hint=f"it looks like s3://bucket/prefix, with {', '.join(WORDS)} after a question mark",
            )
        if (user := parts.username) is not None:
            self.options |= {"access_key": unquote(user), "secret_key": unquote(parts.password or "")}
        self.root = "/".join(p for p in (self.bucket, prefix.strip("/")) if p)
        self.patience = PATIENCE if patience is None else patience
        self._told = float("-inf")

    @property
    def uri(self) -> str:
        """Where this is, without keys and options."""
        return f"s3://{self.root}"

    @property
    def label(self) -> str:
        """Eight hex digits that tell this place from others, for names of local caches."""
        return hashlib.sha256(f"{self.options.get('endpoint_override')} {self.root}".encode()).hexdigest()[:8]

    @cached_property
    def filesystem(self) -> Any:
        import pyarrow as pa
        from pyarrow import fs

        options = dict(self.options)
        if "allow_bucket_creation" in options:
            options["allow_bucket_creation"] = options["allow_bucket_creation"].lower() in ("1", "true")
        here = (
            options.get("endpoint_override")
            or os.environ.get("AWS_ENDPOINT_URL_S3")
            or os.environ.get("AWS_ENDPOINT_URL")
        )
        if not here and not any(os.environ.get(v) for v in ("AWS_REGION", "AWS_DEFAULT_REGION")):
            options.setdefault("region", self._try(lambda: fs.resolve_s3_region(self.bucket)))
        try:
            return fs.S3FileSystem(
                **options, connect_timeout=5, request_timeout=10, allow_delayed_open=True,
                retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=2),
            )  # fmt: skip
        except (ValueError, TypeError, pa.ArrowException) as e:
            raise ConfigError(f"PROTEA_STORAGE_URL: {_one_line(e)}") from None

    def key(self, name: str) -> str:
        """How the filesystem calls an object."""
        return f"{self.root}/{name}"

    def name(self, uri: str) -> str:
        """The name of what a URI of `uri` and a name stands for. StorageError when it lies elsewhere."""
        if not uri.startswith(f"{self.uri}/"):
            raise StorageError(f"{uri} does not lie in {self.uri}", hint="set PROTEA_STORAGE_URL to where it was made")
        return uri.removeprefix(f"{self.uri}/")

    def put(self, name: str, source: Path | bytes) -> None:
        """Store a file, or some bytes, in place of what was there."""

        def write() -> None:
            with self.filesystem.open_output_stream(self.key(name)) as out:
                if isinstance(source, bytes):
                    out.write(source)
                    return
                with source.open("rb") as f:
                    while block := f.read(CHUNK):
                        out.write(block)

        self._try(write)

    def read(self, name: str) -> bytes | None:
        """The bytes of a small object, None when there is none."""

        def ask() -> bytes | None:
            try:
                with self.filesystem.open_input_stream(self.key(name)) as f:
                    return bytes(f.read())
            except FileNotFoundError:
                return None

        return self._try(ask)

    def get(self, name: str, path: Path) -> str | None:
        """Fetch an object into a new file, and make it durable; the SHA-256 of what came, None when there is none."""

        def fetch() -> str | None:
            try:
                with path.open("wb") as out:
                    sha256 = self._stream(name, out.write)
                    out.flush()
                    os.fsync(out.fileno())
                return sha256
            except FileNotFoundError:
                path.unlink(missing_ok=True)
                return None

        return self._try(fetch)

    def sha256(self, name: str) -> str | None:
        """The SHA-256 of an object (all of it is read), None when there is none."""

        def ask() -> str | None:
            try:
                return self._stream(name, lambda block: None)
            except FileNotFoundError:
                return None

        return self._try(ask)

    def _stream(self, name: str, use: Callable[[bytes], Any]) -> str:
        h = hashlib.sha256()
        with self.filesystem.open_input_stream(self.key(name)) as f:
            while block := f.read(CHUNK):
                h.update(block)
                use(block)
        return h.hexdigest()

    def sizes(self, prefix: str) -> dict[str, int]:
        """Bytes of every object below `prefix`, by its name relative to it."""
        from pyarrow import fs

        selector = fs.FileSelector(self.key(prefix), recursive=True, allow_not_found=True)
        found = self._try(lambda: self.filesystem.get_file_info(selector))
        start = len(self.key(prefix)) + 1
        return {info.path[start:]: info.size for info in found if info.is_file}

    def children(self, prefix: str) -> set[str]:
        """The names right below `prefix`."""
        return {name.partition("/")[0] for name in self.sizes(prefix)}

    def exists(self, name: str) -> bool:
        return bool(self._try(lambda: self.filesystem.get_file_info(self.key(name))).is_file)

    def delete(self, name: str) -> None:
        """Remove an object if it is there."""

        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                self.filesystem.delete_file(self.key(name))

        self._try(remove)

    def delete_all(self, prefix: str) -> None:
        """Remove every object below `prefix`."""

        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                self.filesystem.delete_dir(self.key(prefix))

        self._try(remove)

    def _try(self, ask: Callable[[], T]) -> T:
        """What `ask` gives, asked again while the store is away."""
        deadline = time.monotonic() + self.patience
        for pause in _pauses():
            try:
                return ask()
            except OSError as e:
                if e.errno is not None:
                    raise  # of our own disk
                said = _one_line(e)
                if HOPELESS.search(said):
                    raise StorageError(
                        f"{self.uri}: {said}", hint="see PROTEA_STORAGE_URL and the AWS_* keys"
                    ) from None
                if time.monotonic() > self._told + self.patience / 4:
                    self._told = time.monotonic()
                    LOG.warning("protea: %s cannot be reached, waiting up to %.0f s: %s", self.uri, self.patience, said)
                if time.monotonic() + pause > deadline:
                    hint = "what was finished is kept; when the store is back, run it again to go on"
                    raise StorageError(f"{self.uri} cannot be reached: {said}", hint=hint) from None
            time.sleep(pause)
        raise AssertionError


def _pauses() -> Iterator[float]:
    pause = 0.25
    while True:
        yield pause
        pause = min(2 * pause, 5.0)


def _one_line(e: BaseException) -> str:
    return "; ".join(line.strip() for line in str(e).splitlines() if line.strip())
