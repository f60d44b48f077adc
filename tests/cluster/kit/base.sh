#!/bin/bash
# base.sh: the local image localhost/debian:bookworm-slim, made from the distribution's own archive
# where no image registry can be reached. Like the published one it has no manuals and no locales.
set -euo pipefail
name=localhost/debian:bookworm-slim
podman image exists $name && exit
mirror=$({ cat /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null || true; } |
	sed -n 's/^URIs: *\([^ ]*\).*/\1/p; s/^deb \(\[[^]]*\] \)\?\([^ ]*\) .*/\2/p' | sed -n 1p)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
debootstrap --variant=minbase bookworm "$root" "$mirror" >"$root.log" 2>&1 || { tail "$root.log" >&2; exit 1; }
rm -rf "$root.log" "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,info,locale}/*
cat >"$root/etc/dpkg/dpkg.cfg.d/slim" <<-'SLIM'
	path-exclude /usr/share/doc/*
	path-include /usr/share/doc/*/copyright
	path-exclude /usr/share/man/*
	path-exclude /usr/share/info/*
	path-exclude /usr/share/locale/*
SLIM
tar -C "$root" -c . | podman import - $name >/dev/null
