"""Text inputs as streams of bytes: gzip known by its content, hashed on the way, cut into blocks of whole lines.

Called by every reader of `core` (OBO, GAF, FASTA, taxdump, tables); calls isal for decompression. Nothing here holds
more than a few blocks of the file, whatever its size.
"""

import gzip
import hashlib
import io
import os
import re
import select
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from isal import igzip, isal_zlib

from protea.core import limits
from protea.errors import InputError, NotFoundError

BLOCK_SIZE = 16 << 20
MAX_LINE = 64 << 20
MARGIN = 64 << 10
"""Bytes that a buffer has beyond a block: what is left of the one before mostly fits."""
_NEWLINE = re.compile(rb"\n")
_BOM = b"\xef\xbb\xbf"
_FOREIGN = {b"PK\x03\x04": "a zip archive", b"\xfd7zXZ\x00": "xz-compressed", b"\x28\xb5\x2f\xfd": "zstd-compressed"}


class HashingReader(io.RawIOBase):
    """The uncompressed bytes of `raw` (a binary file that need not be seekable) with their SHA-256.

    `name` is what errors call the file. Errors: InputError when it is truncated, damaged, unreadable, compressed
    by something other than gzip, or unpacks to far more than it is (`limits`).
    """

    def __init__(self, raw: BinaryIO, name: str) -> None:
        self.name = name
        self._raw = _Counter(raw)
        buffered = io.BufferedReader(self._raw, 1 << 20)
        self._hash = hashlib.sha256()
        self._lock = threading.Lock()
        self._limited, self._size = not limits.allowed(), 0
        self._stream: io.BufferedIOBase = buffered
        with _errors(self.name):
            head = buffered.peek(10)[:10]
        if head[:2] == b"\x1f\x8b":
            self._stream = igzip.IGzipFile(fileobj=buffered, mode="rb")
        bzip2 = head[:3] == b"BZh" and head[4:10] == b"1AY&SY"
        what = "bzip2-compressed" if bzip2 else next((w for m, w in _FOREIGN.items() if head.startswith(m)), None)
        if what:
            raise InputError(f"{name} is {what}", hint="give it as plain text or gzip")

    @property
    def sha256(self) -> str:
        """Hex SHA-256 of the uncompressed bytes read so far: that of the file once it is read to its end."""
        return self._hash.hexdigest()

    @property
    def consumed(self) -> int:
        """Bytes of the file as it lies on disk (compressed) that were read so far."""
        return self._raw.count

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # any writable buffer
        """Fill `buffer` as far as the file goes; 0 only at its end."""
        view, filled = memoryview(buffer).cast("B"), 0
        with self._lock, _errors(self.name):
            while filled < len(view) and (n := self._stream.readinto(view[filled:])):
                filled += n
        self._hash.update(view[:filled])
        self._size += filled
        if self._limited and self._size > limits.LARGE and self._size > limits.MAX_RATIO * self.consumed:
            raise limits.too_large(self.name, self.consumed, self._size)
        return filled

    def stop(self) -> None:
        """End the file here, for a thread that waits in a read of it."""
        self._raw.stopped = True

    def close(self) -> None:
        """Close the file, after the read that a thread of `blocks` may be in."""
        with self._lock:
            if not self.closed:
                self._raw.close()
            super().close()


class _Counter(io.RawIOBase):
    """A binary file that counts the bytes it gave. `stopped`: it ends, even while nothing comes out of a pipe."""

    def __init__(self, raw: BinaryIO) -> None:
        self._file = raw
        self.count = 0
        self.stopped = False
        self._pipe: select.poll | None = None
        if isinstance(raw, io.FileIO) and not stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
            self._pipe = select.poll()
            self._pipe.register(raw.fileno(), select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while self._pipe is not None and not self.stopped and not self._pipe.poll(100):
            pass
        if self.stopped:
            return 0
        view = memoryview(buffer).cast("B")
        data = self._file.read(len(view))
        view[: len(data)] = data
        self.count += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


@contextmanager
def _errors(name: str) -> Iterator[None]:
    """Turns what decompression and the system say into InputError."""
    try:
        yield
    except EOFError as e:
        raise InputError(f"{name} is truncated: the gzip stream ends early", hint="fetch it again") from e
    except (gzip.BadGzipFile, isal_zlib.error) as e:  # type: ignore[misc]  # isal's stubs call the class an instance
        raise InputError(f"{name} is damaged: {e}", hint="fetch it again") from e
    except OSError as e:
        raise InputError(f"{name} cannot be read: {e.strerror or e}") from e


def is_directory(path: str | Path) -> bool:
    """Whether `path` is a directory. NotFoundError when it is not there, InputError when that cannot be told."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError) as e:
        raise NotFoundError(f"{path}: there is no such file") from e
    except (OSError, ValueError) as e:  # a name that is too long, or holds the character 0
        raise InputError(f"{path} cannot be read: {getattr(e, 'strerror', None) or e}") from e


def open_text(path: str | Path) -> HashingReader:
    """Open a plain or gzipped file. Errors: NotFoundError when it is not there; InputError as HashingReader's."""
    try:
        raw = open(path, "rb", buffering=0)  # noqa: SIM115  # closed by the reader
    except FileNotFoundError as e:
        raise NotFoundError(f"{path}: no such file") from e
    except OSError as e:
        raise InputError(f"{path} cannot be read: {e.strerror or e}") from e
    try:
        return HashingReader(raw, str(path))
    except BaseException:
        raw.close()
        raise


def blocks(
    reader: HashingReader, size: int = BLOCK_SIZE, max_line: int = MAX_LINE, reuse: bool = False
) -> Iterator[memoryview]:
    """Blocks of whole lines, about `size` bytes each, to the end of the file; only the last may lack its newline.

    A block is fresh memory that the caller may keep, or with `reuse`, which saves the time of getting it from the system,
    memory that is good until the next block is asked for. The next one is read, decompressed and hashed on a thread while
    the caller works on this one. A UTF-8 byte order mark is left out (the hash has it).
    Errors: as HashingReader's; InputError naming the number of a line longer than `max_line` bytes.
    """
    source = _blocks(reader, size, max_line, reuse)
    with ThreadPoolExecutor(1, "protea-read") as pool:
        try:
            ahead = pool.submit(next, source, None)
            while (block := ahead.result()) is not None:
                ahead = pool.submit(next, source, None)
                yield block
        except BaseException:
            reader.stop()  # the thread is waited for
            raise


def _blocks(reader: HashingReader, size: int, max_line: int, reuse: bool) -> Iterator[memoryview]:
    rest, line, first = memoryview(b""), 1, True
    none = held = spare = np.empty(0, np.uint8)  # `held` is where the caller's block lies, `spare` the one before
    while True:
        room, spare = spare, none
        if not reuse or len(room) < len(rest) + size:
            room = np.empty(len(rest) + size + MARGIN, np.uint8)  # not a bytearray, which would be filled with zeros
        buffer: memoryview = room[: len(rest) + size].data
        buffer[: len(rest)] = rest
        filled = len(rest) + reader.readinto(buffer[len(rest) :])
        # Only the line that `rest` began can be longer than `size`.
        newline = _NEWLINE.search(buffer, len(rest), filled)
        if (newline.start() if newline else filled) > max_line:
            raise InputError(f"{reader.name}, line {line}: longer than {max_line} bytes", hint="is it a text file?")
        at_end = filled < len(buffer)
        cut = filled if at_end else _after_last_newline(buffer, len(rest), filled)
        block, rest = buffer[:cut], buffer[cut:filled]
        line += _newlines(block)
        if first and cut:
            block, first = block[3 * (bytes(block[:3]) == _BOM) :], False
        if len(block):
            yield block
            held, spare = room, held
        if at_end:
            return


def _after_last_newline(buffer: memoryview, start: int, stop: int) -> int:
    """One more than the place of the last newline in buffer[start:stop], or 0."""
    step = 1 << 16
    while stop > start:
        a = max(start, stop - step)
        if (found := bytes(buffer[a:stop]).rfind(b"\n")) >= 0:
            return a + found + 1
        stop = a
    return 0


def _newlines(block: memoryview) -> int:
    """How many there are; counted piece by piece, each of which stays in the CPU's cache."""
    data = np.frombuffer(block, np.uint8)
    return sum(int(np.count_nonzero(data[a : a + (1 << 18)] == 10)) for a in range(0, len(data), 1 << 18))
