# Sets GPUMEMPROF_PYTHON: the first python of 3.10 or later, the system's before an environment's.
if [ -z "${GPUMEMPROF_PYTHON:-}" ]; then
	for candidate in /usr/bin/python3.12 /usr/bin/python3 python3; do
		if "$candidate" -S -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
			GPUMEMPROF_PYTHON=$candidate
			break
		fi
	done
fi
if [ -z "${GPUMEMPROF_PYTHON:-}" ]; then
	echo "no python3 of 3.10 or later was found; set GPUMEMPROF_PYTHON" >&2
	exit 2
fi
