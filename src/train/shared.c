#include "train/shared.h"

#include "device/device_list.h"
#include "train/checkpoint/weights_vocab.h"
#include "train/layout.h"

#include <stdlib.h>

static sl_status read_corpus(sli_shared *shared)
{
    const sl_train_options *options = &shared->options;
    if (!options->data)
        return sl_error(SL_ERR_INVALID, "no data directory was given");
    if (options->init) /* its ids mean the tokens of its own vocabulary */
        SL_TRY(sl_weights_vocab(options->init, &shared->vocab));
    SL_TRY(sl_corpus_load(options->data, shared->vocab, &shared->corpus));
    if (options->init && !shared->vocab)
        SL_TRY(sli_weights_vocab_check(options->init, sl_corpus_vocab(shared->corpus)));
    return sl_synthetic_corpus_best_perplexity(options->data, options->bptt,
                                               &shared->best_possible_perplexity);
}

/* Cuts every split, so that what is impossible is found now, not after an epoch. */
static sl_status cut_splits(sli_shared *shared)
{
    const sl_train_options *options = &shared->options;
    const int64_t columns[SL_SPLITS] = {options->batch_size, options->eval_batch_size,
                                        options->eval_batch_size};
    for (int split = 0; split < SL_SPLITS; split++) {
        const sl_tokens *tokens = sl_corpus_tokens(shared->corpus, (sl_split)split);
        bool is_training = split == SL_SPLIT_TRAIN;
        sl_batches cut;
        sl_status status =
            sl_batchify(tokens->ids, tokens->count, columns[split], options->bptt, &cut);
        if (status == SL_OK && is_training)
            status = sl_batches_shards(&cut, options->shards, &cut);
        if (status != SL_OK)
            return sl_error_context(status,
                                    "%s: ", sl_corpus_path(shared->corpus, (sl_split)split));
        if (is_training)
            shared->batches = cut;
    }
    return SL_OK;
}

static void complete_options(sli_shared *shared)
{
    sl_train_options *options = &shared->options;
    options->model.ntokens = sl_vocab_size(sl_corpus_vocab(shared->corpus));
    options->stages = sli_layout_stages(options);
    options->replicas = sli_layout_replicas(options);
}

static sl_status create_devices(sli_shared *shared, const sli_place *place)
{
    char *names;
    int stages = shared->options.stages;
    SL_TRY(sli_layout_devices(&shared->options, &names));
    sl_status status =
        sli_device_list_create_part(names, place->first * stages, place->count * stages,
                                    place->bound, &shared->devices, &shared->oversubscribed);
    free(names);
    return status;
}

sl_status sli_shared_create(const sl_train_options *options, const sli_place *place,
                            sli_shared *out)
{
    *out = (sli_shared){.options = *options};
    sl_status status = sl_train_options_check(options);
    if (status == SL_OK)
        status = read_corpus(out);
    if (status == SL_OK) {
        complete_options(out);
        status = create_devices(out, place);
    }
    if (status == SL_OK)
        status = sli_best_create(sl_device_list_get(out->devices, 0), out->options.stages,
                                 place->count > 1, &out->best);
    if (status != SL_OK)
        sli_shared_clear(out);
    return status;
}

sl_status sli_shared_cut(sli_shared *shared, int shards, double lr)
{
    sl_train_options *options = &shared->options;
    options->shards = shards;
    if (options->lr.lr == SL_LR_DEFAULT)
        options->lr.lr = lr;
    SL_TRY(sli_layout_check(options));
    SL_TRY(cut_splits(shared));
    shared->batches_per_epoch = sl_batches_count(&shared->batches);
    if (options->max_batches > 0 && shared->batches_per_epoch > options->max_batches)
        shared->batches_per_epoch = options->max_batches;
    options->lr.total_steps = shared->batches_per_epoch * options->epochs;
    return SL_OK;
}

void sli_shared_clear(sli_shared *shared)
{
    sli_best_destroy(&shared->best);
    sl_device_list_destroy(&shared->devices);
    sl_corpus_destroy(&shared->corpus);
    sl_vocab_destroy(&shared->vocab);
}
