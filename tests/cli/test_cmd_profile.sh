#!/bin/bash
# `sluice profile` writes cluster files: this machine with the times of a model's modules, by which `sluice plan` plans as it
# does by a profile of its own, and the links of a job.
. "$(dirname "$0")/../support/script.sh"

model=(--emsize 16 --nhid 16 --nlayers 3 --nhead 2 --ntokens 50 --seq-len 8)
runs "$program" profile "${model[@]}" --devices cpu:0 --optimizer adamw --profile-seconds 0.01 -o node.json
[ ! -s out ] && [ ! -s err ] || fail "-o: words"
python3 -c 'import json
[node] = json.load(open("node.json"))["nodes"]
assert node["devices"] == 1 and node["device"] == "cpu" and node["count"] == 1, node
assert node["memory_bytes"] > node["reserved_bytes"] > 0 and node["flops_f32"] > 1e6 and node["memory_bytes_per_s"] > 1e6, node
assert all(a[0] < b[0] for a, b in zip(node["efficiency"], node["efficiency"][1:])), node["efficiency"]
assert ", spread " in node["measured"], node
profile = node["profile"]
assert profile["precision"] == "f32" and profile["row_tokens"] == 8, profile
assert [group["count"] for group in profile["modules"]] == [1, 3, 1], profile
assert all(len(group["seconds"]) == len(profile["modules"][0]["seconds"]) > 1 for group in profile["modules"]), profile' ||
    fail "the file has other members"

# One row in one micro-batch takes as long as the profile says, and where each number comes from is said.
runs "$program" plan "${model[@]}" --batch-tokens 16 --cluster node.json --dp 1 --pp 1 --chunks 1 --recompute never --json
python3 -c 'import json
found = json.load(open("out"))
[plan] = found["plans"]
groups = json.load(open("node.json"))["nodes"][0]["profile"]["modules"]
def times(rung): return sum(group["count"] * sum(group["seconds"][rung][:2]) for group in groups)
assert abs(plan["pipeline_ms"] / (1e3 * times(1)) - 1) < 1e-6, (plan, times(1))
origins = {number["name"]: number["from"] for number in found["inputs"]}
assert origins["nodes[0].profile"].startswith("node.json:") and ", measured: sluice " in origins["nodes[0].profile"], origins
assert ", measured: sluice " in origins["nodes[0].flops_f32"] and origins["links.spine.latency_s"] == "default", origins' ||
    fail "another time than the profile has"

refused 1 "nodes[0].profile is of precision f32, but the plan's is bf16" "$program" plan "${model[@]}" --batch-tokens 64 --cluster node.json --precision bf16
refused 1 "nodes[0].profile is of rows of 8 tokens, but the plan's have 16" "$program" plan "${model[@]}" --seq-len 16 --batch-tokens 64 --cluster node.json
refused 1 "nodes[0].profile is of another model: it has 5 modules, but the plan's has 6" \
    "$program" plan "${model[@]}" --nlayers 4 --batch-tokens 64 --cluster node.json
refused 1 "nodes[0].profile is of another model: its module 0 has 800 parameters, of which 800 are trained, but the plan's has 816 and 816" \
    "$program" plan "${model[@]}" --ntokens 51 --batch-tokens 64 --cluster node.json
refused 1 "nodes[0].profile is of another model: its model has nhead 2, expected nhead 1" \
    "$program" plan "${model[@]}" --nhead 1 --batch-tokens 64 --cluster node.json
refused 1 "nodes[0].profile is of another model: its model has activation relu, expected activation gelu" \
    "$program" plan "${model[@]}" --activation gelu --batch-tokens 64 --cluster node.json
# A profile that does not say its model is one of each with such modules.
python3 -c 'import json
found = json.load(open("node.json"))
assert found["nodes"][0]["profile"].pop("model")["nhead"] == 2, found
json.dump(found, open("unnamed.json", "w"))' || fail "another model in the file"
runs "$program" plan "${model[@]}" --nhead 1 --batch-tokens 64 --cluster unnamed.json
# Of a saved model it is one of its config.json as well, and of no other.
runs "$program" profile --init "$models/llama3" --seq-len 6 --devices cpu:0 --profile-seconds 0 -o llama.json
mkdir config
cp "$models/llama3/config.json" config
runs "$program" plan --init config --seq-len 6 --batch-tokens 48 --cluster llama.json
sed -i 's/"max_position_embeddings": 48/"max_position_embeddings": 64/' config/config.json
refused 1 "nodes[0].profile is of another model: its model has max_position_embeddings 48, expected max_position_embeddings 64" \
    "$program" plan --init config --seq-len 6 --batch-tokens 48 --cluster llama.json
sed 's/"model_type": "llama"/"model_type": "llame"/' llama.json >unknown.json
refused 1 'nodes[0].profile.model: its model_type is "llame"' "$program" plan --init config --seq-len 6 --batch-tokens 48 --cluster unknown.json
refused 2 "--rack-nodes needs --links" "$program" profile "${model[@]}" --rack-nodes 2
refused 2 "--model has a vocabulary's size" "$program" profile --model smollm2-135m --ntokens 5
refused 1 "none/node.json" "$program" profile "${model[@]}" -o none/node.json

# The devices of a process are a level of their own, without any other process, where each has two cores.
python=$(cat <<'END'
import json, sys
links = json.load(open(sys.argv[1]))["links"]
assert links.keys() - {"list"} == set(sys.argv[2:]), links
assert "list" not in links or "socket" not in links, links # of processes with one core each
assert all(link["measured"] and link["bytes_per_s"] > 1e3 and 0 <= link["latency_s"] < 10 and link["message_s"] >= 0
           for link in links.values()), links
cluster = json.load(open("node.json"))
cluster["links"] = links
json.dump(cluster, open("cluster.json", "w"))
END
)
command -v mpirun >/dev/null || skip "there is no mpirun"
"$program" profile --links -o links.json >out 2>err || {
    grep -q 'sluice_mpi.so was not found' err && skip "sluice was built without MPI"
    fail "--links: status $?"
}
python3 -c "$python" links.json || fail "--links: other levels"
# Processes that are bound to the sockets of a node with two, which hwloc is told of: within one, and between both.
if taskset -c 0 true 2>err && taskset -c 1 true 2>err; then
    cat >bound <<'END'
#!/bin/bash
export HWLOC_SYNTHETIC="pack:2 core:1 pu:1" HWLOC_THISSYSTEM=1
exec taskset -c $((OMPI_COMM_WORLD_RANK / 2)) "$@"
END
    chmod +x bound
    runs timeout 120 "$program" launch -n 4 ./bound "$program" profile --links -o sockets.json
    python3 -c "$python" sockets.json socket node || fail "--links of 2 sockets: other levels"
else
    echo "skipped: links of 2 sockets: cores 0 and 1 are not both ours"
fi
runs timeout 120 "$program" launch -n 3 "$program" profile --links --rack-nodes 1 -o links.json
python3 -c "$python" links.json node || fail "--links of 3 processes: other levels"
runs "$program" plan "${model[@]}" --batch-tokens 64 --cluster cluster.json --json
grep -q '"from": "cluster.json:[0-9]*, measured: sluice .*, 3 processes on 1 host"' out || fail "--links: no word of who measured them"
timeout 60 "$program" launch -n 2 "$program" profile "${model[@]}" >out 2>err && fail "2 processes without --links: a profile"
grep -q "a machine is profiled by one process" err || fail "2 processes without --links: $(cat err)"
