/* Opening. First the files are listed: by a checkpoint's state.json, by Hugging Face's index, or a
 * model's one file. Then each is opened and compared with what the list says of it; the headers of
 * tensor files are checked by sli_safetensors_open. What has no tensors in a model's directory, and
 * no checksum, is read at once. Only the tensors' bytes remain to be read. */
#define _GNU_SOURCE /* asprintf, O_PATH */
#include "core/error.h"
#include "io/checkpoint/format.h"

#include "core/file.h"
#include "core/memory.h"
#include "core/replace.h"
#include "io/llmc/llmc.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- A checkpoint's files --------------------------------------------------------------- */

enum { MOST_TEXT = 64 << 20 }; /* the most bytes of a state.json or an index */

sl_status sli_checkpoint_state_read(const char *directory, sli_checkpoint_state *out)
{
    char *path, *text = NULL;
    size_t bytes;
    *out = (sli_checkpoint_state){0};
    SL_TRY(sli_path_join(directory, SLI_CHECKPOINT_STATE, &path));
    sl_status status;
    SL_TRY_OR_FAIL(sli_file_read(path, MOST_TEXT, &text, &bytes));
    status = sl_error_context(sli_checkpoint_state_parse(text, bytes, out), "%s: ", path);
fail:
    free(text);
    free(path);
    return status;
}

static sl_status list_state(sl_checkpoint_reader *reader)
{
    return sli_checkpoint_state_read(reader->path, &reader->state);
}

/* ---- A model's files -------------------------------------------------------------------- */

/* Adds the file to the list. The name is borrowed. */
static sl_status add_file(sl_checkpoint_reader *reader, const char *name, const char *part,
                          size_t *capacity)
{
    enum { MAX_FILES = 99999 }; /* their names have numbers of 5 digits */
    sli_checkpoint_state *state = &reader->state;
    SL_TRY(sli_array_reserve(&state->files, capacity, state->count + 1, sizeof *state->files,
                             MAX_FILES, "files of a model"));
    state->files[state->count++] = (sl_checkpoint_file_info){.name = name, .part = part};
    return SL_OK;
}

static sl_status list_file(sl_checkpoint_reader *reader)
{
    size_t capacity = 0;
    return add_file(reader, sli_path_name(reader->path), SLI_MODEL_PART, &capacity);
}

sl_status sli_safetensors_index_parse(const char *text, size_t length, char **strings,
                                      sl_metadata **entries, size_t *count)
{
    static const char *const key = "weight_map";
    const sli_json json = {"it", text, length};
    sli_json_value root, map = {NULL, NULL};
    SL_TRY(sli_json_root(&json, &root));
    SL_TRY(sli_json_find_members(&json, root, &key, 1, &map));
    char *room = *strings = malloc(length);
    if (!room)
        return sli_no_memory(NULL, "an index of %zu bytes", length);
    SL_TRY(sli_safetensors_read_strings(&json, map, "\"weight_map\"", &room, entries, count));
    return sli_names_sort(*entries, *count, sizeof **entries, "tensor");
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Adds each file that the index names, once; names [index_count] is room for that. */
static sl_status add_index_files(sl_checkpoint_reader *reader, const char **names)
{
    char quoted[SLI_QUOTE_BYTES];
    size_t capacity = 0;
    for (size_t i = 0; i < reader->index_count; i++) {
        names[i] = reader->index[i].value;
        if (!sli_checkpoint_is_plain_name(names[i]))
            return sl_error(SL_ERR_FORMAT, "%s: it names %s, which is no file beside it",
                            reader->path, sli_safetensors_quote(names[i], quoted));
    }
    qsort(names, reader->index_count, sizeof *names, compare_names);
    for (size_t i = 0; i < reader->index_count; i++)
        if (i == 0 || strcmp(names[i - 1], names[i]) != 0)
            SL_TRY(add_file(reader, names[i], SLI_MODEL_PART, &capacity));
    return SL_OK;
}

static sl_status list_index(sl_checkpoint_reader *reader)
{
    char *text;
    size_t bytes;
    SL_TRY(sli_file_read(reader->path, MOST_TEXT, &text, &bytes));
    sl_status status = sli_safetensors_index_parse(text, bytes, &reader->state.strings,
                                                   &reader->index, &reader->index_count);
    free(text);
    SL_TRY(sl_error_context(status, "%s: ", reader->path));
    if (reader->index_count == 0)
        return sl_error(SL_ERR_FORMAT, "%s: it names no tensors", reader->path);
    const char **names = calloc(reader->index_count, sizeof *names);
    if (!names)
        return sli_no_memory(reader->path, "its %zu tensors", reader->index_count);
    status = add_index_files(reader, names);
    free(names);
    return status;
}

/* Every tensor of the files is where the index says, and the index says no more. */
static sl_status check_index(const sl_checkpoint_reader *reader)
{
    char quoted[SLI_QUOTE_BYTES];
    const sli_checkpoint_tensors *model = &reader->parts[0];
    for (size_t i = 0; i < model->segment_count; i++) {
        const sli_segment *segment = &model->segments[i];
        const char *tensor = segment->info->name, *name = reader->state.files[segment->file].name;
        const sl_metadata *said =
            sli_names_find(reader->index, reader->index_count, sizeof *said, tensor);
        if (!said || strcmp(said->value, name) != 0)
            return sl_error(SL_ERR_FORMAT,
                            "%s: tensor %s is in %s, but the index does not list it there",
                            reader->path, sli_safetensors_quote(tensor, quoted), name);
    }
    if (model->segment_count != reader->index_count)
        return sl_error(SL_ERR_FORMAT, "%s: it names %zu tensors, but its files have %zu",
                        reader->path, reader->index_count, model->segment_count);
    return SL_OK;
}

/* ---- Opening the files ------------------------------------------------------------------ */

static void close_descriptor(sli_checkpoint_file *file)
{
    if (file->descriptor >= 0)
        close(file->descriptor);
    file->descriptor = -1;
}

/* A checkpoint is the directory of its files, a model lies in its first file's. */
sl_status sli_checkpoint_file_path(const sl_checkpoint_reader *reader, size_t index, char **out)
{
    const char *name = reader->state.files[index].name;
    if (reader->state.id)
        return sli_path_join(reader->path, name, out);
    int folder = (int)(sli_path_name(reader->path) - reader->path);
    if (asprintf(out, "%.*s%s", folder, reader->path, name) >= 0)
        return SL_OK;
    return sli_no_memory(reader->path, "a path");
}

/* Adds the directory's file of that name, if it has one. */
static sl_status list_other(sl_checkpoint_reader *reader, const char *name, size_t *capacity)
{
    char *path;
    SL_TRY(add_file(reader, name, NULL, capacity));
    SL_TRY(sli_checkpoint_file_path(reader, reader->state.count - 1, &path));
    if (access(path, F_OK) != 0 && errno == ENOENT)
        reader->state.count--;
    free(path);
    return SL_OK;
}

/* Adds the directory's files without tensors: those that are written with a model, and the
 * tokenizer that older models of others have. */
static sl_status list_others(sl_checkpoint_reader *reader)
{
    size_t capacity = reader->state.count;
    for (size_t i = 0; sli_model_file_names[i]; i++)
        SL_TRY(list_other(reader, sli_model_file_names[i], &capacity));
    return list_other(reader, "tokenizer.model", &capacity);
}

static sl_status check_size(const char *path, const sl_checkpoint_file_info *file)
{
    struct stat found;
    if (stat(path, &found) != 0)
        return errno == ENOENT || errno == ENOTDIR
                   ? sl_error(SL_ERR_FORMAT, "%s: state.json names it, but it cannot be found: %s",
                              path, strerror(errno))
                   : sl_error(SL_ERR_IO, "%s: cannot be examined: %s", path, strerror(errno));
    if (!S_ISREG(found.st_mode))
        return sl_error(SL_ERR_FORMAT, "%s: it is no regular file", path);
    if ((uint64_t)found.st_size != file->bytes)
        return sl_error(SL_ERR_FORMAT,
                        "%s: it has %" PRIu64 " bytes, and %" PRIu64
                        " in state.json: it was %s, or is another checkpoint's",
                        path, (uint64_t)found.st_size, file->bytes,
                        (uint64_t)found.st_size < file->bytes ? "cut short" : "added to");
    return SL_OK;
}

/* A file of a checkpoint. */
static sl_status open_listed_file(sl_checkpoint_reader *reader, size_t index, const char *path)
{
    const sl_checkpoint_file_info *file = &reader->state.files[index];
    sli_safetensors_reader **out = &reader->files[index].reader;
    uint64_t bytes;
    SL_TRY(check_size(path, file));
    if (!sli_name_ends_with(file->name, ".safetensors"))
        return sli_file_open(path, &reader->files[index].descriptor, &bytes);
    if (!file->part)
        return sl_error(SL_ERR_FORMAT, "%s: state.json does not say which part it belongs to",
                        path);
    SL_TRY(sli_safetensors_open(path, out));
    const char *id = sli_safetensors_metadata(*out, SLI_CHECKPOINT_ID_KEY);
    return id && strcmp(id, reader->state.id) == 0
               ? SL_OK
               : sl_error(SL_ERR_FORMAT, "%s: it is another checkpoint's file", path);
}

/* A file of a model. */
static sl_status open_model_file(sl_checkpoint_reader *reader, size_t index, const char *path)
{
    sl_checkpoint_file_info *info = &reader->state.files[index];
    sli_checkpoint_file *file = &reader->files[index];
    if (!info->part) {
        size_t bytes;
        SL_TRY(sli_file_read(path, MOST_TEXT, &file->text, &bytes));
        info->bytes = bytes;
        return SL_OK;
    }
    SL_TRY(sli_safetensors_open(path, &file->reader));
    info->bytes = file->reader->file_bytes;
    return SL_OK;
}

/* A file of llm.c's, whose header becomes the config.json that is listed behind it. */
static sl_status open_llmc_file(sl_checkpoint_reader *reader, size_t index, const char *path)
{
    if (!reader->state.files[index].part)
        return SL_OK;
    sli_checkpoint_file *file = &reader->files[index], *config = file + 1;
    SL_TRY(sli_llmc_open(path, &file->reader, &config->text));
    reader->state.files[index].bytes = file->reader->file_bytes;
    reader->state.files[index + 1].bytes = strlen(config->text);
    return SL_OK;
}

/* A file that stays open is read to its end, whatever has its name by then. */
static sl_status open_file(sl_checkpoint_reader *reader, size_t index, const char *path)
{
    sli_checkpoint_file *file = &reader->files[index];
    if (reader->is_llmc)
        return open_llmc_file(reader, index, path);
    SL_TRY(reader->state.id ? open_listed_file(reader, index, path)
                            : open_model_file(reader, index, path));
    if (file->reader && !sli_descriptor_may_stay_open(file->reader->descriptor))
        sli_safetensors_close_descriptor(file->reader);
    if (file->descriptor >= 0 && !sli_descriptor_may_stay_open(file->descriptor))
        close_descriptor(file);
    return SL_OK;
}

/* Joins the part that file `index` belongs to, if it is the first one of it. */
static sl_status join_part_of(sl_checkpoint_reader *reader, size_t index)
{
    const char *part = reader->state.files[index].part;
    for (size_t p = 0; p < reader->part_count; p++)
        if (strcmp(reader->parts[p].part, part) == 0)
            return SL_OK;
    if (reader->part_count == SL_CHECKPOINT_MOST_PARTS)
        return sl_error(SL_ERR_FORMAT, "%s: its files belong to more than %d parts", reader->path,
                        SL_CHECKPOINT_MOST_PARTS);
    return sli_checkpoint_join_part(reader, part);
}

static sl_status open_files(sl_checkpoint_reader *reader)
{
    size_t count = reader->state.count;
    reader->files = calloc(count + 1, sizeof *reader->files);
    if (!reader->files)
        return sli_no_memory(reader->path, "its %zu files", count);
    for (size_t i = 0; i < count; i++)
        reader->files[i].descriptor = -1;
    for (size_t i = 0; i < count; i++) {
        char *path;
        SL_TRY(sli_checkpoint_file_path(reader, i, &path));
        sl_status status = open_file(reader, i, path);
        free(path);
        SL_TRY(status);
    }
    for (size_t i = 0; i < count; i++)
        if (reader->files[i].reader)
            SL_TRY(join_part_of(reader, i));
    return reader->index ? check_index(reader) : SL_OK;
}

typedef sl_status (*list_files)(sl_checkpoint_reader *reader);

static sl_status open_listed(const char *path, list_files list, bool with_others,
                             sl_checkpoint_reader **out)
{
    sl_checkpoint_reader *reader = *out = calloc(1, sizeof *reader);
    if (!reader || !(reader->path = strdup(path))) {
        sl_checkpoint_close(out);
        return sli_no_memory(path, "opening it");
    }
    sl_status status;
    SL_TRY_OR_FAIL(list(reader));
    if (with_others)
        SL_TRY_OR_FAIL(list_others(reader));
    SL_TRY_OR_FAIL(open_files(reader));
    return SL_OK;
fail:
    sl_checkpoint_close(out);
    return status;
}

static sl_status list_llmc(sl_checkpoint_reader *reader)
{
    size_t capacity = 1;
    reader->is_llmc = true;
    SL_TRY(list_file(reader));
    return add_file(reader, sli_model_file_names[0], NULL, &capacity);
}

sl_status sli_checkpoint_open_llmc(const char *path, sl_checkpoint_reader **out)
{
    return open_listed(path, list_llmc, false, out);
}

/* Its text is among those that are listed of any model. */
static sl_status list_config(sl_checkpoint_reader *reader)
{
    reader->is_config_alone = true;
    return SL_OK;
}

/* Opens a directory to hold it: while it is held, no other has its inode number. -1: there is none.
 */
static int hold_directory(const char *path)
{
    return open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static bool is_still_at(int directory, const char *path)
{
    struct stat held, found;
    bool exists = stat(path, &found) == 0 && S_ISDIR(found.st_mode);
    if (directory < 0 || fstat(directory, &held) != 0)
        return !exists;
    return exists && held.st_dev == found.st_dev && held.st_ino == found.st_ino;
}

static const char *const names[] = {SLI_CHECKPOINT_STATE, "model.safetensors",
                                    "model.safetensors.index.json", "config.json"};
enum { NAMES = sizeof names / sizeof *names };

/* A directory is what it has, looked for in this order: a checkpoint, a file, an index. Where no
 * weights are needed its config is enough, also beside an index without its files. */
static sl_status open_directory(const char *path, bool weights, sl_checkpoint_reader **out)
{
    static const list_files listers[NAMES] = {list_state, list_file, list_index, list_config};
    int count = weights ? NAMES - 1 : NAMES;
    sl_status status = SL_OK;
    bool is_any = false;
    for (int i = 0; i < count; i++) {
        char *file;
        SL_TRY(sli_path_join(path, names[i], &file));
        bool exists = access(file, F_OK) == 0;
        if (exists)
            status = open_listed(i == 0 ? path : file, listers[i], i > 0, out);
        free(file);
        if (exists && (weights || status != SL_ERR_NOT_FOUND))
            return status;
        is_any |= exists;
    }
    if (is_any)
        return status;
    return sl_error(SL_ERR_NOT_FOUND,
                    "%s: the directory is no checkpoint, and has neither %s nor %s%s", path,
                    names[1], names[2], weights ? "" : ", nor config.json");
}

static sl_status open_path(const char *path, bool weights, sl_checkpoint_reader **out)
{
    struct stat found;
    if (stat(path, &found) == 0 && S_ISDIR(found.st_mode))
        return open_directory(path, weights, out);
    const char *name = sli_path_name(path);
    bool is_config = strcmp(name, names[3]) == 0 && access(path, F_OK) == 0;
    if (is_config && weights)
        return sl_error(SL_ERR_NOT_FOUND,
                        "%s: it has no weights: give the directory of a model, or of a checkpoint",
                        path);
    if (is_config)
        return open_listed(path, list_config, true, out);
    bool is_models = strcmp(name, names[1]) == 0 || strcmp(name, names[2]) == 0;
    return open_listed(path, sli_name_ends_with(path, ".index.json") ? list_index : list_file,
                       is_models, out);
}

/* Another process may replace a directory while it is opened: what is then missing or of another
 * checkpoint is no damage, and the directory that has its name now is opened. */
static sl_status open_current(const char *path, bool weights, sl_checkpoint_reader **out)
{
    enum { ATTEMPTS = 20 };
    sl_status status = SL_OK;
    bool is_final = false;
    *out = NULL;
    for (int attempt = 0; attempt < ATTEMPTS && !is_final; attempt++) {
        char *found;
        sl_checkpoint_close(out);
        SL_TRY(sli_replace_directory_find(path, &found));
        int directory = hold_directory(found);
        status = open_path(found, weights, out);
        is_final = is_still_at(directory, found);
        if (directory >= 0)
            close(directory);
        free(found);
    }
    if (is_final || status != SL_OK)
        return status;
    sl_checkpoint_close(out);
    return sl_error(SL_ERR_IO, "%s: it was replaced each time that it was opened", path);
}

sl_status sl_checkpoint_open(const char *path, sl_checkpoint_reader **out)
{
    return open_current(path, true, out);
}

sl_status sli_checkpoint_open_config(const char *path, sl_checkpoint_reader **out)
{
    return open_current(path, false, out);
}

void sl_checkpoint_close(sl_checkpoint_reader **reader)
{
    if (!reader || !*reader)
        return;
    for (size_t i = 0; (*reader)->files && i < (*reader)->state.count; i++) {
        sli_safetensors_close(&(*reader)->files[i].reader);
        sli_cut_tensors_clear(&(*reader)->files[i].cut);
        close_descriptor(&(*reader)->files[i]);
        free((*reader)->files[i].text);
    }
    for (size_t i = 0; i < (*reader)->part_count; i++) {
        free((*reader)->parts[i].tensors);
        free((*reader)->parts[i].order);
        free((*reader)->parts[i].segments);
        free((*reader)->parts[i].by_name);
    }
    free((*reader)->files);
    free((*reader)->index);
    sli_checkpoint_state_clear(&(*reader)->state);
    free((*reader)->path);
    free(*reader);
    *reader = NULL;
}

/* ---- What a checkpoint says ------------------------------------------------------------- */

const char *const sli_model_file_names[] = {"config.json", "tokenizer.json",
                                            "tokenizer_config.json", "generation_config.json",
                                            NULL};

const char *sl_checkpoint_state(const sl_checkpoint_reader *reader)
{
    return reader->state.run;
}

sl_status sl_checkpoint_number(const sl_checkpoint_reader *reader, const char *key, double *out)
{
    enum { MOST_CHARACTERS = 64 };
    SLI_CHECK_NOT_NULL(out);
    *out = 0;
    SLI_CHECK_NOT_NULL(reader);
    SLI_CHECK_NOT_NULL(key);
    const char *text = reader->state.run ? reader->state.run : "{}";
    const sli_json json = {"the state", text, strlen(text)};
    sli_json_value value = {NULL, NULL};
    json_t *number = NULL;
    SL_TRY(
        sli_json_find_members(&json, (sli_json_value){text, text + json.length}, &key, 1, &value));
    if (value.begin)
        SL_TRY(sli_json_parse(&json, value, MOST_CHARACTERS, &number));
    bool is_number = json_is_number(number);
    if (is_number)
        *out = json_number_value(number);
    json_decref(number);
    return is_number ? SL_OK
                     : sl_error(SL_ERR_NOT_FOUND, "%s: its state has no number \"%s\"",
                                reader->path, key);
}

const char *sl_checkpoint_version(const sl_checkpoint_reader *reader)
{
    return reader->state.version;
}

size_t sl_checkpoint_file_count(const sl_checkpoint_reader *reader)
{
    return reader->state.count;
}

const sl_checkpoint_file_info *sl_checkpoint_file_get(const sl_checkpoint_reader *reader,
                                                      size_t index)
{
    return &reader->state.files[index];
}

const char *sli_checkpoint_metadata(const sl_checkpoint_reader *reader, const char *part,
                                    const char *key)
{
    for (size_t i = 0; i < reader->state.count; i++)
        if (sli_checkpoint_has_tensors(reader, i, part))
            return sli_safetensors_metadata(reader->files[i].reader, key);
    return NULL;
}
