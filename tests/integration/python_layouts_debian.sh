#!/bin/sh
# Unpack Debian's newest interpreters, with their headers and the C library they need, into
# build/pythons: the machine's own packages stay as they are. The tests use what is there.
# Usage: python_layouts_debian.sh [version ...]     (default: 3.13 3.14 3.15)
set -eu

top=$(cd "$(dirname "$0")/../.." && pwd)/build/pythons
mkdir -p "$top/state/lists/partial" "$top/cache/archives/partial" "$top/debs" "$top/root"
cd "$top"

mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep '/debian/*$' | head -n 1)
key=/usr/share/keyrings/debian-archive-keyring.gpg
: > state/status
echo "deb [signed-by=$key] $mirror sid main" > sources.list
cat > apt.conf <<EOF
Dir::Etc::sourcelist "$top/sources.list";
Dir::Etc::sourceparts "/nonexistent";
Dir::State "$top/state";
Dir::State::status "$top/state/status";
Dir::Cache "$top/cache";
APT::Sandbox::User "root";
EOF
export APT_CONFIG="$top/apt.conf"
apt-get -qq update

packages="libc6 libexpat1 zlib1g libgcc-s1 libzstd1 libssl3t64 libffi8"
for version in ${*:-3.13 3.14 3.15}; do
	packages="$packages python$version-minimal libpython$version-minimal"
	packages="$packages libpython$version-stdlib libpython$version-dev libpython$version"
done
cd debs
for package in $packages; do
	# A version may have left the archive, or not be there yet.
	apt-get -qq download "$package" || echo "not available: $package" >&2
done
cd ..
for deb in debs/*.deb; do
	dpkg-deb -x "$deb" root
done
for directory in lib lib64 bin; do
	ln -sfn "usr/$directory" "root/$directory"
done
mkdir -p root/tmp root/proc
