# Sourced by the scripts in ci/: one line per step with its time; what a step prints goes to a log, shown if it fails.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
venv=$root/.venv
log=$root/build/setup.log
mkdir -p "$root/build"

# step NAME COMMAND...: run it quietly; a failure shows its output and ends the script.
step() {
  local name=$1 start=$EPOCHREALTIME
  shift
  printf '\n== %s\n' "$name" >>"$log"
  [[ ! -t 1 ]] || printf '%s ...\r' "$name"
  if ! "$@" >"$log.step" 2>&1; then
    cat "$log.step" >>"$log"
    printf '%-58s FAILED\n' "$name"
    tail -n 40 "$log.step"
    printf '\nAll of the output is in %s\n' "${log#"$root"/}"
    exit 1
  fi
  cat "$log.step" >>"$log"
  done_line "$name" "$start"
}

done_line() {
  printf '%-58s %6.1f s\n' "$1" "$(awk "BEGIN { print $EPOCHREALTIME - $2 }")"
}

# note TEXT...: an indented line below a step.
note() { printf '    %s\n' "$@"; }

# fingerprint PATH...: changes when any file below changes, comes or goes.
fingerprint() {
  find "$@" -type f ! -path '*/__pycache__/*' -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1
}

# unchanged NAME VALUE: whether VALUE is what `remember NAME VALUE` kept last time.
unchanged() { [[ $(cat "$venv/.stamp-$1" 2>/dev/null) == "$2" ]]; }
remember() { printf '%s' "$2" >"$venv/.stamp-$1"; }
