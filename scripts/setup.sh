#!/usr/bin/env bash
# Installs what building, testing and the demo need and this machine lacks: Debian packages (as root, or
# with sudo) and a Rust toolchain. Says nothing where all is there.
#
#     scripts/setup.sh deb        what `make deb` needs, too
set -euo pipefail

# The oldest compiler that builds the workspace: rust-version in Cargo.toml.
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")

have() { command -v "$1" >/dev/null 2>&1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif have sudo; then
        sudo "$@"
    else
        echo "setup: need root, or sudo, for: $*" >&2
        exit 1
    fi
}

install_packages() {
    if ! have apt-get; then
        echo "setup: this machine has no apt-get; please install the equivalent of: $*" >&2
        exit 1
    fi
    echo "setup: installing $*" >&2
    as_root apt-get -qq update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" >/dev/null
}

# Whether `cargo` is there and at least as new as wanted.
cargo_is_new_enough() {
    have cargo || return 1
    local version
    version=$(cargo --version 2>/dev/null | cut -d' ' -f2) || return 1
    [ "$(printf '%s\n' "$wanted" "${version:-0}" | sort -V | head -n1)" = "$wanted" ]
}

packages=()
have ip || packages+=(iproute2)
have tc || [[ " ${packages[*]-} " == *" iproute2 "* ]] || packages+=(iproute2)
have sysctl || packages+=(procps)
have ping || packages+=(iputils-ping)
have traceroute || packages+=(traceroute)
have cc || packages+=(gcc libc6-dev)
# Which libraries the package depends on, of which version.
[ "${1-}" != deb ] || have dpkg-shlibdeps || packages+=(dpkg-dev)

if ! cargo_is_new_enough && ! have rustup; then
    # Debian 13 and Ubuntu 24.04 have a package of it; elsewhere its own installer is fetched.
    # No `grep -q`: it would end first, and apt-cache's broken pipe would pass for no package.
    if have apt-cache && apt-cache policy rustup 2>/dev/null | grep 'Candidate: [0-9]' >/dev/null; then
        packages+=(rustup)
    else
        have curl || packages+=(curl)
        [ -e /etc/ssl/certs/ca-certificates.crt ] || packages+=(ca-certificates)
    fi
fi
[ ${#packages[@]} -eq 0 ] || install_packages "${packages[@]}"

components=(rustfmt clippy)
if ! cargo_is_new_enough; then
    echo "setup: installing Rust (at least $wanted)" >&2
    if have rustup; then
        # Its `cargo` names no toolchain yet, or an old one.
        rustup toolchain install stable --profile minimal --component "${components[@]}" >&2
        [ -n "$(rustup default 2>/dev/null || true)" ] || rustup default stable >&2
    else
        # The installer itself, from the host that has the toolchains too.
        installer=$(mktemp -d)
        url="https://static.rust-lang.org/rustup/dist/$(uname -m)-unknown-linux-gnu/rustup-init"
        curl --proto '=https' --tlsv1.2 -sSf -o "$installer/rustup-init" "$url"
        chmod +x "$installer/rustup-init"
        "$installer/rustup-init" -y --quiet --profile minimal --default-toolchain stable --no-modify-path \
            --component rustfmt --component clippy >&2
        rm -r "$installer"
    fi
    hash -r
    cargo_is_new_enough || {
        echo "setup: cargo is still older than $wanted: $(cargo --version 2>&1)" >&2
        exit 1
    }
fi

for component in "${components[@]}"; do
    tool=${component/clippy/cargo-clippy}
    have "$tool" && "$tool" --version >/dev/null 2>&1 || rustup component add "$component" >&2
done
