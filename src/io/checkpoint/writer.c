/* Saving: every file goes into a directory of a temporary name, its checksum taken while it is
 * written; state.json, which lists them, comes last; then the directory gets its name. */

#include "io/checkpoint/format.h"

#include "core/file.h"
#include "core/replace.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_BYTES = 256, PART_BYTES = 200 }; /* of the names of a file and a part */

struct sli_checkpoint_writer {
    sli_replace_directory *directory;
    char id[SLI_CHECKPOINT_ID_BYTES];
    json_t *files; /* what has been written so far, as state.json says it */
};

/* ---- Files ------------------------------------------------------------------------------ */

static sl_status list_file(sli_checkpoint_writer *to, const char *name, const char *part,
                           const sli_checkpoint_written *written)
{
    json_t *file =
        json_pack("{ss ss* sI ss}", "name", name, "part", part, "bytes", (json_int_t)written->bytes,
                  SLI_CHECKPOINT_CHECKSUM_KEY, written->checksum);
    return json_array_append_new(to->files, file) == 0
               ? SL_OK
               : sl_error(SL_ERR_MEMORY, "no memory for the list of files");
}

static sl_status path_of(const sli_checkpoint_writer *to, const char *name, char **path)
{
    return sli_path_join(sli_replace_directory_temporary(to->directory), name, path);
}

static sl_status write_bytes(const sli_checkpoint_writer *to, const char *name, const void *data,
                             size_t bytes)
{
    char *path;
    SL_TRY(path_of(to, name, &path));
    sl_status status = sli_file_write(path, data, bytes);
    free(path);
    return status;
}

/* A file that is listed. */
static sl_status add_bytes(sli_checkpoint_writer *to, const char *name, const char *part,
                           const void *data, size_t bytes)
{
    sli_checkpoint_written written = {.bytes = bytes};
    sli_checksum_of(data, bytes, written.checksum);
    SL_TRY(write_bytes(to, name, data, bytes));
    return list_file(to, name, part, &written);
}

/* ---- Parts ------------------------------------------------------------------------------ */

/* The part's metadata, and the checkpoint's id: *out [part->metadata_count + 1], to be freed. */
static sl_status list_metadata(const sli_checkpoint_writer *to, const sl_checkpoint_part *part,
                               sl_metadata **out)
{
    *out = calloc(part->metadata_count + 1, sizeof **out);
    if (!*out)
        return sl_error(SL_ERR_MEMORY, "no memory for the metadata");
    if (part->metadata_count)
        memcpy(*out, part->metadata, part->metadata_count * sizeof **out);
    (*out)[part->metadata_count] = (sl_metadata){SLI_CHECKPOINT_ID_KEY, to->id};
    return SL_OK;
}

static sl_status put_all(sl_safetensors_writer *writer, const sl_checkpoint_part *part,
                         const sli_checkpoint_source *source, sli_checkpoint_written *written)
{
    for (size_t i = 0; i < part->count; i++) {
        const void *data = part->items[i].data;
        if (source)
            SL_TRY(source->read(source->context, part->name, &part->items[i], &data));
        SL_TRY(sl_safetensors_writer_put(writer, i, data));
    }
    SL_TRY(sl_safetensors_writer_commit(writer));
    return sli_safetensors_writer_checksum(writer, &written->bytes, written->checksum);
}

/* Writes all of `part` as the file `name`, and lists it. Items with larger elements come first. */
static sl_status add_tensors(sli_checkpoint_writer *to, const sl_checkpoint_part *part,
                             const char *name, const sli_checkpoint_source *source,
                             sli_checkpoint_written *written)
{
    char *path;
    sl_metadata *metadata = NULL;
    sl_safetensors_writer *writer = NULL;
    SL_TRY(path_of(to, name, &path));
    sl_status status = list_metadata(to, part, &metadata);
    if (status == SL_OK)
        status = sl_safetensors_writer_create(path, part->items, part->count, metadata,
                                              part->metadata_count + 1, &writer);
    if (status == SL_OK)
        status = put_all(writer, part, source, written);
    if (status == SL_OK)
        status = list_file(to, name, part->name, written);
    sl_safetensors_writer_destroy(&writer);
    free(metadata);
    free(path);
    return status;
}

/* "PART.safetensors", or "PART-00001-of-00003.safetensors" of several, from 1; to `name`
 * [NAME_BYTES], which it returns. */
static const char *name_file(const char *part, size_t number, size_t count, char *name)
{
    if (count == 1)
        snprintf(name, NAME_BYTES, "%s.safetensors", part);
    else
        snprintf(name, NAME_BYTES, "%s-%05zu-of-%05zu.safetensors", part, number, count);
    return name;
}

/* The items, larger elements first, else in their order; to be freed. */
static sl_status sort_items(const sl_checkpoint_part *part, sl_safetensors_item **out)
{
    static const size_t widths[] = {8, 4, 2};
    size_t sorted = 0;
    *out = calloc(part->count + 1, sizeof **out);
    if (!*out)
        return sl_error(SL_ERR_MEMORY, "no memory for a list of %zu tensors", part->count);
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (size_t i = 0; i < part->count; i++)
            if (sl_dtype_bytes(part->items[i].dtype) == widths[w])
                (*out)[sorted++] = part->items[i];
    return SL_OK;
}

static uint64_t item_bytes(const sl_safetensors_item *item)
{
    return (uint64_t)sl_shape_count(&item->shape) * sl_dtype_bytes(item->dtype);
}

/* How many of the items fill a file: a larger one has a file of its own. */
static size_t count_fitting(const sl_safetensors_item *items, size_t count, uint64_t limit)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += item_bytes(&items[i]);
        if (limit > 0 && bytes > limit && i > 0)
            return i;
    }
    return count;
}

/* Hugging Face's index: `map` gives the file of each of the part's tensors. */
static sl_status add_index(sli_checkpoint_writer *to, const sl_checkpoint_part *part, json_t *map)
{
    char *text = NULL, name[NAME_BYTES];
    json_int_t bytes = 0;
    for (size_t i = 0; i < part->count; i++)
        bytes += (json_int_t)item_bytes(&part->items[i]);
    json_t *json = json_pack("{s:{sI} sO}", "metadata", "total_size", bytes, "weight_map", map);
    if (json && json_object_size(map) == part->count)
        text = json_dumps(json, JSON_INDENT(2));
    snprintf(name, sizeof name, "%s.safetensors.index.json", part->name);
    sl_status status = text ? add_bytes(to, name, part->name, text, strlen(text))
                            : sl_error(SL_ERR_MEMORY, "no memory for an index");
    json_decref(json);
    free(text);
    return status;
}

/* Writes the part as one file, or as several of at most `limit` bytes of tensors and an index. */
static sl_status add_part(sli_checkpoint_writer *to, const sl_checkpoint_part *part, uint64_t limit,
                          const sli_checkpoint_source *source)
{
    char name[NAME_BYTES];
    sl_safetensors_item *items;
    sli_checkpoint_written written;
    size_t files = 0;
    SL_TRY(sort_items(part, &items));
    for (size_t i = 0; i < part->count || files == 0; files++)
        i += count_fitting(items + i, part->count - i, limit);
    json_t *map = json_object();
    sl_checkpoint_part one = *part; /* what the next file has */
    sl_status status = SL_OK;
    for (size_t f = 1, first = 0; f <= files && status == SL_OK; f++, first += one.count) {
        one.items = items + first;
        one.count = count_fitting(one.items, part->count - first, limit);
        status = add_tensors(to, &one, name_file(part->name, f, files, name), source, &written);
        for (size_t i = 0; i < one.count; i++)
            json_object_set_new(map, one.items[i].name, json_string(name));
    }
    if (status == SL_OK && files > 1)
        status = add_index(to, part, map);
    json_decref(map);
    free(items);
    return status;
}

/* ---- A part of which each rank has a shard ---------------------------------------------- */

sl_status sli_checkpoint_writer_add_shard(sli_checkpoint_writer *writer,
                                          const sl_checkpoint_part *part, int rank, int ranks,
                                          sli_checkpoint_written *written)
{
    char name[NAME_BYTES];
    name_file(part->name, (size_t)rank + 1, (size_t)ranks, name);
    return add_tensors(writer, part, name, NULL, written);
}

/* Another's file must be there, as it says. */
static sl_status check_file(const sli_checkpoint_writer *to, const char *name, uint64_t bytes)
{
    char *path;
    struct stat found;
    SL_TRY(path_of(to, name, &path));
    sl_status status = SL_OK;
    if (stat(path, &found) != 0)
        status = sl_error(SL_ERR_IO, "%s: another rank has written it, but it cannot be seen: %s",
                          path, strerror(errno));
    else if ((uint64_t)found.st_size != bytes)
        status = sl_error(SL_ERR_IO,
                          "%s: another rank has written %" PRIu64 " bytes, but it has %" PRIu64,
                          path, bytes, (uint64_t)found.st_size);
    free(path);
    return status;
}

sl_status sli_checkpoint_writer_list_shard(sli_checkpoint_writer *writer, const char *part,
                                           int rank, int ranks,
                                           const sli_checkpoint_written *written)
{
    char name[NAME_BYTES];
    SL_TRY(
        check_file(writer, name_file(part, (size_t)rank + 1, (size_t)ranks, name), written->bytes));
    return list_file(writer, name, part, written);
}

/* ---- What may be written ---------------------------------------------------------------- */

static sl_status check_part(const sl_checkpoint_part *part)
{
    char quoted[SLI_QUOTE_BYTES];
    bool plain = part->name && part->name[0] != '\0' && strlen(part->name) <= PART_BYTES;
    for (const char *at = part->name; plain && *at; at++)
        plain = isalnum((unsigned char)*at) || *at == '_' || *at == '-';
    if (!plain)
        return sl_error(SL_ERR_INVALID,
                        "a part's name has letters, digits, - and _ alone, at most %d, got %s",
                        PART_BYTES, sli_safetensors_quote(part->name ? part->name : "", quoted));
    for (size_t i = 0; i < part->count; i++)
        if (!sli_safetensors_dtype_of(part->items[i].dtype))
            return sl_error(SL_ERR_INVALID, "tensor %s: %d is no data type",
                            sli_safetensors_quote(part->items[i].name, quoted),
                            (int)part->items[i].dtype);
    return SL_OK;
}

static sl_status check_contents(const sl_checkpoint_contents *contents)
{
    char quoted[SLI_QUOTE_BYTES];
    if (contents->part_count > SL_CHECKPOINT_MOST_PARTS)
        return sl_error(SL_ERR_INVALID, "a checkpoint has at most %d parts, got %zu",
                        SL_CHECKPOINT_MOST_PARTS, contents->part_count);
    for (size_t i = 0; i < contents->part_count; i++) {
        SL_TRY(check_part(&contents->parts[i]));
        for (size_t k = 0; k < i; k++)
            if (strcmp(contents->parts[k].name, contents->parts[i].name) == 0)
                return sl_error(SL_ERR_INVALID, "part \"%s\" is listed twice",
                                contents->parts[i].name);
    }
    for (size_t i = 0; i < contents->file_count; i++) {
        const char *name = contents->files[i].name;
        if (name[0] == '\0' || name[0] == '.' || strchr(name, '/') ||
            strstr(name, ".safetensors") || strcmp(name, SLI_CHECKPOINT_STATE) == 0)
            return sl_error(SL_ERR_INVALID, "a file of a checkpoint cannot be called %s",
                            sli_safetensors_quote(name, quoted));
    }
    return SL_OK;
}

static sl_status not_a_checkpoint(void)
{
    return sl_error(SL_ERR_INVALID,
                    "it exists and is not a checkpoint: move it away, or save elsewhere");
}

static sl_status find_entry(void *context, const char *name)
{
    (void)context;
    (void)name;
    return not_a_checkpoint();
}

/* An older checkpoint, a link to one, or an empty directory may be replaced. */
static sl_status check_replaceable(int holder, const char *name)
{
    struct stat found;
    if (fstatat(holder, name, &found, AT_SYMLINK_NOFOLLOW) != 0)
        return SL_OK;
    bool is_link = S_ISLNK(found.st_mode);
    int directory = is_link || S_ISDIR(found.st_mode)
                        ? openat(holder, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                        : -1;
    if (directory < 0)
        return not_a_checkpoint();
    bool checkpoint = faccessat(directory, SLI_CHECKPOINT_STATE, F_OK, 0) == 0;
    sl_status status = SL_OK;
    if (!checkpoint)
        status =
            is_link ? not_a_checkpoint() : sli_directory_visit(directory, name, find_entry, NULL);
    else if (!is_link && !sli_directory_is_flat(holder, name))
        status = sl_error(SL_ERR_INVALID, "the checkpoint of that name has a directory in it");
    close(directory);
    return status;
}

sl_status sli_checkpoint_check_path(const char *path, bool is_new)
{
    int holder;
    char *name;
    struct stat found;
    SL_TRY(sli_path_open_parent(path, path, &holder, &name));
    sl_status status = SL_OK;
    if (!is_new)
        status = check_replaceable(holder, name);
    else if (fstatat(holder, name, &found, AT_SYMLINK_NOFOLLOW) == 0)
        status = sl_error(SL_ERR_INVALID, "%s: there is something of that name already", path);
    close(holder);
    free(name);
    return status;
}

/* ---- The writer ------------------------------------------------------------------------- */

sl_status sli_checkpoint_writer_create(const char *path, uint64_t id, bool joins,
                                       sli_checkpoint_writer **out)
{
    sli_checkpoint_writer *writer = *out = calloc(1, sizeof *writer);
    if (!writer || !(writer->files = json_array())) {
        sli_checkpoint_writer_destroy(out);
        return sl_error(SL_ERR_MEMORY, "no memory for a checkpoint's record");
    }
    snprintf(writer->id, sizeof writer->id, "%016" PRIx64, id);
    sl_status status = joins ? SL_OK : sli_checkpoint_check_path(path, false);
    if (status == SL_OK && joins)
        status = sli_replace_directory_join(path, id, &writer->directory);
    else if (status == SL_OK)
        status = sli_replace_directory_create_numbered(path, id, &writer->directory);
    if (status != SL_OK)
        sli_checkpoint_writer_destroy(out);
    return status;
}

sl_status sli_checkpoint_writer_add(sli_checkpoint_writer *writer,
                                    const sl_checkpoint_contents *contents,
                                    const sli_checkpoint_source *source)
{
    SL_TRY(check_contents(contents));
    for (size_t i = 0; i < contents->part_count; i++)
        SL_TRY(add_part(writer, &contents->parts[i], contents->shard_bytes, source));
    for (size_t i = 0; i < contents->file_count; i++)
        SL_TRY(add_bytes(writer, contents->files[i].name, NULL, contents->files[i].data,
                         contents->files[i].bytes));
    return SL_OK;
}

sl_status sli_checkpoint_writer_commit(sli_checkpoint_writer *writer, const char *state)
{
    char *text;
    SL_TRY(sli_checkpoint_state_print(writer->id, state, writer->files, &text));
    sl_status status = write_bytes(writer, SLI_CHECKPOINT_STATE, text, strlen(text));
    free(text);
    return status == SL_OK ? sli_replace_directory_commit(writer->directory) : status;
}

void sli_checkpoint_writer_destroy(sli_checkpoint_writer **writer)
{
    if (!writer || !*writer)
        return;
    sli_replace_directory_destroy(&(*writer)->directory);
    json_decref((*writer)->files);
    free(*writer);
    *writer = NULL;
}

static sl_status save(const char *path, const sl_checkpoint_contents *contents,
                      const sli_checkpoint_source *source)
{
    uint64_t id;
    sli_checkpoint_writer *writer;
    SL_TRY(check_contents(contents)); /* before anything is created */
    SL_TRY(sli_draw_number(path, &id));
    SL_TRY(sli_checkpoint_writer_create(path, id, false, &writer));
    sl_status status = sli_checkpoint_writer_add(writer, contents, source);
    if (status == SL_OK)
        status = sli_checkpoint_writer_commit(writer, contents->state);
    sli_checkpoint_writer_destroy(&writer);
    return status;
}

sl_status sli_checkpoint_save_from(const char *path, const sl_checkpoint_contents *contents,
                                   const sli_checkpoint_source *source)
{
    return sl_error_context(save(path, contents, source),
                            "%s: the checkpoint cannot be written: ", path);
}

sl_status sl_checkpoint_save(const char *path, const sl_checkpoint_contents *contents)
{
    return sli_checkpoint_save_from(path, contents, NULL);
}
