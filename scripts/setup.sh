#!/bin/bash
# Prepares a checkout on Debian 12 or Ubuntu 22.04/24.04: installs the packages that are missing,
# creates .venv from the distribution's python3, installs this project into it.
# Run again it only checks. It fetches from nowhere but apt and pip as they are configured.
#
#   scripts/setup.sh          what it takes to build and to use it
#   scripts/setup.sh tests    and to develop it: make test, make lint
#   PYTHON=/path/to/python3   the interpreter for .venv (default /usr/bin/python3, 3.10 or newer)
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "setup: $*" >&2; }
fail() { say "$*"; exit 1; }

# Ubuntu has bpftool among its kernel tools.
bpftool=bpftool
grep -q '^ID=ubuntu' /etc/os-release 2>/dev/null && bpftool=linux-tools-generic

# A package, and the test that what it is needed for is there (it may come from elsewhere).
packages=(
	"clang|command -v clang"                     # compiles the BPF programs
	"libbpf-dev|test -e /usr/include/bpf/bpf_helpers.h" # their helpers, and libbpf itself
	"gcc|command -v gcc"                         # the stand-in CUDA libraries
	"libc6-dev|test -e /usr/include/stdio.h"
	"make|command -v make"
	"python3|test -x /usr/bin/python3"
	"python3-venv|/usr/bin/python3 -c 'import ensurepip, venv'"
)
for_tests=(
	"g++|command -v g++"                         # programs whose stacks are taken
	"gdb|command -v gdb"                         # stacks are compared with its own
	"libc6-dbg|test -d /usr/lib/debug/.build-id" # names inside libc, for the tests of unwinding
	"tmux|command -v tmux"                       # gpumemprof top is tested in a terminal
	"musl-tools|command -v musl-gcc"             # Python on musl finds its threads otherwise
	"prometheus|command -v prometheus && command -v promtool" # scrapes the agent, checks the alerts
	"$bpftool|test -x /usr/sbin/bpftool || command -v bpftool || ls /usr/lib/linux-tools/*/bpftool"
	"python3-dev|ls /usr/include/python3*/internal/pycore_frame.h" # layouts are compared with it
)
# The report is tested in it. Ubuntu has it as a snap only: there those tests are left out.
[ "$bpftool" = bpftool ] && for_tests+=("chromium|command -v chromium")
extras=agent
if [ "${1:-}" = tests ]; then
	packages+=("${for_tests[@]}")
	extras=agent,dev
fi

missing=()
for row in "${packages[@]}"; do
	bash -c "${row#*|}" >/dev/null 2>&1 || missing+=("${row%%|*}")
done

if ((${#missing[@]})); then
	install="apt-get install -y --no-install-recommends ${missing[*]}"
	command -v apt-get >/dev/null || fail "needs these packages (as Debian names them): ${missing[*]}"
	[ "$(id -u)" = 0 ] || fail "these packages are missing; run as root, then again: $install"
	say "installing ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq
	$install -qq >/dev/null
fi

python=${PYTHON:-/usr/bin/python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
	fail "$python is $("$python" --version 2>&1); Python 3.10 or newer is needed (set PYTHON=)"
[ -x .venv/bin/python ] || { say "creating .venv with $python"; "$python" -m venv .venv; }

stamp=.venv/.setup${1:+-$1}
want=$(sha256sum pyproject.toml | cut -d ' ' -f 1)
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
	say "installing the project into .venv"
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".[$extras]"
fi
echo "$want" >"$stamp" # written again, for make goes by its time
[ "$extras" = agent ] || echo "$want" >.venv/.setup
say "ready: .venv/bin/gpumemprof, make test, make demo"
