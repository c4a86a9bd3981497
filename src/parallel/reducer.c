/* How gradients are exchanged while backward goes on.
 *
 *     backward's thread          communication thread              other replicas
 *     decoder done ─┐
 *     layer 3 done  ├ bucket 0 full ──▶ hook / all-reduce 0  ◀──────▶ all-reduce 0
 *     layer 2 done ─┴ bucket 1 full ──▶ hook / all-reduce 1  ◀──────▶ all-reduce 1
 *     …                                 …
 *     end: waits for the thread
 *
 * When is a gradient complete? A module that has gone backward is done with its parameters if it
 * runs only once in a pass; that is known of a module whose ancestors all are sequentials, because
 * a sequential runs each child once. Modules further down may run again (weights that are used
 * twice), so their parameters wait for the module above that satisfies this. Which pass is a step's
 * last one, the caller knows: it sets the observer on that one only.
 *
 * All replicas must exchange buckets in one order, or they would wait for each other for ever. So a
 * full bucket waits for those before it in the order. At first that is the order in which buckets
 * lie, which presumes that modules run in the order in which they were registered. In the first
 * step each rank notes the order in which its buckets really became full, and rank 0's is
 * everybody's from then on. PyTorch moves parameters between its buckets for that; here gradients
 * and values lie in their buckets for good, and modules, not single parameters, become ready, so
 * that changing the order of sending is all there is to gain.
 *
 * Threads: `released` and what the communication thread waits for are guarded by `lock`. Counting
 * what is ready belongs to the thread that runs backward, and to the caller of begin and end while
 * that is idle. A bucket's times and gradients are the communication thread's from its release to
 * its end. */
#include "parallel/reducer.h"

#include "core/clock.h"
#include "nn/module.h"
#include "nn/parameter.h"
#include "parallel/failure.h"
#include "parallel/worker.h"

#include <assert.h>
#include <stdlib.h>

typedef struct tracked_bucket {
    sl_ddp_bucket exchange;
    int parameters, pending; /* of them, those that are not ready yet */
    double ready, begun, ended;
} tracked_bucket;

struct sli_reducer {
    sl_parameter_set *set;
    sl_group *group;
    sli_worker *thread;
    sli_pass_observer observer;
    sli_reduction reduction;
    sli_failure failure; /* of the step under way */

    sl_parameter **trained; /* [trained_count] in the order of registration */
    int *bucket_of;         /* [trained_count] */
    bool *ready, *missing;  /* [trained_count] in the step: complete; complete without a gradient */
    int32_t *used;          /* [trained_count] room, for what all ranks say of `missing` */
    int *place_of;          /* [parameters of the set] place in `trained`, -1 for others */
    uint32_t first_number;  /* of the set's parameters, which have successive numbers */
    int trained_count;

    tracked_bucket *buckets;
    int *order;    /* [bucket_count] in which they are sent */
    int *arrivals; /* [bucket_count] the order in which they became full in this step */
    int bucket_count, arrived;

    pthread_mutex_t lock; /* guards what follows; taken last */
    pthread_cond_t changed;
    int released; /* places of `order` that may be sent */
    bool abandoned;
};

/* ---- The communication thread ----------------------------------------------------------- */

/* False: the step was given up. */
static bool wait_for_release(sli_reducer *reducer, int place)
{
    pthread_mutex_lock(&reducer->lock);
    while (reducer->released <= place && !reducer->abandoned)
        pthread_cond_wait(&reducer->changed, &reducer->lock);
    bool go = !reducer->abandoned;
    pthread_mutex_unlock(&reducer->lock);
    return go;
}

/* The sum over the ranks that have data, divided by their number. */
static sl_status average_over(const sl_ddp_bucket *bucket, int divisor)
{
    SL_TRY(sl_group_all_reduce(bucket->group, bucket->grads, bucket->count, SL_F32, SL_REDUCE_SUM,
                               NULL));
    float scale = 1.0f / (float)divisor;
    for (int64_t i = 0; i < bucket->count; i++)
        bucket->grads[i] *= scale;
    return SL_OK;
}

static sl_status exchange(const sli_reduction *reduction, sl_ddp_bucket *bucket)
{
    if (reduction->hook)
        return reduction->hook(reduction->hook_arg, bucket);
    if (reduction->divisor > 0)
        return average_over(bucket, reduction->divisor);
    return sl_ddp_average_hook(NULL, bucket);
}

static void communicate(void *argument)
{
    sli_reducer *reducer = argument;
    for (int place = 0; place < reducer->bucket_count; place++) {
        if (!wait_for_release(reducer, place))
            return;
        tracked_bucket *next = &reducer->buckets[reducer->order[place]];
        next->begun = sli_clock_seconds();
        sl_status status = exchange(&reducer->reduction, &next->exchange);
        next->ended = sli_clock_seconds();
        if (status == SL_OK)
            continue;
        sl_error_context(status, "gradients of stage %d, bucket %d: ", next->exchange.stage,
                         next->exchange.index);
        sli_failure_raise(&reducer->failure, status);
        sl_group_abort(reducer->group, status, sl_error_text());
        return;
    }
}

/* ---- What is ready ---------------------------------------------------------------------- */

static void release_full_buckets(sli_reducer *reducer)
{
    pthread_mutex_lock(&reducer->lock);
    while (reducer->released < reducer->bucket_count &&
           reducer->buckets[reducer->order[reducer->released]].pending == 0)
        reducer->released++;
    pthread_cond_signal(&reducer->changed);
    pthread_mutex_unlock(&reducer->lock);
}

static sl_status mark_ready(sli_reducer *reducer, int place)
{
    sl_tensor *grads;
    if (reducer->ready[place])
        return SL_OK;
    reducer->ready[place] = true;
    reducer->missing[place] = reducer->trained[place]->grad_is_stale;
    int index = reducer->bucket_of[place];
    tracked_bucket *of = &reducer->buckets[index];
    if (--of->pending > 0)
        return SL_OK;
    SL_TRY(sl_parameter_set_bucket_grads(reducer->set, index, &grads)); /* 0 where none came */
    of->exchange.grads = sl_tensor_f32(grads);
    of->ready = sli_clock_seconds();
    reducer->arrivals[reducer->arrived++] = index;
    release_full_buckets(reducer);
    return SL_OK;
}

static sl_status mark_module(sli_reducer *reducer, const sl_module *module)
{
    for (int i = 0; i < module->parameter_count; i++) {
        int place = reducer->place_of[module->parameters[i]->number - reducer->first_number];
        if (place >= 0)
            SL_TRY(mark_ready(reducer, place));
    }
    for (int i = 0; i < module->child_count; i++)
        SL_TRY(mark_module(reducer, module->children[i]));
    return SL_OK;
}

static bool runs_once(const sl_module *module)
{
    for (const sl_module *above = module->parent; above; above = above->parent)
        if (!sl_module_is_sequential(above))
            return false;
    return true;
}

static sl_status went_backward(void *arg, const sl_module *module)
{
    if (sl_module_is_sequential(module) || !runs_once(module))
        return SL_OK;
    return mark_module(arg, module);
}

/* ---- A step ----------------------------------------------------------------------------- */

const sli_pass_observer *sli_reducer_observer(const sli_reducer *reducer)
{
    return &reducer->observer;
}

void sli_reducer_begin(sli_reducer *reducer, const sli_reduction *reduction)
{
    reducer->reduction = *reduction;
    reducer->arrived = reducer->released = 0;
    reducer->abandoned = false;
    for (int b = 0; b < reducer->bucket_count; b++)
        reducer->buckets[b].pending = reducer->buckets[b].parameters;
    for (int place = 0; place < reducer->trained_count; place++)
        reducer->ready[place] = reducer->missing[place] = false;
    sli_worker_start(reducer->thread, communicate, reducer);
}

sl_status sli_reducer_rebuild_order(sli_reducer *reducer)
{
    SL_TRY(sl_group_broadcast(reducer->group, reducer->arrivals, reducer->bucket_count, SL_I32, 0,
                              NULL));
    for (int i = 0; i < reducer->bucket_count; i++)
        reducer->order[i] = reducer->arrivals[i];
    return SL_OK;
}

sl_status sli_reducer_drop_unused(sli_reducer *reducer)
{
    for (int place = 0; place < reducer->trained_count; place++)
        reducer->used[place] = !reducer->missing[place];
    SL_TRY(sl_group_all_reduce(reducer->group, reducer->used, reducer->trained_count, SL_I32,
                               SL_REDUCE_MAX, NULL));
    for (int place = 0; place < reducer->trained_count; place++)
        if (!reducer->used[place])
            reducer->trained[place]->grad_is_stale = true;
    return SL_OK;
}

sl_status sli_reducer_end(sli_reducer *reducer)
{
    sl_status status = SL_OK;
    for (int place = reducer->trained_count - 1; place >= 0 && status == SL_OK; place--)
        status = mark_ready(reducer, place);
    sli_failure_raise(&reducer->failure, status);
    if (status == SL_OK)
        sli_worker_wait(reducer->thread);
    else
        sli_reducer_abandon(reducer, status);
    return sli_failure_take(&reducer->failure);
}

void sli_reducer_abandon(sli_reducer *reducer, sl_status error)
{
    sl_group_abort(reducer->group, error, sl_error_text());
    pthread_mutex_lock(&reducer->lock);
    reducer->abandoned = true;
    pthread_cond_signal(&reducer->changed);
    pthread_mutex_unlock(&reducer->lock);
    sli_worker_wait(reducer->thread);
}

/* ---- Creation --------------------------------------------------------------------------- */

static sl_status allocate(sli_reducer *reducer)
{
    int count = sl_parameter_set_count(reducer->set);
    size_t parameters = (size_t)count + 1, buckets = (size_t)reducer->bucket_count + 1;
    reducer->trained = calloc(parameters, sizeof(sl_parameter *));
    reducer->bucket_of = calloc(parameters, sizeof *reducer->bucket_of);
    reducer->ready = calloc(parameters, sizeof *reducer->ready);
    reducer->missing = calloc(parameters, sizeof *reducer->missing);
    reducer->used = calloc(parameters, sizeof *reducer->used);
    reducer->place_of = calloc(parameters, sizeof *reducer->place_of);
    reducer->buckets = calloc(buckets, sizeof *reducer->buckets);
    reducer->order = calloc(buckets, sizeof *reducer->order);
    reducer->arrivals = calloc(buckets, sizeof *reducer->arrivals);
    if (!reducer->trained || !reducer->bucket_of || !reducer->ready || !reducer->missing ||
        !reducer->used || !reducer->place_of || !reducer->buckets || !reducer->order ||
        !reducer->arrivals)
        return sl_error(SL_ERR_MEMORY, "sl_ddp_create: no memory for a list of %d parameters",
                        count);
    return SL_OK;
}

/* The bucket whose values hold this one's; its gradient lies in the same. */
static int find_bucket(const sli_reducer *reducer, const sl_parameter *parameter)
{
    const char *value = sl_tensor_data(parameter->value);
    for (int b = 0; b < reducer->bucket_count; b++) {
        const sl_tensor *flat = sl_parameter_set_bucket_values(reducer->set, b);
        const char *first = sl_tensor_data(flat);
        if (value >= first && value < first + sl_tensor_bytes(flat))
            return b;
    }
    assert(!"a trained parameter lies in a bucket");
    return 0;
}

static void list_parameters(sli_reducer *reducer)
{
    for (int i = 0; i < sl_parameter_set_count(reducer->set); i++) {
        sl_parameter *parameter = sl_parameter_set_get(reducer->set, i);
        if (i == 0)
            reducer->first_number = parameter->number;
        assert(parameter->number == reducer->first_number + (uint32_t)i);
        reducer->place_of[i] = -1;
        if (parameter->kind != SL_PARAMETER_TRAINED)
            continue;
        int place = reducer->trained_count++;
        reducer->place_of[i] = place;
        reducer->trained[place] = parameter;
        reducer->bucket_of[place] = find_bucket(reducer, parameter);
        reducer->buckets[reducer->bucket_of[place]].parameters++;
    }
}

static sl_status fill(sli_reducer *reducer, int stage)
{
    SL_TRY(allocate(reducer));
    for (int b = 0; b < reducer->bucket_count; b++) {
        reducer->buckets[b].exchange = (sl_ddp_bucket){
            .group = reducer->group,
            .stage = stage,
            .index = b,
            .count = sl_tensor_count(sl_parameter_set_bucket_values(reducer->set, b)),
        };
        reducer->order[b] = b;
    }
    list_parameters(reducer);
    return sli_worker_create(NULL, &reducer->thread);
}

sl_status sli_reducer_create(sl_parameter_set *set, sl_group *group, int stage, sli_reducer **out)
{
    *out = NULL;
    sli_reducer *reducer = calloc(1, sizeof *reducer);
    if (!reducer)
        return sl_error(SL_ERR_MEMORY, "sl_ddp_create: no memory for a reducer");
    reducer->set = set;
    reducer->group = group;
    reducer->bucket_count = sl_parameter_set_bucket_count(set);
    reducer->observer = (sli_pass_observer){went_backward, reducer};
    sli_failure_init(&reducer->failure);
    pthread_mutex_init(&reducer->lock, NULL);
    pthread_cond_init(&reducer->changed, NULL);
    sl_status status = fill(reducer, stage);
    if (status != SL_OK)
        sli_reducer_destroy(&reducer);
    *out = reducer;
    return status;
}

void sli_reducer_destroy(sli_reducer **reducer)
{
    if (!reducer || !*reducer)
        return;
    sli_reducer *dead = *reducer;
    sli_worker_destroy(&dead->thread);
    for (int b = 0; dead->buckets && b < dead->bucket_count; b++)
        free(dead->buckets[b].exchange.scratch);
    pthread_cond_destroy(&dead->changed);
    pthread_mutex_destroy(&dead->lock);
    sli_failure_destroy(&dead->failure);
    free(dead->trained);
    free(dead->bucket_of);
    free(dead->ready);
    free(dead->missing);
    free(dead->used);
    free(dead->place_of);
    free(dead->buckets);
    free(dead->order);
    free(dead->arrivals);
    free(dead);
    *reducer = NULL;
}

/* ---- Looking back ----------------------------------------------------------------------- */

int sli_reducer_missing(const sli_reducer *reducer, int *places)
{
    int count = 0;
    for (int place = 0; place < reducer->trained_count; place++)
        if (reducer->missing[place])
            places[count++] = place;
    return count;
}

int sli_reducer_trained_count(const sli_reducer *reducer)
{
    return reducer->trained_count;
}

const sl_parameter *sli_reducer_trained(const sli_reducer *reducer, int place)
{
    return reducer->trained[place];
}

int sli_reducer_bucket_count(const sli_reducer *reducer)
{
    return reducer->bucket_count;
}

void sli_reducer_log(const sli_reducer *reducer, sl_ddp_bucket_log *logs)
{
    double start = reducer->reduction.start;
    for (int place = 0; place < reducer->bucket_count; place++) {
        const tracked_bucket *sent = &reducer->buckets[reducer->order[place]];
        logs[place] = (sl_ddp_bucket_log){
            .stage = sent->exchange.stage,
            .index = sent->exchange.index,
            .parameters = sent->parameters,
            .bytes = sent->exchange.count * (int64_t)sizeof(float),
            .ready = sent->ready - start,
            .reduce_start = sent->begun - start,
            .reduce_end = sent->ended - start,
        };
    }
}
