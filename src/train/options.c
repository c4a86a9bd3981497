/* What no data could make possible is refused before anything is read or allocated. */
#include "core/given.h"
#include "optim/optimizer.h"
#include "train/layout.h"

#include <inttypes.h>
#include <math.h>

static sl_status check_at_least(const char *name, int64_t value, int64_t least)
{
    if (value < least)
        return sl_error(SL_ERR_INVALID, "%s must be at least %" PRId64 ", got %" PRId64, name,
                        least, value);
    return SL_OK;
}

/* The upper limits are beyond any machine; below them no product of sizes overflows 64 bits. */
static sl_status check_range(const char *name, int64_t value, int64_t least, int64_t most)
{
    SL_TRY(check_at_least(name, value, least));
    if (value > most)
        return sl_error(SL_ERR_INVALID, "%s must be at most %" PRId64 ", got %" PRId64, name, most,
                        value);
    return SL_OK;
}

static sl_status check_finite(const char *name, double value)
{
    if (!(value >= 0) || isinf(value))
        return sl_error(SL_ERR_INVALID, "%s must be a number from 0, got %g", name, value);
    return SL_OK;
}

static sl_status check_model(const sl_model_options *model)
{
    enum { MAX_WIDTH = 1 << 20, MAX_LAYERS = 10000 };
    SL_TRY(check_range("emsize", model->emsize, 1, MAX_WIDTH));
    SL_TRY(check_range("nhid", model->nhid, 1, MAX_WIDTH));
    SL_TRY(check_range("nlayers", model->nlayers, 1, MAX_LAYERS));
    SL_TRY(check_at_least("nhead", model->nhead, 1));
    if (model->emsize % model->nhead != 0)
        return sl_error(SL_ERR_INVALID,
                        "emsize must be divisible by nhead, got emsize %" PRId64
                        " and nhead %" PRId64,
                        model->emsize, model->nhead);
    if (model->emsize % 2 != 0)
        return sl_error(SL_ERR_INVALID,
                        "emsize must be even (sines and cosines alternate), got %" PRId64,
                        model->emsize);
    if (!(model->dropout >= 0 && model->dropout < 1))
        return sl_error(SL_ERR_INVALID, "dropout must be at least 0 and below 1, got %g",
                        model->dropout);
    return SL_OK;
}

static sl_status check_batches(const sl_train_options *options)
{
    enum { MAX_COLUMNS = 1 << 20, MAX_POSITIONS = 5000 };
    SL_TRY(check_at_least("bptt", options->bptt, 1));
    if (options->bptt > MAX_POSITIONS)
        return sl_error(SL_ERR_INVALID,
                        "bptt must be at most %d, the positional encoding's length, got %" PRId64,
                        MAX_POSITIONS, options->bptt);
    SL_TRY(check_range("batch-size", options->batch_size, 1, MAX_COLUMNS));
    return check_range("eval-batch-size", options->eval_batch_size, 1, MAX_COLUMNS);
}

/* ---- Stages ----------------------------------------------------------------------------- */

static sl_status check_balance(const sl_train_options *options, int stages)
{
    if (options->balance_count != stages)
        return sl_error(SL_ERR_INVALID,
                        "balance must give one number for each of %d stages, got %d numbers",
                        stages, options->balance_count);
    int64_t sum = 0, modules = options->model.nlayers + 2;
    for (int s = 0; s < stages; s++) {
        SL_TRY(check_at_least("each number of balance", options->balance[s], 1));
        sum += options->balance[s];
    }
    if (sum != modules)
        return sl_error(SL_ERR_INVALID,
                        "balance must add up to the model's %" PRId64 " modules (encoder, %" PRId64
                        " layers, decoder), got %" PRId64,
                        modules, options->model.nlayers, sum);
    return SL_OK;
}

static sl_status check_pipeline(const sl_train_options *options)
{
    enum { MAX_CHUNKS = 4096 };
    SL_TRY(check_range("chunks", options->chunks, 1, MAX_CHUNKS));
    SL_TRY(check_at_least("the number of stages", options->stages, 0));
    int stages = sli_layout_stages(options);
    if (stages > SL_MAX_STAGES)
        return sl_error(SL_ERR_INVALID, "there can be at most %d stages, got %d", SL_MAX_STAGES,
                        stages);
    if (options->balance_kind == SL_BALANCE_EXPLICIT)
        SL_TRY(check_balance(options, stages));
    else if (stages > options->model.nlayers)
        return sl_error(SL_ERR_INVALID,
                        "there are more stages than layers: %d stages, %" PRId64 " layers", stages,
                        options->model.nlayers);
    SL_TRY(sli_layout_check(options));
    if (options->zero && sli_layout_replicas(options) == 1)
        return sl_error(SL_ERR_INVALID,
                        "zero shards the optimizer's state over replicas, and there is only one");
    return SL_OK;
}

/* ---- Training --------------------------------------------------------------------------- */

static sl_status check_training(const sl_train_options *options)
{
    SL_TRY(check_at_least("epochs", options->epochs, 1));
    SL_TRY(check_at_least("max-batches", options->max_batches, 0));
    SL_TRY(check_at_least("eval-max-batches", options->eval_max_batches, 0));
    SL_TRY(check_at_least("warmup", options->lr.warmup_steps, 0));
    SL_TRY(check_at_least("step-epochs", options->lr.step_epochs, 0));
    SL_TRY(check_finite("lr", sl_train_options_lr(options)));
    SL_TRY(check_finite("gamma", options->lr.gamma));
    SL_TRY(check_finite("clip", options->clip));
    return sli_optimizer_check(&options->optimizer);
}

double sl_train_options_lr(const sl_train_options *options)
{
    if (options->lr.lr != SL_LR_DEFAULT)
        return options->lr.lr;
    return options->optimizer.kind == SL_OPTIMIZER_SGD ? 5.0 : 1e-3;
}

sl_status sl_train_options_check(const sl_train_options *options)
{
    SLI_GIVEN(options);
    SL_TRY(check_model(&options->model));
    SL_TRY(check_batches(options));
    SL_TRY(check_pipeline(options));
    return check_training(options);
}
