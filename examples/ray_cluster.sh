#!/bin/bash
# A Ray cluster over the hosts of one job: the head on the first, a worker on each of the others. It lives until the job is stopped.
#
#   gpupool job run --hosts 2 --gpus 4 --type training --max-runtime 8h -- bash ray_cluster.sh
#
# Ray's dashboard and its job API are behind the portal's own door: gpupool job open ID (docs/gangs.md). With a command as arguments
# the head runs it once all hosts are there, and the cluster ends with it: bash ray_cluster.sh python train.py
set -euo pipefail
: "${MASTER_ADDR:?the hosts of this job cannot reach each other, or it runs on one only}"
address=$(echo "$GPUPOOL_HOSTS" | cut -d, -f$((GPUPOOL_HOST_RANK + 1)))
dashboard=$((MASTER_PORT + 1)) # the gang's second port
# Ray makes sockets below its folder and in TMPDIR, whose paths may not be long.
folder=$(mktemp -d /tmp/ray.XXXXXX)
export TMPDIR=$folder
trap 'kill $(jobs -p) 2> /dev/null || true; wait; rm -rf "$folder"' EXIT
trap 'exit 143' TERM
export RAY_USAGE_STATS_ENABLED=0
units=(--node-ip-address="$address" --num-gpus="$GPUPOOL_UNITS_PER_HOST" --disable-usage-stats --block)

head_answers() {
    python3 -c "import socket; socket.create_connection(('$MASTER_ADDR', $MASTER_PORT), 5)" 2> /dev/null
}

if [ "$GPUPOOL_HOST_RANK" != 0 ]; then
    until head_answers; do sleep 1; done
    worker=
    while head_answers || { sleep 5 && head_answers; }; do # once it has ended, it says how
        if ! kill -0 "$worker" 2> /dev/null; then # not started yet, or the head was not ready for it
            ray start --address="$MASTER_ADDR:$MASTER_PORT" "${units[@]}" &
            worker=$!
        fi
        sleep 2
    done
    exit 0
fi

ray start --head --port="$MASTER_PORT" --dashboard-host=127.0.0.1 --dashboard-port="$dashboard" --temp-dir="$folder" "${units[@]}" &
head=$!
until python3 -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$dashboard/api/version', timeout=5)" 2> /dev/null; do
    kill -0 "$head"
    sleep 0.5
done
gpupool door "$dashboard" &
echo "Ray answers; open this job to see its dashboard"
if [ "$#" = 0 ]; then
    wait "$head"
    exit
fi
export RAY_ADDRESS=$MASTER_ADDR:$MASTER_PORT
until [ "$(ray status 2> /dev/null | grep -c ' node_')" -ge "$GPUPOOL_HOST_COUNT" ]; do
    sleep 2
done
"$@"
