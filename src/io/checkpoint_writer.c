/* Saving: every file goes into a directory of a temporary name, its checksum taken while it is
 * written; state.json, which lists them, comes last; then the directory gets its name. */
#define _GNU_SOURCE /* asprintf */

#include "core/replace_directory.h"
#include "core/replace_file.h"
#include "io/checkpoint_index.h"
#include "io/checkpoint_state.h"
#include "io/safetensors_dtype.h"
#include "io/safetensors_text.h"
#include "io/safetensors_writer.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* What has been written so far, as state.json will say it. Owns the strings but `part`. */
typedef struct writing {
    const char *directory;
    char id[SLI_CHECKPOINT_ID_BYTES];
    sl_checkpoint_file_info *files;
    size_t count, room;
} writing;

/* ---- The list of files ------------------------------------------------------------------ */

static sl_status note_file(writing *to, const char *name, const char *part, uint64_t bytes,
                           const char *checksum)
{
    if (to->count == to->room) {
        size_t room = 2 * to->room + 8;
        sl_checkpoint_file_info *more = realloc(to->files, room * sizeof *more);
        if (!more)
            return sl_error(SL_ERR_MEMORY, "no memory for the list of files");
        to->files = more;
        to->room = room;
    }
    sl_checkpoint_file_info *file = &to->files[to->count++];
    *file = (sl_checkpoint_file_info){strdup(name), part, bytes, strdup(checksum)};
    return file->name && file->checksum ? SL_OK
                                        : sl_error(SL_ERR_MEMORY, "no memory for a file's name");
}

static void clear(writing *to)
{
    for (size_t i = 0; i < to->count; i++) {
        free((char *)to->files[i].name);
        free((char *)to->files[i].checksum);
    }
    free(to->files);
}

static sl_status path_of(const writing *to, const char *name, char **path)
{
    if (asprintf(path, "%s/%s", to->directory, name) >= 0)
        return SL_OK;
    *path = NULL;
    return sl_error(SL_ERR_MEMORY, "no memory for a path");
}

static sl_status write_bytes(const writing *to, const char *name, const void *data, size_t bytes)
{
    char *path;
    sli_replace_file *file = NULL;
    SL_TRY(path_of(to, name, &path));
    sl_status status = sli_replace_file_create(path, &file);
    if (status == SL_OK)
        status = sli_replace_file_write(file, 0, data, bytes);
    if (status == SL_OK)
        status = sli_replace_file_commit(file);
    sli_replace_file_destroy(&file);
    free(path);
    return status;
}

/* A file that is listed with its checksum. */
static sl_status add_bytes(writing *to, const char *name, const char *part, const void *data,
                           size_t bytes)
{
    char checksum[SLI_CHECKSUM_BYTES];
    SL_TRY(write_bytes(to, name, data, bytes));
    return note_file(to, name, part, bytes, sli_checksum_of(data, bytes, checksum));
}

/* ---- Parts ------------------------------------------------------------------------------ */

/* A part's tensors as its files have them: larger elements first, else as they were given. */
typedef struct part_plan {
    const sl_checkpoint_part *part;
    sl_safetensors_item *items; /* [part->count] */
    size_t *shard_of;           /* [part->count], not falling */
    size_t shards;
    char **names; /* [shards] of files */
    uint64_t bytes;
} part_plan;

static void clear_plan(part_plan *plan)
{
    for (size_t i = 0; plan->names && i < plan->shards; i++)
        free(plan->names[i]);
    free(plan->names);
    free(plan->shard_of);
    free(plan->items);
}

static void order_items(const sl_checkpoint_part *part, sl_safetensors_item *out)
{
    static const size_t widths[] = {8, 4, 2};
    size_t placed = 0;
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (size_t i = 0; i < part->count; i++)
            if (sl_dtype_bytes(part->items[i].dtype) == widths[w])
                out[placed++] = part->items[i];
}

/* Fills each file up to the limit; a tensor beyond it has a file of its own. */
static void assign_shards(part_plan *plan, uint64_t limit)
{
    uint64_t in_shard = 0;
    plan->shards = 1;
    for (size_t i = 0; i < plan->part->count; i++) {
        const sl_safetensors_item *item = &plan->items[i];
        uint64_t bytes = (uint64_t)sl_shape_count(&item->shape) * sl_dtype_bytes(item->dtype);
        if (limit > 0 && in_shard > 0 && in_shard + bytes > limit) {
            plan->shards++;
            in_shard = 0;
        }
        plan->shard_of[i] = plan->shards - 1;
        in_shard += bytes;
        plan->bytes += bytes;
    }
}

static sl_status name_shards(part_plan *plan)
{
    plan->names = calloc(plan->shards, sizeof(char *));
    for (size_t i = 0; plan->names && i < plan->shards; i++) {
        int made = plan->shards == 1 ? asprintf(&plan->names[i], "%s.safetensors", plan->part->name)
                                     : asprintf(&plan->names[i], "%s-%05zu-of-%05zu.safetensors",
                                                plan->part->name, i + 1, plan->shards);
        if (made < 0) {
            plan->names[i] = NULL;
            return sl_error(SL_ERR_MEMORY, "no memory for a file's name");
        }
    }
    return plan->names ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory for the names of files");
}

static sl_status plan_part(const sl_checkpoint_part *part, uint64_t limit, part_plan *out)
{
    *out = (part_plan){.part = part,
                       .items = calloc(part->count + 1, sizeof *out->items),
                       .shard_of = calloc(part->count + 1, sizeof *out->shard_of)};
    if (!out->items || !out->shard_of)
        return sl_error(SL_ERR_MEMORY, "no memory for a list of %zu tensors", part->count);
    order_items(part, out->items);
    assign_shards(out, limit);
    return name_shards(out);
}

static sl_status put_all(sl_safetensors_writer *writer, const sl_safetensors_item *items,
                         size_t count)
{
    for (size_t i = 0; i < count; i++)
        SL_TRY(sl_safetensors_writer_put(writer, i, items[i].data));
    return sl_safetensors_writer_commit(writer);
}

/* Items first … first + count - 1 as one file. */
static sl_status write_shard(writing *to, const part_plan *plan, size_t shard, size_t first,
                             size_t count, const sl_safetensors_note *notes)
{
    char *path, checksum[SLI_CHECKSUM_BYTES];
    sl_safetensors_writer *writer = NULL;
    SL_TRY(path_of(to, plan->names[shard], &path));
    sl_status status = sl_safetensors_writer_create(path, plan->items + first, count, notes,
                                                    plan->part->note_count + 1, &writer);
    if (status == SL_OK)
        status = put_all(writer, plan->items + first, count);
    if (status == SL_OK)
        status = sli_safetensors_writer_checksum(writer, checksum);
    if (status == SL_OK)
        status = note_file(to, plan->names[shard], plan->part->name,
                           sli_safetensors_writer_bytes(writer), checksum);
    sl_safetensors_writer_destroy(&writer);
    free(path);
    return status;
}

static sl_status write_shards(writing *to, const part_plan *plan)
{
    const sl_checkpoint_part *part = plan->part;
    sl_safetensors_note *notes = calloc(part->note_count + 1, sizeof *notes);
    if (!notes)
        return sl_error(SL_ERR_MEMORY, "no memory for the metadata");
    if (part->note_count)
        memcpy(notes, part->notes, part->note_count * sizeof *notes);
    notes[part->note_count] = (sl_safetensors_note){SLI_CHECKPOINT_ID_NOTE, to->id};
    sl_status status = SL_OK;
    for (size_t shard = 0, first = 0; shard < plan->shards && status == SL_OK; shard++) {
        size_t end = first;
        while (end < part->count && plan->shard_of[end] == shard)
            end++;
        status = write_shard(to, plan, shard, first, end - first, notes);
        first = end;
    }
    free(notes);
    return status;
}

static sl_status write_index(writing *to, const part_plan *plan)
{
    char *text, *name;
    SL_TRY(sli_checkpoint_index_print(plan->items, plan->part->count, plan->shard_of, plan->names,
                                      plan->bytes, &text));
    if (asprintf(&name, "%s.safetensors.index.json", plan->part->name) < 0) {
        free(text);
        return sl_error(SL_ERR_MEMORY, "no memory for a file's name");
    }
    sl_status status = add_bytes(to, name, plan->part->name, text, strlen(text));
    free(name);
    free(text);
    return status;
}

static sl_status write_part(writing *to, const sl_checkpoint_part *part, uint64_t limit)
{
    part_plan plan;
    sl_status status = plan_part(part, limit, &plan);
    if (status == SL_OK)
        status = write_shards(to, &plan);
    if (status == SL_OK && plan.shards > 1)
        status = write_index(to, &plan);
    clear_plan(&plan);
    return status;
}

/* ---- All of it -------------------------------------------------------------------------- */

static sl_status check_part(const sl_checkpoint_part *part)
{
    char quoted[SLI_QUOTE_BYTES];
    bool plain = part->name && part->name[0] != '\0';
    for (const char *at = part->name; plain && *at; at++)
        plain = isalnum((unsigned char)*at) || *at == '_' || *at == '-';
    if (!plain)
        return sl_error(SL_ERR_INVALID, "a part's name has letters, digits, - and _ alone, got %s",
                        sli_safetensors_quote(part->name ? part->name : "", quoted));
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
    for (size_t i = 0; i < contents->part_count; i++) {
        SL_TRY(check_part(&contents->parts[i]));
        for (size_t k = 0; k < i; k++)
            if (strcmp(contents->parts[k].name, contents->parts[i].name) == 0)
                return sl_error(SL_ERR_INVALID, "part \"%s\" is there twice",
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

/* An older checkpoint, an empty directory or nothing may be replaced. */
static sl_status check_place(const char *path)
{
    struct stat found;
    char *state;
    if (lstat(path, &found) != 0)
        return SL_OK;
    if (!S_ISDIR(found.st_mode))
        return sl_error(SL_ERR_INVALID, "there is something else of that name");
    if (asprintf(&state, "%s/%s", path, SLI_CHECKPOINT_STATE) < 0)
        return sl_error(SL_ERR_MEMORY, "no memory for a path");
    bool checkpoint = access(state, F_OK) == 0;
    free(state);
    DIR *open = checkpoint ? NULL : opendir(path);
    int entries = 0;
    while (open && readdir(open))
        entries++;
    if (open)
        closedir(open);
    if (!checkpoint && entries > 2) /* . and .. */
        return sl_error(SL_ERR_INVALID, "the directory is there and is no checkpoint");
    return SL_OK;
}

static sl_status write_all(writing *to, const sl_checkpoint_contents *contents)
{
    char *text;
    for (size_t i = 0; i < contents->part_count; i++)
        SL_TRY(write_part(to, &contents->parts[i], contents->shard_bytes));
    for (size_t i = 0; i < contents->file_count; i++)
        SL_TRY(add_bytes(to, contents->files[i].name, NULL, contents->files[i].data,
                         contents->files[i].bytes));
    SL_TRY(sli_checkpoint_state_print(to->id, contents->state, to->files, to->count, &text));
    sl_status status = write_bytes(to, SLI_CHECKPOINT_STATE, text, strlen(text));
    free(text);
    return status;
}

static sl_status save(const char *path, const sl_checkpoint_contents *contents)
{
    writing to = {0};
    uint64_t random;
    sli_replace_directory *directory;
    SL_TRY(check_contents(contents));
    SL_TRY(check_place(path));
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return sl_error(SL_ERR_IO, "getting a random number failed: %s", strerror(errno));
    snprintf(to.id, sizeof to.id, "%016llx", (unsigned long long)random);
    SL_TRY(sli_replace_directory_create(path, &directory));
    to.directory = sli_replace_directory_temporary(directory);
    sl_status status = write_all(&to, contents);
    if (status == SL_OK)
        status = sli_replace_directory_commit(directory);
    sli_replace_directory_destroy(&directory);
    clear(&to);
    return status;
}

sl_status sl_checkpoint_save(const char *path, const sl_checkpoint_contents *contents)
{
    return sl_error_context(save(path, contents), "%s: the checkpoint cannot be written: ", path);
}
