#include "train/run.h"

#include "parallel/ddp.h"

#include <stdlib.h>
#include <string.h>

typedef struct stage_update {
    sl_optimizer *optimizer; /* or */
    sl_zero *zero;           /* a shard of one */
    int first_term, term_count;
} stage_update;

struct sli_update {
    sl_pipe *pipe;
    double lr, grad_scale; /* of the step under way */
    double *terms;         /* of the norm: [all parameters], in the model's order */
    int stages;
    stage_update stage[]; /* [stages] */
};

sl_status sli_update_create(sl_pipe *pipe, const sl_optimizer_options *options,
                            const sl_ddp *sharded, sli_update **out)
{
    *out = NULL;
    int stages = sl_pipe_stages(pipe), parameters = 0;
    sli_update *update = calloc(1, sizeof *update + (size_t)stages * sizeof update->stage[0]);
    if (!update)
        return sl_error(SL_ERR_MEMORY, "no memory for the optimizers' record");
    update->pipe = pipe;
    update->stages = stages;
    sl_status status = SL_OK;
    for (int s = 0; s < stages && status == SL_OK; s++) {
        stage_update *stage = &update->stage[s];
        sl_parameter_set *set = sl_pipe_parameters(pipe, s);
        stage->first_term = parameters;
        parameters += sl_parameter_set_count(set);
        status = sharded ? sl_zero_create(options, set, sl_ddp_group(sharded, s), &stage->zero)
                         : sl_optimizer_create(options, set, &stage->optimizer);
    }
    update->terms = calloc((size_t)parameters + 1, sizeof *update->terms);
    if (status == SL_OK && !update->terms)
        status = sl_error(SL_ERR_MEMORY, "no memory for the gradient norm");
    if (status != SL_OK)
        sli_update_destroy(&update);
    *out = update;
    return status;
}

void sli_update_destroy(sli_update **update)
{
    if (!*update)
        return;
    for (int s = 0; s < (*update)->stages; s++) {
        sl_optimizer_destroy(&(*update)->stage[s].optimizer);
        sl_zero_destroy(&(*update)->stage[s].zero);
    }
    free((*update)->terms);
    free(*update);
    *update = NULL;
}

static sl_status compute_stage_terms(int index, void *arg)
{
    sli_update *update = arg;
    stage_update *stage = &update->stage[index];
    sl_parameter_set *set = sl_pipe_parameters(update->pipe, index);
    return sl_grad_norm_terms(set, SL_GRAD_NORM_L2, update->terms + stage->first_term,
                              sl_parameter_set_count(set), &stage->term_count);
}

sl_status sli_update_norm(sli_update *update, double *norm)
{
    SL_TRY(sl_pipe_run(update->pipe, compute_stage_terms, update));
    int count = 0;
    for (int s = 0; s < update->stages; s++) { /* parameters without a gradient leave gaps */
        const stage_update *stage = &update->stage[s];
        memmove(update->terms + count, update->terms + stage->first_term,
                (size_t)stage->term_count * sizeof *update->terms);
        count += stage->term_count;
    }
    *norm = sl_grad_norm_combine(SL_GRAD_NORM_L2, update->terms, count);
    return SL_OK;
}

static sl_status step_stage(int index, void *arg)
{
    const sli_update *update = arg;
    const stage_update *stage = &update->stage[index];
    return stage->zero ? sl_zero_update(stage->zero, update->lr, update->grad_scale)
                       : sl_optimizer_step(stage->optimizer, update->lr, update->grad_scale);
}

sl_status sli_update_apply(sli_update *update, double lr, double norm, double clip)
{
    update->lr = lr;
    update->grad_scale = clip > 0 ? sl_clip_coefficient(norm, clip) : 1;
    SL_TRY(sl_pipe_run(update->pipe, step_stage, update));
    for (int s = 0; s < update->stages; s++)
        if (update->stage[s].zero)
            SL_TRY(sl_zero_exchange(update->stage[s].zero));
    return SL_OK;
}

/* ---- The optimizers' state -------------------------------------------------------------- */

sl_optimizer *sli_update_own(const sli_update *update, int stage)
{
    const stage_update *of = &update->stage[stage];
    return of->zero ? sli_zero_optimizer(of->zero) : of->optimizer;
}

bool sli_update_is_sharded(const sli_update *update)
{
    return update->stage[0].zero != NULL;
}

sl_status sli_update_gather(sli_update *update, sl_optimizer **whole)
{
    sl_status status = SL_OK;
    for (int s = 0; s < update->stages; s++) {
        stage_update *stage = &update->stage[s];
        whole[s] = stage->optimizer;
        if (stage->zero && status == SL_OK)
            status = sl_zero_consolidate(stage->zero, 0, &whole[s]);
    }
    if (status != SL_OK)
        sli_update_release(update, whole);
    return status;
}

void sli_update_release(const sli_update *update, sl_optimizer **whole)
{
    for (int s = 0; s < update->stages; s++) {
        if (update->stage[s].zero)
            sl_optimizer_destroy(&whole[s]);
        whole[s] = NULL;
    }
}
