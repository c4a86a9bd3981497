#include "train/plan/machine.h"

#include "core/clock.h"
#include "core/error.h"
#include "device/cores.h"
#include "device/device.h"
#include "nn/module.h"
#include "train/plan/device_jobs.h"
#include "train/plan/profile.h"
#include "train/plan/rounds.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEVICES = 256, LADDER = 24 };

/* Rows whose modules take longer than this, forward and backward, are not timed. */
static const double longest_seconds = 0.5;

/* A round has fewer passes where it would take longer than this. */
static const double round_seconds = 1;

/* Measuring again takes at least this part of the time that there is for it: what disturbs a
 * machine comes and goes in seconds. */
static const double least_part = 0.2;

enum { TIMES = 4 }; /* of a module: forward, backward, backward_input, backward_weight */

/* Micro-batches of one size. */
typedef struct timed_rung {
    sl_module_profile *times; /* [modules] of the slowest device, medians of the rounds */
    sli_rounds rounds;        /* [devices][modules][TIMES] */
    bool is_too_large;        /* it fitted the memory, and then did not */
    bool is_used;             /* a search has asked for it; others lead to those with more rows */
} timed_rung;

/* The measurements with one number of devices. */
typedef struct timed_devices {
    int count;
    timed_rung ladder[LADDER]; /* of 1, 2, 4 ... rows; those that were asked for, and some on the
                                  way there, are timed */
    int end;                   /* so many rungs fit the memory */
    sli_rounds update;         /* [devices] sli_update_speed, its numbers in their order */
    sli_rounds exchange;       /* exchange_times, its numbers in their order */
    double peak_flops_per_s;   /* of all together; 0: not timed */
} timed_devices;

typedef struct timed_machine {
    const sl_train_options *options;
    int64_t document_tokens; /* 0: a row is one */
    char *names; /* of the options' devices, separated by commas; NULL: cpu:0 and so on */
    int modules;
    timed_devices devices[MOST_DEVICES];
    int count;
    double seconds_left; /* for measuring again */
    bool has_new;        /* what was measured once, since it was last measured again */
} timed_machine;

static timed_devices *find_devices(timed_machine *machine, int count)
{
    for (int i = 0; i < machine->count; i++)
        if (machine->devices[i].count == count)
            return &machine->devices[i];
    timed_devices *added = &machine->devices[machine->count++];
    *added = (timed_devices){.count = count, .end = LADDER};
    return added;
}

/* ---- Work for all devices at once ----------------------------------------------------------- */

static sl_status open_devices(const timed_machine *machine, int count, sl_device_list **out)
{
    char *names = NULL;
    sl_status status = SL_OK;
    if (!machine->names)
        SL_TRY(sli_device_list_name_cpus(count, false, &names));
    SL_TRY_OR_FAIL(sl_device_list_create(names ? names : machine->names, out, NULL));
    status = sl_device_list_set_batch_invariant(*out, machine->options->batch_invariant);
    if (status != SL_OK)
        sl_device_list_destroy(out);
fail:
    free(names);
    return status;
}

/* Runs the task on all of so many devices. The caller frees *jobs [count]. */
static sl_status run_on_devices(const timed_machine *machine, int count, sli_device_job example,
                                sli_device_job **jobs)
{
    sl_device_list *list = NULL;
    sl_status status;
    *jobs = calloc((size_t)count, sizeof **jobs);
    if (!*jobs)
        return sli_no_memory(NULL, "the times of %d devices", count);
    example.options = machine->options;
    for (int i = 0; i < count; i++) {
        (*jobs)[i] = example;
        (*jobs)[i].profile = calloc((size_t)machine->modules, sizeof *example.profile);
        if (!(*jobs)[i].profile)
            SL_TRY_OR_FAIL(sli_no_memory(NULL, "the times of %d modules", machine->modules));
    }
    SL_TRY_OR_FAIL(open_devices(machine, count, &list));
    status = sli_device_jobs_run(list, *jobs, count);
fail:
    sl_device_list_destroy(&list);
    return status;
}

static void free_jobs(sli_device_job *jobs, int count)
{
    for (int i = 0; jobs && i < count; i++)
        free(jobs[i].profile);
    free(jobs);
}

/* ---- Modules ------------------------------------------------------------------------------ */

/* Puts a module's times into times[TIMES]. */
static void list_times(const sl_module_profile *profile, double *times)
{
    times[0] = profile->forward;
    times[1] = profile->backward;
    times[2] = profile->backward_input;
    times[3] = profile->backward_weight;
}

/* Of each module the medians of the slowest device. */
static void find_times(const timed_machine *machine, const timed_devices *devices, timed_rung *rung)
{
    for (int i = 0; i < machine->modules; i++) {
        double slowest[TIMES] = {0};
        for (int device = 0; device < devices->count; device++)
            for (int which = 0; which < TIMES; which++) {
                size_t index =
                    ((size_t)device * (size_t)machine->modules + (size_t)i) * TIMES + (size_t)which;
                slowest[which] = fmax(slowest[which], sli_rounds_median(&rung->rounds, index));
            }
        rung->times[i].forward = slowest[0];
        rung->times[i].backward = slowest[1];
        rung->times[i].backward_input = slowest[2];
        rung->times[i].backward_weight = slowest[3];
    }
}

/* Adds a round from what the devices have measured. */
static sl_status add_times(const timed_machine *machine, const timed_devices *devices,
                           const sli_device_job *jobs, timed_rung *rung)
{
    size_t modules = (size_t)machine->modules, width = (size_t)devices->count * modules * TIMES;
    double *values = calloc(width, sizeof *values);
    if (!values)
        return sli_no_memory(NULL, "the times of %d modules", machine->modules);
    for (int device = 0; device < devices->count; device++)
        for (size_t i = 0; i < modules; i++) {
            list_times(&jobs[device].profile[i], values + ((size_t)device * modules + i) * TIMES);
            rung->times[i].output_bytes = jobs[device].profile[i].output_bytes;
        }
    sl_status status = sli_rounds_add(&rung->rounds, values, width);
    free(values);
    if (status == SL_OK)
        find_times(machine, devices, rung);
    return status;
}

/* Forward and backward, of those modules that are run: one like the one before it is not. */
static double sum_times(const sl_module_profile *times, int modules)
{
    double seconds = 0;
    for (int i = 0; i < modules; i++)
        if (i == 0 || times[i].forward != times[i - 1].forward ||
            times[i].backward != times[i - 1].backward)
            seconds += times[i].forward + times[i].backward;
    return seconds;
}

/* Another round of 2^number rows, which are expected to take so long. */
static sl_status time_rung(const timed_machine *machine, timed_devices *devices, int number,
                           double seconds)
{
    timed_rung *rung = &devices->ladder[number];
    sli_device_job *jobs = NULL;
    /* Each pass is two forwards, a backward and its halves, besides other modules' memory; the
     * first is not timed. */
    double passes = seconds > 0 ? round_seconds / (2 * seconds) - 1 : SL_PROFILE_ROUNDS;
    const sli_device_job job = {.task = sli_profile_rows,
                                .rows = (int64_t)1 << number,
                                .passes = (int)fmax(1, fmin(passes, SL_PROFILE_ROUNDS)),
                                .document_tokens = machine->document_tokens};
    if (!rung->times && !(rung->times = calloc((size_t)machine->modules, sizeof *rung->times)))
        return sli_no_memory(NULL, "the times of %d modules", machine->modules);
    sl_status status = run_on_devices(machine, devices->count, job, &jobs);
    if (status == SL_OK)
        status = add_times(machine, devices, jobs, rung);
    free_jobs(jobs, devices->count);
    return status;
}

/* ---- The ladder ---------------------------------------------------------------------------- */

/* The last of rungs 0 ... most that is timed; -1: none is. */
static int last_timed(const timed_devices *devices, int most)
{
    while (most >= 0 && devices->ladder[most].rounds.count == 0)
        most--;
    return most;
}

/* How long modules take with the rows of a rung, by those of one that is timed. */
static double expect_seconds(const timed_machine *machine, const timed_devices *devices, int timed,
                             int rung)
{
    return timed < 0
               ? 0
               : ldexp(sum_times(devices->ladder[timed].times, machine->modules), rung - timed);
}

/* The rung to be timed next for rung `number` to be: the last one on the way there that does not
 * take too long; -1: none. */
static int next_rung(const timed_machine *machine, const timed_devices *devices, int number)
{
    int timed = last_timed(devices, number), next = timed;
    while (next < number && next + 1 < devices->end &&
           expect_seconds(machine, devices, timed, next + 1) <= longest_seconds)
        next++;
    return next > timed ? (timed < 0 ? 0 : next) : -1;
}

/* Times rung `number`, or else as many rows as can be timed. */
static sl_status reach_rung(const timed_machine *machine, timed_devices *devices, int number)
{
    int next;
    while ((next = next_rung(machine, devices, number)) >= 0) {
        int timed = last_timed(devices, next);
        sl_status status =
            time_rung(machine, devices, next, expect_seconds(machine, devices, timed, next));
        if (status == SL_ERR_MEMORY && next > 0)
            devices->end = next;
        else if (status != SL_OK)
            return status;
    }
    return SL_OK;
}

/* The rungs that such rows are interpolated from, of those that are timed. */
static void find_rungs(const timed_devices *devices, int64_t rows, int *low, int *high)
{
    int found = sli_ladder_rung(LADDER, rows);
    *low = *high = last_timed(devices, found);
    if (*low == found && rows > (int64_t)1 << found && found + 1 < LADDER &&
        devices->ladder[found + 1].rounds.count > 0)
        *high = found + 1;
}

static sl_status time_modules(void *context, int count, int64_t rows, sl_module_profile *out)
{
    timed_machine *machine = context;
    timed_devices *devices = find_devices(machine, count);
    sl_module_profile *times[LADDER] = {NULL};
    int low = sli_ladder_rung(LADDER, rows), high;
    SL_TRY(reach_rung(machine, devices, low));
    if (rows > (int64_t)1 << low && low + 1 < LADDER)
        SL_TRY(reach_rung(machine, devices, low + 1));
    find_rungs(devices, rows, &low, &high);
    for (int i = low; i <= high; i++) {
        times[i] = devices->ladder[i].times;
        machine->has_new |= !devices->ladder[i].is_used;
        devices->ladder[i].is_used = true;
    }
    sli_ladder_times(times, high + 1, machine->modules, rows, out);
    return SL_OK;
}

/* ---- The update --------------------------------------------------------------------------- */

enum { UPDATE_TIMES = sizeof(sli_update_speed) / sizeof(double) };

/* Another round of updates. */
static sl_status add_update(const timed_machine *machine, timed_devices *devices)
{
    sli_device_job *jobs = NULL;
    int count = devices->count;
    sli_update_speed *speeds = calloc((size_t)count, sizeof *speeds);
    if (!speeds)
        return sli_no_memory(NULL, "the times of %d devices", count);
    sl_status status =
        run_on_devices(machine, count, (sli_device_job){.task = sli_time_update}, &jobs);
    for (int i = 0; i < count && status == SL_OK; i++)
        speeds[i] = jobs[i].update;
    if (status == SL_OK)
        status = sli_rounds_add(&devices->update, &speeds->optimizer, (size_t)count * UPDATE_TIMES);
    free_jobs(jobs, count);
    free(speeds);
    return status;
}

static sl_status time_update(void *context, int count, sli_update_speed *out)
{
    timed_machine *machine = context;
    timed_devices *devices = find_devices(machine, count);
    if (devices->update.count == 0) {
        SL_TRY(add_update(machine, devices));
        machine->has_new = true;
    }
    *out = (sli_update_speed){0};
    for (int i = 0; i < count; i++) {
        size_t first = (size_t)i * UPDATE_TIMES;
        out->optimizer = fmax(out->optimizer, sli_rounds_median(&devices->update, first));
        out->undivided = fmax(out->undivided, sli_rounds_median(&devices->update, first + 1));
        out->table_zero = fmax(out->table_zero, sli_rounds_median(&devices->update, first + 2));
        out->tie_sum = fmax(out->tie_sum, sli_rounds_median(&devices->update, first + 3));
    }
    return SL_OK;
}

/* ---- The exchange ------------------------------------------------------------------------- */

enum { SMALL_FLOATS = 1 << 8, LARGE_FLOATS = 4 << 20 };

typedef struct exchange_times {
    double reduce[2], gather[2]; /* seconds of SMALL_FLOATS and LARGE_FLOATS; the first rank's */
} exchange_times;

/* Every rank's shard of the data goes to all ranks (parallel/ddp/zero.c). */
static sl_status gather_shards(sl_group *group, float *data, int64_t floats)
{
    int ranks = sl_group_size(group);
    for (int rank = 0; rank < ranks; rank++)
        SL_TRY(sl_group_broadcast(group, data + floats / ranks * rank, floats / ranks, SL_F32, rank,
                                  NULL));
    return SL_OK;
}

/* The median of a few rounds, after one that touches all memory. */
static sl_status time_floats(sl_group *group, float *data, int64_t floats, bool reduces,
                             double *out)
{
    enum { ROUNDS = 5 };
    double seconds[ROUNDS];
    for (int round = -1; round < ROUNDS; round++) {
        SL_TRY(sl_group_barrier(group, NULL));
        double start = sli_clock_seconds();
        SL_TRY(reduces ? sl_group_all_reduce(group, data, floats, SL_F32, SL_REDUCE_SUM, NULL)
                       : gather_shards(group, data, floats));
        if (round >= 0)
            seconds[round] = sli_clock_seconds() - start;
    }
    *out = sli_median_seconds(seconds, ROUNDS);
    return SL_OK;
}

static sl_status time_group(sl_group *group, void *arg)
{
    exchange_times *times = arg, others;
    if (sl_group_rank(group) > 0)
        times = &others;
    float *data = calloc(LARGE_FLOATS, sizeof *data);
    sl_status status = SL_OK;
    if (!data)
        return sli_no_memory(NULL, "%d floats to exchange", LARGE_FLOATS);
    for (int i = 0; i < 2; i++) {
        int64_t floats = i ? LARGE_FLOATS : SMALL_FLOATS;
        SL_TRY_OR_FAIL(time_floats(group, data, floats, true, &times->reduce[i]));
        SL_TRY_OR_FAIL(time_floats(group, data, floats, false, &times->gather[i]));
    }
fail:
    free(data);
    return status;
}

/* The cost of what takes the medians of numbers first ... first + 1 of the rounds. */
static sl_link_cost find_cost(const sli_rounds *rounds, size_t first)
{
    static const double bytes[] = {SMALL_FLOATS * sizeof(float), LARGE_FLOATS * sizeof(float)};
    const double seconds[] = {sli_rounds_median(rounds, first),
                              sli_rounds_median(rounds, first + 1)};
    return sli_link_fit(bytes, seconds, 2);
}

/* Another round of exchanges. */
static sl_status add_exchange(timed_devices *devices)
{
    exchange_times times;
    SL_TRY(sl_spawn(time_group, &times, devices->count, NULL));
    const double values[] = {times.reduce[0], times.reduce[1], times.gather[0], times.gather[1]};
    return sli_rounds_add(&devices->exchange, values, sizeof values / sizeof *values);
}

static sl_status time_exchange(void *context, int replicas, sl_link_cost *reduce,
                               sl_link_cost *gather)
{
    timed_machine *machine = context;
    timed_devices *devices = find_devices(machine, replicas);
    if (devices->exchange.count == 0) {
        SL_TRY(add_exchange(devices));
        machine->has_new = true;
    }
    *reduce = find_cost(&devices->exchange, 0);
    *gather = find_cost(&devices->exchange, 2);
    return SL_OK;
}

/* ---- Again -------------------------------------------------------------------------------- */

/* How long to go on. */
typedef struct more_rounds {
    double all_until, until; /* on the clock: all is until the one, what varies until the other */
    bool is_ended;
} more_rounds;

/* Whether another round is to be added. */
static bool is_wanted(more_rounds *again, const sli_rounds *rounds)
{
    double now = sli_clock_seconds();
    bool may_vary = now < again->all_until || (now < again->until && !sli_rounds_agree(rounds)),
         adds = rounds->count > 0 && rounds->count < SLI_MOST_ROUNDS &&
                (rounds->count == 1 || may_vary);
    again->is_ended = again->is_ended && !adds;
    return adds;
}

static sl_status add_rounds(const timed_machine *machine, timed_devices *devices,
                            more_rounds *again)
{
    for (int i = 0; i < LADDER; i++) {
        timed_rung *rung = &devices->ladder[i];
        if (!rung->is_used || rung->is_too_large || !is_wanted(again, &rung->rounds))
            continue;
        sl_status status = time_rung(machine, devices, i, expect_seconds(machine, devices, i, i));
        rung->is_too_large = status == SL_ERR_MEMORY; /* the rounds that it has are kept */
        if (!rung->is_too_large)
            SL_TRY(status);
    }
    if (is_wanted(again, &devices->update))
        SL_TRY(add_update(machine, devices));
    return is_wanted(again, &devices->exchange) ? add_exchange(devices) : SL_OK;
}

/* In turn, so that the rounds of each are spread over the time. */
static sl_status measure_again(void *context, bool *is_measured)
{
    timed_machine *machine = context;
    double start = sli_clock_seconds(), left = machine->seconds_left;
    more_rounds again = {.all_until = start + least_part * left, .until = start + left};
    *is_measured = machine->has_new && left > 0;
    machine->has_new = false;
    while (*is_measured && !again.is_ended) {
        again.is_ended = true;
        for (int i = 0; i < machine->count; i++)
            SL_TRY(add_rounds(machine, &machine->devices[i], &again));
    }
    machine->seconds_left = fmax(0, left - (sli_clock_seconds() - start));
    return SL_OK;
}

static double find_spread(void *context, int count, int64_t rows)
{
    const timed_devices *devices = find_devices(context, count);
    int low, high;
    double spread = -1;
    find_rungs(devices, rows, &low, &high);
    for (int i = low < 0 ? 0 : low; i <= high; i++)
        if (devices->ladder[i].rounds.count > 1)
            spread = fmax(spread, sli_rounds_spread(&devices->ladder[i].rounds));
    return spread;
}

/* ---- The peak ------------------------------------------------------------------------------- */

static sl_status time_peak(void *context, int count, double *flops_per_s)
{
    timed_machine *machine = context;
    timed_devices *devices = find_devices(machine, count);
    sl_device *opened[MOST_DEVICES];
    sl_device_list *list = NULL;
    sl_status status = SL_OK;
    if (devices->peak_flops_per_s <= 0)
        status = open_devices(machine, count, &list);
    for (int i = 0; list && i < count; i++)
        opened[i] = sl_device_list_get(list, i);
    if (list)
        status = sli_measure_peak(opened, count, machine->options->precision,
                                  &devices->peak_flops_per_s);
    sl_device_list_destroy(&list);
    *flops_per_s = devices->peak_flops_per_s;
    return status;
}

/* ---- The machine -------------------------------------------------------------------------- */

static void destroy_machine(void *context)
{
    timed_machine *machine = context;
    for (int i = 0; i < machine->count; i++) {
        timed_devices *devices = &machine->devices[i];
        for (int rung = 0; rung < LADDER; rung++) {
            free(devices->ladder[rung].times);
            sli_rounds_clear(&devices->ladder[rung].rounds);
        }
        sli_rounds_clear(&devices->update);
        sli_rounds_clear(&devices->exchange);
    }
    free(machine->names);
    free(machine);
}

/* The devices of the options' lists. */
static sl_status count_names(timed_machine *machine, int *count)
{
    machine->names = strdup(machine->options->devices);
    if (!machine->names)
        return sli_no_memory(NULL, "the names of devices");
    *count = 1;
    for (char *name = machine->names; (name = strpbrk(name, ",;")); *name++ = ',')
        ++*count;
    *count = *count < MOST_DEVICES ? *count : MOST_DEVICES;
    return SL_OK;
}

static sl_status count_cores(int *count)
{
    sli_cores cores;
    SL_TRY(sli_cores_find(&cores));
    *count = cores.core_count < MOST_DEVICES ? cores.core_count : MOST_DEVICES;
    sli_cores_clear(&cores);
    return SL_OK;
}

sl_status sli_machine_open(const sl_train_options *options, int64_t document_tokens, double seconds,
                           sli_machine *out)
{
    sl_module *model = NULL;
    timed_machine *machine = calloc(1, sizeof *machine);
    *out = (sli_machine){.time_modules = time_modules,
                         .time_update = time_update,
                         .time_exchange = time_exchange,
                         .time_peak = time_peak,
                         .measure_again = measure_again,
                         .find_spread = find_spread,
                         .close = destroy_machine};
    if (!(seconds >= 0 && isfinite(seconds))) {
        free(machine);
        return sl_error(SL_ERR_INVALID,
                        "the seconds of a profile must be 0 or more, and finite, got %g", seconds);
    }
    if (!machine)
        return sli_no_memory(NULL, "the times of a machine");
    machine->options = options;
    machine->document_tokens = document_tokens;
    machine->seconds_left = seconds;
    sl_status status;
    SL_TRY_OR_FAIL(options->devices ? count_names(machine, &out->cores) : count_cores(&out->cores));
    SL_TRY_OR_FAIL(sl_transformer_lm_create(&options->model, &model));
    machine->modules = sl_module_child_count(model);
    sl_module_destroy(&model);
    if (machine->names && sli_device_list_shares_cores(machine->names))
        out->sharing = SLI_SHARING_ALWAYS;
    out->context = machine;
    return SL_OK;
fail:
    destroy_machine(machine);
    return status;
}

int64_t sli_machine_timed_rows(const sli_machine *machine, int devices)
{
    int last = last_timed(find_devices(machine->context, devices), LADDER - 1);
    return last >= 0 ? (int64_t)1 << last : 0;
}

void sli_machine_close(sli_machine *machine)
{
    if (machine->context && machine->close)
        machine->close(machine->context);
    machine->context = NULL;
}
