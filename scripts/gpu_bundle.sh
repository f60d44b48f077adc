#!/bin/sh
# Makes build/gpu-bundle: gpumemprof with everything it needs but python3 (3.12), for a machine with a
# GPU and without a network. Copy the directory anywhere and run ./gpumemprof or tests/gpu/run.sh.
#
# libbpf is not loaded by its own name: libelf and libz, which it needs, would then have to be found
# through LD_LIBRARY_PATH, which the profiled command would inherit. Instead an empty library that
# needs libbpf carries a DT_RPATH of $ORIGIN. Unlike a RUNPATH that one also holds for what libbpf
# and libelf need themselves, and dlsym on its handle finds libbpf's functions. Nothing is patched.
set -eu
cd "$(dirname -- "$0")/.."
bundle=build/gpu-bundle
limit_mib=60
wheels=build/gpu-wheels
pip=".venv/bin/python -m pip --disable-pip-version-check --quiet"

rm -rf "$bundle"
mkdir -p "$bundle/lib" "$bundle/site" "$bundle/tests" "$wheels"

# Python: ours, and what pyproject.toml names for the command line and for the agent, but Kubernetes'
# client, which the agent loads only in a cluster. Pure wheels, so that any python runs them. PyYAML
# has none: its wheel for 3.12 is taken, and works without its compiled half.
.venv/bin/python - "$wheels/pure.txt" "$wheels/compiled.txt" <<'PYTHON'
import re, sys, tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
needs = project["dependencies"] + project["optional-dependencies"]["agent"]
named = {re.match(r"[\w-]+", need)[0].lower(): need for need in needs}
del named["kubernetes"]
compiled = [named.pop("pyyaml")]
for path, lines in zip(sys.argv[1:], (named.values(), compiled)):
    with open(path, "w") as file:
        file.writelines(f"{line}\n" for line in lines)
PYTHON
$pip install --target "$bundle/site" --no-compile --upgrade --only-binary :all: --platform any \
	--python-version 3.12 --implementation py --abi none -r "$wheels/pure.txt"
$pip install --target "$wheels/compiled" --no-compile --upgrade --only-binary :all: --no-deps \
	--platform manylinux2014_x86_64 --python-version 3.12 --implementation cp --abi cp312 \
	-r "$wheels/compiled.txt"
find "$wheels/compiled" -name '*.so' -delete
cp -R "$wheels/compiled/." "$bundle/site"
rm -rf "$bundle/site/bin" "$bundle/site/__pycache__"
if find "$bundle/site" -name '*.so' | grep -q .; then
	echo "gpu_bundle: a dependency is not pure Python:" >&2
	find "$bundle/site" -name '*.so' >&2
	exit 1
fi
tar -c --exclude __pycache__ gpumemprof | tar -x -C "$bundle/site"
test -s "$bundle/site/gpumemprof/probe/gpumemprof.bpf.o"

# libbpf and what it needs, as the linker finds them here; the C library is the machine's own.
libbpf=$(ldconfig -p | awk '/libbpf\.so\.1 .*x86-64/ { print $NF; exit }')
test -n "$libbpf" || { echo "gpu_bundle: libbpf.so.1 is not installed" >&2; exit 1; }
cp -L "$libbpf" "$bundle/lib/libbpf.so.1"
ldd "$libbpf" | awk '/=> \// { print $1, $3 }' | while read -r name path; do
	case $name in
	libc.so.* | ld-linux* | libpthread* | libdl* | libm.so*) ;;
	*) cp -L "$path" "$bundle/lib/$name" ;;
	esac
done
echo 'const char gpumemprof_libbpf[] = "needs libbpf.so.1";' | ${CC:-cc} -x c -shared -fPIC -s - -x none \
	-o "$bundle/lib/libbpf-bundle.so" -Wl,--no-as-needed "$bundle/lib/libbpf.so.1" \
	-Wl,--disable-new-dtags '-Wl,-rpath,$ORIGIN' "-Wl,-rpath-link,$bundle/lib"

# The checks, with the receiver that they push to, and the launcher.
tar -c --exclude __pycache__ tests/__init__.py tests/gpu tests/fakes/pyroscope_receiver.py \
	tests/fakes/pyroscope_rules.py | tar -x -C "$bundle"
cat > "$bundle/gpumemprof" <<'LAUNCHER'
#!/bin/sh
# gpumemprof out of this directory. The profiled command's environment stays as it is, but for
# GPUMEMPROF_LIBBPF, which only gpumemprof reads.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "$0")")" && pwd)
. "$here/tests/gpu/python.sh"
export GPUMEMPROF_LIBBPF="$here/lib/libbpf-bundle.so"
exec "$GPUMEMPROF_PYTHON" -E -s -S -c 'import sys
sys.path[0] = sys.argv.pop(1)
sys.argv[0] = "gpumemprof"
from gpumemprof.cli.main import main
sys.exit(main())' "$here/site" "$@"
LAUNCHER
chmod +x "$bundle/gpumemprof"
git describe --always --dirty > "$bundle/VERSION" 2>/dev/null || true

size=$(du -sm "$bundle" | cut -f1)
echo "$bundle: $size MiB"
if [ "$size" -ge "$limit_mib" ]; then
	echo "gpu_bundle: larger than $limit_mib MiB" >&2
	exit 1
fi
