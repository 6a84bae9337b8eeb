#!/bin/bash
# Start a Ray cluster on the hosts of one job: the head on the first host, a worker on each other host.
#
#   gpupool job run --hosts 2 --gpus 4 --type training --max-runtime 8h -- bash ray_cluster.sh
#   gpupool job run --hosts 2 --gpus 4 --type training --max-runtime 8h -- bash ray_cluster.sh python train.py
#
# Without a command, the cluster runs until the job is stopped. A command runs on the first host once all hosts
# have joined, and the cluster ends with it. `gpupool job open ID` opens Ray's dashboard and its job API in the
# portal (docs/gangs.md).
set -euo pipefail
: "${MASTER_ADDR:?the hosts of this job cannot reach each other, or it runs on one only}"
address=$(echo "$GPUPOOL_HOSTS" | cut -d, -f$((GPUPOOL_HOST_RANK + 1)))
dashboard=$((MASTER_PORT + 1)) # the gang's second port
# Ray creates unix sockets in its folder and in TMPDIR. The path of a unix socket has at most 107 bytes.
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
    # Run until the head has ended. The first host reports the exit code of the command.
    while head_answers || { sleep 5 && head_answers; }; do
        # Start the worker, and start it again if it ended because the head was not ready.
        if ! kill -0 "$worker" 2> /dev/null; then
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
