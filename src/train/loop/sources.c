/* What a run says of its texts, and in each step and evaluation of the sources of a mixture. */
#include "train/loop/run.h"

#include "core/error.h"
#include "text/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

sl_status sli_run_open_sources(sli_run *run)
{
    sli_sources *sources = &run->sources;
    const sl_train_options *options = run->options;
    size_t count = run->has_rows && run->rows_of_ids.count > 1 ? (size_t)run->rows_of_ids.count : 0;
    if (count == 0)
        return SL_OK;
    sources->count = (int)count;
    sources->infos = calloc(count, sizeof *sources->infos);
    sources->steps = calloc(count, sizeof *sources->steps);
    sources->losses = calloc(count, sizeof *sources->losses);
    sources->row_losses = calloc((size_t)options->batch_size, sizeof *sources->row_losses);
    sources->shard_losses = calloc((size_t)options->shards * count, sizeof *sources->shard_losses);
    return sources->infos && sources->steps && sources->losses && sources->row_losses &&
                   sources->shard_losses
               ? SL_OK
               : sli_no_memory(NULL, "the records of %zu sources", count);
}

void sli_run_close_sources(sli_run *run)
{
    free(run->sources.infos);
    free(run->sources.steps);
    free(run->sources.losses);
    free(run->sources.row_losses);
    free(run->sources.shard_losses);
    run->sources = (sli_sources){0};
}

/* ---- Texts ------------------------------------------------------------------------------ */

/* Of a mixture the sums of its sources. */
static void describe_rows(const sli_rows_task *task, sl_split split, sl_text_info *text)
{
    for (int i = 0; i < task->count; i++) {
        const sli_rows_source *source = &task->sources[i];
        const sl_rows *rows = source->rows[split];
        if (!rows)
            continue;
        text->path = task->count > 1 ? "all sources" : source->paths[split];
        text->tokens += sli_rows_tokens(rows);
        text->rows += rows->count;
        text->documents += split == SL_SPLIT_TRAIN ? source->documents : 0;
    }
}

static void describe_sources(sli_run *run)
{
    const sli_rows_task *task = &run->rows_of_ids;
    for (int i = 0; i < run->sources.count; i++) {
        const sl_rows *rows = task->sources[i].rows[SL_SPLIT_TRAIN];
        run->sources.infos[i] = (sl_source_info){.name = task->sources[i].name,
                                                 .path = task->sources[i].paths[SL_SPLIT_TRAIN],
                                                 .share = task->mixture.shares[i],
                                                 .tokens = sli_rows_tokens(rows),
                                                 .rows = rows->count};
    }
    run->info.sources = run->sources.infos;
    run->info.source_count = run->sources.count;
}

void sli_run_describe_texts(sli_run *run)
{
    for (int split = 0; split < SL_SPLITS && run->has_rows; split++)
        describe_rows(&run->rows_of_ids, (sl_split)split, &run->info.texts[split]);
    describe_sources(run);
    for (int split = 0; split < SL_SPLITS && run->corpus; split++) {
        const sl_tokens *tokens = sl_corpus_tokens(run->corpus, split);
        run->info.texts[split] = (sl_text_info){.path = sl_corpus_name(run->corpus, split),
                                                .tokens = tokens->count,
                                                .unknown = tokens->unknown_count,
                                                .invalid_bytes = tokens->invalid_bytes};
    }
}

/* ---- Steps ------------------------------------------------------------------------------ */

sl_status sli_run_divide_losses(const sli_run *run, int shard)
{
    const sli_sources *sources = &run->sources;
    if (sources->count == 0)
        return SL_OK;
    const sl_train_rows rows = sli_run_rows_of_shard(run, shard);
    sli_source_part parts[SL_MAX_SOURCES] = {{0}};
    SL_TRY(sli_rows_task_divide(&run->rows_of_ids, &rows, sources->row_losses, parts));
    for (int i = 0; i < sources->count; i++)
        sources->shard_losses[shard * sources->count + i] = parts[i].loss;
    return SL_OK;
}

/* The sums of a source are added shard by shard, whichever replica has which. */
sl_status sli_run_sum_sources(sli_run *run)
{
    sli_sources *sources = &run->sources;
    int count = sources->count, shards = run->options->shards;
    sli_source_part parts[SL_MAX_SOURCES] = {{0}};
    if (count == 0)
        return SL_OK;
    if (run->replica.group)
        SL_TRY(sl_group_all_reduce(run->replica.group, sources->shard_losses, shards * count,
                                   SL_F64, SL_REDUCE_SUM, NULL));
    for (int shard = 0; shard < shards; shard++) {
        const sl_train_rows rows = sli_run_rows_of_shard(run, shard);
        SL_TRY(sli_rows_task_divide(&run->rows_of_ids, &rows, NULL, parts));
        for (int i = 0; i < count; i++)
            parts[i].loss += sources->shard_losses[shard * count + i];
    }
    int64_t samples = (run->position.steps + 1) * run->rows;
    for (int i = 0; i < count; i++)
        sources->steps[i] = (sl_source_step){
            .share = (double)parts[i].rows / (double)run->rows,
            .epochs = sli_rows_task_epochs(&run->rows_of_ids, i, samples),
            .loss = parts[i].targets > 0 ? parts[i].loss / (double)parts[i].targets : NAN,
            .targets = parts[i].targets,
        };
    memset(sources->shard_losses, 0, (size_t)(shards * count) * sizeof *sources->shard_losses);
    return SL_OK;
}
