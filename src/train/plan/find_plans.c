/* The best plans of a run, by a profile of this machine or by what the run has measured of itself,
 * and what would help the first of them. */
#include "core/error.h"
#include "core/usable_memory.h"
#include "device/cpu/onednn.h"
#include "text/rows.h"
#include "train/loop/run.h"
#include "train/plan/search_machine.h"

#include <math.h>
#include <stdlib.h>

/* ---- What would help --------------------------------------------------------------------------
 */

/* How many times as fast the best plan of a search is as `first`; 0: there is none. */
static sl_status find_gain(const sl_plan_search_options *options, const sl_train_options *run,
                           const sli_machine *machine, const sl_found_plan *first, double *gain)
{
    int count;
    sl_found_plan *plans = calloc(SL_PLANS_FOUND, sizeof *plans);
    *gain = 0;
    if (!plans)
        return sli_no_memory(NULL, "plans");
    sl_status status = sli_plan_search_if_any(options, run, machine, plans, &count);
    if (status == SL_OK && count > 0)
        *gain = first->costs.seconds / plans[0].costs.seconds;
    free(plans);
    return status;
}

/* Ranks of several processes occupy them: the measures of such a run keep their number. */
static bool can_have_fewer(const sl_plan_search_options *options, const sl_found_plan *first)
{
    return first->options.pipeline_ranks > 1 &&
           !(options->measures && (options->kept & SL_KEEP_PIPELINE_RANKS));
}

static sl_status try_fewer(const sl_plan_search_options *options, const sl_train_options *run,
                           const sli_machine *machine, const sl_found_plan *first, double *gain)
{
    sl_plan_search_options search = *options;
    sl_train_options fewer = *run;
    *gain = 0;
    if (!can_have_fewer(options, first))
        return SL_OK;
    search.kept &= ~(unsigned)SL_KEEP_BALANCE; /* which is one of as many stages */
    fewer.balance_kind = SL_BALANCE_AUTO;
    search.kept |= SL_KEEP_REPLICAS | SL_KEEP_PIPELINE_RANKS | SL_KEEP_CHUNKS | SL_KEEP_RECOMPUTE |
                   SL_KEEP_ZERO | SL_KEEP_SPLIT_VOCABULARY;
    fewer.replicas = first->options.replicas;
    fewer.pipeline_ranks = first->options.pipeline_ranks - 1;
    fewer.chunks = first->options.chunks;
    fewer.recompute = first->options.recompute;
    fewer.zero = first->options.zero;
    fewer.split_vocabulary = first->options.split_vocabulary;
    if (fewer.pipeline_ranks > 1) { /* one has the order of all schedules */
        search.kept |= SL_KEEP_SCHEDULE;
        fewer.schedule = first->options.schedule;
    }
    return find_gain(&search, &fewer, machine, first, gain);
}

/* Of a layout that needs more than there is, not even one row may fit to be timed. */
static sl_status try_memory(const sl_plan_search_options *options, const sl_train_options *run,
                            const sli_machine *machine, const sl_found_plan *first, double *gain)
{
    sl_status status = find_gain(options, run, machine, first, gain);
    return status == SL_ERR_MEMORY ? SL_OK : status;
}

sl_status sli_plan_help_machine(const sl_plan_search_options *options, const sl_train_options *run,
                                const sli_machine *machine, const sl_found_plan *first,
                                sl_plan_helps *out)
{
    sli_machine changed = *machine;
    changed.time_peak = NULL;
    *out = (sl_plan_helps){0};
    SL_TRY(try_fewer(options, run, &changed, first, &out->gain[SL_HELP_FEWER]));
    changed.links_factor = 2;
    SL_TRY(find_gain(options, run, &changed, first, &out->gain[SL_HELP_LINKS]));
    changed.links_factor = machine->links_factor;
    changed.host_bytes *= 2;
    return try_memory(options, run, &changed, first, &out->gain[SL_HELP_MEMORY]);
}

/* ---- A profile, or measures ------------------------------------------------------------------ */

/* Of documents that are all as long, attention takes as much time; 0: rows are not packed. */
static int64_t length_of_documents(const sli_rows_task *rows)
{
    double tokens = 0, squares = 0;
    for (int i = 0; i < rows->count; i++)
        if (rows->sources[i].rows[SL_SPLIT_TRAIN]->numbers)
            sli_rows_count_documents(rows->sources[i].rows[SL_SPLIT_TRAIN], &tokens, &squares);
    return tokens > 0 ? llround(squares / tokens) : 0;
}

/* What the data say of the model and of rows, as a run in one rank finds it, and what that has in
 * memory. */
static sl_status read_data(const sl_plan_search_options *options, sl_train_options *out,
                           int64_t *document_tokens, int64_t *process_bytes)
{
    sl_run *run;
    sl_train_options one = *out;
    *document_tokens = 0;
    sli_sgemm_load();
    *process_bytes = (int64_t)sli_resident_memory_with_files();
    if (!one.data)
        return SL_OK;
    one.replicas = one.pipeline_ranks = one.virtual_stages = one.shards = 1;
    one.schedule = NULL;
    one.table = NULL;
    one.placement = one.devices = NULL;
    one.balance_kind = SL_BALANCE_LAYERS;
    one.zero = one.nccl = false;
    one.chunks = one.accumulate = 0;
    one.force = true;
    if (options->batch_tokens > 0)
        one.batch_size = 1;
    SL_TRY(sli_run_create_to_plan(&one, &run));
    out->model = sl_run_plan(run)->options.model;
    out->bptt = sl_run_plan(run)->options.bptt;
    *document_tokens = length_of_documents(&run->rows_of_ids);
    *process_bytes = (int64_t)sli_resident_memory_with_files();
    sl_run_destroy(&run);
    return SL_OK;
}

/* A training loads what a profile loads, the libraries' code for products: with it, other layouts
 * may fit. What was timed is not timed again. */
static sl_status search_with_code(const sl_plan_search_options *options,
                                  const sl_train_options *run, sli_machine *machine,
                                  sl_found_plan *plans, int *count)
{
    const uint64_t before = sli_resident_files();
    SL_TRY(sli_plan_search_machine(options, run, machine, plans, count));
    const uint64_t after = sli_resident_files();
    if (after <= before)
        return SL_OK;
    machine->process_bytes += (int64_t)(after - before);
    return sli_plan_search_machine(options, run, machine, plans, count);
}

/* The plans, and what would help the first of them: again whenever the machine was measured again,
 * which may bring other layouts to the fore, whose times are then measured again as well. */
static sl_status search_and_help(const sl_plan_search_options *options, const sl_train_options *run,
                                 sli_machine *machine, sl_found_plan *plans, int *count,
                                 sl_plan_helps *helps)
{
    bool is_measured = false;
    if (!options->measures)
        SL_TRY(search_with_code(options, run, machine, plans, count));
    do {
        if (options->measures || is_measured)
            SL_TRY(sli_plan_search_machine(options, run, machine, plans, count));
        if (helps)
            SL_TRY(sli_plan_help_machine(options, run, machine, &plans[0], helps));
        if (machine->measure_again)
            SL_TRY(machine->measure_again(machine->context, &is_measured));
    } while (is_measured);
    return SL_OK;
}

static sl_status search_by_profile(const sl_plan_search_options *options, sl_found_plan *plans,
                                   int *count, sl_plan_helps *helps)
{
    sl_train_options run = *options->run;
    sli_machine machine = {0};
    if (run.task)
        return sl_error(SL_ERR_UNSUPPORTED, "plans are searched for language models, not for a "
                                            "task's");
    SL_TRY(sli_train_options_check_values(&run));
    int64_t document_tokens, process_bytes;
    SL_TRY(read_data(options, &run, &document_tokens, &process_bytes));
    SL_TRY(sli_machine_open(&run, document_tokens, options->profile_seconds, &machine));
    machine.host_bytes = sl_usable_memory();
    machine.process_bytes = process_bytes;
    sl_status status = search_and_help(options, &run, &machine, plans, count, helps);
    sli_machine_close(&machine);
    return status;
}

/* What the run has not measured is as it was. */
static sl_status search_by_measures(const sl_plan_search_options *options, sl_found_plan *plans,
                                    int *count, sl_plan_helps *helps)
{
    sl_plan_search_options search = *options;
    sli_measured_run measured;
    sl_status status;
    SL_TRY_OR_FAIL(sli_measured_run_open(options->run, options->measures, &measured));
    search.kept |= measured.kept | SL_KEEP_ZERO | SL_KEEP_SHARDS | SL_KEEP_BATCH_SIZE |
                   SL_KEEP_SPLIT_VOCABULARY;
    status = search_and_help(&search, &measured.run, &measured.machine, plans, count, helps);
fail:
    sli_measured_run_close(&measured);
    return status;
}

sl_status sl_plan_search(const sl_plan_search_options *options, sl_found_plan plans[SL_PLANS_FOUND],
                         int *count, sl_plan_helps *helps)
{
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(options->run);
    SLI_CHECK_NOT_NULL(plans);
    SLI_CHECK_NOT_NULL(count);
    *count = 0;
    return options->measures ? search_by_measures(options, plans, count, helps)
                             : search_by_profile(options, plans, count, helps);
}
