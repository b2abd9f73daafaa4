"""Streams: gzip by content, hashes, whole lines per block, and what is said of a bad file."""

import gzip
import hashlib
import io

import pytest

from protea.core.textio import HashingReader, blocks, open_text
from protea.errors import InputError, NotFoundError

TEXT = b"".join(b"line %d of the text\n" % i for i in range(5000))


def read(path, size=1000, **kw):
    with open_text(path) as reader:
        parts = [bytes(b) for b in blocks(reader, size, **kw)]
        return parts, reader.sha256, reader.consumed


def write(tmp_path, data, name="file"):
    path = tmp_path / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "data",
    [
        TEXT,
        gzip.compress(TEXT),
        gzip.compress(TEXT[:40000]) + gzip.compress(b"") + gzip.compress(TEXT[40000:]),
        gzip.compress(TEXT) + bytes(512),
    ],
    ids=["plain", "gzip", "members", "zero padding"],
)
@pytest.mark.parametrize("name", ["a.gz", "a.txt"])
def test_the_content_decides_not_the_name(tmp_path, data, name):
    parts, sha, consumed = read(write(tmp_path, data, name))
    assert b"".join(parts) == TEXT
    assert sha == hashlib.sha256(TEXT).hexdigest()
    assert consumed == len(data)


@pytest.mark.parametrize("size", [1, 7, 20, 21, 22, 1000, 1 << 20])
@pytest.mark.parametrize("tail", [b"", b"no newline", b"\n\n", b"\r\n"])
def test_blocks_hold_whole_lines_and_lose_nothing(tmp_path, size, tail):
    text = TEXT[:2000].rsplit(b"\n", 1)[0] + b"\n" + tail
    parts, sha, _ = read(write(tmp_path, text), size)
    assert b"".join(parts) == text
    assert all(p.endswith(b"\n") for p in parts[:-1])
    assert all(parts)
    assert sha == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("data", [b"", gzip.compress(b"", mtime=0)])
def test_an_empty_file_has_no_blocks(tmp_path, data):
    parts, sha, _ = read(write(tmp_path, data))
    assert parts == []
    assert sha == hashlib.sha256(b"").hexdigest()


def test_a_byte_order_mark_is_hashed_but_not_text(tmp_path):
    parts, sha, _ = read(write(tmp_path, b"\xef\xbb\xbf" + TEXT))
    assert b"".join(parts) == TEXT
    assert sha == hashlib.sha256(b"\xef\xbb\xbf" + TEXT).hexdigest()
    assert read(write(tmp_path, b"\xef\xbb\xbf"))[0] == []


PACKED = gzip.compress(TEXT, mtime=0)


@pytest.mark.parametrize("cut", [2, 5, 10, 100, len(PACKED) // 2, len(PACKED) - 8, len(PACKED) - 1])
def test_truncated(tmp_path, cut):
    for head in b"", PACKED:  # in the first member, in the second one
        with pytest.raises(InputError, match=r"file is truncated"):
            read(write(tmp_path, head + PACKED[:cut]))


@pytest.mark.parametrize("at", [3 + len(PACKED) // 2, len(PACKED) - 6, len(PACKED) - 2])
def test_damaged(tmp_path, at):
    bad = bytearray(PACKED)
    bad[at] ^= 0x55
    with pytest.raises(InputError, match=r"file is (damaged|truncated)"):
        read(write(tmp_path, bytes(bad)))


def test_garbage_after_the_last_member(tmp_path):
    with pytest.raises(InputError, match="damaged"):
        read(write(tmp_path, PACKED + b"<html>" * 9))


@pytest.mark.parametrize("size", [8, 64, 100])
def test_a_line_too_long_is_named(tmp_path, size):
    for tail in b"", b"\n", b"\nmore\n":
        path = write(tmp_path, b"a\nb\n\n" + b"x" * 101 + tail)
        with pytest.raises(InputError, match="line 4"):
            read(path, size, max_line=100)
        assert read(write(tmp_path, b"a\nb\n\n" + b"x" * 100 + tail), size, max_line=100)


def test_missing_directory_and_foreign(tmp_path):
    with pytest.raises(NotFoundError, match="nowhere"):
        open_text(tmp_path / "nowhere")
    with pytest.raises(InputError, match="cannot be read"):
        open_text(tmp_path)
    for magic, what in (
        (b"PK\x03\x04", "zip"),
        (b"BZh91AY&SY", "bzip2"),
        (b"\xfd7zXZ\x00", "xz"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
    ):
        with pytest.raises(InputError, match=what):
            open_text(write(tmp_path, magic + b"rest"))


def test_an_open_stream_that_cannot_seek(tmp_path):
    class Pipe(io.RawIOBase):
        data = io.BytesIO(PACKED)

        def readable(self):
            return True

        def read(self, n=-1):
            return self.data.read(min(n, 13))

    reader = HashingReader(Pipe(), "pipe")
    assert reader.read() == TEXT
    assert reader.sha256 == hashlib.sha256(TEXT).hexdigest()


def test_a_reader_that_stops_early_leaves_no_thread(tmp_path):
    with open_text(write(tmp_path, TEXT)) as reader:
        it = blocks(reader, 100)
        next(it)
        it.close()
