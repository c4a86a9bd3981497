/* ZeRO-1: an optimizer of this rank's shard of every bucket, and the exchange of shards. */
#include "parallel/ddp/zero.h"

#include "parallel/pipe/pipe_optimizer.h"

#include "comm/group.h"
#include "core/error.h"
#include "optim/optimizer.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdlib.h>

struct sli_zero {
    sl_parameter_set *set;
    sl_group *group, *device_group; /* the latter over the former, by NCCL; NULL: there is none */
    sl_optimizer *own;              /* of shard `rank` of `ranks` */
    int rank, ranks;
};

sl_status sli_zero_create(const sl_optimizer_options *options, sl_parameter_set *set,
                          sl_group *group, sl_group *device_group, sli_zero **out)
{
    *out = NULL;
    sli_zero *zero = calloc(1, sizeof *zero);
    if (!zero)
        return sli_no_memory(NULL, "a sharded optimizer");
    *zero = (sli_zero){.set = set,
                       .group = group,
                       .device_group = device_group,
                       .rank = sl_group_rank(group),
                       .ranks = sl_group_size(group)};
    sl_status status =
        sli_optimizer_create_shard(options, set, zero->rank, zero->ranks, &zero->own);
    if (status != SL_OK)
        sli_zero_destroy(&zero);
    *out = zero;
    return status;
}

void sli_zero_destroy(sli_zero **zero)
{
    if (!zero || !*zero)
        return;
    sl_optimizer_destroy(&(*zero)->own);
    free(*zero);
    *zero = NULL;
}

sl_optimizer *sli_zero_optimizer(const sli_zero *zero)
{
    return zero->own;
}

/* Gives all ranks every rank's shard of a bucket's values. Shards differ in length, so this is a
 * broadcast for each and not an all-gather. */
static sl_status broadcast_shards(const sli_zero *zero, sl_group *group, int bucket, float *values)
{
    for (int rank = 0; rank < zero->ranks; rank++) {
        sli_shard shard = sli_optimizer_shard(zero->set, bucket, rank, zero->ranks);
        if (shard.count > 0)
            SL_TRY(
                sl_group_broadcast(group, values + shard.start, shard.count, SL_F32, rank, NULL));
    }
    return SL_OK;
}

static sl_status exchange_bucket(const sli_zero *zero, int bucket)
{
    sl_tensor *values = sl_parameter_set_bucket_values(zero->set, bucket);
    sli_host_array host;
    if (zero->device_group)
        return broadcast_shards(zero, zero->device_group, bucket, sl_tensor_f32(values));
    SL_TRY(sli_tensor_open_host(values, true, &host));
    sl_status status = broadcast_shards(zero, zero->group, bucket, host.host);
    sl_status written = sli_host_array_close(&host, status == SL_OK);
    return status == SL_OK ? written : status;
}

sl_status sli_zero_exchange(sli_zero *zero)
{
    for (int b = 0; b < sl_parameter_set_bucket_count(zero->set); b++)
        SL_TRY(exchange_bucket(zero, b));
    return SL_OK;
}

sl_status sli_zero_abort(const sli_zero *zero, sl_status error)
{
    return sli_group_check(zero->group, error);
}

/* ---- The whole state -------------------------------------------------------------------- */

/* Copies shard `source` of one array of a bucket's state into `whole`, which rank `root` has. */
static sl_status send_shard(const sli_zero *zero, int source, int root, int bucket, int array,
                            sl_optimizer *whole)
{
    sli_shard shard = sli_optimizer_shard(zero->set, bucket, source, zero->ranks);
    if (shard.count == 0 || (zero->rank != source && zero->rank != root))
        return SL_OK;
    sl_device *device = sl_parameter_set_device(zero->set);
    sl_dtype dtype = sli_optimizer_dtype_of(sli_optimizer_options(zero->own));
    size_t bytes = (size_t)shard.count * sl_dtype_bytes(dtype);
    void *held =
        zero->rank == source ? sl_tensor_data(sli_optimizer_state(zero->own, bucket, array)) : NULL;
    char *target = whole ? (char *)sl_tensor_data(sli_optimizer_state(whole, bucket, array)) +
                               (size_t)shard.start * sl_dtype_bytes(dtype)
                         : NULL;
    if (source == root)
        return sli_device_copy(device, target, held, bytes);
    sli_host_array host;
    SL_TRY(sli_host_array_open(device, held ? held : target, bytes, held != NULL, &host));
    sl_status status =
        held ? sl_group_send(zero->group, host.host, shard.count, dtype, root, array, NULL)
             : sl_group_recv(zero->group, host.host, shard.count, dtype, source, array, NULL, NULL);
    sl_status written = sli_host_array_close(&host, status == SL_OK && !held);
    return status == SL_OK ? written : status;
}

/* An error of rank `root` is every rank's: none may send what is not received. */
static sl_status create_whole(const sli_zero *zero, int root, sl_optimizer **whole)
{
    sl_status status = SL_OK;
    if (zero->rank == root)
        status = sl_optimizer_create(sli_optimizer_options(zero->own), zero->set, whole);
    if (*whole)
        sli_optimizer_copy_steps(*whole, zero->own);
    return sli_group_agree(zero->group, status);
}

sl_status sli_zero_consolidate(sli_zero *zero, int root, sl_optimizer **whole)
{
    *whole = NULL;
    if (root < 0 || root >= zero->ranks)
        return sl_error(SL_ERR_INVALID, "a sharded optimizer's ranks are 0 to %d, got %d",
                        zero->ranks - 1, root);
    int arrays = sli_optimizer_arrays_of(sli_optimizer_options(zero->own));
    sl_status status = create_whole(zero, root, whole);
    for (int b = 0; b < sl_parameter_set_bucket_count(zero->set); b++)
        for (int array = 0; array < arrays; array++)
            for (int source = 0; source < zero->ranks && status == SL_OK; source++)
                status = send_shard(zero, source, root, b, array, *whole);
    if (status != SL_OK)
        sl_optimizer_destroy(whole);
    return status;
}
