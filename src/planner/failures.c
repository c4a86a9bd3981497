/* What failures cost: checkpoint intervals by Young's and Daly's formulas, and runs that are
 * simulated from one event to the next: a node fails, a node is back, the run ends.
 *
 *     |step step step|save|step step|save|step ✗ restart |step step ...
 *                                         ^^^^^^ lost      on the nodes that are left */
#include "planner/failures.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/philox.h"

#include <math.h>
#include <stdlib.h>

/* ---- Formulas ------------------------------------------------------------------------------ */

/* Daly's interval is that of the shortest expected time, up to a save as long as twice the time
 * between failures; where a save is longer, it is that time. */
sli_failures sli_cluster_failures(const sli_cluster *cluster, int nodes, double save_s)
{
    sli_failures out = {INFINITY, 0, INFINITY, INFINITY, 1};
    if (cluster->mtbf_s <= 0)
        return out;
    double mtbf = out.mtbf_s = cluster->mtbf_s / nodes;
    double save = out.save_s = save_s;
    out.young_interval_s = sqrt(2 * save * mtbf);
    double ratio = save / (2 * mtbf);
    out.daly_interval_s =
        ratio < 1 ? out.young_interval_s * (1 + sqrt(ratio) / 3 + ratio / 9) - save : mtbf;
    double interval = out.daly_interval_s;
    out.kept_fraction =
        save > 0
            ? interval / (mtbf * exp(cluster->restart_s / mtbf) * expm1((interval + save) / mtbf))
            : exp(-cluster->restart_s / mtbf);
    return out;
}

/* ---- One run ------------------------------------------------------------------------------- */

/* A run that takes longer than so many times its work is not followed to its end. */
static const double most_times = 1000;

typedef struct simulation {
    const sli_failing_run *run;
    const sli_failure_source *source;
    sli_fewer_speed *speeds; /* [nodes + 1] */
    double *returns;         /* [nodes + spares] a ring: when nodes that have failed are back */
    int first, down;         /* of `returns`: the next, and how many */
    double time, work;       /* now, and done */
    int64_t *failures_left;
} simulation;

static bool gives_up(const simulation *s)
{
    return *s->failures_left <= 0 || s->time > most_times * s->run->work_s;
}

/* With so many nodes away. */
static int count_nodes(const simulation *s, int down)
{
    int left = s->run->nodes + s->run->spares - down;
    return left < s->run->nodes ? left : s->run->nodes;
}

static sl_status find_speed(const sli_failing_run *run, sli_fewer_speed *speeds, int nodes,
                            sli_fewer_speed *out)
{
    sli_fewer_speed *speed = &speeds[nodes];
    if (isnan(speed->fraction)) {
        SL_TRY(run->speed(run->context, nodes, speed));
        speed->fraction = fmin(1, speed->fraction);
    }
    *out = *speed;
    return SL_OK;
}

static double draw_failure(const simulation *s, const sli_fewer_speed *speed)
{
    return s->source->draw(s->source->context, s->run->mtbf_s / speed->nodes_used);
}

static void fail_node(simulation *s)
{
    int room = s->run->nodes + s->run->spares;
    s->returns[(s->first + s->down) % room] = s->time + s->run->repair_s;
    s->down++;
    --*s->failures_left;
}

static void take_back(simulation *s)
{
    while (s->down > 0 && s->returns[s->first] <= s->time) {
        s->first = (s->first + 1) % (s->run->nodes + s->run->spares);
        s->down--;
    }
}

/* On the nodes that are there, or on the first that suffice. */
static sl_status wait_for_nodes(simulation *s, sli_fewer_speed *out)
{
    for (;;) {
        take_back(s);
        SL_TRY(find_speed(s->run, s->speeds, count_nodes(s, s->down), out));
        if (out->fraction > 0)
            return SL_OK;
        s->time = s->returns[s->first];
    }
}

/* A node that fails meanwhile has it begin again. */
static sl_status restart(simulation *s, sli_fewer_speed *out)
{
    double restart_s = s->run->restart_s, failure = 0;
    do {
        SL_TRY(wait_for_nodes(s, out));
        failure = draw_failure(s, out);
        s->time += fmin(failure, restart_s);
        if (failure < restart_s)
            fail_node(s);
    } while (failure < restart_s && !gives_up(s));
    return wait_for_nodes(s, out);
}

/* What checkpoints keep of the time since a start. Saves that take no time lose nothing. */
static double kept_seconds(const sli_failing_run *run, double seconds)
{
    double cycle = run->interval_s + run->save_s;
    return run->save_s > 0 ? floor(seconds / cycle) * run->interval_s : seconds;
}

/* How long it has computed. */
static double computed_seconds(const sli_failing_run *run, double seconds)
{
    double cycle = run->interval_s + run->save_s;
    return run->save_s > 0
               ? kept_seconds(run, seconds) + fmin(fmod(seconds, cycle), run->interval_s)
               : seconds;
}

/* Computing and saving from now on, without a save at the end. */
static double seconds_to_end(const simulation *s, double speed)
{
    const sli_failing_run *run = s->run;
    double rest = (run->work_s - s->work) / speed;
    return rest + (run->save_s > 0 ? fmax(0, ceil(rest / run->interval_s) - 1) * run->save_s : 0);
}

/* When a node is back, from now on and before `until`, with which the run is faster; else `until`.
 */
static sl_status find_return(const simulation *s, double speed, double until, double *out)
{
    int room = s->run->nodes + s->run->spares;
    *out = until;
    for (int i = 0; i < s->down && speed < 1; i++) {
        sli_fewer_speed with;
        double seconds = s->returns[(s->first + i) % room] - s->time;
        if (seconds >= until)
            return SL_OK;
        SL_TRY(find_speed(s->run, s->speeds, count_nodes(s, s->down - i - 1), &with));
        if (with.fraction > speed) {
            *out = seconds;
            return SL_OK;
        }
    }
    return SL_OK;
}

/* Until the run ends, a node fails, or one is back that makes it faster. */
static sl_status run_steps(simulation *s, sli_fewer_speed *speed)
{
    const sli_failing_run *run = s->run;
    double end = seconds_to_end(s, speed->fraction), failure = draw_failure(s, speed), seconds;
    SL_TRY(find_return(s, speed->fraction, fmin(end, failure), &seconds));
    s->time += seconds;
    if (seconds >= end) {
        s->work = run->work_s;
        return SL_OK;
    }
    if (seconds >= failure) {
        s->work += speed->fraction * kept_seconds(run, seconds);
        fail_node(s);
    } else {
        s->work += speed->fraction * computed_seconds(run, seconds);
        s->time += run->save_s;
    }
    return restart(s, speed);
}

static sl_status simulate_run(simulation *s, sli_simulated_run *out)
{
    sli_fewer_speed speed = s->speeds[s->run->nodes];
    double work_s = s->run->work_s;
    while (s->work < work_s && !gives_up(s))
        SL_TRY(run_steps(s, &speed));
    out->ends = s->work >= work_s;
    out->seconds = out->ends ? s->time : s->work > 0 ? s->time * (work_s / s->work) : INFINITY;
    return SL_OK;
}

sl_status sli_failing_run_simulate(const sli_failing_run *run, const sli_failure_source *source,
                                   sli_fewer_speed *speeds, int64_t *failures_left,
                                   sli_simulated_run *out)
{
    simulation s = {.run = run,
                    .source = source,
                    .speeds = speeds,
                    .returns = calloc((size_t)run->nodes + (size_t)run->spares, sizeof *s.returns),
                    .failures_left = failures_left};
    if (!s.returns)
        return sli_no_memory(NULL, "the failures of %d nodes", run->nodes);
    sl_status status = simulate_run(&s, out);
    free(s.returns);
    return status;
}

sl_status sli_failing_run_speeds(const sli_failing_run *run, sli_fewer_speed **out)
{
    sli_fewer_speed *speeds = *out = malloc(((size_t)run->nodes + 1) * sizeof **out);
    if (!speeds)
        return sli_no_memory(NULL, "the speeds of %d nodes", run->nodes);
    speeds[0] = (sli_fewer_speed){0, 0};
    for (int nodes = 1; nodes < run->nodes; nodes++)
        speeds[nodes] = (sli_fewer_speed){NAN, 0};
    speeds[run->nodes] = (sli_fewer_speed){1, run->nodes};
    return SL_OK;
}

/* ---- Many runs ----------------------------------------------------------------------------- */

/* Of all runs together: a fraction of a second. */
static const int64_t most_failures = 1000000;

typedef struct random_failures {
    sli_philox_key key;
    uint32_t run;
    uint64_t failure;
} random_failures;

/* By 53 bits, so that rare long times are among them. */
static double draw_exponential(void *context, double mean)
{
    random_failures *random = context;
    uint64_t failure = random->failure++;
    uint32_t counter[4] = {(uint32_t)failure, (uint32_t)(failure >> 32), random->run, 0};
    sli_philox(random->key, counter);
    uint64_t bits = (uint64_t)counter[0] << 32 | counter[1];
    return -mean * log1p(-(double)(bits >> 11) * 0x1p-53);
}

/* As many as `most_failures` suffice for, of the first one what they suffice for. */
static sl_status simulate_runs(const sli_failing_run *run, uint64_t seed, sli_fewer_speed *speeds,
                               double seconds[SLI_FAILING_RUNS], sli_simulated_runs *out)
{
    random_failures random = {.key = sli_philox_key_make(seed, SLI_RANDOM_FAILURES)};
    const sli_failure_source source = {draw_exponential, &random};
    int64_t left = most_failures;
    for (; out->runs < SLI_FAILING_RUNS && left > 0; out->runs++) {
        sli_simulated_run one;
        random.run = (uint32_t)out->runs;
        random.failure = 0;
        SL_TRY(sli_failing_run_simulate(run, &source, speeds, &left, &one));
        if (!one.ends && left <= 0 && out->runs > 0)
            break;
        seconds[out->runs] = one.seconds;
        out->unfinished += !one.ends;
    }
    return SL_OK;
}

static double find_percentile(const double *sorted, int count, double fraction)
{
    int place = (int)ceil(fraction * count) - 1;
    return sorted[place > 0 ? place : 0];
}

/* Without time for repairs no run is on fewer nodes. */
static sl_status find_fewer_speed(const sli_failing_run *run, sli_fewer_speed *speeds, double *out)
{
    sli_fewer_speed speed = {.fraction = 1};
    if (run->spares == 0 && run->repair_s > 0)
        SL_TRY(find_speed(run, speeds, run->nodes - 1, &speed));
    *out = speed.fraction;
    return SL_OK;
}

sl_status sli_failing_run_simulate_all(const sli_failing_run *run, uint64_t seed,
                                       sli_fewer_speed *speeds, sli_simulated_runs *out)
{
    double seconds[SLI_FAILING_RUNS], sum = 0;
    *out = (sli_simulated_runs){0};
    SL_TRY(simulate_runs(run, seed, speeds, seconds, out));
    for (int i = 0; i < out->runs; i++)
        sum += seconds[i];
    qsort(seconds, (size_t)out->runs, sizeof *seconds, sli_compare_seconds);
    out->seconds = sum / out->runs;
    out->low = find_percentile(seconds, out->runs, 0.05);
    out->high = find_percentile(seconds, out->runs, 0.95);
    out->kept_fraction = run->work_s / out->seconds;
    return find_fewer_speed(run, speeds, &out->fewer_speed);
}

sl_status sli_failing_run_find_interval(const sli_failing_run *run, uint64_t seed,
                                        sli_fewer_speed *speeds, const sli_simulated_runs *known,
                                        double *interval_s)
{
    const double factors[] = {0.5, M_SQRT1_2, M_SQRT2, 2};
    double best = known->seconds;
    *interval_s = run->interval_s;
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        sli_failing_run other = *run;
        sli_simulated_runs of_other;
        other.interval_s *= factors[i];
        SL_TRY(sli_failing_run_simulate_all(&other, seed, speeds, &of_other));
        if (of_other.seconds < best) {
            best = of_other.seconds;
            *interval_s = other.interval_s;
        }
    }
    return SL_OK;
}
