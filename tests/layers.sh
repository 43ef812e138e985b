#!/usr/bin/env bash
# A layer includes only what is below it. Prints every include line that breaks a rule, with the
# rule, and then exits with 1.
#
#   1. src/LAYER/ includes only from LAYER itself and from the layers before it in the list.
#   2. Public headers include nothing from src/: they are what applications see.
#   3. An index knows no fabric by name.
#   4. Includes name the path from src/, never "../".
#   5. What runs in simulated time asks the machine for neither time, threads nor randomness: the pool,
#      the indexes, the simulation. (A line that knows better says "not simulated".)
#
# usage: tests/layers.sh [REPOSITORY]

set -euo pipefail
cd -- "${1:-$(dirname -- "${BASH_SOURCE[0]}")/..}"

readonly layers="base task fabric region pool index innet api lab cli"

folders=()
for folder in include src; do
  [[ -d $folder ]] && folders+=("$folder")
done
((${#folders[@]})) || exit 0

status=0
while IFS= read -r line; do
  printf '%s\n    %s\n' "$line" "in simulated time there is no clock, thread or randomness of the machine"
  status=1
done < <(grep -rnE '(steady|system|high_resolution)_clock::now|std::j?thread\b|this_thread::|random_device' \
           src/pool src/index src/innet src/fabric/sim 2>/dev/null | grep -v 'not simulated')

find "${folders[@]}" -type f \( -name '*.h' -o -name '*.cc' \) -print0 | sort -z |
  xargs -0 -r grep -HnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' |
  awk -v layers="$layers" '
    BEGIN {
      count = split(layers, order, " ")
      for (i = 1; i <= count; i++) rank[order[i]] = i
    }
    function offence(why) {
      print $0 "\n    " why
      offences++
    }
    {
      split($0, at, ":")
      split(at[1], folder, "/")
      layer = folder[1] == "src" ? folder[2] : ""

      target = $0
      sub(/^[^"]*"/, "", target)
      sub(/".*$/, "", target)
      split(target, part, "/")

      if (target ~ /(^|\/)\.\.\//) offence("an include names the path from src/, never \"../\"")
      else if (layer == "" && part[1] in rank) offence("a public header includes nothing from src/")
      else if (layer == "" || !(part[1] in rank)) next
      else if (!(layer in rank)) offence("src/" layer "/ is not in the list of layers, tests/layers.sh")
      else if (rank[part[1]] > rank[layer]) offence(layer " is below " part[1])
      else if (layer ~ /^(index|innet)$/ && target ~ /^fabric\/(embedded|mapped|tcp|rdma|sim)([\/_.]|$)/)
        offence("an index knows no fabric by name")
    }
    END { exit offences > 0 }' || status=1
exit "$status"
