#!/bin/sh
# gpupool-checkpoint: how a workload says that its checkpoint is written.  gpupool-checkpoint done
set -eu
if [ "$#" -ne 1 ] || [ "$1" != done ]; then
    echo "usage: gpupool-checkpoint done" >&2
    exit 2
fi
if [ -z "${GPUPOOL_CHECKPOINT_DIR:-}" ]; then
    echo "gpupool-checkpoint: GPUPOOL_CHECKPOINT_DIR is not set: this is not a gpupool workload" >&2
    exit 1
fi
new="$GPUPOOL_CHECKPOINT_DIR/.done.$$"
echo "${GPUPOOL_ATTEMPT:-}" > "$new"
mv -f "$new" "$GPUPOOL_CHECKPOINT_DIR/.done"
