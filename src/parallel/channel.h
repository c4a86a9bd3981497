/* A channel hands tensors from a stage to one of its neighbours.
 *
 * It has one slot for each micro-batch, so a sender never waits, and a receiver asks for the
 * micro-batch that its table names next, whatever came first. One thread sends, one receives; any
 * thread may wake the receiver. Where both stages are of one rank, both are the same thread, and
 * the tensor is there before it is asked for. */
#ifndef SLI_PARALLEL_CHANNEL_H
#define SLI_PARALLEL_CHANNEL_H

#include "parallel/failure.h"
#include "sluice/tensor.h"

typedef struct sli_channel sli_channel;

/* To device `to`, for micro-batches 0 … micros - 1. A receiver stops waiting when `failure`
 * (borrowed) has an error that comes before the action that it receives for. `spins`: a receiver
 * polls for some microseconds before it sleeps, which pays where its cores run no other thread. */
sl_status sli_channel_create(sl_device *to, int micros, bool spins, const sli_failure *failure,
                             sli_channel **out);
void sli_channel_destroy(sli_channel **channel); /* with the tensors in it */

/* Takes the tensor and nulls the caller's handle. The slot must be empty. */
void sli_channel_send(sli_channel *channel, int micro, sl_tensor **tensor);

/* Waits for the tensor; the caller owns it, and it is on the device that the channel leads to.
 * False when there is an error whose number is `number` or lower. */
bool sli_channel_receive(sli_channel *channel, int micro, int number, sl_tensor **out);

/* Has a waiting receiver check for errors again. */
void sli_channel_wake(sli_channel *channel);

/* Empties the channel and makes it usable again, when neither side is at work. */
void sli_channel_reset(sli_channel *channel);

#endif
