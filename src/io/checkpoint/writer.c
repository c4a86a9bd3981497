/* Saving: every file goes into a directory of a temporary name, its checksum taken while it is
 * written; a checkpoint's state.json, which lists them, comes last; then the directory gets its
 * name. */
#define _GNU_SOURCE /* asprintf */
#include "core/error.h"
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

typedef struct writer {
    const sli_checkpoint_writing *settings;
    sli_replace_directory *directory;
    char id[SLI_CHECKPOINT_ID_BYTES];
    json_t *files; /* what has been written so far, as state.json says it */
} writer;

/* ---- Files ------------------------------------------------------------------------------ */

static sl_status list_file(writer *job, const char *name, const char *part,
                           const sli_written_file *written)
{
    json_t *file = json_pack("{ss ss* sI ss}", "name", name, "part", part, "bytes",
                             (json_int_t)written->bytes, "xxh128", written->checksum);
    return json_array_append_new(job->files, file) == 0 ? SL_OK
                                                        : sli_no_memory(NULL, "the list of files");
}

static sl_status path_of(const writer *job, const char *name, char **path)
{
    return sli_path_join(sli_replace_directory_temporary(job->directory), name, path);
}

static sl_status write_bytes(const writer *job, const char *name, const void *data, size_t bytes)
{
    char *path;
    SL_TRY(path_of(job, name, &path));
    sl_status status = sli_file_write(path, data, bytes);
    free(path);
    return status;
}

/* A file that is listed. */
static sl_status add_bytes(writer *job, const char *name, const char *part, const void *data,
                           size_t bytes)
{
    sli_written_file written = {.bytes = bytes};
    sli_checksum_of(data, bytes, written.checksum);
    SL_TRY(write_bytes(job, name, data, bytes));
    return list_file(job, name, part, &written);
}

/* ---- Parts ------------------------------------------------------------------------------ */

/* Writes all of `part` as the file `name`. Its metadata also say whose it is, and what Hugging
 * Face's readers ask for. A model has the same bytes however often it is saved. */
static sl_status write_tensors(writer *job, const sl_checkpoint_part *part, const char *name,
                               sli_written_file *written)
{
    char *path;
    size_t count = part->metadata_count;
    SL_TRY(path_of(job, name, &path));
    sl_metadata *metadata = calloc(count + 2, sizeof *metadata);
    sl_status status;
    if (!metadata)
        SL_TRY_OR_FAIL(sli_no_memory(NULL, "the metadata"));
    for (size_t i = 0; i < count; i++)
        metadata[i] = part->metadata[i];
    metadata[count] = job->settings->is_model ? (sl_metadata){SLI_MODEL_VERSION_KEY, sl_version()}
                                              : (sl_metadata){SLI_CHECKPOINT_ID_KEY, job->id};
    metadata[count + 1] = (sl_metadata){"format", "pt"};
    status = sli_safetensors_write(path, part->items, part->count, metadata, count + 2,
                                   job->settings->source, written);
fail:
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

/* How many of the items fill a file: a larger one has a file of its own. */
static size_t count_fitting(const sl_safetensors_item *items, size_t count, uint64_t limit)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += sli_safetensors_item_bytes(&items[i]);
        if (limit > 0 && bytes > limit && i > 0)
            return i;
    }
    return count;
}

/* Writes the part as one file, or as several of at most `limit` bytes of tensors. */
static sl_status add_part(writer *job, const sl_checkpoint_part *part, uint64_t limit)
{
    char name[NAME_BYTES];
    sli_written_file written;
    size_t files = 0;
    for (size_t i = 0; i < part->count || files == 0; files++)
        i += count_fitting(part->items + i, part->count - i, limit);
    sl_checkpoint_part one = *part; /* what the next file has */
    for (size_t f = 1, first = 0; f <= files; f++, first += one.count) {
        one.items = part->items + first;
        one.count = count_fitting(one.items, part->count - first, limit);
        SL_TRY(write_tensors(job, &one, name_file(part->name, f, files, name), &written));
        SL_TRY(list_file(job, name, part->name, &written));
    }
    return SL_OK;
}

/* ---- Indexes ---------------------------------------------------------------------------- */

/* Hugging Face's index of a part. */
typedef struct part_index {
    json_t *map; /* the file of each tensor */
    json_int_t bytes;
    bool has_segments; /* which the index cannot say */
} part_index;

static sl_status index_file(const writer *job, const char *name, part_index *index)
{
    char *path;
    sli_safetensors_reader *file;
    SL_TRY(path_of(job, name, &path));
    sl_status status = sli_safetensors_open(path, &file);
    free(path);
    SL_TRY(status);
    index->has_segments |= sli_safetensors_metadata(file, SLI_SEGMENTS_KEY) != NULL;
    for (size_t i = 0; i < sli_safetensors_count(file) && status == SL_OK; i++) {
        const sl_safetensors_info *info = sli_safetensors_get(file, i);
        index->bytes += (json_int_t)info->bytes;
        if (json_object_set_new(index->map, info->name, json_string(name)) != 0)
            status = sli_no_memory(NULL, "an index");
    }
    sli_safetensors_close(&file);
    return status;
}

static sl_status write_index(writer *job, const char *part, const part_index *index)
{
    char name[NAME_BYTES];
    json_t *json =
        json_pack("{s{sI} sO}", "metadata", "total_size", index->bytes, "weight_map", index->map);
    char *text = json ? json_dumps(json, JSON_INDENT(2)) : NULL;
    snprintf(name, sizeof name, "%s.safetensors.index.json", part);
    sl_status status =
        text ? add_bytes(job, name, part, text, strlen(text)) : sli_no_memory(NULL, "an index");
    json_decref(json);
    free(text);
    return status;
}

/* The name of a listed file, if it is the part's. */
static const char *name_in(const json_t *file, const char *part)
{
    const char *owner = json_string_value(json_object_get(file, "part"));
    return owner && strcmp(owner, part) == 0 ? json_string_value(json_object_get(file, "name"))
                                             : NULL;
}

static size_t count_files(const writer *job, const char *part)
{
    size_t files = 0;
    for (size_t i = 0; i < json_array_size(job->files); i++)
        files += name_in(json_array_get(job->files, i), part) != NULL;
    return files;
}

/* Of a part in several files, by what these say, whoever has written them. */
static sl_status add_index(writer *job, const char *part)
{
    part_index index = {.map = json_object()};
    sl_status status = SL_OK;
    for (size_t i = 0; i < json_array_size(job->files); i++) {
        const char *name = name_in(json_array_get(job->files, i), part);
        SL_TRY_OR_FAIL(name ? index_file(job, name, &index) : SL_OK);
    }
    if (!index.has_segments)
        status = write_index(job, part, &index);
fail:
    json_decref(index.map);
    return status;
}

/* ---- A part of which each rank writes what it has --------------------------------------- */

sl_status sli_checkpoint_make_segment(sl_safetensors_item *item, int64_t first, int64_t count,
                                      json_t *shapes)
{
    char *name;
    json_t *sizes = json_array();
    for (int d = 0; d < item->shape.dims; d++)
        json_array_append_new(sizes, json_integer(item->shape.size[d]));
    bool complete = json_array_size(sizes) == (size_t)item->shape.dims;
    if (json_object_set_new(shapes, item->name, sizes) != 0 || !complete ||
        asprintf(&name, "%s@%" PRId64, item->name, first) < 0)
        return sli_no_memory(NULL, "the shape of tensor %s", item->name);
    item->name = name;
    item->shape = sl_shape_1d(count);
    return SL_OK;
}

/* Lists a file that a rank has written, which must be there as it says. */
static sl_status list_shard(writer *job, const char *part, int64_t number, int count,
                            const sli_written_file *written)
{
    char name[NAME_BYTES], *path;
    struct stat found;
    SL_TRY(path_of(job, name_file(part, (size_t)number, (size_t)count, name), &path));
    sl_status status = list_file(job, name, part, written);
    if (stat(path, &found) != 0)
        status = sl_error(SL_ERR_IO, "%s: another rank has written it, but it cannot be seen: %s",
                          path, strerror(errno));
    else if ((uint64_t)found.st_size != written->bytes)
        status = sl_error(SL_ERR_IO,
                          "%s: another rank has written %" PRIu64 " bytes, but it has %" PRIu64,
                          path, written->bytes, (uint64_t)found.st_size);
    free(path);
    return status;
}

/* Lists what all ranks have written, part by part. */
static sl_status list_shards(writer *job, const sl_checkpoint_contents *contents)
{
    const sli_checkpoint_writing *settings = job->settings;
    for (int rank = 1; rank < settings->ranks; rank++)
        SL_TRY(sl_error_context(sli_error_restore(&settings->all[rank].error), "rank %d: ", rank));
    for (size_t p = 0; p < contents->part_count; p++)
        for (int rank = 0; rank < settings->ranks; rank++)
            if (settings->all[rank].numbers[p] > 0)
                SL_TRY(list_shard(job, contents->parts[p].name, settings->all[rank].numbers[p],
                                  settings->shards[p].count, &settings->all[rank].files[p]));
    return SL_OK;
}

/* Exchanges the ranks' reports, of which this is one; rank 0 lists the others' files. */
static sl_status exchange_reports(writer *job, const sl_checkpoint_contents *contents,
                                  sl_status status, sli_shard_report *own)
{
    const sli_checkpoint_writing *settings = job->settings;
    sli_error_save(&own->error, status);
    sl_status gathered = settings->gather(settings->context, own);
    if (status != SL_OK)
        return sli_error_restore(&own->error);
    return gathered == SL_OK && settings->rank == 0 ? list_shards(job, contents) : gathered;
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
        if (!sli_checkpoint_is_plain_name(name) || strstr(name, ".safetensors"))
            return sl_error(SL_ERR_INVALID, "a file of a checkpoint cannot be called %s",
                            sli_safetensors_quote(name, quoted));
    }
    return SL_OK;
}

static const char adapter_name[] = SLI_ADAPTER_PART ".safetensors";

static bool is_part_of_model(void *context, const char *name)
{
    (void)context;
    for (size_t i = 0; sli_model_file_names[i]; i++)
        if (strcmp(name, sli_model_file_names[i]) == 0)
            return true;
    if (strcmp(name, "adapter_config.json") == 0 || strcmp(name, adapter_name) == 0)
        return true;
    return strncmp(name, SLI_MODEL_PART, sizeof SLI_MODEL_PART - 1) == 0 &&
           strstr(name, ".safetensors");
}

/* Whether sluice has saved a model or an adapter there, and nothing else has come. */
static bool is_saved_model(int directory, const char *path)
{
    sl_checkpoint_reader *reader = NULL;
    char *file = NULL;
    bool is_adapter = faccessat(directory, adapter_name, F_OK, 0) == 0;
    bool is_model = sli_directory_walk(directory, is_part_of_model, NULL) &&
                    (!is_adapter || sli_path_join(path, adapter_name, &file) == SL_OK) &&
                    sl_checkpoint_open(file ? file : path, &reader) == SL_OK &&
                    sli_checkpoint_metadata(reader, SLI_MODEL_PART, SLI_MODEL_VERSION_KEY);
    sl_checkpoint_close(&reader);
    free(file);
    return is_model;
}

static bool stop_at_entry(void *context, const char *name)
{
    (void)context;
    (void)name;
    return false;
}

/* An empty directory may be replaced; by a checkpoint an older one, or a link to one; and by a
 * model one that sluice has saved. */
static sl_status check_replaceable(int holder, const char *path, const struct stat *found,
                                   const char *name, bool is_model)
{
    int directory = openat(holder, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool is_link = S_ISLNK(found->st_mode);
    bool is_empty = directory >= 0 && sli_directory_walk(directory, stop_at_entry, NULL);
    bool is_own =
        directory >= 0 && (is_model ? is_saved_model(directory, path)
                                    : faccessat(directory, SLI_CHECKPOINT_STATE, F_OK, 0) == 0);
    if (directory >= 0)
        close(directory);
    if (is_own && !is_link && !sli_directory_is_flat(holder, name))
        return sl_error(SL_ERR_INVALID, "the checkpoint of that name has a directory in it");
    if (is_own || (is_empty && !is_link))
        return SL_OK;
    if (is_model && S_ISREG(found->st_mode))
        return sl_error(SL_ERR_INVALID, "a model is a directory, and a file has this name: move it "
                                        "away, or save elsewhere");
    return sl_error(SL_ERR_INVALID, "it exists and is not %s: move it away, or save elsewhere",
                    is_model ? "a model that sluice saved, with nothing else beside it"
                             : "a checkpoint");
}

/* Another file of its name does not make a directory a checkpoint. */
static bool is_checkpoint(const char *directory)
{
    sli_checkpoint_state state;
    bool is_read = sli_checkpoint_state_read(directory, &state) == SL_OK;
    sli_checkpoint_state_clear(&state);
    return is_read;
}

sl_status sli_checkpoint_check_outside(const char *path, bool is_directory)
{
    char *target;
    if (sli_path_follow(path, &target) != SL_OK)
        return SL_OK; /* said where it is written */
    bool is_inside = is_directory && is_checkpoint(target);
    char *end = strrchr(target, '/');
    if (end && !is_inside)
        end[end == target] = '\0';
    const char *holder = end || is_inside ? target : ".";
    sl_status status = SL_OK;
    if (is_inside || is_checkpoint(holder))
        status = sl_error(SL_ERR_INVALID, "%s would lie in the checkpoint %s", path, holder);
    free(target);
    return status;
}

sl_status sli_checkpoint_check_path(const char *path, bool is_model, bool is_new)
{
    int holder;
    char *name;
    struct stat found;
    SL_TRY(sli_checkpoint_check_outside(path, false));
    SL_TRY(sli_path_open_parent(path, path, &holder, &name));
    sl_status status = SL_OK;
    if (fstatat(holder, name, &found, AT_SYMLINK_NOFOLLOW) == 0)
        status = is_new
                     ? sl_error(SL_ERR_INVALID, "%s: there is something of that name already", path)
                     : check_replaceable(holder, path, &found, name, is_model);
    else if (errno != ENOENT)
        status = sli_io_error(path, "cannot be examined");
    close(holder);
    free(name);
    return status;
}

/* ---- All of it -------------------------------------------------------------------------- */

/* What this rank writes of a part. */
static sl_status write_part(writer *job, const sl_checkpoint_contents *contents, size_t index,
                            sli_shard_report *report)
{
    char name[NAME_BYTES];
    const sl_checkpoint_part *part = &contents->parts[index];
    const sli_checkpoint_shard *shard =
        job->settings->shards ? &job->settings->shards[index] : NULL;
    if (!shard || shard->count == 1)
        return job->settings->rank == 0 ? add_part(job, part, contents->shard_bytes) : SL_OK;
    report->numbers[index] = shard->number;
    if (shard->number == 0)
        return SL_OK;
    name_file(part->name, (size_t)shard->number, (size_t)shard->count, name);
    return write_tensors(job, part, name, &report->files[index]);
}

/* What this rank writes, but for indexes and state.json. */
static sl_status write_files(writer *job, const char *path, const sl_checkpoint_contents *contents,
                             sli_shard_report *report)
{
    const sli_checkpoint_writing *settings = job->settings;
    uint64_t id = settings->id;
    SL_TRY(check_contents(contents)); /* before anything is created */
    if (id == 0)
        SL_TRY(sli_draw_number(path, &id));
    snprintf(job->id, sizeof job->id, "%016" PRIx64, id);
    job->files = json_array();
    if (settings->rank > 0) {
        SL_TRY(sli_replace_directory_join(path, id, &job->directory));
    } else {
        SL_TRY(sli_checkpoint_check_path(path, settings->is_model, settings->is_new));
        SL_TRY(sli_replace_directory_create_numbered(path, id, &job->directory));
    }
    for (size_t i = 0; i < contents->part_count; i++)
        SL_TRY(write_part(job, contents, i, report));
    for (size_t i = 0; i < contents->file_count; i++)
        SL_TRY(add_bytes(job, contents->files[i].name, NULL, contents->files[i].data,
                         contents->files[i].bytes));
    return SL_OK;
}

static sl_status complete(writer *job, const sl_checkpoint_contents *contents)
{
    char *text = NULL;
    sl_status status = SL_OK;
    for (size_t i = 0; i < contents->part_count; i++)
        if (count_files(job, contents->parts[i].name) > 1)
            SL_TRY(add_index(job, contents->parts[i].name));
    if (!job->settings->is_model)
        status = sli_checkpoint_state_print(job->id, contents->state, job->files, &text);
    if (text)
        status = write_bytes(job, SLI_CHECKPOINT_STATE, text, strlen(text));
    free(text);
    return status == SL_OK ? sli_replace_directory_commit(job->directory, job->settings->is_new)
                           : status;
}

sl_status sli_checkpoint_write(const char *path, const sl_checkpoint_contents *contents,
                               const sli_checkpoint_writing *settings)
{
    static const char cannot[] = "%s: the %s cannot be written: ";
    const char *what = settings->is_model ? "model" : "checkpoint";
    writer job = {.settings = settings};
    sli_shard_report own = {0};
    sl_status status =
        sl_error_context(write_files(&job, path, contents, &own), cannot, path, what);
    if (settings->ranks > 1)
        status = exchange_reports(&job, contents, status, &own);
    if (status == SL_OK && settings->rank == 0)
        status = sl_error_context(complete(&job, contents), cannot, path, what);
    sli_replace_directory_destroy(&job.directory);
    json_decref(job.files);
    return status;
}

sl_status sl_checkpoint_save(const char *path, const sl_checkpoint_contents *contents)
{
    return sli_checkpoint_write(path, contents, &(sli_checkpoint_writing){0});
}
