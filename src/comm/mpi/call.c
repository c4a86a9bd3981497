#include "comm/mpi/call.h"

#include "core/clock.h"
#include "core/memory.h"
#include "core/threads.h"

#include <assert.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

/* How long messages may take to end when their call has failed: a transfer may be under way, and
 * the others learn that the group is broken in this time. */
static const double cancel_seconds = 0.25;
/* Between two polls, even on a busy machine; a longer pause is not this process's own. */
static const double longest_pause_seconds = 1;
enum { CHECK_EVERY = 64 }; /* polls, while there are few */

sli_call sli_call_begin(sl_group *group, const sli_operation *operation)
{
    return (sli_call){.group = group, .state = group->state, .operation = operation};
}

sl_status sli_call_reserve(sli_call *call, int count)
{
    sli_mpi_group *state = call->state;
    if (count > state->slot_count) {
        sli_request *grown = realloc(state->slots, (size_t)count * sizeof *grown);
        if (!grown)
            return sli_no_memory("sl_group", "%d messages", count);
        for (int i = state->slot_count; i < count; i++)
            grown[i] = (sli_request){.bits = NULL};
        state->slots = grown;
        state->slot_count = count;
    }
    return SL_OK;
}

sl_status sli_call_scratch(const sli_call *call, size_t bytes, void **out)
{
    sli_mpi_group *state = call->state;
    if (bytes > state->scratch_bytes) {
        free(state->scratch);
        state->scratch_bytes = 0;
        state->scratch = sli_huge_pages_alloc(bytes);
        if (!state->scratch)
            return sli_no_memory("sl_group", "%zu bytes of messages", bytes);
        state->scratch_bytes = bytes;
    }
    *out = state->scratch;
    return SL_OK;
}

/* ---- Messages ----------------------------------------------------------------------------- */

sl_status sli_call_mpi_error(const sli_call *call, int code)
{
    sli_mpi_process *process = call->state->process;
    char cause[256], rank[SLI_RANK_BYTES];
    process->mpi->describe(code, cause, sizeof cause);
    sl_status status =
        sl_error(SL_ERR_IO,
                 "%s: MPI: %s (SL_DEBUG=collectives shows whether the ranks call the same)",
                 sli_rank_text(call->group, call->group->rank, rank), cause);
    return sli_watch_break(process->watch, &call->state->member, status);
}

static sl_status check_usable(const sli_call *call)
{
    if (atomic_load_explicit(&call->state->process->unusable, memory_order_relaxed))
        return sl_error(SL_ERR_CANCELLED,
                        "an operation of another group failed amid a transfer, so this "
                        "process cannot use MPI any more");
    return SL_OK;
}

sl_status sli_call_send(sli_call *call, int slot, const void *data, size_t bytes, int to, int tag)
{
    sli_mpi_group *state = call->state;
    assert(slot < state->slot_count && !state->slots[slot].bits);
    SL_TRY(check_usable(call));
    int code = state->process->mpi->send(&state->comm, data, bytes, to, tag, &state->slots[slot]);
    return code == 0 ? SL_OK : sli_call_mpi_error(call, code);
}

sl_status sli_call_receive(sli_call *call, int slot, void *data, size_t bytes, int from, int tag)
{
    sli_mpi_group *state = call->state;
    assert(slot < state->slot_count && !state->slots[slot].bits);
    SL_TRY(check_usable(call));
    int code =
        state->process->mpi->receive(&state->comm, data, bytes, from, tag, &state->slots[slot]);
    return code == 0 ? SL_OK : sli_call_mpi_error(call, code);
}

/* ---- Waiting ------------------------------------------------------------------------------ */

bool sli_call_is_late(sli_call *call)
{
    return sli_running_clock_read(&call->waited, longest_pause_seconds) >
           call->group->options.timeout_seconds;
}

sl_status sli_call_pause(sli_call *call)
{
    sli_mpi_group *state = call->state;
    call->idle++;
    if (call->idle < SLI_EAGER_POLLS && call->idle % CHECK_EVERY != 0)
        return SL_OK;
    SL_TRY(check_usable(call));
    if (atomic_load_explicit(&state->member.alarm, memory_order_relaxed))
        SL_TRY(sli_watch_check(state->process->watch, &state->member, call->operation));
    if (sli_call_is_late(call))
        return sli_watch_break_late(state->process->watch, &state->member, call->operation,
                                    call->group->options.timeout_seconds);
    sli_pause_polling(call->idle, true);
    return SL_OK;
}

sl_status sli_call_wait(sli_call *call, int slot)
{
    sli_mpi_group *state = call->state;
    while (state->slots[slot].bits) {
        bool done = false;
        int code = state->process->mpi->test(&state->slots[slot], &done);
        if (code != 0)
            return sli_call_mpi_error(call, code);
        if (done)
            call->idle = 0;
        else
            SL_TRY(sli_call_pause(call));
    }
    return SL_OK;
}

sl_status sli_call_wait_all(sli_call *call, int count)
{
    for (int slot = 0; slot < count; slot++)
        SL_TRY(sli_call_wait(call, slot));
    return SL_OK;
}

/* ---- Ending early ------------------------------------------------------------------------- */

static bool has_ended(sli_mpi_process *process, sli_request *request)
{
    bool done = !request->bits;
    if (!done)
        (void)process->mpi->test(request, &done); /* how it ended does not matter */
    return done;
}

/* Sends that are abandoned together, e.g. all those to a dead rank, share one deadline: if the
 * first one does not end, the others will not. A call within a second after the deadline belongs to
 * them too, and does not wait at all. */
static double end_of_sends(sli_mpi_process *process)
{
    const double together_seconds = 1;
    double now = sli_clock_seconds(), until = atomic_load(&process->sends_until);
    if (now < until + together_seconds)
        return until;
    atomic_store(&process->sends_until, now + cancel_seconds);
    return now + cancel_seconds;
}

bool sli_requests_end(sli_mpi_process *process, sli_request *requests, int count)
{
    double receives_until = sli_clock_seconds() + cancel_seconds;
    bool all_ended = true;
    if (!atomic_load(&process->unusable))
        for (int i = 0; i < count; i++)
            if (requests[i].bits && requests[i].receives)
                (void)process->mpi->cancel(&requests[i]);
    for (int i = 0; i < count; i++) {
        double until =
            requests[i].bits && !requests[i].receives ? end_of_sends(process) : receives_until;
        while (!atomic_load(&process->unusable) && !has_ended(process, &requests[i]) &&
               sli_clock_seconds() < until)
            sched_yield();
        if (requests[i].bits && requests[i].receives)
            atomic_store(&process->unusable, true);
        all_ended = all_ended && !requests[i].bits;
        requests[i].bits = NULL;
    }
    return all_ended;
}

void sli_call_cancel(sli_call *call)
{
    (void)sli_requests_end(call->state->process, call->state->slots, call->state->slot_count);
}
