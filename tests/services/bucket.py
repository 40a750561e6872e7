"""An S3 server of the tests' own: SeaweedFS, from a wheel."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from tests.services.postgres import ServiceFailed, free_port
from tests.services.shared import dies_with_us

BUCKET = "moorage-tests"
ACCESS = {"access_key": "tests", "secret_key": "tests-only", "region_name": "us-east-1"}
READY_WITHIN = 120.0


def s3_url(endpoint: str, prefix: str) -> str:
    """The STORAGE_URL of a prefix in the tests' bucket."""
    return f"s3://{BUCKET}/{prefix}?{urlencode({'endpoint_url': endpoint, **ACCESS})}"


@contextmanager
def seaweedfs() -> Iterator[str]:
    """Runs a server with the tests' bucket; gives its endpoint."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    folder = Path(tempfile.mkdtemp(prefix="moorage-s3-"))
    ports = {name: free_port() for name in ("master", "volume", "filer", "s3")}
    config = folder / "s3.json"
    config.write_text(
        '{"identities": [{"name": "tests", "credentials": [{"accessKey": "tests", "secretKey": "tests-only"}],'
        ' "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}'
    )
    command = [str(Path(sys.executable).with_name("weed")), "server", f"-dir={folder}", "-ip=127.0.0.1", "-s3"]
    command += [f"-s3.config={config}", "-volume.max=20", "-master.volumeSizeLimitMB=64"]
    for name, port in ports.items():
        grpc = free_port()
        command += [f"-{name}.port={port}", f"-{name}.port.grpc={grpc}"]
    endpoint = f"http://127.0.0.1:{ports['s3']}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(dies_with_us(command), stdout=log, stderr=log, start_new_session=True, cwd=folder)
    try:
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id=ACCESS["access_key"],
            aws_secret_access_key=ACCESS["secret_key"],
            region_name=ACCESS["region_name"],
            config=Config(retries={"max_attempts": 0}, connect_timeout=2, read_timeout=5),
        )
        deadline = time.monotonic() + READY_WITHIN
        while True:
            try:
                client.create_bucket(Bucket=BUCKET)
                client.put_object(Bucket=BUCKET, Key="ready", Body=b"yes")
                break
            except client.exceptions.BucketAlreadyOwnedByYou:
                time.sleep(0.3)
            except (BotoCoreError, ClientError):
                if process.poll() is not None or time.monotonic() > deadline:
                    words = (folder / "log").read_text(errors="replace")[-2000:]
                    raise ServiceFailed(f"SeaweedFS did not start: {words}") from None
                time.sleep(0.3)
        yield endpoint
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)
