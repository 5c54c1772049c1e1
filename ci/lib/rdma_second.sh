#!/bin/bash
# The guest's second program, in its root folder: it runs the checks, says how they ended, and turns the power
# off.
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
# shellcheck source=/dev/null
. /run/image/settings
mkdir -p /dev/shm /run/lock
mount -t tmpfs shm /dev/shm
ip link set lo up
hostname rdma
ulimit -l unlimited
ulimit -n 65536
cd /tmp || exit 1
echo "rdma: guest: up after $(cut -d' ' -f1 /proc/uptime) s, $(uname -r)"
if [[ $(</proc/cmdline) == *rdma=shell* ]]; then
  bash -i
else
  export UCX_HOME=/run/image/ucx PYTHONPATH=/run/image:/run/image/conformance
  "$PYTHON" -u -c 'import sys, rdma_checks; sys.exit(rdma_checks.main())'
  echo "rdma: guest: ended with status $? after $(cut -d' ' -f1 /proc/uptime) s"
fi
sync
echo o >/proc/sysrq-trigger
sleep 60
