#!/bin/sh
# Checks gpumemprof against real CUDA programs, on a machine with a GPU (root):
#   tests/gpu/run.sh [NAME...]     which checks or groups (--list tells them); all by default
#   tests/gpu/run.sh selftest      the harness itself, against the stand-in libraries
# Results go to $OUT (default ./gpu-results). The profiler runs with GPUMEMPROF_PYTHON (default: a
# system python3 of 3.10 or later), the profiled programs with GPU_TEST_PYTHON (default: python3).
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$(dirname -- "$(dirname -- "$here")")
. "$here/python.sh"
flags="-E -s -S"
if [ -d "$root/site/gpumemprof" ]; then
	export GPUMEMPROF_LIBBPF="${GPUMEMPROF_LIBBPF:-$root/lib/libbpf-bundle.so}"
elif [ -x "$root/.venv/bin/python" ]; then
	# In a checkout the dependencies are the environment's.
	GPUMEMPROF_PYTHON="$root/.venv/bin/python"
	GPU_TEST_SITE=$("$GPUMEMPROF_PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	export GPU_TEST_SITE
fi
# shellcheck disable=SC2086
exec "$GPUMEMPROF_PYTHON" $flags "$here/harness.py" "$@"
