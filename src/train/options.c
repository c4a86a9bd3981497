/* What no data could make possible is refused before anything is read or allocated. */
#include "core/error.h"
#include "optim/optimizer.h"
#include "train/layout.h"

#include <inttypes.h>

static sl_status check_model(const sl_model_options *model)
{
    if (model->emsize % model->nhead != 0)
        return sl_error(SL_ERR_INVALID,
                        "emsize must be divisible by nhead, got emsize %" PRId64
                        " and nhead %" PRId64,
                        model->emsize, model->nhead);
    if (model->emsize % 2 != 0)
        return sl_error(SL_ERR_INVALID,
                        "emsize must be even (sines and cosines alternate), got %" PRId64,
                        model->emsize);
    return SL_OK;
}

/* Beyond what any machine can hold, products of sizes would overflow 63 bits as well. */
static sl_status check_batches(const sl_train_options *options)
{
    const sl_model_options *model = &options->model;
    int64_t columns = options->batch_size > options->eval_batch_size ? options->batch_size
                                                                     : options->eval_batch_size;
    double values = (double)columns * (double)options->bptt * (double)model->nlayers *
                    (double)(model->emsize + model->nhid);
    if (values > 0x1p54)
        return sl_error(SL_ERR_INVALID,
                        "a batch of %" PRId64 " columns of %" PRId64
                        " tokens has more activations in such a model than any machine can hold",
                        columns, options->bptt);
    return SL_OK;
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
        if (options->balance[s] < 1)
            return sl_error(SL_ERR_INVALID, "each number of balance must be at least 1, got %d",
                            options->balance[s]);
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
    if (options->zero && sl_train_options_replicas(options) == 1)
        return sl_error(SL_ERR_INVALID,
                        "zero shards the optimizer's state over replicas, and there is only one");
    return SL_OK;
}

/* ---- All -------------------------------------------------------------------------------- */

double sl_train_options_lr(const sl_train_options *options)
{
    if (options->lr.lr != SL_LR_DEFAULT)
        return options->lr.lr;
    return options->optimizer.kind == SL_OPTIMIZER_SGD ? 5.0 : 1e-3;
}

sl_status sl_train_options_check(const sl_train_options *options)
{
    SLI_CHECK_NOT_NULL(options);
    const sl_option *row;
    sl_train_options filled = *options;
    filled.lr.lr = sl_train_options_lr(options);
    for (int i = 0; (row = sl_train_option_row(i)); i++)
        SL_TRY(sl_option_check(row, &filled));
    SL_TRY(check_model(&options->model));
    SL_TRY(check_batches(options));
    SL_TRY(check_pipeline(options));
    return sli_optimizer_check(&options->optimizer);
}
