/* A channel hands tensors from one stage to another, in this process or in another one.
 *
 * It has one slot for each micro-batch, so a sender never waits, and a receiver asks for the
 * micro-batch that its table names next, whatever came first. One thread sends, one receives; any
 * thread may wake the receiver. Where both stages are of one rank, both are the same thread, and
 * the tensor is there before it is asked for. Where they are in two processes, each has a channel
 * for its end; a link (link.h) carries the tensors between the two. */
#ifndef SLI_PARALLEL_PIPE_CHANNEL_H
#define SLI_PARALLEL_PIPE_CHANNEL_H

#include "parallel/pipe/failure.h"
#include "sluice/tensor.h"

typedef struct sli_channel sli_channel;
typedef struct sli_link sli_link;

typedef struct sli_channel_options {
    sl_device *device; /* where it leads; NULL: to another process */
    int micros;        /* it is for micro-batches 0 … micros - 1 */
    bool spins; /* a receiver polls for some microseconds before it sleeps, which pays where its
                   cores run no other thread */
    /* A receiver stops waiting when this (borrowed) has an error that comes before the action that
     * it receives for. */
    const sli_failure *failure;
    /* Where its stages are in two processes (link.h); else zero. */
    sli_link *link; /* borrowed */
    int number;     /* the same in both, no other channel's */
    int neighbour;  /* the other one's rank in the link's group */
} sli_channel_options;

sl_status sli_channel_create(const sli_channel_options *options, sli_channel **out);
void sli_channel_destroy(sli_channel **channel); /* with the tensors in it */

/* Takes the tensor and nulls the caller's handle. The slot must be empty. */
void sli_channel_send(sli_channel *channel, int micro, sl_tensor **tensor);

/* Waits for the tensor; the caller owns it, and calls sli_tensor_receive.
 * False when there is an error whose number is `number` or lower. */
bool sli_channel_receive(sli_channel *channel, int micro, int number, sl_tensor **out);

/* Whether it leads from process `source` to this one, with an empty slot for the micro-batch. */
bool sli_channel_accepts(const sli_channel *channel, int source, int micro);

/* Bytes of the last tensor that has come to it; 0: none has. */
int64_t sli_channel_last_bytes(const sli_channel *channel);

/* The device that it leads to. */
sl_device *sli_channel_device(const sli_channel *channel);

/* Has a waiting receiver check its slot and the failure again. */
void sli_channel_wake(sli_channel *channel);

/* Empties the channel and makes it usable again, when neither side is at work. */
void sli_channel_reset(sli_channel *channel);

#endif
