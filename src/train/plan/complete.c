/* What is decided by time: where the model is cut, and whether stages share the host's cores. */
#include "train/plan/profile.h"

#include "core/error.h"
#include "device/device.h"

#include <stdlib.h>

/* Without a list of devices the ranks of a host's only replica split its cores, or share them if a
 * step is shorter then. The search has the layout in which they split them. */
static sl_status try_sharing(sli_profile_inputs inputs, sl_plan *plan, sli_open_devices *devices,
                             sli_search *search)
{
    sl_device_list *list = NULL;
    sli_step_times times;
    int cores[SL_MAX_STAGES] = {0}; /* all on the same */
    SL_TRY(sli_plan_name_devices(plan, true));
    SL_TRY(sli_device_list_create_range(plan->device_names, 0, plan->options.pipeline_ranks,
                                        devices->own_cores, &list, NULL));
    inputs.devices = list;
    inputs.cores = cores;
    sl_status status;
    SL_TRY_OR_FAIL(sl_device_list_set_batch_invariant(list, plan->options.batch_invariant));
    SL_TRY_OR_FAIL(sli_profile_layout(&inputs, true, NULL, search, &times));
    plan->profiled_seconds = times.cut;
    plan->one_stage = times.cut > 0 ? times.one_stage / times.cut : 0;
    if (search->count > 0 && search->found[0].candidate.shares_cores) {
        sl_device_list_destroy(&devices->list);
        devices->list = list;
        return SL_OK;
    }
    status = sli_plan_name_devices(plan, false);
fail:
    sl_device_list_destroy(&list);
    return status;
}

/* Rank 0's cut, or none where nothing is decided by time. */
static sl_status decide_by_time(sli_profile_inputs inputs, sl_group *group, sl_plan *plan,
                                sli_open_devices *devices, int *balance)
{
    const sl_train_options *options = &plan->options;
    bool may_share = !options->devices && options->pipeline_ranks > 1 && plan->ranks_here == 1 &&
                     plan->ranks_per_replica == 1 && !devices->oversubscribed;
    bool cuts = options->balance_kind == SL_BALANCE_AUTO && plan->stages > 1;
    bool decides = may_share || (cuts && (!group || sl_group_rank(group) == 0));
    sli_found_layout best;
    sli_search search = {.wanted = 1, .found = &best};
    sl_link_cost *links = NULL;
    int cores[SL_MAX_STAGES] = {0};
    sli_step_times times;
    sl_status status = SL_OK;
    if (cuts || may_share)
        SL_TRY(sli_find_cores(plan, devices->list, group, cores));
    if (cuts && group)
        SL_TRY(sli_measure_links(plan, group, &links));
    inputs.links = links;
    inputs.cores = cores;
    if (decides)
        SL_TRY_OR_FAIL(sli_profile_layout(&inputs, false, NULL, &search, &times));
    if (may_share)
        SL_TRY_OR_FAIL(try_sharing(inputs, plan, devices, &search));
    if (decides)
        SL_TRY_OR_FAIL(sli_found_cut(&search, plan, inputs.model, balance));
    if (cuts && group)
        status = sl_group_broadcast(group, balance, SL_MAX_STAGES, SL_I32, 0, NULL);
    if (may_share)
        plan->by.devices = SL_BY_PROFILE;
    if (cuts)
        plan->by.balance = SL_BY_PROFILE;
fail:
    free(links);
    return status;
}

/* Memory is checked as soon as it is known where the model is cut. */
sl_status sli_plan_complete(const sli_plan_inputs *plan_inputs, sli_profile_inputs inputs,
                            sl_group *group, sl_plan *plan, sli_open_devices *devices)
{
    int balance[SL_MAX_STAGES] = {0};
    bool is_checked = plan->options.force || plan->options.task;
    SL_TRY(sli_plan_cut(plan, inputs.model, NULL));
    if (!is_checked && plan->options.balance_kind != SL_BALANCE_AUTO) {
        SL_TRY(sli_plan_check_memory(plan_inputs, plan, inputs.model, sl_usable_memory()));
        is_checked = true;
    }
    inputs.plan = plan;
    inputs.devices = devices->list;
    SL_TRY(decide_by_time(inputs, group, plan, devices, balance));
    if (plan->by.balance == SL_BY_PROFILE)
        SL_TRY(sli_plan_cut(plan, inputs.model, balance));
    return is_checked ? SL_OK
                      : sli_plan_check_memory(plan_inputs, plan, inputs.model, sl_usable_memory());
}
