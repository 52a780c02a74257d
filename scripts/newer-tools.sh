#!/usr/bin/env bash
# Unpacks iproute2 and FRR of a newer Debian than this machine's, with all that they need, for tests that run them beside
# this machine's own: into TARGET/newer, which such a test has at /usr in a mount namespace of its own. Nothing is installed.
#
#     scripts/newer-tools.sh           of Debian 13: iproute2 6.15, FRR 10.3
#     scripts/newer-tools.sh SUITE     of another one, in the place of what is there
#
# Needs apt, Debian's archive and its keys; takes about twenty seconds and 180 MB.
set -euo pipefail

suite=${1:-trixie}
packages=(iproute2 frr bash coreutils dash grep sed procps)
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
mirror=${UNDERPASS_DEBIAN_MIRROR:-http://deb.debian.org/debian}
keys=/usr/share/keyrings/debian-archive-keyring.gpg

work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/tree"
echo "deb [signed-by=$keys] $mirror $suite main" >"$work/sources.list"
: >"$work/status"
# An apt that knows of no installed package, and of that suite alone.
options=(
    -qq
    -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null
    -o "Dir::State=$work" -o "Dir::State::status=$work/status" -o "Dir::State::lists=$work/lists"
    -o "Dir::Cache=$work" -o "Dir::Cache::archives=$work/archives"
    -o APT::Sandbox::User=root -o APT::Install-Recommends=false -o Acquire::Languages=none
    # Who cleans up behind an apt of the machine, as a container's does, leaves this one alone.
    -o APT::Update::Post-Invoke=/bin/true -o APT::Keep-Downloaded-Packages=true
)
apt-get "${options[@]}" update
apt-get "${options[@]}" -y --download-only install "${packages[@]}" </dev/null >/dev/null
for package in "$work"/archives/*.deb; do
    dpkg-deb -x "$package" "$work/tree"
done
rm -rf "$work"/tree/usr/share/{doc,man,locale}
# Older packages have these beside /usr.
for directory in bin sbin lib lib64; do
    if [ -d "$work/tree/$directory" ] && [ ! -L "$work/tree/$directory" ]; then
        cp -a "$work/tree/$directory/." "$work/tree/usr/$directory/"
    fi
done
echo "$suite" >"$work/tree/usr/suite"
rm -rf "$target/newer.old"
mkdir -p "$target"
[ ! -e "$target/newer" ] || mv "$target/newer" "$target/newer.old"
mv "$work/tree/usr" "$target/newer"
rm -rf "$target/newer.old"
