/* The pipeline of a plan that was found, as it would run. */
#include "sluice/app/plan.h"

#include "core/error.h"
#include "sluice/pipe.h"

/* A copy, without the actions that frozen stages do not run. */
static sl_status write_table(const sl_found_plan *plan, const sl_plan *layout, sl_schedule **out)
{
    sl_stage_backward backward[SL_MAX_STAGES];
    sl_module *model;
    SL_TRY(sl_transformer_lm_create(&plan->options.model, &model));
    sl_partition_backward(model, layout->stages, plan->options.balance, backward);
    sl_status status;
    SL_TRY_OR_FAIL(sl_schedule_first_micros(layout->table, sl_schedule_micros(layout->table), out));
    SL_TRY_OR_FAIL(sl_schedule_freeze(*out, backward));
    if (plan->options.split_vocabulary)
        status = sl_schedule_split_head(*out, sl_partition_head(model));
fail:
    sl_module_destroy(&model);
    return status;
}

/* A slice takes its part of a micro-batch's time. */
static sl_status simulate_table(const sl_found_plan *plan, const sl_schedule *table,
                                sl_simulation *out)
{
    static const int one_set_of_cores[SL_MAX_STAGES];
    enum { COSTS = 6 };
    const double *const costs[COSTS] = {plan->forward,  plan->backward_input, plan->backward_weight,
                                        plan->backward, plan->head_forward,   plan->head_backward};
    double own[COSTS][SL_MAX_STAGES] = {{0}};
    for (int i = 0; i < COSTS; i++)
        for (int s = 0; s < sl_schedule_stages(table); s++)
            own[i][s] = costs[i][s] / sl_schedule_slices(table);
    return sl_schedule_simulate(table,
                                &(sl_cost_model){.forward = own[0],
                                                 .backward_input = own[1],
                                                 .backward_weight = own[2],
                                                 .backward = own[3],
                                                 .head_forward = own[4],
                                                 .head_backward = own[5],
                                                 .links = plan->links,
                                                 .cores =
                                                     plan->shares_cores ? one_set_of_cores : NULL},
                                out);
}

static sl_status make_table(const sl_found_plan *plan, sl_schedule **table)
{
    sl_plan *layout;
    SL_TRY(sl_plan_create(&plan->options, NULL, NULL, NULL, &layout));
    sl_status status = write_table(plan, layout, table);
    sl_plan_destroy(&layout);
    return status;
}

sl_status sl_found_plan_simulate(const sl_found_plan *plan, sl_schedule **table, sl_simulation *out)
{
    SLI_CHECK_NOT_NULL(plan);
    SLI_CHECK_NOT_NULL(table);
    SLI_CHECK_NOT_NULL(out);
    *table = NULL;
    *out = (sl_simulation){0};
    sl_status status;
    SL_TRY_OR_FAIL(make_table(plan, table));
    SL_TRY_OR_FAIL(simulate_table(plan, *table, out));
    return SL_OK;
fail:
    sl_schedule_destroy(table);
    return status;
}
