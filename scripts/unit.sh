#!/usr/bin/env bash
# Every test of the workspace: `make unit`.
#
# The tests of routers in network namespaces (crates/underpass/tests/system) go by real time, six at once, and a machine that
# others use too may hold one of them up for longer than it waits. Where no more than a few of these fail, and nothing else
# does, each of them runs again alone: it has to pass then, and is named as one that did not pass beside others.
#
# A test that this machine cannot run (no root, no busybox) passes and prints SKIPPED: all of these lines stand at the end.
set -uo pipefail
most=3

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# What tests that pass print is kept in the log alone.
cargo test --workspace --locked --no-fail-fast -- --show-output 2>&1 | tee "$log" |
    sed -u '/^successes:$/,/^\(failures:\|test result:\)/ { /^\(failures:\|test result:\)/!d }'
status=${PIPESTATUS[0]}
if grep -q '^SKIPPED' "$log"; then
    echo "unit: skipped on this machine, $(grep -c '^SKIPPED' "$log") times:"
    grep '^SKIPPED' "$log" | sort | uniq -c
fi
[ "$status" != 0 ] || exit 0

# The targets that failed, as cargo names them behind all that the tests print.
mapfile -t targets < <(sed -n '/^error: [0-9]* targets\? failed:$/,$ s/^    `\(.*\)`$/\1/p' "$log")
if [ "${targets[*]-}" != "-p underpass --test system" ]; then
    exit "$status"
fi
# What they printed stands below the first such line, and a list of their names, indented, below the second.
mapfile -t failed < <(awk '/^failures:$/ { n = 0; on = 1 } /^(successes:|test result:)/ { on = 0 }
    on && /^    [a-z_0-9]+(::[a-z_0-9]+)+$/ { name[n++] = $1 }
    END { for (i = 0; i < n; i++) print name[i] }' "$log")
if [ ${#failed[@]} -eq 0 ] || [ ${#failed[@]} -gt "$most" ]; then
    exit "$status"
fi
for name in "${failed[@]}"; do
    echo "unit: $name failed beside others: alone, once more"
    # Of the whole workspace: for one crate alone the libraries are built anew, with fewer features.
    cargo test --workspace --locked --test system -- --exact "$name" 2>&1 | tee "$log"
    grep -q '^test result: ok. 1 passed' "$log" || exit "$status"
    echo "passed alone: $name"
done
