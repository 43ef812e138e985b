#!/usr/bin/env bash
# A layer includes only what is below it. Prints every include line that breaks a rule, with the
# rule, and then exits with 1.
#
#   1. src/LAYER/ includes only from LAYER itself and from the layers before it in the list.
#   2. Public headers include nothing from src/: they are what applications see.
#   3. An index knows no fabric by name.
#   4. Includes name the path from src/, never "../".
#   5. A folder of src/fabric/ includes only those that the list below has it use, each of which stands
#      before it: so there is no cycle, and fabrics know nothing of one another. What lies in
#      src/fabric/ itself is below all of them, but open.h, which is above.
#   6. src/index/common/ knows no index: of src/index/ it includes itself and index.h. Nor does the toy
#      index of the tests include more than an index outside of blink/ may.
#   7. What runs in simulated time asks the machine for neither time, threads nor randomness: the pool,
#      the indexes, the simulation. (A line that knows better says "not simulated".)
#
# usage: tests/layers.sh [REPOSITORY]

set -euo pipefail
cd -- "${1:-$(dirname -- "${BASH_SOURCE[0]}")/..}"

readonly layers="base task fabric region pool index innet api lab cli"
# FOLDER:what,it,uses. The simulation runs the real tcp clients and memory nodes on sockets of its own.
readonly fabrics="wire: etcd:wire node:wire embedded: mapped:wire,node remote:wire,etcd tcp:wire,remote
  rdma:wire,node,remote sim:wire,node,remote,tcp"

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

while IFS= read -r line; do
  printf '%s\n    %s\n' "$line" "the toy index is made of index/common/ and what is below it"
  status=1
done < <(grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' /dev/null tests/support/toy_index.* 2>/dev/null |
           grep -vE '"(support/toy_index\.h|index/index\.h|index/common/.*|(pool|task|base)/.*|fabric/verbs\.h)"')

find "${folders[@]}" -type f \( -name '*.h' -o -name '*.cc' \) -print0 | sort -z |
  xargs -0 -r grep -HnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' |
  awk -v layers="$layers" -v fabrics="${fabrics//$'\n'/ }" '
    BEGIN {
      count = split(layers, order, " ")
      for (i = 1; i <= count; i++) rank[order[i]] = i
      count = split(fabrics, order, " ")
      for (i = 1; i <= count; i++) {
        split(order[i], line, ":")
        uses[line[1], line[1]] = known[line[1]] = 1
        used = split(line[2], below, ",")
        for (j = 1; j <= used; j++) {
          uses[line[1], below[j]] = 1
          if (!(below[j] in known)) {
            print "tests/layers.sh: fabric/" line[1] " uses " below[j] ", which does not stand before it"
            offences++
          }
        }
      }
    }
    # A file of src/fabric/ includes another: what is wrong with that, if anything.
    function fabric_offence(file, target,   from, to) {
      from = split(file, at_folder, "/") > 3 ? at_folder[3] : ""
      to = split(target, part_folder, "/") > 2 ? part_folder[2] : ""
      if (from != "" && !(from in known)) return "src/fabric/" from "/ is not in the list of tests/layers.sh"
      if (to == "") return from != "" && target == "fabric/open.h" ? "fabric/open.h is above all fabrics" : ""
      if (from == "") return file ~ /\/open\.cc$/ ? "" : "what lies in src/fabric/ is below its folders"
      return (from, to) in uses ? "" : "fabric/" from " does not use fabric/" to
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
      else if (at[1] ~ /^src\/index\/common\// && part[1] == "index" && target !~ /^index\/(common\/|index\.h$)/)
        offence("index/common/ knows no index")
      else if (layer == "fabric" && part[1] == "fabric" && (why = fabric_offence(at[1], target)) != "")
        offence(why)
    }
    END { exit offences > 0 }' || status=1
exit "$status"
