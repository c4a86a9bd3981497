/* A rank may hold several terms of the sum over all ranks (core/sum_tree.h). Those before its last
 * one are added, as they come, to nodes on a stack. The last one is the step's gradients: when
 * a bucket is full, the nodes that it completes are added to it; the remaining nodes are sent with
 * it. */
#include "parallel/ddp/bucket_exchange.h"

#include "comm/group.h"
#include "core/bf16.h"
#include "core/error.h"
#include "device/device.h"

#include <assert.h>
#include <stdlib.h>

/* A single term is nothing to exchange, and is not rounded. */
static bool exchanges_bf16(const sli_bucket_exchange *exchange)
{
    return exchange->comm_precision == SL_PRECISION_BF16 && exchange->terms > 1;
}

/* The first term of the stack's node `index`; where the next node begins, for `nodes`. */
static int node_start(const sli_bucket_exchange *exchange, int index)
{
    return index > 0 ? exchange->ends[index - 1] : exchange->first_term;
}

/* Whether the stack's node `index` and the nodes after it, up to term `end`, are one node. */
static bool completes_node(const sli_bucket_exchange *exchange, int index, int end)
{
    return sli_sum_tree_has_node(node_start(exchange, index), end, exchange->terms);
}

static float *sum_of(const sli_bucket_exchange *exchange, int node, int bucket)
{
    return sl_tensor_f32(exchange->sums[node]) + exchange->offsets[bucket];
}

/* ---- Terms before the last one ---------------------------------------------------------- */

sl_status sli_bucket_exchange_set_terms(sli_bucket_exchange *exchange, int terms)
{
    int rank = sl_group_rank(exchange->group), ranks = sl_group_size(exchange->group);
    const sl_shape shape = sl_shape_1d(exchange->elements);
    exchange->terms = terms;
    exchange->first_term = sli_sum_tree_first(terms, rank, ranks);
    exchange->end_term = sli_sum_tree_first(terms, rank + 1, ranks);
    int room = sli_sum_tree_height(exchange->first_term, exchange->end_term, terms) - 1;
    if (exchange->elements == 0)
        return SL_OK;
    exchange->sums = calloc((size_t)room + 1, sizeof *exchange->sums);
    if (!exchange->sums)
        return sli_no_memory(NULL, "the sums of %d terms", terms);
    for (; exchange->room < room; exchange->room++)
        SL_TRY(sl_tensor_create(sl_parameter_set_device(exchange->set), SL_MEMORY_GRADIENTS, SL_F32,
                                &shape, &exchange->sums[exchange->room]));
    return SL_OK;
}

/* Adds the bucket's gradients to the node below, that to the next, …, down to node `last`. */
static sl_status push_bucket(const sli_bucket_exchange *exchange, int bucket, int last)
{
    sl_device *device = sl_parameter_set_device(exchange->set);
    sl_tensor *grads;
    SL_TRY(sl_parameter_set_bucket_grads(exchange->set, bucket, &grads));
    float *term = sl_tensor_f32(grads);
    int64_t count = sl_tensor_count(grads);
    sli_convert rounding = {.count = count, .from = term, .to = term};
    if (exchanges_bf16(exchange))
        SL_TRY(sli_device_convert(device, &rounding));
    if (last == exchange->nodes)
        SL_TRY(sli_device_copy(device, sum_of(exchange, last, bucket), term,
                               (size_t)count * sizeof(float)));
    for (int n = exchange->nodes - 1; n >= last; n--) {
        float *sum = sum_of(exchange, n, bucket);
        SL_TRY(sli_device_add(device, count, sum, term));
        term = sum;
    }
    return SL_OK;
}

sl_status sli_bucket_exchange_add_term(sli_bucket_exchange *exchange)
{
    int end = node_start(exchange, exchange->nodes) + 1, last = exchange->nodes;
    assert(end < exchange->end_term);
    while (last > 0 && completes_node(exchange, last - 1, end))
        last--;
    for (int b = 0; b < sl_parameter_set_bucket_count(exchange->set); b++)
        SL_TRY(push_bucket(exchange, b, last));
    exchange->nodes = last + 1;
    exchange->ends[last] = end;
    return SL_OK;
}

/* ---- Through the host's memory ----------------------------------------------------------- */

sl_status sl_ddp_average_hook(void *arg, sl_ddp_bucket *bucket)
{
    (void)arg;
    return sl_group_all_reduce(bucket->group, bucket->grads, bucket->count, SL_F32,
                               SL_REDUCE_AVERAGE, NULL);
}

static sl_status reduce_in_bf16(const sl_ddp_bucket *bucket, sl_reduce_op op)
{
    sli_narrow_in_place(bucket->grads, bucket->count);
    SL_TRY(sl_group_all_reduce(bucket->group, bucket->grads, bucket->count, SL_BF16, op, NULL));
    sli_widen_in_place(bucket->grads, bucket->count);
    return SL_OK;
}

static sl_status reduce_bucket(const sli_bucket_exchange *exchange, const sl_ddp_bucket *bucket,
                               sl_reduce_op op)
{
    if (exchanges_bf16(exchange))
        return reduce_in_bf16(bucket, op);
    return sl_group_all_reduce(bucket->group, bucket->grads, bucket->count, SL_F32, op, NULL);
}

static sl_status divide_sum(const sli_bucket_exchange *exchange, const sl_ddp_bucket *bucket)
{
    SL_TRY(reduce_bucket(exchange, bucket, SL_REDUCE_SUM));
    float scale = 1.0f / (float)exchange->reduction.divisor;
    for (int64_t i = 0; i < bucket->count; i++)
        bucket->grads[i] *= scale;
    return SL_OK;
}

/* Averages this rank's nodes with those of the others. Plain loops: the device is backward's.
 *
 * In bf16, the terms and the average are rounded as reduce_in_bf16 rounds them, and the nodes,
 * which are sums in f32 there as well, are sent as they are: so the average is the same bits on any
 * number of ranks. */
static sl_status exchange_opened_nodes(const sli_bucket_exchange *exchange,
                                       const sl_ddp_bucket *last, const sli_host_array *sums)
{
    const void *nodes[SLI_SUM_TREE_MOST_NODES];
    int count = exchange->nodes;
    if (exchanges_bf16(exchange))
        sli_round_to_bf16(last->grads, last->count);
    for (; count > 0 && completes_node(exchange, count - 1, exchange->end_term); count--) {
        const float *sum = sums[count - 1].host;
        for (int64_t i = 0; i < last->count; i++)
            last->grads[i] += sum[i];
    }
    for (int n = 0; n < count; n++)
        nodes[n] = sums[n].host;
    nodes[count] = last->grads;
    SL_TRY(sli_group_all_reduce_nodes(exchange->group, nodes, exchange->terms, last->grads,
                                      last->count, SL_F32, SL_REDUCE_AVERAGE));
    if (exchanges_bf16(exchange))
        sli_round_to_bf16(last->grads, last->count);
    return SL_OK;
}

/* With the bucket's nodes in host memory. */
static sl_status exchange_nodes(const sli_bucket_exchange *exchange, const sl_ddp_bucket *bucket)
{
    sli_host_array sums[SLI_SUM_TREE_MOST_NODES];
    size_t bytes = (size_t)bucket->count * sizeof(float);
    sl_status status;
    int open = 0;
    for (; open < exchange->nodes; open++)
        SL_TRY_OR_FAIL(sli_host_array_open(sl_parameter_set_device(exchange->set),
                                           sum_of(exchange, open, bucket->index), bytes, true,
                                           &sums[open]));
    status = exchange_opened_nodes(exchange, bucket, sums);

fail:
    while (open-- > 0)
        sli_host_array_close(&sums[open], false);
    return status;
}

static sl_status exchange_on_host(const sli_bucket_exchange *exchange, sl_ddp_bucket *bucket)
{
    const sli_reduction *reduction = &exchange->reduction;
    if (exchange->terms > sl_group_size(exchange->group))
        return exchange_nodes(exchange, bucket);
    if (reduction->hook)
        return reduction->hook(reduction->hook_arg, bucket);
    if (reduction->divisor > 0)
        return divide_sum(exchange, bucket);
    return reduce_bucket(exchange, bucket, SL_REDUCE_AVERAGE);
}

/* ---- In the device's memory, by NCCL ----------------------------------------------------- */

static sl_status reduce_bf16_on_device(const sli_bucket_exchange *exchange,
                                       const sl_ddp_bucket *bucket)
{
    sl_device *device = sl_parameter_set_device(exchange->set);
    size_t bytes = (size_t)bucket->count * sizeof(uint16_t);
    void *narrow;
    SL_TRY(sli_device_allocate(device, SL_MEMORY_WORKSPACE, bytes, &narrow));
    sli_convert in = {.count = bucket->count, .to_bf16 = true, .from = bucket->grads, .to = narrow};
    sli_convert out = {.count = bucket->count,
                       .from_bf16 = true,
                       .from = narrow,
                       .to = bucket->grads};
    sl_status status;
    SL_TRY_OR_FAIL(sli_device_convert(device, &in));
    SL_TRY_OR_FAIL(sl_group_all_reduce(exchange->device_group, narrow, bucket->count, SL_BF16,
                                       SL_REDUCE_AVERAGE, NULL));
    status = sli_device_convert(device, &out);

fail:
    sli_device_release(device, SL_MEMORY_WORKSPACE, narrow, bytes);
    return status;
}

/* As exchange_opened_nodes. */
static sl_status exchange_nodes_on_device(const sli_bucket_exchange *exchange,
                                          const sl_ddp_bucket *bucket)
{
    sl_device *device = sl_parameter_set_device(exchange->set);
    sli_convert rounding = {.count = bucket->count, .from = bucket->grads, .to = bucket->grads};
    const void *nodes[SLI_SUM_TREE_MOST_NODES];
    int count = exchange->nodes;
    if (exchanges_bf16(exchange))
        SL_TRY(sli_device_convert(device, &rounding));
    for (; count > 0 && completes_node(exchange, count - 1, exchange->end_term); count--)
        SL_TRY(sli_device_add(device, bucket->count, bucket->grads,
                              sum_of(exchange, count - 1, bucket->index)));
    for (int n = 0; n < count; n++)
        nodes[n] = sum_of(exchange, n, bucket->index);
    nodes[count] = bucket->grads;
    SL_TRY(sli_group_all_reduce_nodes(exchange->device_group, nodes, exchange->terms, bucket->grads,
                                      bucket->count, SL_F32, SL_REDUCE_AVERAGE));
    return exchanges_bf16(exchange) ? sli_device_convert(device, &rounding) : SL_OK;
}

static sl_status exchange_on_device(const sli_bucket_exchange *exchange,
                                    const sl_ddp_bucket *bucket)
{
    if (exchange->terms > sl_group_size(exchange->group))
        return exchange_nodes_on_device(exchange, bucket);
    if (exchanges_bf16(exchange))
        return reduce_bf16_on_device(exchange, bucket);
    return sl_group_all_reduce(exchange->device_group, bucket->grads, bucket->count, SL_F32,
                               SL_REDUCE_AVERAGE, NULL);
}

/* ---- A step's buckets ------------------------------------------------------------------- */

/* Without NCCL, and for hooks, groups exchange host memory. */
sl_status sli_bucket_exchange_run(const sli_bucket_exchange *exchange, sl_ddp_bucket *bucket)
{
    sli_host_array grads;
    if (exchange->device_group && !exchange->reduction.hook && exchange->reduction.divisor == 0)
        return exchange_on_device(exchange, bucket);
    SL_TRY(sli_host_array_open(sl_parameter_set_device(exchange->set), bucket->grads,
                               (size_t)bucket->count * sizeof(float), true, &grads));
    bucket->grads = grads.host;
    sl_status status = exchange_on_host(exchange, bucket);
    bucket->grads = grads.memory;
    sl_status written = sli_host_array_close(&grads, status == SL_OK);
    return status == SL_OK ? written : status;
}

/* Nodes of several terms are exchanged in f32. */
size_t sli_bucket_exchange_element_bytes(const sli_bucket_exchange *exchange)
{
    bool sends_bf16 = exchanges_bf16(exchange) && exchange->terms == sl_group_size(exchange->group);
    return sends_bf16 && !exchange->reduction.hook ? sizeof(uint16_t) : sizeof(float);
}

sl_status sli_bucket_exchange_init(sli_bucket_exchange *exchange, sl_parameter_set *set,
                                   sl_group *group, sl_group *device_group,
                                   sl_precision comm_precision)
{
    int buckets = sl_parameter_set_bucket_count(set);
    *exchange = (sli_bucket_exchange){.set = set,
                                      .group = group,
                                      .device_group = device_group,
                                      .comm_precision = comm_precision,
                                      .terms = sl_group_size(group)};
    exchange->offsets = calloc((size_t)buckets + 1, sizeof *exchange->offsets);
    if (!exchange->offsets)
        return sli_no_memory("sl_ddp_create", "%d buckets", buckets);
    for (int b = 0; b < buckets; b++) {
        exchange->offsets[b] = exchange->elements;
        exchange->elements += sl_tensor_count(sl_parameter_set_bucket_values(set, b));
    }
    return SL_OK;
}

void sli_bucket_exchange_destroy(sli_bucket_exchange *exchange)
{
    for (int n = 0; n < exchange->room; n++)
        sl_tensor_destroy(&exchange->sums[n]);
    free(exchange->sums);
    free(exchange->offsets);
}
