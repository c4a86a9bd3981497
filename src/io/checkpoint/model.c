/* Models, whatever they lie in on disk: a file, several files with Hugging Face's index, or a
 * checkpoint. */
#define _GNU_SOURCE /* asprintf */
#include "core/file.h"
#include "core/memory.h"
#include "io/checkpoint/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Reading an index ------------------------------------------------------------------- */

static sl_status read_index(const sli_json *json, sli_safetensors_index *out)
{
    sli_json_value root, map = {NULL, NULL};
    sli_json_walk walk;
    SL_TRY(sli_json_root(json, &root));
    SL_TRY(sli_json_walk_begin(json, root, &walk));
    while (sli_json_walk_next(&walk))
        if (walk.is_object && sli_json_equals(walk.key, "weight_map"))
            map = walk.value;
        else
            SL_TRY(sli_json_check(json, walk.value));
    SL_TRY(walk.status);
    char *room = out->strings = malloc(json->length);
    if (!room)
        return sl_error(SL_ERR_MEMORY, "no memory for an index of %zu bytes", json->length);
    SL_TRY(sli_safetensors_read_strings(json, map, "\"weight_map\"", &room, &out->entries,
                                        &out->count));
    return sli_names_sort(out->entries, out->count, sizeof *out->entries, "tensor");
}

sl_status sli_safetensors_index_parse(const char *text, size_t length, sli_safetensors_index *out)
{
    *out = (sli_safetensors_index){0};
    sl_status status = read_index(&(sli_json){"it", text, length}, out);
    if (status != SL_OK)
        sli_safetensors_index_clear(out);
    return status;
}

void sli_safetensors_index_clear(sli_safetensors_index *index)
{
    free(index->strings);
    free(index->entries);
    *index = (sli_safetensors_index){0};
}

const char *sli_safetensors_index_find(const sli_safetensors_index *index, const char *tensor)
{
    const sl_metadata *found = sli_names_find(index->entries, index->count, sizeof *found, tensor);
    return found ? found->value : NULL;
}

/* ---- Listing a model's files ------------------------------------------------------------ */

enum { MAX_FILES = 99999 }; /* their names have numbers of 5 digits */

/* Adds a file of the model, whose name is borrowed. */
static sl_status add_file(sl_checkpoint_reader *to, const char *name, size_t *capacity)
{
    sli_checkpoint_state *state = &to->state;
    SL_TRY(sli_array_reserve(&state->files, capacity, state->count + 1, sizeof *state->files,
                             MAX_FILES, "files of a model"));
    state->files[state->count++] = (sl_checkpoint_file_info){.name = name, .part = SLI_MODEL_PART};
    return SL_OK;
}

/* Its files are in the folder of the file `path`, and have one part. */
static sl_status begin_model(sl_checkpoint_reader *to)
{
    const char *slash = strrchr(to->path, '/');
    to->state.parts[to->state.part_count++] = SLI_MODEL_PART;
    to->folder = strndup(to->path, slash ? (size_t)(slash - to->path) + 1 : 0);
    return to->folder ? SL_OK : sl_error(SL_ERR_MEMORY, "%s: no memory for its path", to->path);
}

static sl_status open_file(sl_checkpoint_reader *to)
{
    size_t capacity = 0;
    SL_TRY(begin_model(to));
    SL_TRY(add_file(to, to->path + strlen(to->folder), &capacity));
    return sli_checkpoint_open_files(to);
}

static bool has_file(const sli_checkpoint_state *state, const char *name)
{
    for (size_t i = state->count; i > 0; i--) /* a file's tensors mostly follow one another */
        if (strcmp(state->files[i - 1].name, name) == 0)
            return true;
    return false;
}

/* Each file that the index names once. */
static sl_status add_files(sl_checkpoint_reader *to, const sli_safetensors_index *index)
{
    char quoted[SLI_QUOTE_BYTES];
    size_t capacity = 0;
    if (index->count == 0)
        return sl_error(SL_ERR_FORMAT, "%s: it names no tensors", to->path);
    for (size_t i = 0; i < index->count; i++) {
        const char *name = index->entries[i].value;
        if (name[0] == '\0' || name[0] == '.' || strchr(name, '/'))
            return sl_error(SL_ERR_FORMAT, "%s: it names %s, which is no file beside it", to->path,
                            sli_safetensors_quote(name, quoted));
        if (!has_file(&to->state, name))
            SL_TRY(add_file(to, name, &capacity));
    }
    return SL_OK;
}

/* Every tensor of the files is where the index says, and the index says no more. */
static sl_status compare_with_index(const sl_checkpoint_reader *reader,
                                    const sli_safetensors_index *index)
{
    char quoted[SLI_QUOTE_BYTES];
    size_t found = 0;
    for (size_t f = 0; f < reader->state.count; f++) {
        const sl_safetensors_reader *file = reader->files[f].reader;
        const char *name = reader->state.files[f].name;
        for (size_t i = 0; i < sl_safetensors_count(file); i++, found++) {
            const char *tensor = sl_safetensors_get(file, i)->name;
            const char *said = sli_safetensors_index_find(index, tensor);
            if (!said || strcmp(said, name) != 0)
                return sl_error(SL_ERR_FORMAT,
                                "%s: tensor %s is in %s, but the index does not list it there",
                                reader->path, sli_safetensors_quote(tensor, quoted), name);
        }
    }
    if (found != index->count)
        return sl_error(SL_ERR_FORMAT, "%s: it names %zu tensors, but its files have %zu",
                        reader->path, index->count, found);
    return SL_OK;
}

static sl_status open_index(sl_checkpoint_reader *to)
{
    char *text;
    size_t bytes;
    sli_safetensors_index index;
    SL_TRY(begin_model(to));
    SL_TRY(sli_file_read(to->path, SLI_CHECKPOINT_MOST_TEXT, &text, &bytes));
    sl_status status =
        sl_error_context(sli_safetensors_index_parse(text, bytes, &index), "%s: ", to->path);
    free(text);
    SL_TRY(status);
    to->state.strings = index.strings; /* the files' names are there */
    status = add_files(to, &index);
    if (status == SL_OK)
        status = sli_checkpoint_open_files(to);
    if (status == SL_OK)
        status = compare_with_index(to, &index);
    index.strings = NULL;
    sli_safetensors_index_clear(&index);
    return status;
}

/* ---- Opening ---------------------------------------------------------------------------- */

static sl_status open_checkpoint(const char *path, sl_checkpoint_reader **out)
{
    const sli_checkpoint_tensors *model;
    SL_TRY(sl_checkpoint_open(path, out));
    sl_status status = sli_checkpoint_need_part(*out, SLI_MODEL_PART, &model);
    if (status != SL_OK)
        sl_checkpoint_close(out);
    return status;
}

/* A directory is what it has, looked for in this order: a checkpoint, a file, an index. */
static sl_status open_directory(const char *path, sl_checkpoint_reader **out)
{
    static const struct {
        const char *name;
        sl_status (*open)(sl_checkpoint_reader *to); /* NULL: the directory is a checkpoint */
    } kinds[] = {{SLI_CHECKPOINT_STATE, NULL},
                 {"model.safetensors", open_file},
                 {"model.safetensors.index.json", open_index}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char *file;
        SL_TRY(sli_path_join(path, kinds[i].name, &file));
        bool exists = access(file, F_OK) == 0;
        sl_status status = SL_OK;
        if (exists)
            status = kinds[i].open ? sli_checkpoint_open_by(file, kinds[i].open, out)
                                   : open_checkpoint(path, out);
        free(file);
        if (exists)
            return status;
    }
    return sl_error(SL_ERR_NOT_FOUND,
                    "%s: the directory is no checkpoint, and has neither model.safetensors nor "
                    "model.safetensors.index.json",
                    path);
}

sl_status sli_checkpoint_open_model(const char *path, sl_checkpoint_reader **out)
{
    static const char index_ending[] = ".index.json";
    struct stat found;
    size_t length = strlen(path), ending = sizeof index_ending - 1;
    *out = NULL;
    if (stat(path, &found) == 0 && S_ISDIR(found.st_mode))
        return open_directory(path, out);
    if (length > ending && strcmp(path + length - ending, index_ending) == 0)
        return sli_checkpoint_open_by(path, open_index, out);
    return sli_checkpoint_open_by(path, open_file, out);
}

sl_status sl_safetensors_load(const char *path, const sl_safetensors_item *items, size_t count)
{
    sl_checkpoint_reader *reader;
    SL_TRY(sli_checkpoint_open_model(path, &reader));
    sl_status status = sl_checkpoint_read(reader, SLI_MODEL_PART, items, count);
    sl_checkpoint_close(&reader);
    return status;
}
