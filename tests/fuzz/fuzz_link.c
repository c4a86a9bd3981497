/* Any bytes as what another process of a pipe sends to a link: headers, and the data of tensors.
 * Each header is followed or refused in one sentence, whatever its numbers are; a tensor comes only
 * to an empty slot of a channel that leads here. No memory is left. */
#include "fuzz/fuzz.h"

#include "parallel/pipe/processes/link_messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- A group whose other rank sends the input ------------------------------------------- */

typedef struct input {
    const uint8_t *next;
    size_t bytes;
} input;

static sl_status start(sl_group *group, const sli_message *message, bool receives,
                       sli_transfer *out)
{
    (void)group;
    sli_message *copy = malloc(sizeof *copy);
    demand(copy && receives && message->peer == 1, "a receive from rank 1");
    *copy = *message;
    *out = (sli_transfer){.is_under_way = true, .receives = true, .state = copy};
    return SL_OK;
}

static bool cancel(sl_group *group, sli_transfer *transfer)
{
    (void)group;
    free(transfer->state);
    *transfer = (sli_transfer){0};
    return true;
}

/* A message that is longer than the rest of the input never comes. */
static sl_status progress(sl_group *group, sli_transfer *transfer)
{
    input *from = group->state;
    const sli_message *message = transfer->state;
    size_t bytes = (size_t)message->count * sl_dtype_bytes(message->dtype);
    demand(bytes <= SLI_TRANSFER_BYTES, "of a size that one message can carry");
    if (bytes > from->bytes)
        return SL_OK;
    if (bytes > 0)
        memcpy(message->data, from->next, bytes);
    from->next += bytes;
    from->bytes -= bytes;
    cancel(group, transfer);
    return SL_OK;
}

static const sli_group_ops ops = {.start = start, .progress = progress, .cancel = cancel};

/* ---- A link with a channel that leads here, one that leads away and one from another rank - */

enum { MICROS = 3, CHANNELS = 3 };
static const char names[2][SLI_LOCATION_BYTES] = {"rank 0", "rank 1"};

static void create_channels(sli_link *link, sl_device *device, sli_channel **channels)
{
    for (int i = 0; i < CHANNELS; i++) {
        sli_channel_options options = {.device = i == 1 ? NULL : device,
                                       .micros = MICROS,
                                       .failure = link->failure,
                                       .link = link,
                                       .number = i,
                                       .neighbour = i == 2 ? 2 : 1};
        demand(sli_channel_create(&options, &channels[i]) == SL_OK, "given memory");
    }
}

static void check_tensors(sli_channel *const *channels)
{
    sl_tensor *tensor;
    for (int micro = 0; micro < MICROS; micro++) {
        if (sli_channel_accepts(channels[0], 1, micro))
            continue;
        demand(sli_channel_receive(channels[0], micro, 0, &tensor), "received");
        demand(sli_tensor_bytes(tensor) <= SLI_TRANSFER_BYTES, "small enough");
        sl_tensor_destroy(&tensor);
    }
    demand(sli_channel_accepts(channels[2], 2, 0),
           "left empty by a rank that it does not lead from");
}

static void receive_all(sli_link *link)
{
    bool goes_on = true;
    sl_status status = sli_link_post_header(link, 1);
    while (status == SL_OK && goes_on) {
        goes_on = false;
        status = sli_link_progress(link, NULL, &goes_on);
    }
    demand(status == SL_OK || status == SL_ERR_INVALID, "handled or refused");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    input from = {data, bytes};
    sl_group group = {.ops = &ops, .size = 2, .state = &from};
    sli_link_source sources[2] = {0};
    sli_failure failure;
    sli_channel *channels[CHANNELS];
    static sl_device *device; /* for all inputs: it is slow to create */
    sl_memory_stats stats;
    sli_link link = {.group = &group,
                     .names = names,
                     .failure = &failure,
                     .step = {.sequence = 7, .kind = 1, .first_micro = 4},
                     .channels = channels,
                     .channel_count = CHANNELS,
                     .sources = sources};
    sli_failure_init(&failure);
    demand(device || sl_device_create_cpu(1, &device) == SL_OK, "given a device");
    create_channels(&link, device, channels);
    receive_all(&link);
    check_tensors(channels);
    sli_link_cancel(&link, &link.incoming, SL_ANY_RANK);
    if (sources[1].transfer.is_under_way)
        cancel(&group, &sources[1].transfer);
    for (int i = 0; i < CHANNELS; i++)
        sli_channel_destroy(&channels[i]);
    sl_device_memory(device, &stats);
    demand(stats.current_total_bytes == 0, "freed");
    sli_failure_destroy(&failure);
    return 0;
}
