#!/usr/bin/env bash
# Everything that needs a GPU, once, in under eight minutes: the tests marked gpu, then what reuse saves on the device.
#
#   benchmarks/gpu.sh
#
# Downloads nothing. Uses .venv if `make` has built one, else the python of PATH. GPU=1 benchmarks/gpu.sh takes another
# device. All output goes to benchmarks/results/gpu-<date>.txt, a summary to the screen.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

python=.venv/bin/python
[ -x "$python" ] || python=$(command -v python3 || command -v python) || { echo "gpu.sh: no python here; run 'make lint' once, which installs everything into .venv" >&2; exit 2; }
export CUDA_VISIBLE_DEVICES="${GPU:-${CUDA_VISIBLE_DEVICES-0}}"
export PYTHONPATH="$PWD" HF_HUB_OFFLINE=1

if ! "$python" -c 'import torch, transformers, pytest, engine' 2>/dev/null; then
  echo "gpu.sh: $python lacks torch, transformers or pytest; run 'make lint' once, which installs everything into .venv" >&2
  exit 2
fi
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  echo "gpu.sh: torch sees no CUDA device; run this on a machine with an NVIDIA GPU and its driver, with a torch built for CUDA (this one: $("$python" -c 'import torch; print(torch.__version__)'))" >&2
  exit 3
fi

mkdir -p benchmarks/results
report="benchmarks/results/gpu-$(date +%Y-%m-%d-%H%M%S).txt"
failed=()
summary=()

# step NAME SECONDS COMMAND...: runs it into the report; its end, or what went wrong, goes into the summary.
step() {
  local name=$1 limit=$2 began=$SECONDS code
  shift 2
  echo "gpu.sh: $name ..." >&2
  printf '\n== %s: %s\n' "$name" "$*" >>"$report"
  timeout --kill-after=10 "$limit" "$@" >>"$report" 2>&1
  code=$?
  if [ "$code" -eq 0 ]; then
    summary+=("ok      $name ($((SECONDS - began)) s)")
  elif [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
    summary+=("LATE    $name: stopped after $limit s")
    failed+=("$name")
  else
    summary+=("FAILED  $name: exit code $code")
    failed+=("$name")
  fi
}

{
  date
  git rev-parse HEAD 2>/dev/null
  "$python" -c 'import platform, torch
d = torch.cuda.get_device_properties(0)
print(f"{d.name}, {d.total_memory >> 20:,} MiB, compute {d.major}.{d.minor}, CUDA {torch.version.cuda}, torch {torch.__version__}, Python {platform.python_version()}")'
  command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=driver_version,clocks.max.sm --format=csv
} | tee "$report"

step "tests" 260 "$python" -m pytest -m gpu -p no:cacheprovider tests/gpu tests/contract/test_engine_arenas.py
for family in gemma3 deepseek_v4; do
  step "generation, $family" 80 "$python" -m benchmarks.generation \
    --family "$family" --device cuda --dtype bfloat16 --size gpu --rounds 3
done
if "$python" -m benchmarks.restore --help | grep -q -- --device; then
  step "restore" 40 "$python" -m benchmarks.restore --device cuda --rounds 3
else
  summary+=("-       restore: benchmarks.restore takes no --device yet")
fi

{
  echo
  printf '%s\n' "${summary[@]}"
  grep -E '^(FAILED|ERROR) |[0-9]+ passed' "$report" | head -20
  sed -n '/shared tokens; /,/^$/p; /restore with checksums/,/^$/p' "$report" | cut -c1-150 # the tables, with their titles
} >"$report.summary"
cat "$report.summary"
cat "$report.summary" >>"$report"
rm -f "$report.summary"
echo "all of it: $report"
[ "${#failed[@]}" -eq 0 ]
