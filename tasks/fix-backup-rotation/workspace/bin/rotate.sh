#!/bin/sh
# Deletes old backups: rotate.sh DIR KEEP

for file in $(ls -t "$1" | tail -n +"$2"); do
    rm -f "$1/$file"
    echo "deleted $file"
done
