/* Checkpoints in Python: a part in one file or in shards is read by the format's reference
 * implementation through the index of Hugging Face. Needs Python with `safetensors`:
 * scripts/python-env makes it. */
#include "scratch.h"

#include "sluice/checkpoint.h"
#include "support/check.h"

static const char script[] =
    "import json, os, sys\n"
    "from safetensors import safe_open\n"
    "folder = sys.argv[1]\n"
    "index = os.path.join(folder, 'model.safetensors.index.json')\n"
    "if os.path.exists(index):\n"
    "    told = json.load(open(index))\n"
    "    where = told['weight_map']\n"
    "    assert told['metadata']['total_size'] == 4 * 6 * 40, told\n"
    "    assert len(set(where.values())) == int(sys.argv[2])\n"
    "else:\n"
    "    where = {f'{i}.weight': 'model.safetensors' for i in range(40)}\n"
    "assert len(where) == 40\n"
    "for i in range(40):\n"
    "    with safe_open(os.path.join(folder, where[f'{i}.weight']), 'np') as file:\n"
    "        assert file.metadata()['made'] == 'here'\n"
    "        value = file.get_tensor(f'{i}.weight')\n"
    "    assert value.shape == (2, 3) and value.dtype == 'float32'\n"
    "    assert value.flatten().tolist() == [6 * i + k for k in range(6)], value\n";

static const char *python(void)
{
    static char path[4096];
    const char *given = getenv("SLUICE_PYTHON"), *source = getenv("SLUICE_SOURCE_DIR");
    if (given && given[0])
        return given;
    snprintf(path, sizeof path, "%s/.venv/bin/python3", source ? source : ".");
    return path;
}

static void check_in_python(scratch *in, uint64_t shard_bytes, int shards)
{
    enum { TENSORS = 40 };
    float values[TENSORS][6];
    char names[TENSORS][16], line[8192], directory[600];
    sl_safetensors_item items[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        snprintf(names[t], sizeof names[t], "%d.weight", t);
        items[t] = (sl_safetensors_item){names[t], SL_F32, sl_shape_2d(2, 3), values[t]};
        for (int i = 0; i < 6; i++)
            values[t][i] = (float)(6 * t + i);
    }
    const sl_metadata note = {"made", "here"};
    const sl_checkpoint_part part = {"model", items, TENSORS, &note, 1};
    snprintf(directory, sizeof directory, "%s", scratch_path(in, "checkpoint"));
    check_ok(sl_checkpoint_save(directory, &(sl_checkpoint_contents){.parts = &part,
                                                                     .part_count = 1,
                                                                     .shard_bytes = shard_bytes}));
    write_file(scratch_path(in, "read.py"), script, sizeof script - 1);
    snprintf(line, sizeof line, "'%s' '%s' '%s' %d", python(), in->path, directory, shards);
    assert_int_equal(system(line), 0);
    snprintf(line, sizeof line, "rm -r '%s'", directory);
    assert_int_equal(system(line), 0);
}

static void part_in_one_file_is_read(void **state)
{
    check_in_python(*state, 0, 1);
}

static void part_in_shards_is_read(void **state)
{
    check_in_python(*state, 100, 10); /* of four tensors of 24 bytes each */
    check_in_python(*state, 1, 40);
}

int checkpoint_python_tests(void)
{
    char line[8192];
    snprintf(line, sizeof line, "'%s' -c 'import safetensors' 2>/dev/null", python());
    if (system(line) != 0) {
        printf("%s with safetensors is not there: run scripts/python-env\n", python());
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(part_in_one_file_is_read, scratch_create, scratch_remove),
        cmocka_unit_test_setup_teardown(part_in_shards_is_read, scratch_create, scratch_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
