"""Regenerates gpumemprof/profile/pprof_pb2.py and .pyi from pprof.proto.

Generated code refuses a protobuf runtime older than its generator, so the generator is pinned to
the one that belongs to the oldest runtime we promise (protobuf 6.31), in an environment of its
own: the current runtime, which the tests use, is newer.
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

GENERATOR = "grpcio-tools==1.74.0"  # protoc 31
ROOT = Path(__file__).resolve().parent.parent
PROTO = "gpumemprof/profile/pprof.proto"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        venv.create(directory, with_pip=True)
        python = Path(directory) / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "-q", GENERATOR], check=True)
        subprocess.run(
            [python, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", "--pyi_out=.", PROTO],
            cwd=ROOT,
            check=True,
        )
    stub = (ROOT / PROTO).with_name("pprof_pb2.pyi")
    stub.write_text('# mypy: disable-error-code="type-arg"\n' + stub.read_text())


if __name__ == "__main__":
    sys.exit(main())
