/* The hub and the watches of ranks, in one process and without MPI: groups that one rank cannot
 * join, strangers, and processes that say what none does. */
#include "comm/mpi/hub.h"
#include "comm/mpi/hub_watch.h"
#include "comm/wire/wire_listener.h"
#include "core/clock.h"
#include "support/check.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RANKS = 3, GROUP = 77 };
/* Well below any time limit of the hub's, but on a busy machine. */
static const double at_once_seconds = 3;

static const int processes[RANKS] = {0, 1, 2};

typedef struct job_rank {
    pthread_t thread;
    const sli_wire_address *hub;
    sli_watch *watch;
    sli_member member, own; /* of all ranks, and of this one alone */
    uint64_t last[RANKS], own_last[1];
} job_rank;

static void progress(void *argument)
{
}

static void *end_watch(void *argument)
{
    job_rank *self = argument;
    (void)sli_watch_end(self->watch, true, progress, NULL);
    sli_watch_destroy(&self->watch);
    return NULL;
}

static void start_watches(job_rank *ranks, int count, const sli_wire_address *hub)
{
    for (int r = 0; r < count; r++) {
        ranks[r] = (job_rank){.hub = hub};
        check_ok(sli_watch_create(hub, r, RANKS, &ranks[r].watch));
        ranks[r].member = (sli_member){
            .id = GROUP, .rank = r, .size = RANKS, .processes = processes, .last = ranks[r].last};
    }
}

/* All at once, for each waits for the others' goodbye. */
static void end_watches(job_rank *ranks, int count)
{
    for (int r = 0; r < count; r++)
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, end_watch, &ranks[r]), 0);
    for (int r = 0; r < count; r++)
        pthread_join(ranks[r].thread, NULL);
}

/* The status of the member's group once it is broken. Its error says by what. */
static sl_status wait_for_break(job_rank *self)
{
    double until = sli_clock_seconds() + 20;
    sl_status status = SL_OK;
    while (status == SL_OK && sli_clock_seconds() < until) {
        status = sli_watch_check(self->watch, &self->member, NULL);
        usleep(1000);
    }
    return status;
}

static void wait_until_ready(job_rank *self)
{
    double until = sli_clock_seconds() + 20;
    while (!atomic_load(&self->member.ready)) {
        check_ok(sli_watch_check(self->watch, &self->member, NULL));
        assert_true(sli_clock_seconds() < until);
        usleep(1000);
    }
}

/* Joins a group of this rank alone: the hub has then handled what the rank has sent before, and the
 * rank has read what the hub has sent it before. */
static void join_own_group(job_rank *self, uint64_t id)
{
    double until = sli_clock_seconds() + 20;
    self->own = (sli_member){.id = id,
                             .size = 1,
                             .processes = &processes[self->member.rank],
                             .last = self->own_last};
    sli_watch_join(self->watch, &self->own);
    while (!atomic_load(&self->own.ready)) {
        assert_true(sli_clock_seconds() < until);
        usleep(1000);
    }
}

static void wait_for_hub(job_rank *self)
{
    static uint64_t id = GROUP;
    join_own_group(self, ++id);
    sli_watch_leave(self->watch, &self->own);
}

static void group_is_ready_when_all_have_joined(void **state)
{
    job_rank ranks[RANKS];
    sli_wire_address address;
    SCOPED(sli_hub) *hub = NULL;
    check_ok(sli_hub_create(RANKS, true, &address, &hub));
    start_watches(ranks, RANKS, &address);
    for (int r = 0; r < RANKS; r++) {
        for (int joined = 0; joined < r; joined++) {
            wait_for_hub(&ranks[joined]);
            assert_false(atomic_load(&ranks[joined].member.ready));
        }
        sli_watch_join(ranks[r].watch, &ranks[r].member);
        wait_for_hub(&ranks[r]);
    }
    for (int r = 0; r < RANKS; r++)
        wait_until_ready(&ranks[r]);
    for (int r = 0; r < RANKS; r++)
        sli_watch_leave(ranks[r].watch, &ranks[r].member);
    end_watches(ranks, RANKS);
}

static void rank_that_cannot_join_ends_the_making_for_all(void **state)
{
    job_rank ranks[RANKS];
    sli_wire_address address;
    SCOPED(sli_hub) *hub = NULL;
    check_ok(sli_hub_create(RANKS, true, &address, &hub));
    start_watches(ranks, RANKS, &address);
    sli_watch_join(ranks[0].watch, &ranks[0].member); /* before it, */
    wait_for_hub(&ranks[0]);
    sl_error(SL_ERR_MEMORY, "no memory for 3 ranks");
    assert_int_equal(sli_watch_refuse_group(ranks[1].watch, GROUP, 1, RANKS, SL_ERR_MEMORY),
                     SL_ERR_MEMORY);
    wait_for_hub(&ranks[1]);
    sli_watch_join(ranks[2].watch, &ranks[2].member); /* and after it */
    for (int r = 0; r < RANKS; r += 2) {
        check_error(wait_for_break(&ranks[r]), SL_ERR_MEMORY, "rank 1: no memory for 3 ranks");
        sli_watch_leave(ranks[r].watch, &ranks[r].member);
    }
    end_watches(ranks, RANKS);
}

/* Ranks 2 and 1 of the job, as ranks 0 and 1 of a group. The break that one says and the one that
 * the hub makes of a late operation are about a rank of the job, which may be another one than the
 * sender. */
static void broken_group_knows_which_rank_of_the_job_failed(void **state)
{
    static const int of_pair[] = {2, 1};
    const sli_operation barrier = {.kind = SLI_OP_BARRIER, .sequence = 1};
    for (int is_late = 0; is_late < 2; is_late++) {
        job_rank ranks[RANKS];
        sli_wire_address address;
        SCOPED(sli_hub) *hub = NULL;
        check_ok(sli_hub_create(RANKS, true, &address, &hub));
        start_watches(ranks, RANKS, &address);
        for (int r = 0; r < 2; r++) {
            ranks[of_pair[r]].member = (sli_member){.id = GROUP,
                                                    .rank = r,
                                                    .size = 2,
                                                    .processes = of_pair,
                                                    .last = ranks[of_pair[r]].last};
            sli_watch_join(ranks[of_pair[r]].watch, &ranks[of_pair[r]].member);
        }
        job_rank *first = &ranks[2], *second = &ranks[1];
        for (int r = 1; r < RANKS; r++)
            wait_until_ready(&ranks[r]);
        if (is_late) {
            atomic_store(&second->member.sequence, 1);
            check_error(sli_watch_break_late(second->watch, &second->member, &barrier, 0.1),
                        SL_ERR_CANCELLED,
                        "barrier, operation 1 of the group: rank 0 (2 of the job) did not come "
                        "within 0.1 s");
        } else {
            sl_error(SL_ERR_CANCELLED, "rank 1 (1 of the job) is late");
            (void)sli_watch_break(first->watch, &first->member,
                                  sli_error_set_rank(SL_ERR_CANCELLED, 1));
            check_error(wait_for_break(second), SL_ERR_CANCELLED, "is late");
        }
        assert_int_equal(sli_error_rank(), is_late ? 2 : 1);
        for (int r = 1; r < RANKS; r++)
            sli_watch_leave(ranks[r].watch, &ranks[r].member);
        end_watches(ranks, RANKS);
    }
}

static void rank_that_has_ended_is_not_waited_for(void **state)
{
    job_rank ranks[RANKS];
    sli_wire_address address;
    SCOPED(sli_hub) *hub = NULL;
    check_ok(sli_hub_create(RANKS, true, &address, &hub));
    start_watches(ranks, RANKS, &address);
    assert_int_equal(pthread_create(&ranks[2].thread, NULL, end_watch, &ranks[2]), 0);
    sli_watch_join(ranks[0].watch, &ranks[0].member);
    check_error(wait_for_break(&ranks[0]), SL_ERR_CANCELLED, "rank 2 has ended");
    sli_watch_leave(ranks[0].watch, &ranks[0].member);
    end_watches(ranks, 2);
    pthread_join(ranks[2].thread, NULL);
}

/* The error is of another group of the rank; it reaches a group that works and one in the making.
 */
static void rank_that_leaves_because_of_an_error_passes_it_on(void **state)
{
    static const char *const expected[] = {
        "the creation of the group: rank 1 left it, after this error: the loss is NaN",
        "barrier, operation 1 of the group: rank 1 left the group before it came, after this "
        "error: "
        "the loss is NaN"};
    for (int joined = RANKS - 1; joined <= RANKS; joined++) {
        const sli_operation barrier = {.kind = SLI_OP_BARRIER, .sequence = 1};
        job_rank ranks[RANKS];
        sli_wire_address address;
        SCOPED(sli_hub) *hub = NULL;
        check_ok(sli_hub_create(RANKS, true, &address, &hub));
        start_watches(ranks, RANKS, &address);
        for (int r = 0; r < joined; r++)
            sli_watch_join(ranks[r].watch, &ranks[r].member);
        for (int r = 0; r < joined; r++)
            wait_for_hub(&ranks[r]);
        join_own_group(&ranks[1], 1);
        sl_error(SL_ERR_NUMERIC, "the loss is NaN");
        assert_int_equal(sli_watch_break(ranks[1].watch, &ranks[1].own, SL_ERR_NUMERIC),
                         SL_ERR_NUMERIC);
        sli_watch_leave(ranks[1].watch, &ranks[1].member);
        sli_watch_leave(ranks[1].watch, &ranks[1].own);
        wait_for_hub(&ranks[1]);
        wait_for_hub(&ranks[0]);
        check_error(sli_watch_check(ranks[0].watch, &ranks[0].member, &barrier), SL_ERR_CANCELLED,
                    expected[joined - RANKS + 1]);
        for (int r = 0; r < joined; r++)
            if (r != 1)
                sli_watch_leave(ranks[r].watch, &ranks[r].member);
        end_watches(ranks, RANKS);
    }
}

static void silent_strangers_do_not_keep_ranks_from_the_hub(void **state)
{
    enum { STRANGERS = 200 }; /* more than the hub has room for */
    job_rank ranks[RANKS];
    int strangers[STRANGERS];
    sli_wire_address address;
    SCOPED(sli_hub) *hub = NULL;
    check_ok(sli_hub_create(RANKS, true, &address, &hub));
    for (int i = 0; i < STRANGERS; i++) {
        strangers[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(strangers[i], &address.at[0].any, sizeof address.at[0].v4), 0);
    }
    double begun = sli_clock_seconds();
    start_watches(ranks, RANKS, &address);
    assert_true(sli_clock_seconds() - begun < at_once_seconds);
    for (int r = 0; r < RANKS; r++)
        sli_watch_join(ranks[r].watch, &ranks[r].member);
    for (int r = 0; r < RANKS; r++)
        wait_until_ready(&ranks[r]);
    for (int r = 0; r < RANKS; r++)
        sli_watch_leave(ranks[r].watch, &ranks[r].member);
    end_watches(ranks, RANKS);
    for (int i = 0; i < STRANGERS; i++)
        close(strangers[i]);
}

/* ---- Many ranks --------------------------------------------------------------------------- */

enum { MANY = 1000 };

/* Ranks without watches: each connection's newest state, and what all have got in messages. */
typedef struct many_ranks {
    sli_wire_connection connections[MANY];
    int ready, ended, lost; /* ranks */
    int messages;
    bool left[MANY], said_bye[MANY]; /* as rank 0 has heard */
    double said_alive;
} many_ranks;

static void mark_runs(const sli_wire_message *message, uint64_t sequence, bool *ranks)
{
    const char *text = message->text;
    sli_hub_run run;
    while (sli_hub_run_read(&text, message->size, &run)) {
        assert_int_equal(run.sequence, sequence);
        for (int r = run.first; r <= run.last; r++)
            ranks[r] = true;
    }
}

static void hear(many_ranks *ranks, int rank, const sli_wire_message *message)
{
    ranks->messages += message->kind != SLI_WIRE_ALIVE;
    ranks->ready += message->kind == SLI_HUB_READY;
    ranks->ended += message->kind == SLI_HUB_END;
    ranks->lost += message->kind == SLI_HUB_DEAD && strcmp(message->text, "has ended") != 0;
    if (rank == 0 && message->kind == SLI_HUB_RANKS_LEFT)
        mark_runs(message, 7, ranks->left);
    if (rank == 0 && message->kind == SLI_HUB_ENDED)
        mark_runs(message, 0, ranks->said_bye);
}

/* Reads all that has come, and says twice a second that the ranks live. */
static void read_all(many_ranks *ranks)
{
    bool says = sli_clock_seconds() - ranks->said_alive > SLI_WIRE_ALIVE_SECONDS;
    if (says)
        ranks->said_alive = sli_clock_seconds();
    for (int r = 0; r < MANY; r++) {
        sli_wire_message message;
        while (sli_wire_receive(&ranks->connections[r], &message) == SLI_WIRE_MESSAGE)
            hear(ranks, r, &message);
        if (says)
            (void)sli_wire_send(&ranks->connections[r],
                                &(sli_wire_message){.kind = SLI_WIRE_ALIVE});
    }
}

static void say(many_ranks *ranks, int rank, int kind)
{
    bool is_bye = kind == SLI_HUB_BYE;
    const sli_wire_message message = {.kind = kind,
                                      .group = is_bye ? 0 : GROUP,
                                      .rank = is_bye ? 0 : rank,
                                      .size = is_bye ? 0 : MANY,
                                      .sequence = kind == SLI_HUB_LEFT ? 7 : 0};
    assert_true(sli_wire_send(&ranks->connections[rank], &message));
}

static bool are_all(const bool *ranks)
{
    for (int r = 1; r < MANY; r++)
        if (!ranks[r])
            return false;
    return true;
}

static void open_many(many_ranks *ranks, const sli_wire_address *hub)
{
    for (int r = 0; r < MANY; r++) {
        const sli_wire_call_options options = {.rank = r,
                                               .ranks = MANY,
                                               .kinds = SLI_HUB_KINDS,
                                               .host = "",
                                               .whom = "the hub",
                                               .seconds = 20};
        check_ok(sli_wire_call(hub, &options, &ranks->connections[r]));
        if (r % 100 == 0)
            for (int k = 0; k <= r; k++)
                (void)sli_wire_send(&ranks->connections[k],
                                    &(sli_wire_message){.kind = SLI_WIRE_ALIVE});
    }
}

/* All ranks but 0 leave a group and end, one after the other. With a message to each other rank for
 * each that leaves they would get a million. */
static void leaving_takes_messages_in_proportion_to_ranks(void **state)
{
    many_ranks *ranks = calloc(1, sizeof *ranks);
    sli_wire_address address;
    sli_hub *hub;
    assert_non_null(ranks);
    sl_status status = sli_hub_create(MANY, true, &address, &hub);
    if (status == SL_ERR_UNSUPPORTED) {
        print_message("skipped: %s\n", sl_error_text());
        free(ranks);
        skip();
    }
    check_ok(status);
    open_many(ranks, &address);
    for (int r = 0; r < MANY; r++)
        say(ranks, r, SLI_HUB_JOIN);
    double until = sli_clock_seconds() + 20;
    while (ranks->ready < MANY && sli_clock_seconds() < until)
        read_all(ranks);
    assert_int_equal(ranks->ready, MANY);
    for (int r = 1; r < MANY; r++) {
        say(ranks, r, SLI_HUB_LEFT);
        say(ranks, r, SLI_HUB_BYE);
    }
    while (!(are_all(ranks->left) && are_all(ranks->said_bye)) && sli_clock_seconds() < until)
        read_all(ranks);
    assert_true(are_all(ranks->left) && are_all(ranks->said_bye));
    say(ranks, 0, SLI_HUB_LEFT);
    say(ranks, 0, SLI_HUB_BYE);
    while (ranks->ended < MANY && sli_clock_seconds() < until)
        read_all(ranks);
    assert_int_equal(ranks->ended, MANY);
    assert_int_equal(ranks->lost, 0);
    assert_in_range(ranks->messages, 2 * MANY, 20 * MANY); /* READY and END among them */
    for (int r = 0; r < MANY; r++)
        sli_wire_close(&ranks->connections[r]);
    sli_hub_destroy(&hub);
    free(ranks);
}

/* ---- What no process of a job says -------------------------------------------------------- */

static const sli_wire_message hostile_rank[] = {
    {.kind = SLI_HUB_LEFT, .group = GROUP, .rank = 4096, .size = 8192},
    {.kind = SLI_HUB_JOIN, .group = 1, .rank = 0, .size = -1},
    {.kind = SLI_HUB_JOIN, .group = 1, .rank = 0, .size = 1 << 30},
    {.kind = SLI_HUB_JOIN, .group = 1, .rank = -5, .size = RANKS},
    {.kind = SLI_HUB_JOIN, .group = 1},
    {.kind = SLI_HUB_JOIN, .group = GROUP, .rank = 0, .size = RANKS}, /* another's rank */
    {.kind = SLI_HUB_LEFT, .group = GROUP, .rank = 0, .size = RANKS},
    {.kind = SLI_HUB_AT, .group = GROUP, .rank = 1, .size = RANKS},
    {.kind = SLI_HUB_LATE, .group = GROUP, .rank = 1, .size = RANKS - 1},
    {.kind = SLI_HUB_REFUSE, .group = GROUP, .rank = 1, .size = RANKS, .number = SL_ERR_MEMORY},
    {.kind = SLI_HUB_BREAK, .group = GROUP, .rank = 2, .size = RANKS},
    {.kind = SLI_HUB_BREAK, .group = GROUP, .rank = 2, .size = RANKS, .number = INT32_MIN},
    {.kind = SLI_HUB_BREAK,
     .group = GROUP,
     .rank = 2,
     .size = RANKS,
     .number = SL_ERR_IO,
     .sequence = 2},
    {.kind = SLI_HUB_BREAK, .group = 1, .size = RANKS, .number = SL_ERR_IO}, /* no group of its */
    {.kind = SLI_HUB_READY, .group = GROUP, .rank = 2, .size = RANKS},
    {.kind = SLI_HUB_DEAD, .rank = 0, .size = RANKS},
    {.kind = SLI_HUB_BYE, .number = 4096},
    {.kind = SLI_HUB_RANKS_LEFT, .group = GROUP, .size = RANKS, .text = "0 0 7 "},
    {.kind = SLI_HUB_ENDED, .size = RANKS, .text = "0 0 0 "},
    {.kind = SLI_HUB_KINDS},
    {.kind = -1},
};

static void hostile_rank_is_cut_off_and_the_others_are_told(void **state)
{
    for (size_t i = 0; i < sizeof hostile_rank / sizeof *hostile_rank; i++) {
        job_rank ranks[RANKS];
        sli_wire_address address;
        sli_wire_connection hostile;
        SCOPED(sli_hub) *hub = NULL;
        sli_wire_call_options options = {.rank = 2,
                                         .ranks = RANKS,
                                         .kinds = SLI_HUB_KINDS,
                                         .host = "",
                                         .whom = "the hub",
                                         .seconds = 20};
        check_ok(sli_hub_create(RANKS, true, &address, &hub));
        start_watches(ranks, 2, &address);
        check_ok(sli_wire_call(&address, &options, &hostile));
        for (int r = 0; r < 2; r++)
            sli_watch_join(ranks[r].watch, &ranks[r].member);
        for (int r = 0; r < 2; r++)
            wait_for_hub(&ranks[r]);
        assert_true(sli_wire_send(&hostile, &hostile_rank[i]));
        for (int r = 0; r < 2; r++) {
            check_error(wait_for_break(&ranks[r]), SL_ERR_CANCELLED,
                        "rank 2 sent what no rank sends");
            sli_watch_leave(ranks[r].watch, &ranks[r].member);
        }
        end_watches(ranks, 2);
        sli_wire_close(&hostile);
    }
}

static void ignore_call(void *owner, int rank, const char *name)
{
}

static void ignore_message(void *owner, int rank, const sli_wire_message *message)
{
}

static void ignore_end(void *owner, int rank, sli_wire_state why)
{
}

typedef struct false_hub {
    sli_wire_listener *listener;
    const sli_wire_message *message; /* which it says to rank 1, again and again */
    atomic_bool speaks, stop;
} false_hub;

static void *serve_falsely(void *argument)
{
    false_hub *self = argument;
    while (!atomic_load(&self->stop)) {
        if (atomic_load(&self->speaks))
            sli_wire_listener_send(self->listener, 1, self->message);
        sli_wire_listener_turn(self->listener, -1, 1);
    }
    return NULL;
}

static const sli_wire_message hostile_hub[] = {
    {.kind = SLI_HUB_DEAD, .rank = 4096, .size = 8192},
    {.kind = SLI_HUB_DEAD, .rank = -1, .size = RANKS},
    {.kind = SLI_HUB_DEAD, .rank = 0, .size = RANKS - 1},
    {.kind = SLI_HUB_LEFT, .group = GROUP, .rank = 4096, .size = 4097},
    {.kind = SLI_HUB_LEFT, .group = GROUP, .rank = RANKS, .size = RANKS},
    {.kind = SLI_HUB_LEFT, .group = GROUP, .rank = -1, .size = -1},
    {.kind = SLI_HUB_BREAK, .group = GROUP, .rank = 0, .size = RANKS}, /* without an error */
    {.kind = SLI_HUB_BREAK, .group = GROUP, .rank = 0, .size = RANKS, .number = 7},
    {.kind = SLI_HUB_BREAK, .group = GROUP, .size = RANKS, .number = SL_ERR_IO, .sequence = 2},
    {.kind = SLI_HUB_END, .number = -1},
    {.kind = SLI_HUB_RANKS_LEFT, .group = GROUP, .size = RANKS}, /* without ranks */
    {.kind = SLI_HUB_RANKS_LEFT, .group = GROUP, .size = RANKS, .text = "0 3 7 "},
    {.kind = SLI_HUB_RANKS_LEFT, .group = GROUP, .size = RANKS, .text = "2 1 7 "},
    {.kind = SLI_HUB_RANKS_LEFT, .group = GROUP, .size = RANKS, .text = "0 0 7 1 1"},
    {.kind = SLI_HUB_RANKS_LEFT, .group = GROUP, .size = RANKS, .text = "-1 0 7 "},
    {.kind = SLI_HUB_RANKS_LEFT,
     .group = GROUP,
     .size = RANKS,
     .text = "0 0 18446744073709551616 "},
    {.kind = SLI_HUB_ENDED, .size = RANKS - 1, .text = "0 0 0 "},
    {.kind = SLI_HUB_ENDED, .size = RANKS},
    {.kind = SLI_HUB_KINDS},
};

static void hostile_hub_is_left(void **state)
{
    for (size_t i = 0; i < sizeof hostile_hub / sizeof *hostile_hub; i++) {
        job_rank self;
        sli_wire_address address;
        pthread_t thread;
        false_hub hub = {.message = &hostile_hub[i]};
        sli_wire_listener_options options = {.ranks = RANKS,
                                             .kinds = SLI_HUB_KINDS,
                                             .this_host = true,
                                             .silent_seconds = SLI_SILENT_SECONDS,
                                             .called = ignore_call,
                                             .said = ignore_message,
                                             .ended = ignore_end};
        check_ok(sli_wire_listen(&options, &address, &hub.listener));
        assert_int_equal(pthread_create(&thread, NULL, serve_falsely, &hub), 0);
        self = (job_rank){.hub = &address};
        check_ok(sli_watch_create(&address, 1, RANKS, &self.watch));
        self.member = (sli_member){
            .id = GROUP, .rank = 1, .size = RANKS, .processes = processes, .last = self.last};
        sli_watch_join(self.watch, &self.member);
        atomic_store(&hub.speaks, true);
        check_error(wait_for_break(&self), SL_ERR_CANCELLED, "rank 0");
        assert_non_null(strstr(sl_error_text(), "sent what no rank sends"));
        sli_watch_leave(self.watch, &self.member);
        sli_watch_destroy(&self.watch);
        atomic_store(&hub.stop, true);
        pthread_join(thread, NULL);
        sli_wire_listener_destroy(&hub.listener);
    }
}

int hub_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(group_is_ready_when_all_have_joined),
        cmocka_unit_test(rank_that_cannot_join_ends_the_making_for_all),
        cmocka_unit_test(broken_group_knows_which_rank_of_the_job_failed),
        cmocka_unit_test(rank_that_has_ended_is_not_waited_for),
        cmocka_unit_test(rank_that_leaves_because_of_an_error_passes_it_on),
        cmocka_unit_test(leaving_takes_messages_in_proportion_to_ranks),
        cmocka_unit_test(silent_strangers_do_not_keep_ranks_from_the_hub),
        cmocka_unit_test(hostile_rank_is_cut_off_and_the_others_are_told),
        cmocka_unit_test(hostile_hub_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
