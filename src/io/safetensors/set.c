/* Whole models, whatever they lie in on disk. */
#define _GNU_SOURCE /* asprintf */
#include "io/safetensors/set.h"

#include "core/file.h"
#include "core/memory.h"
#include "io/checkpoint/reader.h"
#include "io/safetensors/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char part[] = "model", single[] = "model.safetensors",
                  index_name[] = "model.safetensors.index.json", index_ending[] = ".index.json";

enum { MAX_FILES = 99999 }; /* their names have numbers of 5 digits */

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

/* Takes `path`; opens a reader of its own where `opens`. */
static sl_status add_file(sli_safetensors_set *to, char *path, bool opens)
{
    sl_status status = sli_array_reserve(&to->files, &to->room, to->count + 1, sizeof *to->files,
                                         MAX_FILES, "files of a model");
    if (status != SL_OK) {
        free(path);
        return status;
    }
    set_file *file = &to->files[to->count++];
    *file = (set_file){path, NULL};
    if (!opens)
        return SL_OK;
    SL_TRY(sl_safetensors_open(path, &file->reader));
    if (to->count > SLI_SAFETENSORS_MAX_OPEN)
        sli_safetensors_close_descriptor(file->reader);
    return SL_OK;
}

static sl_status add_file_of(sli_safetensors_set *to, const char *directory, const char *name,
                             bool opens)
{
    char *path;
    SL_TRY(sli_path_join(directory, name, &path));
    return add_file(to, path, opens);
}

static sl_status open_file(const char *path, sli_safetensors_set *to)
{
    char *copy = strdup(path);
    return copy ? add_file(to, copy, true) : no_memory(path);
}

static const char *name_of(const set_file *file)
{
    const char *slash = strrchr(file->path, '/');
    return slash ? slash + 1 : file->path;
}

/* ---- An index --------------------------------------------------------------------------- */

static bool has_file(const sli_safetensors_set *set, const char *name)
{
    for (size_t i = set->count; i > 0; i--) /* a file's tensors mostly follow one another */
        if (strcmp(name_of(&set->files[i - 1]), name) == 0)
            return true;
    return false;
}

/* Opens the files that the index at `path` names, each once. */
static sl_status open_files(const char *path, const sli_safetensors_index *index,
                            sli_safetensors_set *to)
{
    char quoted[SLI_QUOTE_BYTES], *copy;
    const char *slash = strrchr(path, '/');
    if (index->count == 0)
        return sl_error(SL_ERR_FORMAT, "%s: it names no tensors", path);
    for (size_t i = 0; i < index->count; i++) {
        const char *name = index->entries[i].file;
        if (name[0] == '\0' || name[0] == '.' || strchr(name, '/'))
            return sl_error(SL_ERR_FORMAT, "%s: it names %s, which is no file beside it", path,
                            sli_safetensors_quote(name, quoted));
        if (has_file(to, name))
            continue;
        int length = slash ? (int)(slash - path) + 1 : 0;
        if (asprintf(&copy, "%.*s%s", length, path, name) < 0)
            return no_memory(path);
        SL_TRY(add_file(to, copy, true));
    }
    return SL_OK;
}

/* Every tensor of the files is where the index says, and the index says no more. */
static sl_status compare_with_index(const sli_safetensors_set *set,
                                    const sli_safetensors_index *index)
{
    char quoted[SLI_QUOTE_BYTES];
    size_t found = 0;
    for (size_t f = 0; f < set->count; f++) {
        const set_file *file = &set->files[f];
        for (size_t i = 0; i < sl_safetensors_count(file->reader); i++, found++) {
            const char *tensor = sl_safetensors_get(file->reader, i)->name;
            const char *said = sli_safetensors_index_find(index, tensor);
            if (!said || strcmp(said, name_of(file)) != 0)
                return sl_error(SL_ERR_FORMAT,
                                "tensor %s is in %s, but the index does not list it there",
                                sli_safetensors_quote(tensor, quoted), name_of(file));
        }
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
    sli_safetensors_index index;
    SL_TRY(sli_file_read(path, SLI_CHECKPOINT_MOST_TEXT, &text, &bytes));
    sl_status status =
        sl_error_context(sli_safetensors_index_parse(text, bytes, &index), "%s: ", path);
    free(text);
    SL_TRY(status);
    status = open_files(path, &index, to);
    if (status == SL_OK)
        status = sl_error_context(compare_with_index(to, &index), "%s: ", path);
    sli_safetensors_index_clear(&index);
    return status;
}

/* ---- A directory ------------------------------------------------------------------------ */

static sl_status open_checkpoint(const char *path, sli_safetensors_set *to)
{
    SL_TRY(sl_checkpoint_open(path, &to->checkpoint));
    if (!sli_checkpoint_find_part(to->checkpoint, part))
        return sl_error(SL_ERR_NOT_FOUND, "%s: the checkpoint has no part \"%s\"", path, part);
    for (size_t i = 0; i < to->checkpoint->state.count; i++)
        if (sli_checkpoint_has_tensors(to->checkpoint, i, part))
            SL_TRY(add_file_of(to, path, to->checkpoint->state.files[i].name, false));
    return SL_OK;
}

static sl_status open_directory(const char *path, sli_safetensors_set *to)
{
    static const struct {
        const char *name; /* what makes the directory such a model */
        sl_status (*open)(const char *path, sli_safetensors_set *to);
        bool whole; /* opens the directory, not the file */
    } kinds[] = {{SLI_CHECKPOINT_STATE, open_checkpoint, true},
                 {single, open_file, false},
                 {index_name, open_index, false}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char *file;
        SL_TRY(sli_path_join(path, kinds[i].name, &file));
        bool exists = access(file, F_OK) == 0;
        sl_status status = exists ? kinds[i].open(kinds[i].whole ? path : file, to) : SL_OK;
        free(file);
        if (exists)
            return status;
    }
    return sl_error(SL_ERR_NOT_FOUND,
                    "%s: the directory is no checkpoint, and has neither %s nor %s", path, single,
                    index_name);
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

const sl_safetensors_info *sli_safetensors_set_find(const sli_safetensors_set *set,
                                                    const char *name)
{
    const sl_safetensors_info wanted = {.name = name};
    const set_tensor key = {&wanted, NULL}, *found = bsearch(&key, set->tensors, set->tensor_count,
                                                             sizeof key, compare_tensors);
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

/* ---- A list of tensors ------------------------------------------------------------------ */

static const sl_safetensors_info *tensor_at(const void *set, size_t index)
{
    return ((const sli_safetensors_set *)set)->tensors[index].info;
}

static sl_status match_and_read(const sli_safetensors_set *set, const char *path,
                                const sl_safetensors_item *items, size_t count)
{
    size_t *found = calloc(count + 1, sizeof *found);
    if (!found)
        return no_memory(path);
    sl_status status = sl_error_context(sli_safetensors_match(tensor_at, set, set->tensor_count,
                                                              items, count, found),
                                        "%s: ", path);
    for (size_t i = 0; i < count && status == SL_OK; i++) {
        const set_tensor *tensor = &set->tensors[found[i]];
        status = sl_safetensors_read(tensor->reader, tensor->info, items[i].data);
    }
    free(found);
    return status;
}

sl_status sl_safetensors_load(const char *path, const sl_safetensors_item *items, size_t count)
{
    sli_safetensors_set *set;
    SL_TRY(sli_safetensors_set_open(path, &set));
    sl_status status = set->checkpoint ? sl_checkpoint_read(set->checkpoint, part, items, count)
                                       : match_and_read(set, path, items, count);
    sli_safetensors_set_close(&set);
    return status;
}
