#!/bin/bash
# Brings what the tests on a real cluster need into build/kube: packages (as root), Kubernetes' own
# programs (built from their Go modules: a quarter of an hour of processor time from an empty build
# cache, half a minute from a warm one) and the images. Without Go it says so and ends with 3.
set -euo pipefail
kit=$(cd "$(dirname "$0")" && pwd)
cd "$kit/../../.."
say() { echo "cluster: $*" >&2; }

if [ ! -x build/kube/bin/kubelet ] && ! command -v go >/dev/null; then
	say "no Go here, and no Kubernetes programs in build/kube/bin: the tests on a cluster are left out"
	exit 3
fi
[ "$(id -u)" = 0 ] || { say "not root: the tests on a cluster are left out"; exit 3; }

packages=( # a package, and a program that it brings
	"etcd-server|etcd" "containerd|containerd" "runc|runc" "iptables|iptables"
	"containernetworking-plugins|/usr/lib/cni/ptp" "iproute2|ip" "openssl|openssl"
	"podman|podman" "buildah|buildah" "debootstrap|debootstrap" "util-linux|nsenter"
)
missing=()
for row in "${packages[@]}"; do
	command -v "${row#*|}" >/dev/null || missing+=("${row%%|*}")
done
if ((${#missing[@]})); then
	say "installing ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq
	apt-get install -y --no-install-recommends -qq "${missing[@]}" >/dev/null
fi

say "building Kubernetes"
"$kit/build.sh" build/kube/bin
say "building the images"
make -s fakes
"$kit/images.sh" build/kube/images
say "ready"
