/* A channel hands tensors from a stage to one of its neighbours.
 *
 * It has one slot for each micro-batch, so a sender never waits, and a receiver asks for the
 * micro-batch that its table names next, whatever came first. One thread sends, one receives; any
 * thread may cancel. */
#ifndef SLI_PARALLEL_CHANNEL_H
#define SLI_PARALLEL_CHANNEL_H

#include "sluice/tensor.h"

typedef struct sli_channel sli_channel;

/* Towards device `to`, for micro-batches 0 … micros - 1. `spins`: a receiver looks for its tensor
 * for some microseconds before it sleeps, which is worth it where it has its cores to itself. */
sl_status sli_channel_create(sl_device *to, int micros, bool spins, sli_channel **out);
void sli_channel_destroy(sli_channel **channel); /* with the tensors in it */

/* Takes the tensor and nulls the caller's handle. The slot must be empty. */
void sli_channel_send(sli_channel *channel, int micro, sl_tensor **tensor);

/* Waits for the tensor; the caller owns it, and it is on the device that the channel leads to.
 * False when the channel was cancelled. */
bool sli_channel_receive(sli_channel *channel, int micro, sl_tensor **out);

/* From now on nobody waits: those who do, and those who come, get false. */
void sli_channel_cancel(sli_channel *channel);

/* Empties the channel and makes it usable again, when neither side is at work. */
void sli_channel_reset(sli_channel *channel);

#endif
