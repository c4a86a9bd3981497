#define _GNU_SOURCE /* asprintf */

#include "io/safetensors/set.h"

#include "io/checkpoint/reader.h"
#include "io/safetensors/index.h"
#include "io/safetensors/reader.h"
#include "io/safetensors/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char part[] = "model", single[] = "model.safetensors",
                  index_name[] = "model.safetensors.index.json", index_ending[] = ".index.json";

typedef struct set_file {
    char *path;
    sl_safetensors_reader *reader; /* NULL: a checkpoint's */
} set_file;

typedef struct set_tensor {
    const sl_safetensors_info *info;
    const sl_safetensors_reader *reader; /* NULL: a checkpoint's */
} set_tensor;

struct sli_safetensors_set {
    sl_checkpoint_reader *checkpoint; /* whose part it is, or NULL */
    set_file *files;                  /* [count] */
    size_t count, room;
    set_tensor *tensors; /* [tensor_count] of all files, in the order of their names */
    size_t tensor_count;
};

static sl_status no_memory(const char *path)
{
    return sl_error(SL_ERR_MEMORY, "%s: no memory for the record of its files", path);
}

/* ---- Files ------------------------------------------------------------------------------ */

/* Takes `path`, and a reader of its own where `opens`. */
static sl_status add_file(sli_safetensors_set *to, char *path, bool opens)
{
    if (to->count == to->room) {
        size_t room = 2 * to->room + 4;
        set_file *more = realloc(to->files, room * sizeof *more);
        if (!more) {
            free(path);
            return no_memory("the model");
        }
        to->files = more;
        to->room = room;
    }
    set_file *file = &to->files[to->count++];
    *file = (set_file){path, NULL};
    if (!opens)
        return SL_OK;
    SL_TRY(sl_safetensors_open(path, &file->reader));
    if (to->count > SLI_SAFETENSORS_MOST_OPEN)
        sli_safetensors_release(file->reader);
    return SL_OK;
}

static sl_status open_file(const char *path, sli_safetensors_set *to)
{
    char *copy = strdup(path);
    return copy ? add_file(to, copy, true) : no_memory(path);
}

static sl_status join(const char *directory, const char *name, char **out)
{
    if (asprintf(out, "%s/%s", directory, name) >= 0)
        return SL_OK;
    *out = NULL;
    return no_memory(directory);
}

/* ---- An index --------------------------------------------------------------------------- */

/* The path of a file that the index at `path` names. */
static sl_status path_beside(const char *path, const char *name, char **out)
{
    char quoted[SLI_QUOTE_BYTES];
    const char *slash = strrchr(path, '/');
    *out = NULL;
    if (name[0] == '\0' || name[0] == '.' || strchr(name, '/'))
        return sl_error(SL_ERR_FORMAT, "%s: it names %s, which is no file beside it", path,
                        sli_safetensors_quote(name, quoted));
    if (asprintf(out, "%.*s%s", slash ? (int)(slash - path) + 1 : 0, path, name) < 0) {
        *out = NULL;
        return no_memory(path);
    }
    return SL_OK;
}

static sl_status open_named(const char *path, const sli_checkpoint_index *index,
                            sli_safetensors_set *to)
{
    const char **names;
    size_t count;
    SL_TRY(sli_checkpoint_index_files(index, &names, &count));
    sl_status status = count > 0 ? SL_OK : sl_error(SL_ERR_FORMAT, "%s: it names no tensors", path);
    for (size_t i = 0; i < count && status == SL_OK; i++) {
        char *file;
        status = path_beside(path, names[i], &file);
        if (status == SL_OK)
            status = add_file(to, file, true);
    }
    free(names);
    return status;
}

/* Every tensor of the files is where the index says, and the index says no more. */
static sl_status compare(const sli_checkpoint_index *index, const sli_safetensors_set *set)
{
    size_t found = 0;
    for (size_t f = 0; f < set->count; f++) {
        const char *slash = strrchr(set->files[f].path, '/');
        found += sl_safetensors_count(set->files[f].reader);
        SL_TRY(sli_checkpoint_index_compare(index, slash ? slash + 1 : set->files[f].path,
                                            set->files[f].reader));
    }
    if (found != index->count)
        return sl_error(SL_ERR_FORMAT, "it names %zu tensors, but its files have %zu", index->count,
                        found);
    return SL_OK;
}

static sl_status open_index(const char *path, sli_safetensors_set *to)
{
    char *text;
    size_t bytes;
    sli_checkpoint_index index;
    SL_TRY(sli_checkpoint_read_text(path, SLI_CHECKPOINT_MOST_TEXT, &text, &bytes));
    sl_status status =
        sl_error_context(sli_checkpoint_index_parse(text, bytes, &index), "%s: ", path);
    free(text);
    SL_TRY(status);
    status = open_named(path, &index, to);
    if (status == SL_OK)
        status = sl_error_context(compare(&index, to), "%s: ", path);
    sli_checkpoint_index_clear(&index);
    return status;
}

/* ---- A directory ------------------------------------------------------------------------ */

static sl_status open_checkpoint(const char *path, sli_safetensors_set *to)
{
    SL_TRY(sl_checkpoint_open(path, &to->checkpoint));
    if (!sli_checkpoint_find_part(to->checkpoint, part))
        return sl_error(SL_ERR_NOT_FOUND, "%s: the checkpoint has no part \"%s\"", path, part);
    for (size_t i = 0; i < to->checkpoint->state.count; i++) {
        char *file;
        if (!sli_checkpoint_has_tensors(to->checkpoint, i, part))
            continue;
        SL_TRY(join(path, to->checkpoint->state.files[i].name, &file));
        SL_TRY(add_file(to, file, false));
    }
    return SL_OK;
}

/* Whether the directory has a file of that name; its path is *out then, to be freed. */
static bool has(const char *directory, const char *name, char **out, sl_status *status)
{
    *out = NULL;
    if (*status == SL_OK)
        *status = join(directory, name, out);
    if (*status == SL_OK && access(*out, F_OK) == 0)
        return true;
    free(*out);
    *out = NULL;
    return false;
}

static sl_status open_directory(const char *path, sli_safetensors_set *to)
{
    char *file;
    sl_status status = SL_OK;
    if (has(path, SLI_CHECKPOINT_STATE, &file, &status))
        status = open_checkpoint(path, to);
    else if (has(path, single, &file, &status))
        status = open_file(file, to);
    else if (has(path, index_name, &file, &status))
        status = open_index(file, to);
    else if (status == SL_OK)
        status = sl_error(SL_ERR_NOT_FOUND,
                          "%s: the directory is no checkpoint, and has neither %s nor %s", path,
                          single, index_name);
    free(file);
    return status;
}

/* ---- The set ---------------------------------------------------------------------------- */

static bool is_directory(const char *path)
{
    struct stat found;
    return stat(path, &found) == 0 && S_ISDIR(found.st_mode);
}

static bool is_index(const char *path)
{
    size_t length = strlen(path), ending = sizeof index_ending - 1;
    return length > ending && strcmp(path + length - ending, index_ending) == 0;
}

static int compare_tensors(const void *a, const void *b)
{
    const set_tensor *left = a, *right = b;
    return strcmp(left->info->name, right->info->name);
}

static sl_status list_tensors(const char *path, sli_safetensors_set *set)
{
    const sl_checkpoint_reader *checkpoint = set->checkpoint;
    size_t count = checkpoint ? sl_checkpoint_tensor_count(checkpoint, part) : 0;
    for (size_t f = 0; !checkpoint && f < set->count; f++)
        count += sl_safetensors_count(set->files[f].reader);
    set->tensors = calloc(count + 1, sizeof *set->tensors);
    if (!set->tensors)
        return no_memory(path);
    for (size_t i = 0; checkpoint && i < count; i++)
        set->tensors[set->tensor_count++].info = sl_checkpoint_tensor_get(checkpoint, part, i);
    for (size_t f = 0; !checkpoint && f < set->count; f++) {
        const sl_safetensors_reader *reader = set->files[f].reader;
        for (size_t i = 0; i < sl_safetensors_count(reader); i++)
            set->tensors[set->tensor_count++] = (set_tensor){sl_safetensors_get(reader, i), reader};
    }
    qsort(set->tensors, count, sizeof *set->tensors, compare_tensors);
    return SL_OK;
}

sl_status sli_safetensors_set_open(const char *path, sli_safetensors_set **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return no_memory(path);
    sl_status status = is_directory(path) ? open_directory(path, *out)
                       : is_index(path)   ? open_index(path, *out)
                                          : open_file(path, *out);
    if (status == SL_OK)
        status = list_tensors(path, *out);
    if (status != SL_OK)
        sli_safetensors_set_close(out);
    return status;
}

void sli_safetensors_set_close(sli_safetensors_set **set)
{
    if (!set || !*set)
        return;
    for (size_t i = 0; i < (*set)->count; i++) {
        sl_safetensors_close(&(*set)->files[i].reader);
        free((*set)->files[i].path);
    }
    free((*set)->files);
    free((*set)->tensors);
    sl_checkpoint_close(&(*set)->checkpoint);
    free(*set);
    *set = NULL;
}

size_t sli_safetensors_set_files(const sli_safetensors_set *set)
{
    return set->count;
}

const char *sli_safetensors_set_file(const sli_safetensors_set *set, size_t index)
{
    return set->files[index].path;
}

size_t sli_safetensors_set_count(const sli_safetensors_set *set)
{
    return set->tensor_count;
}

const sl_safetensors_info *sli_safetensors_set_get(const sli_safetensors_set *set, size_t index)
{
    return set->tensors[index].info;
}

static const set_tensor *find_tensor(const sli_safetensors_set *set, const char *name)
{
    const sl_safetensors_info wanted = {.name = name};
    const set_tensor key = {&wanted, NULL};
    return bsearch(&key, set->tensors, set->tensor_count, sizeof key, compare_tensors);
}

const sl_safetensors_info *sli_safetensors_set_find(const sli_safetensors_set *set,
                                                    const char *name)
{
    const set_tensor *found = find_tensor(set, name);
    return found ? found->info : NULL;
}

const char *sli_safetensors_set_metadata(const sli_safetensors_set *set, const char *key)
{
    return set->checkpoint ? sl_checkpoint_metadata(set->checkpoint, part, key)
                           : sl_safetensors_metadata(set->files[0].reader, key);
}

const char *sli_safetensors_set_checksum(const sli_safetensors_set *set, const char *file)
{
    for (size_t i = 0; set->checkpoint && i < sl_checkpoint_file_count(set->checkpoint); i++) {
        const sl_checkpoint_file_info *info = sl_checkpoint_file_get(set->checkpoint, i);
        if (strcmp(info->name, file) == 0)
            return info->checksum;
    }
    return NULL;
}

sl_status sli_safetensors_set_read(const sli_safetensors_set *set, const sl_safetensors_item *items,
                                   size_t count)
{
    if (set->checkpoint)
        return sl_checkpoint_read(set->checkpoint, part, items, count);
    for (size_t i = 0; i < count; i++) {
        const set_tensor *found = find_tensor(set, items[i].name);
        if (found)
            SL_TRY(sl_safetensors_read(found->reader, found->info, items[i].data));
    }
    return SL_OK;
}
