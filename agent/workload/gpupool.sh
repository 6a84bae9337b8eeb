#!/bin/sh
# The gpupool command in a workload. It acknowledges a checkpoint, and opens a local port to the owner of the
# job. It passes all other commands to the next gpupool command on PATH, if one is installed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ "${1:-}" = door ]; then
    shift
    exec python3 "$here/../python/gpupool_contract.py" "$@"
fi
if [ "${1:-}" != checkpoint ]; then
    IFS=:
    for folder in $PATH; do
        if [ "$folder" != "$here" ] && [ -x "$folder/gpupool" ]; then
            unset IFS
            exec "$folder/gpupool" "$@"
        fi
    done
    echo "gpupool: in this workload there is only: gpupool checkpoint done, gpupool door PORT" >&2
    exit 2
fi
if [ "$#" -ne 2 ] || [ "$2" != done ]; then
    echo "usage: gpupool checkpoint done" >&2
    exit 2
fi
if [ -z "${GPUPOOL_CHECKPOINT_DIR:-}" ]; then
    echo "gpupool: GPUPOOL_CHECKPOINT_DIR is not set: this is not a gpupool workload" >&2
    exit 1
fi
new="$GPUPOOL_CHECKPOINT_DIR/.done.$$"
echo "${GPUPOOL_ATTEMPT:-}" > "$new"
mv -f "$new" "$GPUPOOL_CHECKPOINT_DIR/.done"
