/* Another layout of a run that has lost processes: of those that fit, the one whose step is planned
 * to be the shortest. It counts operations, and times nothing. */
#include "train/plan/plan.h"

#include "core/error.h"
#include "nn/module.h"

#include <stdio.h>
#include <stdlib.h>

sl_status sli_count_operations(const sl_module *model, sl_shape shape, sl_module_profile *out)
{
    int modules = sl_module_child_count(model);
    sli_pass_work *work = calloc((size_t)modules, sizeof *work);
    if (!work)
        return sli_no_memory(NULL, "the operations of %d modules", modules);
    sl_status status = sli_module_count_work(model, &shape, SL_PRECISION_F32, work);
    for (int i = 0; i < modules && status == SL_OK; i++)
        out[i] = (sl_module_profile){work[i].forward, work[i].input + work[i].weight, work[i].input,
                                     work[i].weight, 0};
    free(work);
    return status;
}

/* A search for a job, whose host has so many of its processes. */
typedef struct job_search {
    sli_plan_inputs inputs; /* without processes; found.replicas == 0: none is found yet */
    const sl_module *model;
    int host_processes;
} job_search;

/* Modules take as long on any rank. */
static sl_status add_plan(const job_search *job, sli_search *search, const sli_candidate *candidate,
                          const sl_plan *plan)
{
    const sl_module_profile *of_ranks[SL_MAX_STAGES];
    const sli_layout layout = sli_plan_layout_of(plan, job->model);
    const sli_layout_speed speed = {.profiles = of_ranks};
    int balance[SL_MAX_STAGES];
    bool by_time = plan->options.balance_kind == SL_BALANCE_AUTO;
    sl_module_profile *times = calloc((size_t)sl_module_child_count(job->model), sizeof *times);
    if (!times)
        return sli_no_memory(NULL, "the plan of a layout");
    for (int rank = 0; rank < SL_MAX_STAGES; rank++)
        of_ranks[rank] = times;
    sl_status status;
    if (!by_time)
        SL_TRY_OR_FAIL(sli_plan_choose_cut(plan, job->model, balance));
    SL_TRY_OR_FAIL(
        sli_count_operations(job->model, sl_shape_2d(plan->micro_rows, plan->options.bptt), times));
    status = sli_search_add(search, candidate, &layout, &speed, by_time ? NULL : balance);
fail:
    free(times);
    return status;
}

static sl_status consider_layout(void *context, sli_search *search, const sli_candidate *candidate)
{
    const job_search *job = context;
    int ranks = candidate->replicas * candidate->pipeline_ranks, host = job->host_processes;
    const sl_train_launch launch = {.ranks = ranks,
                                    .local_ranks = host > 0 && host < ranks ? host : ranks};
    sli_plan_inputs inputs = job->inputs;
    sl_plan *plan;
    inputs.launch = &launch;
    inputs.found.replicas = candidate->replicas;
    inputs.found.pipeline_ranks = candidate->pipeline_ranks;
    sl_status status;
    SL_TRY_OR_FAIL(sli_plan_layout(&inputs, &plan));
    SL_TRY_OR_FAIL(sli_plan_check_head(plan, job->model));
    status = add_plan(job, search, candidate, plan);
    sl_plan_destroy(&plan);
    return status;
fail: /* perhaps there are fewer layers, or a table, a list … of another size */
    sl_plan_destroy(&plan);
    return sli_plan_is_impossible(status) ? SL_OK : status;
}

/* At most as many replicas as were asked for, and, with a pipeline, any longer one. */
static sl_status search_job(job_search *job, sli_search *search, const sl_plan *asked,
                            int processes)
{
    int pipeline_ranks = asked->options.pipeline_ranks;
    const sli_search_space space = {.ranks = processes,
                                    .least_replicas = 1,
                                    .most_replicas = asked->options.replicas,
                                    .least_pipeline_ranks =
                                        pipeline_ranks < processes ? pipeline_ranks : processes,
                                    .most_pipeline_ranks = pipeline_ranks > 1 ? processes : 1};
    sli_findings *found = &job->inputs.found;
    bool may_drop = asked->options.balance_kind == SL_BALANCE_EXPLICIT || asked->options.placement;
    SL_TRY(sli_search_layouts(search, &space, consider_layout, job));
    if (search->count > 0 || !may_drop)
        return SL_OK;
    found->drops_balance = asked->options.balance_kind == SL_BALANCE_EXPLICIT;
    found->drops_placement = asked->options.placement != NULL;
    return sli_search_layouts(search, &space, consider_layout, job);
}

sl_status sli_plan_search(sli_plan_inputs *inputs, const sl_module *model, int host_processes,
                          uint64_t host_bytes)
{
    static const sl_train_launch threads;
    sli_found_layout best;
    int processes = inputs->launch->ranks > 0 ? inputs->launch->ranks : 1;
    char limit[48];
    job_search job = {.inputs = {inputs->options, &threads, inputs->found},
                      .model = model,
                      .host_processes = host_processes};
    sli_search search = {.host_bytes = inputs->options->force ? 0 : host_bytes,
                         .wanted = 1,
                         .found = &best};
    sli_findings *found = &job.inputs.found;
    sl_plan *asked;
    SL_TRY(sli_plan_layout(&job.inputs, &asked));
    found->shards = asked->options.shards;
    found->chunks = asked->options.chunks;
    sl_status status = search_job(&job, &search, asked, processes);
    sl_plan_destroy(&asked);
    SL_TRY(status);
    snprintf(limit, sizeof limit, "at most %d process%s", processes, processes == 1 ? "" : "es");
    if (search.count == 0)
        return search.smallest_bytes > 0 ? sli_search_refuse(&search, limit) : SL_OK;
    found->replicas = best.candidate.replicas;
    found->pipeline_ranks = best.candidate.pipeline_ranks;
    inputs->found = *found;
    return SL_OK;
}
