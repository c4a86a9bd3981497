/* Where the rows of a run come from: the splits of each source are read, and described so that a
 * run which resumes knows them. */
#include "train/loop/rows_task.h"

#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "text/rows.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static sl_status has_rows(const sl_source *source, bool *out)
{
    char *path;
    SL_TRY(sl_rows_path(source->path, SL_SPLIT_TRAIN, &path));
    *out = path != NULL;
    free(path);
    if (*out || !source->name)
        return SL_OK;
    return sl_error(SL_ERR_NOT_FOUND,
                    "%s: source %s must be rows of JSON lines or a token file (sluice tokenize), "
                    "or a directory with train.jsonl or train.bin",
                    source->path, source->name);
}

sl_status sli_data_is_rows(const char *data, bool *out)
{
    sl_sources sources;
    sl_status status = SL_OK;
    *out = false;
    if (!data)
        return SL_OK;
    SL_TRY(sl_sources_parse(data, &sources));
    for (int i = 0; i < sources.count && status == SL_OK; i++)
        status = has_rows(&sources.source[i], out);
    sl_sources_free(&sources);
    return status;
}

sl_status sli_check_row_length(const sl_train_options *options)
{
    int64_t most = sl_model_positions(&options->model);
    if (options->bptt <= most)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "bptt (seq-len) must be at most %" PRId64
                    ", the model's positions, got %" PRId64,
                    most, options->bptt);
}

/* A packed row has at most the tokens of --seq-len, and as many as the model has positions. */
static int64_t packed_length(const sl_train_options *options, const sl_model_options *model)
{
    int64_t positions = sl_model_positions(model);
    return options->bptt < positions ? options->bptt : positions;
}

static sl_status pack_rows(int64_t length, int split, sli_rows_source *source)
{
    sl_rows **rows = &source->rows[split], *packed;
    if ((*rows)->length > 0)
        return sl_error(SL_ERR_INVALID,
                        "%s: pack is for rows of JSON lines, and these are token files, whose rows "
                        "are full",
                        source->paths[split]);
    SL_TRY(sli_rows_pack(*rows, length, &packed));
    if (split == SL_SPLIT_TRAIN)
        source->documents = (*rows)->count;
    sl_rows_destroy(rows);
    *rows = packed;
    return SL_OK;
}

/* "DIRECTORY/train.rows", or of one of several sources "DIRECTORY/NAME.train.rows". */
static sl_status name_kept(const char *directory, const sli_rows_source *source, int split,
                           char **out)
{
    char *name = NULL;
    const char *split_name = sl_split_name((sl_split)split);
    size_t bytes = (source->name ? strlen(source->name) : 0) + strlen(split_name) + 8;
    name = malloc(bytes);
    if (!name)
        return sli_no_memory(directory, "the name of a file");
    snprintf(name, bytes, "%s%s%s.rows", source->name ? source->name : "", source->name ? "." : "",
             split_name);
    sl_status status = sli_path_join(directory, name, out);
    free(name);
    return status;
}

/* The rows that are kept of the same lines. */
static sl_status read_kept(const char *kept, int split, sli_rows_source *source)
{
    char *path;
    int64_t documents = 0;
    SL_TRY(name_kept(kept, source, split, &path));
    sl_status status =
        sli_kept_rows_read(path, source->described[split], &source->rows[split], &documents);
    free(path);
    source->is_kept[split] = source->rows[split] != NULL;
    if (source->is_kept[split] && split == SL_SPLIT_TRAIN)
        source->documents = documents;
    return status;
}

static sl_status read_split(const sl_train_options *options, const sl_vocab *vocab,
                            const sli_tokenizing *tokenizing, const sl_model_options *model,
                            const char *data, sl_split split, sli_rows_source *out)
{
    const sl_rows_options reading = {.ntokens = model->ntokens,
                                     .positions = sl_model_positions(model),
                                     .vocab = vocab,
                                     .length = options->bptt,
                                     .token_type = options->token_type,
                                     .no_mask_prompt = !options->mask_prompt,
                                     .threads = tokenizing->threads};
    int64_t length = options->pack ? packed_length(options, model) : 0;
    SL_TRY(sl_rows_path(data, split, &out->paths[split]));
    const char *path = out->paths[split];
    if (!path || (strcmp(path, data) == 0 && split != SL_SPLIT_TRAIN))
        return SL_OK;
    bool is_tokens = sli_name_ends_with(path, SLI_TOKEN_FILE_END);
    if (is_tokens)
        SL_TRY(sli_check_row_length(options));
    else if (options->slices > 1) /* replicas would cut some batches, and others not */
        return sl_error(SL_ERR_UNSUPPORTED,
                        "%s: slices need rows of one length, and JSON lines have lengths of their "
                        "own: set slices to 1",
                        path);
    if (tokenizing->kept && vocab && !is_tokens) {
        SL_TRY(sli_kept_rows_describe(path, &reading, length, &out->described[split]));
        SL_TRY(read_kept(tokenizing->kept, split, out));
    }
    if (out->rows[split])
        return SL_OK;
    SL_TRY(sl_rows_read(path, &reading, &out->rows[split]));
    return options->pack ? pack_rows(length, split, out) : SL_OK;
}

static sl_status read_splits(const sl_train_options *options, const sl_vocab *vocab,
                             const sli_tokenizing *tokenizing, sl_model_options *model,
                             sli_rows_task *out)
{
    for (int split = 0; split < SL_SPLITS; split++) {
        int32_t largest = 0;
        for (int i = 0; i < out->count; i++) {
            SL_TRY(read_split(options, vocab, tokenizing, model, out->named.source[i].path,
                              (sl_split)split, &out->sources[i]));
            const sl_rows *rows = out->sources[i].rows[split];
            largest = rows && rows->largest > largest ? rows->largest : largest;
        }
        if (model->ntokens == 0)
            model->ntokens = (int64_t)largest + 1;
    }
    return SL_OK;
}

static sl_status open_sources(const char *data, sli_rows_task *out)
{
    double weights[SL_MAX_SOURCES];
    SL_TRY(sl_sources_parse(data, &out->named));
    out->count = out->named.count;
    out->sources = calloc((size_t)out->count, sizeof *out->sources);
    if (!out->sources)
        return sli_no_memory(data, "its sources");
    for (int i = 0; i < out->count; i++) {
        out->sources[i].name = out->named.source[i].name;
        weights[i] = out->named.source[i].weight;
    }
    sli_mixture_create(weights, out->count, &out->mixture);
    return SL_OK;
}

/* A single one is told by itself, whatever it is called; a mixture by its names and weights, and
 * the checksum of what tells its sources. */
static void write_description(const sli_rows_task *task, sl_split split, FILE *file)
{
    enum { MOST_BYTES = 160 };
    char texts[SL_MAX_SOURCES][MOST_BYTES] = {""}, checksum[SLI_CHECKSUM_BYTES];
    for (int i = 0; i < task->count; i++)
        if (task->sources[i].rows[split])
            sli_rows_describe(task->sources[i].rows[split], texts[i], MOST_BYTES);
    if (task->count == 1) {
        fputs(texts[0], file);
        return;
    }
    sli_checksum_of(texts, (size_t)task->count * MOST_BYTES, checksum);
    fprintf(file, "checksum %s of", checksum);
    for (int i = 0; i < task->count; i++)
        fprintf(file, " %s=%s", task->sources[i].name,
                sli_number_print(task->named.source[i].weight, false).text);
}

static sl_status describe_split(sli_rows_task *task, sl_split split)
{
    size_t bytes;
    bool is_there = false;
    for (int i = 0; i < task->count; i++)
        is_there = is_there || task->sources[i].rows[split];
    if (!is_there)
        return SL_OK;
    FILE *file = open_memstream(&task->data[split], &bytes);
    if (file)
        write_description(task, split, file);
    return file && fclose(file) == 0 ? SL_OK : sli_no_memory(NULL, "a description of data");
}

sl_status sli_rows_task_read(const sl_train_options *options, const sl_vocab *vocab,
                             const sli_tokenizing *tokenizing, sl_model_options *model,
                             sli_rows_task *out)
{
    *out = (sli_rows_task){.model = model};
    if (vocab && model->ntokens == 0)
        model->ntokens = sl_vocab_size(vocab);
    if (vocab && sl_vocab_size(vocab) > model->ntokens)
        return sl_error(SL_ERR_INVALID,
                        "the tokenizer has %" PRId32 " tokens, more than the model's %" PRId64,
                        sl_vocab_size(vocab), model->ntokens);
    SL_TRY(open_sources(options->data, out));
    SL_TRY(read_splits(options, vocab, tokenizing, model, out));
    for (int split = 0; split < SL_SPLITS; split++)
        SL_TRY(describe_split(out, (sl_split)split));
    return options->group_by_length ? sli_length_groups_create(&out->groups) : SL_OK;
}

static sl_status keep_split(const sli_rows_source *source, int split, const char *kept,
                            const char *path)
{
    if (source->is_kept[split])
        return SL_OK;
    if (mkdir(kept, 0777) != 0 && errno != EEXIST)
        return sli_io_error(kept, "the rows cannot be kept there");
    int64_t documents = split == SL_SPLIT_TRAIN ? source->documents : 0;
    return sli_kept_rows_write(path, source->described[split], source->rows[split], documents);
}

sl_status sli_rows_task_keep(const sli_rows_task *rows, const char *kept)
{
    char *paths[SL_MAX_SOURCES * SL_SPLITS] = {NULL};
    int count = 0;
    sl_status status;
    for (int i = 0; i < rows->count; i++)
        for (int split = 0; split < SL_SPLITS; split++)
            if (rows->sources[i].described[split]) {
                SL_TRY_OR_FAIL(name_kept(kept, &rows->sources[i], split, &paths[count]));
                count++;
                SL_TRY_OR_FAIL(keep_split(&rows->sources[i], split, kept, paths[count - 1]));
            }
    status = sli_kept_rows_remove_others(kept, paths, count);
fail:
    while (count > 0)
        free(paths[--count]);
    return status;
}

void sli_rows_task_clear(sli_rows_task *rows)
{
    for (int i = 0; i < rows->count && rows->sources; i++)
        for (int split = 0; split < SL_SPLITS; split++) {
            free(rows->sources[i].paths[split]);
            json_decref(rows->sources[i].described[split]);
            sl_rows_destroy(&rows->sources[i].rows[split]);
        }
    for (int split = 0; split < SL_SPLITS; split++)
        free(rows->data[split]);
    free(rows->sources);
    sl_sources_free(&rows->named);
    sli_length_groups_destroy(&rows->groups);
    *rows = (sli_rows_task){0};
}

int64_t sli_rows_task_longest(const sli_rows_task *rows)
{
    int64_t longest = 1;
    for (int i = 0; i < rows->count; i++)
        for (int split = 0; split < SL_SPLITS; split++) {
            const sl_rows *one = rows->sources[i].rows[split];
            longest = one && one->longest > longest ? one->longest : longest;
        }
    return longest;
}
