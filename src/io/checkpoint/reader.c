/* Opening. What state.json says is compared with what is there, file by file; the headers of tensor
 * files are checked by sl_safetensors_open. Only the tensors' bytes remain to be read. */

#define _GNU_SOURCE /* asprintf */
#include "io/checkpoint/format.h"

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static sl_status make_path(const sl_checkpoint_reader *reader, const char *name, char **out)
{
    if (asprintf(out, "%s%s", reader->folder, name) >= 0)
        return SL_OK;
    *out = NULL;
    return sl_error(SL_ERR_MEMORY, "%s: no memory for a path", reader->path);
}

/* ---- Files without tensors -------------------------------------------------------------- */

sl_status sli_checkpoint_read_listed(const sl_checkpoint_reader *reader, size_t index, char **data,
                                     size_t *bytes)
{
    char *path, checksum[SLI_CHECKSUM_BYTES];
    const sl_checkpoint_file_info *file = &reader->state.files[index];
    *data = NULL;
    SL_TRY(make_path(reader, file->name, &path));
    sl_status status = sli_file_read(path, file->bytes, data, bytes);
    if (status == SL_OK && strcmp(sli_checksum_of(*data, *bytes, checksum), file->checksum) != 0)
        status =
            sl_error(SL_ERR_FORMAT, "%s: it is damaged: its checksum is %s, and %s in state.json",
                     path, checksum, file->checksum);
    free(path);
    if (status != SL_OK) {
        free(*data);
        *data = NULL;
    }
    return status;
}

sl_status sl_checkpoint_read_file(const sl_checkpoint_reader *reader, const char *name, char **data,
                                  size_t *bytes)
{
    *data = NULL;
    for (size_t i = 0; i < reader->state.count; i++)
        if (!reader->files[i].reader && strcmp(reader->state.files[i].name, name) == 0)
            return sli_checkpoint_read_listed(reader, i, data, bytes);
    return sl_error(SL_ERR_NOT_FOUND, "%s: the checkpoint has no file \"%s\"", reader->path, name);
}

/* ---- Opening ---------------------------------------------------------------------------- */

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

static bool is_tensor_file(const char *name)
{
    static const char ending[] = ".safetensors";
    size_t length = strlen(name), last = sizeof ending - 1;
    return length >= last && strcmp(name + length - last, ending) == 0;
}

static sl_status open_tensors(sl_checkpoint_reader *reader, size_t index, const char *path)
{
    const sli_checkpoint_state *state = &reader->state;
    sl_safetensors_reader **file = &reader->files[index].reader;
    if (!state->files[index].part)
        return sl_error(SL_ERR_FORMAT, "%s: state.json does not say which part it belongs to",
                        path);
    SL_TRY(sl_safetensors_open(path, file));
    const char *id = sl_safetensors_metadata(*file, SLI_CHECKPOINT_ID_KEY);
    if (state->id && (!id || strcmp(id, state->id) != 0))
        return sl_error(SL_ERR_FORMAT, "%s: it is another checkpoint's file", path);
    if (index >= SLI_SAFETENSORS_MAX_OPEN)
        sli_safetensors_close_descriptor(*file);
    return SL_OK;
}

sl_status sli_checkpoint_open_files(sl_checkpoint_reader *reader)
{
    const sli_checkpoint_state *state = &reader->state;
    reader->files = calloc(state->count + 1, sizeof *reader->files);
    if (!reader->files)
        return sl_error(SL_ERR_MEMORY, "%s: no memory for its files", reader->path);
    for (size_t i = 0; i < state->count; i++) {
        char *path;
        const sl_checkpoint_file_info *file = &state->files[i];
        SL_TRY(make_path(reader, file->name, &path));
        sl_status status = state->id ? check_size(path, file) : SL_OK;
        if (status == SL_OK && (!state->id || is_tensor_file(file->name)))
            status = open_tensors(reader, i, path);
        free(path);
        SL_TRY(status);
    }
    return SL_OK;
}

static sl_status open_state(sl_checkpoint_reader *reader)
{
    char *path, *text;
    size_t bytes;
    SL_TRY(sli_path_join(reader->path, "", &reader->folder));
    SL_TRY(make_path(reader, SLI_CHECKPOINT_STATE, &path));
    sl_status status = sli_file_read(path, SLI_CHECKPOINT_MOST_TEXT, &text, &bytes);
    if (status == SL_OK) {
        status = sli_checkpoint_state_parse(text, bytes, &reader->state);
        status = sl_error_context(status, "%s: ", path);
        free(text);
    }
    free(path);
    return status == SL_OK ? sli_checkpoint_open_files(reader) : status;
}

sl_status sli_checkpoint_open_by(const char *path,
                                 sl_status (*open_files)(sl_checkpoint_reader *reader),
                                 sl_checkpoint_reader **out)
{
    *out = NULL;
    sl_checkpoint_reader *reader = calloc(1, sizeof *reader);
    if (!reader || !(reader->path = strdup(path))) {
        free(reader);
        return sl_error(SL_ERR_MEMORY, "%s: no memory for a checkpoint's record", path);
    }
    sl_status status = open_files(reader);
    for (size_t i = 0; i < reader->state.part_count && status == SL_OK; i++)
        status = sli_checkpoint_list_part(reader, reader->state.parts[i]);
    if (status != SL_OK)
        sl_checkpoint_close(&reader);
    *out = reader;
    return status;
}

sl_status sl_checkpoint_open(const char *path, sl_checkpoint_reader **out)
{
    return sli_checkpoint_open_by(path, open_state, out);
}

void sl_checkpoint_close(sl_checkpoint_reader **reader)
{
    if (!reader || !*reader)
        return;
    for (size_t i = 0; (*reader)->files && i < (*reader)->state.count; i++) {
        sl_safetensors_close(&(*reader)->files[i].reader);
        sli_cut_tensors_clear(&(*reader)->files[i].cut);
    }
    for (size_t i = 0; i < (*reader)->part_count; i++) {
        free((*reader)->parts[i].tensors);
        free((*reader)->parts[i].segments);
        free((*reader)->parts[i].by_name);
    }
    free((*reader)->files);
    sli_checkpoint_state_clear(&(*reader)->state);
    free((*reader)->folder);
    free((*reader)->path);
    free(*reader);
    *reader = NULL;
}

const char *sl_checkpoint_state(const sl_checkpoint_reader *reader)
{
    return reader->state.run;
}

/* The value of the state's first member of that name; NULL where there is none. */
static sl_status find_number(const sli_json *json, const char *key, json_t **out)
{
    enum { MOST_CHARACTERS = 64 };
    sli_json_value root;
    sli_json_walk walk;
    *out = NULL;
    SL_TRY(sli_json_root(json, &root));
    SL_TRY(sli_json_walk_begin(json, root, &walk));
    while (sli_json_walk_next(&walk))
        if (sli_json_equals(walk.key, key))
            return sli_json_parse(json, walk.value, MOST_CHARACTERS, out);
    return walk.status;
}

sl_status sl_checkpoint_number(const sl_checkpoint_reader *reader, const char *key, double *out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = 0;
    SLI_CHECK_NOT_NULL(reader);
    SLI_CHECK_NOT_NULL(key);
    const char *text = reader->state.run ? reader->state.run : "{}";
    json_t *number;
    SL_TRY(find_number(&(sli_json){"the state", text, strlen(text)}, key, &number));
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

size_t sl_checkpoint_tensor_count(const sl_checkpoint_reader *reader, const char *part)
{
    const sli_checkpoint_tensors *in = sli_checkpoint_find_part(reader, part);
    return in ? in->count : 0;
}

const sl_safetensors_info *sl_checkpoint_tensor_get(const sl_checkpoint_reader *reader,
                                                    const char *part, size_t index)
{
    const sli_checkpoint_tensors *in = sli_checkpoint_find_part(reader, part);
    return in && index < in->count ? &in->tensors[index].info : NULL;
}

const char *sl_checkpoint_metadata(const sl_checkpoint_reader *reader, const char *part,
                                   const char *key)
{
    for (size_t i = 0; i < reader->state.count; i++)
        if (sli_checkpoint_has_tensors(reader, i, part))
            return sl_safetensors_metadata(reader->files[i].reader, key);
    return NULL;
}
