/* The machine of a run, by what the run has measured of itself. Its stages' times, of one step, and
 * those of its links are scaled so that the simulated step is as long as the steps were, and a
 * stage's is divided among its modules by counted operations. A device of one of n has the n-th
 * part of the run's cores, and more rows take as much time each. */
#include "train/plan/machine.h"

#include "core/error.h"
#include "core/usable_memory.h"
#include "nn/module.h"
#include "train/plan/plan.h"

#include <math.h>
#include <stdlib.h>

typedef struct run_machine {
    const sl_run_measures *measures;
    const sl_plan *plan;
    const sl_module *model;
    sl_module_profile *times; /* [modules] of one of the run's micro-batches */
    int devices;              /* that divide the cores among them */
    double update_per_byte, exchange_per_byte;
    double links[SL_MAX_STAGES][SL_MAX_STAGES]; /* of one of its tensors, between pipeline ranks;
                                                   0: the run has passed none between them */
    double slowest_link;
} run_machine;

/* ---- Times of modules ----------------------------------------------------------------------- */

/* Micro-batches that the replica with the most shards trains in a step, one after the other. */
static double count_micros(const sl_plan *plan)
{
    const sl_train_options *options = &plan->options;
    int shards = (options->shards + options->replicas - 1) / options->replicas;
    return (double)shards * options->accumulate * sl_schedule_micros(plan->table);
}

static double pipeline_seconds(const sl_run_measures *measures)
{
    return measures->step_seconds - measures->exchange_seconds - measures->update_seconds;
}

/* Operations of modules first ... end - 1: of backward those behind the frozen ones. */
static sl_module_profile sum_operations(const run_machine *machine,
                                        const sl_module_profile *operations, int first, int end)
{
    int frozen = sli_module_frozen_count(machine->model);
    sl_module_profile all = {0};
    for (int i = first; i < end; i++) {
        all.forward += operations[i].forward;
        all.backward += i < frozen ? 0 : operations[i].backward;
    }
    return all;
}

/* Of a micro-batch in one stage. Forward runs once, also where it runs again: the last stage leaves
 * out a forward that keeps nothing. */
static void find_only_stage(const run_machine *machine, const sl_module_profile *operations,
                            double *forward, double *backward)
{
    const sl_module_profile all =
        sum_operations(machine, operations, 0, sl_module_child_count(machine->model));
    double seconds = pipeline_seconds(machine->measures) / count_micros(machine->plan);
    *forward = all.forward > 0 ? seconds * all.forward / (all.forward + all.backward) : seconds;
    *backward = seconds - *forward;
}

/* Modules first ... first + count - 1 have all of a stage's forward, and those of them that are not
 * frozen all of its backward. */
static void divide_stage(const run_machine *machine, const sl_module_profile *operations, int first,
                         int count, double forward, double backward)
{
    int end = first + count, frozen = sli_module_frozen_count(machine->model),
        trained = frozen > first ? frozen : first;
    const sl_module_profile all = sum_operations(machine, operations, first, end);
    for (int i = first; i < end; i++) {
        const sl_module_profile *counts = &operations[i];
        double part = all.forward > 0 ? counts->forward / all.forward : 1.0 / count,
               back = all.backward > 0 ? counts->backward / all.backward : 1.0 / (end - trained),
               input = counts->backward > 0 ? counts->backward_input / counts->backward : 0.5,
               whole = i < trained ? 0 : back * backward;
        machine->times[i] =
            (sl_module_profile){part * forward, whole, input * whole, whole - input * whole, 0};
    }
}

static sl_status divide_stages(const run_machine *machine)
{
    const sl_plan *plan = machine->plan;
    const sl_run_measures *measures = machine->measures;
    size_t modules = (size_t)sl_module_child_count(machine->model);
    sl_module_profile *operations = calloc(modules, sizeof *operations);
    if (!operations)
        return sli_no_memory(NULL, "the operations of %zu modules", modules);
    sl_status status =
        sli_count_operations(machine->model, sl_shape_2d(plan->micro_rows, plan->options.bptt),
                             operations);
    for (int s = 0, first = 0; status == SL_OK && s < plan->stages;
         first += plan->stage[s++].count) {
        double forward, backward;
        if (measures->forward) {
            forward = measures->forward[s];
            backward = measures->backward[s];
        } else {
            find_only_stage(machine, operations, &forward, &backward);
        }
        divide_stage(machine, operations, first, plan->stage[s].count, forward, backward);
    }
    free(operations);
    return status;
}

static sl_module_profile scale(const sl_module_profile *times, double factor)
{
    return (sl_module_profile){.forward = factor * times->forward,
                               .backward = factor * times->backward,
                               .backward_input = factor * times->backward_input,
                               .backward_weight = factor * times->backward_weight};
}

static sl_status time_modules(void *context, int devices, int64_t rows, sl_module_profile *out)
{
    const run_machine *machine = context;
    double factor = (double)rows / (double)machine->plan->micro_rows * devices / machine->devices;
    for (int i = 0; i < sl_module_child_count(machine->model); i++)
        out[i] = scale(&machine->times[i], factor);
    return SL_OK;
}

/* ---- Links ---------------------------------------------------------------------------------- */

/* Between neighbouring stages in different processes; of several such the slowest. */
static void keep_links(run_machine *machine)
{
    const sl_plan *plan = machine->plan;
    for (int s = 0; machine->measures->links && s + 1 < plan->stages; s++) {
        int source = plan->stage[s].rank, target = plan->stage[s + 1].rank;
        double seconds = fmax(machine->links[source][target], machine->measures->links[s]);
        machine->links[source][target] = machine->links[target][source] = seconds;
        machine->slowest_link = fmax(machine->slowest_link, seconds);
    }
}

/* How a link divides its time between messages and bytes is not known: fewer rows are taken to need
 * as long as those of the run, and more as much longer. */
static void time_links(void *context, const sl_plan *plan, sl_link_cost *links)
{
    const run_machine *machine = context;
    int ranks = plan->options.pipeline_ranks;
    double factor = fmax(1, (double)plan->micro_rows / (double)machine->plan->micro_rows);
    for (int s = 0; s + 1 < plan->stages; s++) {
        int source = plan->stage[s].rank, target = plan->stage[s + 1].rank;
        bool is_near = source / plan->pipeline_ranks_each == target / plan->pipeline_ranks_each;
        double measured = machine->links[source][target],
               seconds = measured > 0 ? measured : machine->slowest_link;
        if (!is_near)
            links[source * ranks + target].seconds = factor * seconds;
    }
}

/* ---- The update and the exchange ------------------------------------------------------------ */

/* The zeros are in the times of the stage that has the table. */
static sl_status time_update(void *context, int devices, sli_update_speed *out)
{
    const run_machine *machine = context;
    *out = (sli_update_speed){.optimizer = machine->update_per_byte * devices / machine->devices};
    return SL_OK;
}

/* With ZeRO the parameters' broadcasts are part of the update's time, so that nothing is left for
 * them here. */
static sl_status time_exchange(void *context, int replicas, sl_link_cost *reduce,
                               sl_link_cost *gather)
{
    const run_machine *machine = context;
    (void)replicas;
    *reduce = (sl_link_cost){0, machine->exchange_per_byte};
    *gather = (sl_link_cost){0, 0};
    return SL_OK;
}

static double divide(double a, double b)
{
    return b > 0 ? a / b : 0;
}

/* `simulated` is the time of the run's own tables, more than 0. Where it is not that of the run's
 * steps, the timeline was of a step that something slowed, or did not, and what that was is not
 * known: links take part, so that the run's own layout has the step that it had. */
static void scale_times(run_machine *machine, double simulated)
{
    double factor = pipeline_seconds(machine->measures) / simulated;
    for (int i = 0; i < sl_module_child_count(machine->model); i++)
        machine->times[i] = scale(&machine->times[i], factor);
    for (int i = 0; i < SL_MAX_STAGES * SL_MAX_STAGES; i++)
        machine->links[i / SL_MAX_STAGES][i % SL_MAX_STAGES] *= factor;
    machine->slowest_link *= factor;
}

/* What one stage with all cores takes by the profile, of what follows from its cores. */
static double find_one_rank_factor(const run_machine *machine)
{
    const sl_run_measures *measures = machine->measures;
    double work = 0;
    for (int i = 0; i < sl_module_child_count(machine->model); i++)
        work += machine->times[i].forward + machine->times[i].backward;
    work *= count_micros(machine->plan) / machine->devices;
    return machine->plan->options.pipeline_ranks > 1
               ? divide(measures->one_stage * pipeline_seconds(measures), work)
               : 0;
}

/* From a step in which each byte takes a second. */
static sl_status find_byte_costs(run_machine *machine, const int *cores)
{
    const sl_module_profile *of_ranks[SL_MAX_STAGES];
    const sli_layout layout = sli_plan_layout_of(machine->plan, machine->model);
    size_t ranks = (size_t)machine->plan->options.pipeline_ranks;
    sl_link_cost *links = calloc(ranks * ranks, sizeof *links);
    const sli_layout_speed speed = {.profiles = of_ranks,
                                    .links = links,
                                    .cores = cores,
                                    .reduce = {0, 1},
                                    .update = {.optimizer = 1}};
    int balance[SL_MAX_STAGES];
    sl_step_costs unit = {0};
    if (!links)
        return sli_no_memory(NULL, "the links of a run");
    for (int s = 0; s < machine->plan->stages; s++)
        balance[s] = machine->plan->stage[s].count;
    for (int rank = 0; rank < SL_MAX_STAGES; rank++)
        of_ranks[rank] = machine->times;
    time_links(machine, machine->plan, links);
    sl_status status = sli_layout_time_step(&layout, &speed, balance, &unit);
    free(links);
    SL_TRY(status);
    if (!(unit.pipeline > 0))
        return sl_error(SL_ERR_INVALID, "the stages' times are all 0, so nothing can be said of "
                                        "other layouts");
    machine->update_per_byte = divide(machine->measures->update_seconds, unit.update);
    machine->exchange_per_byte = divide(machine->measures->exchange_seconds, unit.exchange);
    scale_times(machine, unit.pipeline);
    return SL_OK;
}

/* ---- The machine -------------------------------------------------------------------------- */

static void close_machine(void *context)
{
    run_machine *machine = context;
    free(machine->times);
    free(machine);
}

static sl_status measure(run_machine *machine, bool shares_cores)
{
    static const int one_set_of_cores[SL_MAX_STAGES];
    machine->times = calloc((size_t)sl_module_child_count(machine->model), sizeof *machine->times);
    if (!machine->times)
        return sli_no_memory(NULL, "the times of a run's modules");
    keep_links(machine);
    SL_TRY(divide_stages(machine));
    return find_byte_costs(machine, shares_cores ? one_set_of_cores : NULL);
}

static sl_status check_run(const sl_train_options *run, const sl_run_measures *measures)
{
    if (run->split_vocabulary)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "a run with split_vocabulary cannot be planned by what it measured: its "
                        "stages' times are without the last layer");
    if (run->task)
        return sl_error(SL_ERR_UNSUPPORTED, "plans are searched for language models, not for a "
                                            "task's");
    if (measures->shares_cores && run->replicas > 1)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "%d replicas whose pipeline ranks share cores cannot be planned by what "
                        "they measured: which replicas have which cores is not known",
                        run->replicas);
    if (run->balance_kind != SL_BALANCE_EXPLICIT)
        return sl_error(SL_ERR_INVALID, "balance must be numbers of modules for a run that has "
                                        "measured itself");
    return measures->step_seconds > measures->exchange_seconds + measures->update_seconds
               ? SL_OK
               : sl_error(SL_ERR_INVALID,
                          "a step must take longer than its exchange and its update, got %g, %g "
                          "and %g s",
                          measures->step_seconds, measures->exchange_seconds,
                          measures->update_seconds);
}

/* Of all replicas, wherever they are. */
static double planned_activations(const sl_plan *plan)
{
    double bytes = 0;
    for (int s = 0; s < plan->stages; s++) {
        const sl_stage_plan *stage = &plan->stage[s];
        bytes += (double)(stage->activation_bytes + stage->workspace_bytes + stage->cached_bytes);
    }
    return plan->options.replicas * bytes;
}

/* Processes are those of the run; the host with most of them stands for all. */
static sl_train_launch launch_of(const sl_run_measures *measures)
{
    int here = measures->host_processes;
    return (sl_train_launch){.ranks = measures->processes > 1 ? measures->processes : 0,
                             .local_ranks = measures->processes > 1 ? here : 0};
}

static sl_status create_machine(const sl_plan *plan, const sl_module *model,
                                const sl_run_measures *measures, sli_machine *out)
{
    const sl_train_options *options = &plan->options;
    bool shares_cores = measures->shares_cores;
    run_machine *machine = calloc(1, sizeof *machine);
    if (!machine)
        return sli_no_memory(NULL, "the times of a run");
    machine->measures = measures;
    machine->plan = plan;
    machine->model = model;
    machine->devices = options->replicas * (shares_cores ? 1 : options->pipeline_ranks);
    *out = (sli_machine){.context = machine,
                         .cores = options->replicas * options->pipeline_ranks,
                         .most_replicas = options->replicas,
                         .sharing = shares_cores ? SLI_SHARING_ALWAYS : SLI_SHARING_NEVER,
                         .launch = launch_of(measures),
                         .keeps_devices =
                             measures->has_own_memory || (measures->processes > 1 && !shares_cores),
                         .has_own_memory = measures->has_own_memory,
                         .host_bytes = measures->memory_bytes > 0 ? (uint64_t)measures->memory_bytes
                                                                  : sl_usable_memory(),
                         .process_bytes = measures->process_bytes > 0
                                              ? measures->process_bytes
                                              : (int64_t)sli_resident_memory_with_files(),
                         .time_links = time_links,
                         .time_modules = time_modules,
                         .time_update = time_update,
                         .time_exchange = time_exchange,
                         .close = close_machine};
    SL_TRY(measure(machine, shares_cores));
    out->one_rank_factor = find_one_rank_factor(machine);
    out->activation_factor = divide((double)measures->activation_bytes, planned_activations(plan));
    return SL_OK;
}

sl_status sli_measured_run_open(const sl_train_options *run, const sl_run_measures *measures,
                                sli_measured_run *out)
{
    *out = (sli_measured_run){.run = *run};
    SL_TRY(check_run(run, measures));
    out->run.devices = NULL; /* each has cores of its own, or all, or they are kept */
    if (measures->processes > 1 || measures->has_own_memory)
        out->kept = SL_KEEP_REPLICAS | SL_KEEP_PIPELINE_RANKS;
    SL_TRY(sl_transformer_lm_create(&run->model, &out->model));
    const sl_train_launch launch = launch_of(measures);
    SL_TRY(sl_plan_create(&out->run, &launch, out->model, NULL, &out->plan));
    return create_machine(out->plan, out->model, measures, &out->machine);
}

void sli_measured_run_close(sli_measured_run *measured)
{
    sli_machine_close(&measured->machine);
    sl_plan_destroy(&measured->plan);
    sl_module_destroy(&measured->model);
}
