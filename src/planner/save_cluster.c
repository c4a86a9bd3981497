/* How long a checkpoint of a layout on a cluster takes to write: the ranks of the first replica
 * write the model and the optimizer's state, each that of its stages, or with ZeRO every rank of
 * all replicas its shard of the state (train/checkpoint/checkpoints.c). */
#include "planner/failures.h"

#include "core/error.h"
#include "nn/module.h"
#include "nn/split_head.h"

#include <math.h>
#include <stdlib.h>

/* Each rank writes its part of a split head. */
static void divide_head(const sli_cluster_job *job, const sl_schedule *table, double *elements)
{
    const int *placement = sl_schedule_placement(table);
    int ranks = sl_schedule_ranks(table);
    const sli_cut_head cut = sli_layout_cut_head(&(sli_layout){.model = job->model,
                                                               .table = table,
                                                               .replicas = 1,
                                                               .ranks = ranks,
                                                               .head_blocks = job->head_blocks});
    double own = (double)sli_module_elements(cut.module, SL_PARAMETER_TRAINED),
           all = (double)sli_cut_head_elements(&cut);
    elements[placement[sl_schedule_stages(table) - 1]] -= own;
    elements[placement[0]] -= all - own;
    for (int rank = 0; rank < ranks; rank++)
        elements[rank] += all * sli_split_head_fraction(job->head_blocks, rank, ranks);
}

/* Each pipeline rank's trained elements, [pipeline ranks]. */
static sl_status count_elements(const sli_cluster_job *job, const sli_found_layout *found,
                                double *elements)
{
    const sli_candidate *candidate = &found->candidate;
    const sl_schedule_options options = {.ranks = candidate->pipeline_ranks,
                                         .virtual_stages =
                                             found->stages / candidate->pipeline_ranks,
                                         .micros = candidate->chunks};
    sl_schedule *table;
    SL_TRY(sl_schedule_write(sli_candidate_schedule(candidate), &options, &table));
    const int *placement = sl_schedule_placement(table);
    for (int s = 0, i = 0; s < found->stages; s++)
        for (int end = i + found->balance[s]; i < end; i++)
            elements[placement[s]] +=
                (double)sli_module_elements(sl_module_child(job->model, i), SL_PARAMETER_TRAINED);
    if (candidate->splits_vocabulary && candidate->pipeline_ranks > 1)
        divide_head(job, table, elements);
    sl_schedule_destroy(&table);
    return SL_OK;
}

/* The longest of the nodes' writes. `elements` [pipeline ranks], `of_nodes` [devices] of zeros. */
static double find_slowest(const sli_cluster_job *job, const sli_devices *devices,
                           const sli_candidate *candidate, const double *elements, double *of_nodes)
{
    const sli_device_grid grid = {candidate->replicas, candidate->pipeline_ranks,
                                  candidate->near_replicas};
    double state = (double)sl_optimizer_state_bytes(&job->optimizer), most = 0;
    int writers = candidate->zero ? candidate->replicas : 1;
    for (int replica = 0; replica < writers; replica++)
        for (int rank = 0; rank < candidate->pipeline_ranks; rank++) {
            int device = sli_devices_find(&grid, replica, rank),
                node = devices->units[SLI_LEVEL_NODE][device];
            double values = replica == 0 ? (double)sizeof(float) : 0;
            of_nodes[node] += elements[rank] * (values + state / writers);
            most = fmax(most, of_nodes[node]);
        }
    return most / devices->cluster->save_bytes_per_s;
}

sl_status sli_cluster_time_save(const sli_cluster_job *job, const sli_devices *devices,
                                const sli_found_layout *found, double *seconds)
{
    size_t ranks = (size_t)found->candidate.pipeline_ranks;
    double *elements = calloc(ranks + (size_t)devices->count, sizeof *elements);
    *seconds = 0;
    if (!elements)
        return sli_no_memory(NULL, "the checkpoint of %zu ranks", ranks);
    sl_status status = SL_OK;
    if (devices->cluster->mtbf_s > 0)
        status = count_elements(job, found, elements);
    if (status == SL_OK && devices->cluster->mtbf_s > 0)
        *seconds = find_slowest(job, devices, &found->candidate, elements, elements + ranks);
    free(elements);
    return status;
}
