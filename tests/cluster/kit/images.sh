#!/bin/bash
# images.sh DIR: builds the agent's image and that of the test's pods, and saves them in DIR as
# agent.tar and workload.tar for containerd. Run again it is quick: layers are kept by podman.
set -euo pipefail
dir=$(mkdir -p "$1" && cd "$1" && pwd)
kit=$(cd "$(dirname "$0")" && pwd)
cd "$kit/../../.."
export CONTAINERS_CONF=$kit/containers.conf
"$kit/base.sh"

build() { # build NAME ARGUMENT...
	local name=localhost/gpumemprof-test-$1 tar=$dir/$1.tar
	shift
	podman build --quiet --pull=never --network=host --isolation=oci --cgroup-manager=cgroupfs \
		--build-arg BASE=localhost/debian:bookworm-slim -t "$name" "$@" >/dev/null
	local id old
	old=$(cat "$tar.id" 2>/dev/null || true)
	id=$(podman image inspect --format '{{.Id}}' "$name")
	[ "$old" = "$id" ] && [ -s "$tar" ] && return
	rm -f "$tar"
	[ -z "$old" ] || podman image rm "$old" >/dev/null 2>&1 || true
	podman save --quiet --format oci-archive -o "$tar" "$name" >/dev/null
	echo "$id" >"$tar.id"
}

# pip behind a proxy of the machine's own: its certificates, elsewhere than where apt changes them
certificates=${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}
build agent -v "$certificates:/run/certificates.crt:ro" --build-arg PIP_CERT=/run/certificates.crt .

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
mkdir "$context/fakes"
cp build/fakes/{libcudart.so.12,driver_loop,driver_loop_dlopen,driver_only} "$context/fakes/"
cp tests/cluster/workload/{Dockerfile,work.py} "$context/"
build workload "$context"
# what earlier builds left; today's are the cache of the next
podman image prune --force --filter label=stage=gpumemprof-build --filter until=24h >/dev/null || true
