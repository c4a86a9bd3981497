/* Any bytes as the state.json of a checkpoint, as the index of its shards, as the shapes of tensors
 * in segments, or as a run's state: each ends in a checked record or in one sentence. The first
 * byte chooses. A run's state is first put into a state.json, whose checksum is right then. */
#include "fuzz/fuzz.h"

#include "io/checkpoint/format.h"
#include "train/checkpoint/checkpoints.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_state(const sli_checkpoint_state *state)
{
    demand(state->id && state->version && state->run, "complete");
    for (size_t i = 0; i < state->count; i++) {
        const sl_checkpoint_file_info *file = &state->files[i];
        demand(file->name[0] != '.' && !strchr(file->name, '/'), "a name in the directory");
        demand(strlen(file->checksum) == SLI_CHECKSUM_BYTES - 1, "a checksum");
    }
}

static void fuzz_state(const char *text, size_t bytes)
{
    sli_checkpoint_state state;
    sl_status status = sli_checkpoint_state_parse(text, bytes, &state);
    demand(status == SL_OK || status == SL_ERR_FORMAT, "accepted or refused for its format");
    if (status == SL_OK)
        check_state(&state);
    sli_checkpoint_state_clear(&state);
}

/* What was printed of any text must be read back. */
static void fuzz_printed(const char *text)
{
    sli_checkpoint_state state;
    char *printed;
    json_t *files = json_pack("[{ss ss si ss}]", "name", "model.safetensors", "part", "model",
                              "bytes", 7, "xxh128", "0123456789abcdef0123456789abcdef");
    demand(files != NULL, "memory");
    sl_status status = sli_checkpoint_state_print("id", text, files, &printed);
    json_decref(files);
    demand(status == SL_OK || status == SL_ERR_INVALID, "printed or refused");
    if (status != SL_OK)
        return;
    demand(sli_checkpoint_state_parse(printed, strlen(printed), &state) == SL_OK, "read back");
    check_state(&state);
    sli_recorded run;
    status = sli_run_state_read(state.run, &run);
    demand(status == SL_OK || status == SL_ERR_FORMAT, "a run or refused for its format");
    if (status == SL_OK)
        demand(run.position.steps >= 0 && run.position.best_step <= run.position.steps &&
                   run.shards >= 1 && run.lr >= 0,
               "possible");
    sli_checkpoint_state_clear(&state);
    free(printed);
}

static void fuzz_index(const char *text, size_t bytes)
{
    char *strings = NULL;
    sl_metadata *entries = NULL;
    size_t count = 0;
    sl_status status = sli_safetensors_index_parse(text, bytes, &strings, &entries, &count);
    demand(status == SL_OK || status == SL_ERR_FORMAT, "accepted or refused for its format");
    for (size_t i = 0; status == SL_OK && i < count; i++)
        demand(sli_names_find(entries, count, sizeof *entries, entries[i].key) == &entries[i],
               "found");
    free(strings);
    free(entries);
}

/* What is taken for a shape has elements that can be counted, and each name is found again. */
static void fuzz_cut_tensors(const char *text)
{
    sli_cut_tensors cut;
    json_t *shapes = json_object();
    sl_status status = sli_cut_tensors_parse(text, &cut);
    demand(status == SL_OK || status == SL_ERR_FORMAT, "accepted or refused for its format");
    for (size_t i = 0; status == SL_OK && i < cut.count; i++) {
        sl_safetensors_item item = {cut.tensors[i].name, SL_F32, cut.tensors[i].shape, NULL};
        int64_t offset;
        demand(sl_shape_count(&item.shape) > 0, "a count of elements");
        demand(sli_checkpoint_make_segment(&item, 17, 1, shapes) == SL_OK, "memory");
        demand(sli_cut_tensors_find(&cut, item.name, &offset) == &cut.tensors[i] && offset == 17,
               "found");
        free((char *)item.name);
    }
    json_decref(shapes);
    sli_cut_tensors_clear(&cut);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0)
        return 0;
    char *text = malloc(bytes);
    demand(text != NULL, "memory");
    memcpy(text, data + 1, bytes - 1);
    text[bytes - 1] = '\0';
    switch (data[0] % 4) {
    case 0:
        fuzz_state(text, bytes - 1);
        break;
    case 1:
        fuzz_printed(text);
        break;
    case 2:
        fuzz_index(text, bytes - 1);
        break;
    case 3:
        fuzz_cut_tensors(text);
        break;
    }
    free(text);
    return 0;
}
