#!/usr/bin/env bash
# What a packet costs in instructions, beside what was recorded: `make instructions`.
#
#     scripts/instructions.sh PROGRAM          compare with tests/instructions.txt; fail where a packet takes over 3 % more
#     RECORD=1 scripts/instructions.sh PROGRAM write that file anew
#
# callgrind counts; of two runs of a scenario of different lengths the difference is taken for a packet, and the generator's
# and the sink's part (the scenario `floor`) is subtracted. Instructions do not depend on what else the machine does, but on
# the compiler: with another one than that of the file nothing is compared. Where stations are looked up they depend a little
# on the seed of the hash, which is another in each run: half a per cent in five runs.
set -euo pipefail
program=$1
record=${RECORD:-}
figures=$(dirname "$0")/../tests/instructions.txt
scenarios=(ip4 ip6 ip4-multipath srv6-end srv6-end-dx2 srv6-end-dt6 srv6-h-encaps-1 mpls-push-1 mpls-swap ipip-encap ipip-encap-1000 fou-ipip-decap police-1r vxlan-encap vxlan-decap srv6-l2-encap)
# Bursts of 64 packets. The flows of a scenario come round every 64 bursts.
short=64 long=576

if ! command -v valgrind >/dev/null; then
    echo "instructions: no valgrind on this machine: skipped" >&2
    exit 0
fi
compiler=$(rustc --version)
recorded=$(sed -n 's/^# counted in what \(.*\) built$/\1/p' "$figures" 2>/dev/null || true)
if [ -z "$record" ] && [ "$compiler" != "$recorded" ]; then
    echo "instructions: the figures are of ${recorded:-no compiler}, this is $compiler: skipped" >&2
    echo "instructions: make instructions RECORD=1 on the commit before a change records what to compare it with" >&2
    exit 0
fi

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# The instructions of a run, into a file of its own.
count() {
    local scenario=$1 bursts=$2 log=$out/$1.$2.log
    if ! valgrind --tool=callgrind --callgrind-out-file="$out/$scenario.$bursts.out" \
        --toggle-collect='underpass_lab::bench::counted::counted' \
        "$program" bench --bursts "$bursts" "$scenario" >"$log" 2>&1; then
        cat "$log" >&2
        return 1
    fi
    sed -n 's/^summary: //p' "$out/$scenario.$bursts.out" >"$out/$scenario.$bursts"
    # Nothing counted is a name that callgrind did not find, not a packet that costs nothing.
    [ "$(cat "$out/$scenario.$bursts")" -gt 0 ] || { echo "instructions: nothing was counted of $scenario" >&2; return 1; }
}
export -f count
export out program

for scenario in floor "${scenarios[@]}"; do
    echo "$scenario $short"
    echo "$scenario $long"
done | xargs -P "$(nproc)" -L 1 bash -c 'count "$0" "$1" || exit 255' || exit 1

# What a packet takes, with a digit behind the point.
of() {
    echo "$(cat "$out/$1.$long") $(cat "$out/$1.$short") $(((long - short) * 64))" | awk '{ printf "%.1f", ($1 - $2) / $3 }'
}
floor=$(of floor)

if [ -n "$record" ]; then
    {
        echo "# Instructions that a packet takes, without the generator and the sink: written by make instructions RECORD=1,"
        echo "# compared by make instructions."
        echo "# counted in what $compiler built"
        for scenario in "${scenarios[@]}"; do
            echo "$scenario $(awk -v all="$(of "$scenario")" -v floor="$floor" 'BEGIN { printf "%.1f", all - floor }')"
        done
    } >"$figures.new"
    mv "$figures.new" "$figures"
    cat "$figures"
    exit 0
fi

status=0
printf '%-18s %10s %10s %8s\n' scenario recorded now change
for scenario in "${scenarios[@]}"; do
    before=$(awk -v name="$scenario" '$1 == name { print $2 }' "$figures")
    awk -v name="$scenario" -v before="${before:-0}" -v all="$(of "$scenario")" -v floor="$floor" 'BEGIN {
        now = all - floor
        if (before == 0) { printf "%-18s %10s %10.1f  not recorded\n", name, "", now; exit 1 }
        change = (now / before - 1) * 100
        printf "%-18s %10.1f %10.1f %+7.1f%%%s\n", name, before, now, change, (change > 3 ? "  SLOWER" : "")
        exit (change > 3)
    }' || status=1
done
if [ "$status" != 0 ]; then
    echo "instructions: a packet takes over 3 % more than recorded. Where that buys something, record it with the change" >&2
    echo "and say in its commit what: make instructions RECORD=1" >&2
fi
exit "$status"
