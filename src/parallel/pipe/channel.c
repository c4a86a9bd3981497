#include "parallel/pipe/channel.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/threads.h"
#include "parallel/pipe/processes/link.h"
#include "tensor/tensor.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* A sleeping thread takes tens of microseconds to wake. A wait shorter than this ends without any
 * sleep; a longer one loses little by it. */
static const double spin_seconds = 50e-6;
enum { PAUSES_PER_CLOCK_READ = 32 };

struct sli_channel {
    sli_channel_options options;
    /* Guards nothing but the sleep: slots and the failure change without it. A receiver holds it
     * from its last check until it sleeps, and every change is signalled with it held, so that no
     * signal is lost. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t last_bytes;           /* of the last tensor; written before its slot */
    _Atomic(sl_tensor *) slots[]; /* [micros]; NULL: empty */
};

sl_status sli_channel_create(const sli_channel_options *options, sli_channel **out)
{
    *out = NULL;
    int micros = options->micros;
    sli_channel *channel = malloc(sizeof *channel + (size_t)micros * sizeof channel->slots[0]);
    if (!channel)
        return sli_no_memory("sl_pipe_create", "a channel of %d slots", micros);
    channel->options = *options;
    channel->last_bytes = 0;
    pthread_mutex_init(&channel->lock, NULL);
    pthread_cond_init(&channel->changed, NULL);
    for (int micro = 0; micro < micros; micro++)
        atomic_init(&channel->slots[micro], NULL);
    *out = channel;
    return SL_OK;
}

void sli_channel_destroy(sli_channel **channel)
{
    if (!channel || !*channel)
        return;
    sli_channel_reset(*channel);
    pthread_cond_destroy(&(*channel)->changed);
    pthread_mutex_destroy(&(*channel)->lock);
    free(*channel);
    *channel = NULL;
}

void sli_channel_wake(sli_channel *channel)
{
    pthread_mutex_lock(&channel->lock);
    pthread_cond_signal(&channel->changed);
    pthread_mutex_unlock(&channel->lock);
}

void sli_channel_send(sli_channel *channel, int micro, sl_tensor **tensor)
{
    assert(micro >= 0 && micro < channel->options.micros && *tensor);
    if (!channel->options.device) {
        sli_link_send(channel->options.link, channel->options.neighbour, channel->options.number,
                      micro, tensor);
        return;
    }
    channel->last_bytes = (int64_t)sli_tensor_bytes(*tensor);
    sli_tensor_send(*tensor, channel->options.device);
    sl_tensor *before =
        atomic_exchange_explicit(&channel->slots[micro], *tensor, memory_order_acq_rel);
    assert(!before);
    (void)before;
    *tensor = NULL;
    sli_channel_wake(channel);
}

/* Empties the slot into *out; true when there is nothing more to wait for. */
static bool receive_or_fail(sli_channel *channel, int micro, int number, sl_tensor **out)
{
    *out = atomic_exchange_explicit(&channel->slots[micro], NULL, memory_order_acq_rel);
    return *out || sli_failure_precedes(channel->options.failure, number);
}

static bool must_wait(const sli_channel *channel, int micro, int number)
{
    return !atomic_load_explicit(&channel->slots[micro], memory_order_relaxed) &&
           !sli_failure_precedes(channel->options.failure, number);
}

static void spin_while_empty(const sli_channel *channel, int micro, int number)
{
    double deadline = sli_clock_seconds() + spin_seconds;
    do {
        for (int i = 0; i < PAUSES_PER_CLOCK_READ; i++) {
            if (!must_wait(channel, micro, number))
                return;
            sli_pause();
        }
    } while (sli_clock_seconds() < deadline);
}

/* The receiver works for the link meanwhile: it has nothing else to do. */
static void wait_at_link(const sli_channel *channel, int micro, int number)
{
    sli_link_wait wait = {.rank = channel->options.neighbour, .spins = channel->options.spins};
    while (must_wait(channel, micro, number))
        sli_link_poll_or_pause(channel->options.link, &wait);
    sli_link_end_wait(channel->options.link, &wait);
}

bool sli_channel_receive(sli_channel *channel, int micro, int number, sl_tensor **out)
{
    assert(micro >= 0 && micro < channel->options.micros);
    if (channel->options.link)
        wait_at_link(channel, micro, number);
    else if (channel->options.spins && must_wait(channel, micro, number))
        spin_while_empty(channel, micro, number);
    if (receive_or_fail(channel, micro, number, out))
        return *out != NULL;
    pthread_mutex_lock(&channel->lock);
    while (!receive_or_fail(channel, micro, number, out))
        pthread_cond_wait(&channel->changed, &channel->lock);
    pthread_mutex_unlock(&channel->lock);
    return *out != NULL;
}

bool sli_channel_accepts(const sli_channel *channel, int source, int micro)
{
    return channel->options.link && channel->options.device &&
           channel->options.neighbour == source && micro >= 0 && micro < channel->options.micros &&
           !atomic_load_explicit(&channel->slots[micro], memory_order_relaxed);
}

int64_t sli_channel_last_bytes(const sli_channel *channel)
{
    return channel->last_bytes;
}

sl_device *sli_channel_device(const sli_channel *channel)
{
    return channel->options.device;
}

void sli_channel_reset(sli_channel *channel)
{
    for (int micro = 0; micro < channel->options.micros; micro++) {
        sl_tensor *left = atomic_exchange(&channel->slots[micro], NULL);
        sl_tensor_destroy(&left);
    }
}
