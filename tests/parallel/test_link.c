#include "comm/group.h"
#include "device/device_base.h"
#include "parallel/pipe/processes/link_messages.h"
#include "support/check.h"
#include "support/replicas.h"

#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- Headers ---------------------------------------------------------------------------- */

static void refuse(sli_link_header got)
{
    check_error(sli_link_header_check_shape(&got, "rank 1"), SL_ERR_INVALID,
                "rank 1 sent a header that is damaged: type");
}

static void every_number_of_a_shape_is_checked(void **state)
{
    const sli_link_header good = {.dtype = SL_F32, .dims = 2, .size = {3, 5}};
    check_ok(sli_link_header_check_shape(&good, "rank 1"));
    sli_link_header bad = good;
    for (int dtype = -1; dtype <= SL_BF16 + 1; dtype += SL_BF16 + 2) {
        bad.dtype = dtype;
        refuse(bad);
    }
    bad = good;
    for (int dims = -1; dims <= SL_MAX_DIMS + 1; dims += SL_MAX_DIMS + 2) {
        bad.dims = dims;
        refuse(bad);
    }
    bad = good;
    bad.size[1] = -1;
    refuse(bad);
    bad.size[1] = INT64_MAX / 8;
    refuse(bad);
    bad = (sli_link_header){.dtype = SL_F32, .dims = 1, .size = {SLI_TRANSFER_BYTES / 4}};
    check_ok(sli_link_header_check_shape(&bad, "rank 1"));
    bad.size[0]++;
    refuse(bad);
}

static void header_of_another_step_is_refused(void **state)
{
    const sli_link_step own = {.sequence = 7, .kind = 1, .first_micro = 4};
    const sli_link_step others[] = {{8, 1, 4}, {7, 2, 4}, {7, 1, 0}, {7, -1, 4}};
    sli_link_header got = {.step = own};
    check_ok(sli_link_header_check_step(&got, &own, "rank 1"));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        got.step = others[i];
        check_error(sli_link_header_check_step(&got, &own, "rank 1"), SL_ERR_INVALID,
                    "call different functions: rank 1 is in call");
    }
}

/* ---- Links of three ranks, without channels --------------------------------------------- */

enum { RANKS = 3 };

typedef struct linked {
    sli_link *link;
    sli_failure failure;
    char names[RANKS][SLI_LOCATION_BYTES];
} linked;

static void begin_step(const linked *ends, uint64_t sequence)
{
    sli_link_begin(ends->link, &(sli_link_step){.sequence = sequence}, NULL, 0);
}

static sl_status open_link(sl_group *group, linked *ends)
{
    sli_link_options options = {.names = (const char(*)[SLI_LOCATION_BYTES])ends->names,
                                .failure = &ends->failure};
    sli_failure_init(&ends->failure);
    for (int r = 0; r < RANKS; r++)
        snprintf(ends->names[r], sizeof ends->names[r], "rank %d", r);
    SL_TRY(sl_group_split(group, 0, &options.group));
    SL_TRY(sli_link_create(&options, &ends->link));
    begin_step(ends, 1);
    return SL_OK;
}

static void linked_destroy(linked *ends)
{
    sli_link_destroy(&ends->link);
    sli_failure_destroy(&ends->failure);
}

/* Ends a step in which rank `from` alone has sent headers, so many to each other rank. */
static sl_status end_step(sl_group *group, const linked *ends, int from, int64_t headers)
{
    int64_t sent[RANKS], received[RANKS] = {0};
    received[from] = sl_group_rank(group) == from ? 0 : headers;
    sli_link_stop(ends->link, sent);
    return sli_link_flush(ends->link, received);
}

static void wait_for(const atomic_int *count, int value)
{
    while (atomic_load(count) < value)
        sched_yield();
}

/* Waits for the other ranks, the first time, the second one ... */
static void meet(atomic_int *met, int times)
{
    atomic_fetch_add(met, 1);
    wait_for(met, RANKS * times);
}

static sl_status expect_error(sl_status status, const char *text)
{
    return expect(status != SL_OK && strstr(sl_error_text(), text), "\"%s\", got \"%s\"", text,
                  status == SL_OK ? "" : sl_error_text());
}

/* In the first step rank 1 waits long for rank 2. In the second one rank 0 waits for rank 1, which
 * waits for none. */
static sl_status wait_in_two_steps(sl_group *group, void *arg)
{
    atomic_int *met = arg;
    SCOPED(linked) at = {0};
    SL_TRY(open_link(group, &at));
    sli_link_wait wait = {.rank = 2};
    while (sl_group_rank(group) == 1 && !wait.is_told && sli_link_status(at.link) == SL_OK)
        sli_link_poll_or_pause(at.link, &wait);
    sli_link_end_wait(at.link, &wait);
    meet(met, 1);
    SL_TRY(end_step(group, &at, 1, 2));
    meet(met, 2);
    begin_step(&at, 2);
    wait = (sli_link_wait){.rank = 1};
    while (sli_link_status(at.link) == SL_OK)
        if (sl_group_rank(group) == 0)
            sli_link_poll_or_pause(at.link, &wait);
        else
            sched_yield();
    SL_TRY(expect_error(sli_link_status(at.link), "nothing came from rank 1 within"));
    meet(met, 3);
    return SL_OK;
}

static void wait_of_an_earlier_step_blames_no_rank(void **state)
{
    atomic_int met = 0;
    check_ok(sl_spawn(wait_in_two_steps, &met, RANKS, &(sl_group_options){.timeout_seconds = 3}));
}

/* Rank 0 has all that it needs and leaves. Ranks 1 and 2 still exchange headers; one is late. */
typedef struct departure {
    int late;
    atomic_int has_left, met;
} departure;

static sl_status leave_early(sl_group *group, void *arg)
{
    departure *test = arg;
    int rank = sl_group_rank(group);
    int64_t sent[RANKS], none[RANKS] = {0}, two[RANKS] = {0, 2, 0};
    SCOPED(linked) at = {0};
    SL_TRY(open_link(group, &at));
    sli_link_stop(at.link, sent);
    meet(&test->met, 1);
    if (rank == 0) {
        linked_destroy(&at);
        atomic_store(&test->has_left, 1);
        return SL_OK;
    }
    wait_for(&test->has_left, 1);
    if (rank == test->late)
        nanosleep(&(struct timespec){0, 20000000}, NULL);
    for (int i = 0; i < 2 && rank == 1; i++)
        sli_link_send_failure(at.link, 0);
    return sli_link_flush(at.link, rank == 2 ? two : none);
}

static void rank_that_has_all_it_needs_may_leave(void **state)
{
    for (int late = 1; late < RANKS; late++)
        check_ranks(leave_early, &(departure){.late = late}, RANKS);
}

/* Rank 0 sends what no message can carry: its step fails, and the link goes on. */
static sl_status send_too_much(sl_group *group, void *arg)
{
    int rank = sl_group_rank(group);
    const sl_shape shape = sl_shape_1d(SLI_TRANSFER_BYTES / sizeof(float) + 1);
    SCOPED(sl_device) *device = NULL;
    SCOPED(linked) at = {0};
    sl_tensor *large = NULL;
    SL_TRY(sl_device_create_cpu(1, &device));
    SL_TRY(open_link(group, &at));
    if (rank == 0)
        SL_TRY(sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, SL_F32, &shape, &large));
    if (rank == 0)
        sli_link_send(at.link, 1, 0, 0, &large);
    SL_TRY(end_step(group, &at, 0, 1));
    meet(arg, 1);
    SL_TRY(expect(sli_failure_precedes(&at.failure, SLI_FAILURE_OF_CALL), "the step fails"));
    if (rank == 0)
        SL_TRY(expect_error(sli_failure_take(&at.failure), "is too large to be sent to rank 1"));
    return SL_OK;
}

static void tensor_that_is_too_large_fails_the_step_alone(void **state)
{
    atomic_int met = 0;
    check_ranks(send_too_much, &met, RANKS);
}

/* A device whose memory the host reads only when the header of another rank has come. */
static struct {
    sli_device_ops ops;
    _Atomic(sli_failure *) failure; /* that the header raises */
} waiting;

static void *mark_nothing(sl_device *device)
{
    return NULL;
}

static sl_status read_after_a_header(sl_device *device, void *host, const void *from, size_t bytes)
{
    for (int i = 0; i < 20000 && !sli_failure_precedes(waiting.failure, 3); i++)
        usleep(1000);
    return sl_error(SL_ERR_IO, "the device %s a header",
                    sli_failure_precedes(waiting.failure, 3) ? "failed after" : "saw not");
}

static sl_status send_while_a_header_comes(sl_group *group, void *arg)
{
    const sl_shape shape = sl_shape_1d(5);
    int rank = sl_group_rank(group);
    SCOPED(sl_device) *device = NULL;
    SCOPED(linked) at = {0};
    sl_tensor *tensor;
    SL_TRY(sl_device_create_cpu(1, &device));
    SL_TRY(open_link(group, &at));
    if (rank == 0) {
        waiting.ops = *device->ops;
        waiting.ops.mark = mark_nothing;
        waiting.ops.read = read_after_a_header;
        waiting.failure = &at.failure;
        SL_TRY(sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, SL_F32, &shape, &tensor));
        device->ops = &waiting.ops;
        sli_link_send(at.link, 1, 0, 0, &tensor);
    } else if (rank == 1) {
        sli_link_send_failure(at.link, 3);
    }
    while (sli_link_status(at.link) == SL_OK)
        sched_yield();
    SL_TRY(expect_error(sli_link_status(at.link), "the device failed after a header"));
    meet(arg, 1);
    return SL_OK;
}

static void link_goes_on_while_a_device_is_read(void **state)
{
    atomic_int met = 0;
    check_ranks(send_while_a_header_comes, &met, RANKS);
}

/* Rank 0 has no link, and sends what no link sends. */
static sl_status send_unknown_kind(sl_group *group, void *arg)
{
    sli_link_header bad = {.kind = 9};
    sli_message message = {.data = &bad,
                           .count = sizeof bad / sizeof(int32_t),
                           .dtype = SL_I32,
                           .peer = 1};
    sli_transfer transfer;
    SCOPED(sl_group) *raw = NULL;
    sl_status status = SL_OK;
    linked ends = {0};
    if (sl_group_rank(group) != 0) {
        SL_TRY(open_link(group, &ends));
        while (sli_link_status(ends.link) == SL_OK)
            sched_yield();
        status =
            expect_error(sli_link_status(ends.link), "rank 0 sent a header of the unknown kind");
        meet(arg, 1);
        linked_destroy(&ends);
        return status;
    }
    SL_TRY(sl_group_split(group, 0, &raw));
    status = raw->ops->start(raw, &message, false, &transfer);
    meet(arg, 1);
    (void)raw->ops->cancel(raw, &transfer);
    return status;
}

static void header_of_an_unknown_kind_breaks_the_link(void **state)
{
    atomic_int met = 0;
    check_ranks(send_unknown_kind, &met, RANKS);
}

int link_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_of_a_shape_is_checked),
        cmocka_unit_test(header_of_another_step_is_refused),
        cmocka_unit_test(wait_of_an_earlier_step_blames_no_rank),
        cmocka_unit_test(rank_that_has_all_it_needs_may_leave),
        cmocka_unit_test(tensor_that_is_too_large_fails_the_step_alone),
        cmocka_unit_test(link_goes_on_while_a_device_is_read),
        cmocka_unit_test(header_of_an_unknown_kind_breaks_the_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
