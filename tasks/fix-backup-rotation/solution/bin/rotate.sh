#!/bin/sh
# Deletes old backups: rotate.sh DIR KEEP
# A backup is a file DIR/NAME-YYYY-MM-DD.tar.gz; the KEEP newest of each NAME stay.
set -eu

fail() {
    printf 'rotate.sh: %s\n' "$1" >&2
    exit 2
}

[ $# -eq 2 ] || fail "usage: rotate.sh DIR KEEP"
dir=$1
keep=$2
case $keep in
'' | *[!0-9]*) fail "KEEP is a whole number of 1 or more, not '$keep'" ;;
esac
[ "$keep" -ge 1 ] || fail "KEEP is a whole number of 1 or more, not '$keep'"
[ -d "$dir" ] || fail "no such folder: $dir"

d='[0-9]'
for path in "$dir"/*-$d$d$d$d-$d$d-$d$d.tar.gz "$dir"/.*-$d$d$d$d-$d$d-$d$d.tar.gz; do
    if [ -f "$path" ] && [ ! -L "$path" ]; then
        printf '%s\n' "${path##*/}"
    fi
done | awk -v keep="$keep" '
    { name = substr($0, 1, length($0) - 18); date = substr($0, length($0) - 16, 10); print name "\t" date "\t" $0 }
' | sort -t "$(printf '\t')" -k 1,1 -k 2,2r | awk -F '\t' -v keep="$keep" '
    $1 != name { name = $1; count = 0 }
    ++count > keep { print $3 }
' | sort | while IFS= read -r file; do
    rm -f -- "$dir/$file"
    printf '%s\n' "$dir/$file"
done
