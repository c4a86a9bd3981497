/* Ranks call a listener while strangers do so over and over, and say nothing. */
#include "comm/wire/wire_listener.h"
#include "core/clock.h"
#include "support/check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RANKS = 32, THREADS = 4, OPEN = 100, KINDS = 1 };
static const double patience_seconds = 60;
#ifdef __SANITIZE_THREAD__ /* the listener is many times slower, and those who call it are not */
static const double enough_seconds = 60;
#else
static const double enough_seconds = 10;
#endif

typedef struct counts {
    int called, ended;
} counts;

static void on_call(void *owner, int rank, const char *host)
{
    ((counts *)owner)->called++;
}

static void on_message(void *owner, int rank, const sli_wire_message *message)
{
}

static void on_end(void *owner, int rank, sli_wire_state why)
{
    ((counts *)owner)->ended++;
}

typedef struct caller {
    pthread_t thread;
    const sli_wire_address *to;
    int rank;
    sl_status status;
    sli_wire_connection connection;
} caller;

static void *call_as_rank(void *argument)
{
    caller *self = argument;
    self->status = sli_wire_call(self->to,
                                 &(sli_wire_call_options){.rank = self->rank,
                                                          .ranks = RANKS,
                                                          .kinds = KINDS,
                                                          .host = "",
                                                          .whom = "the test",
                                                          .seconds = patience_seconds},
                                 &self->connection);
    return NULL;
}

typedef struct flood {
    pthread_t threads[THREADS];
    const sli_wire_address *to;
    atomic_bool stop;
    atomic_long calls;
} flood;

/* Leaves no ports behind that the system would have to keep. */
static void close_at_once(int fd)
{
    const struct linger none = {.l_onoff = 1};
    if (fd < 0)
        return;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    close(fd);
}

static void *call_over_and_over(void *argument)
{
    flood *self = argument;
    int open[OPEN];
    for (int i = 0; i < OPEN; i++)
        open[i] = -1;
    for (int i = 0; !atomic_load(&self->stop); i = (i + 1) % OPEN) {
        close_at_once(open[i]);
        open[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(open[i], &self->to->at[0].any, sizeof self->to->at[0].v4);
        atomic_fetch_add(&self->calls, 1);
    }
    for (int i = 0; i < OPEN; i++)
        close_at_once(open[i]);
    return NULL;
}

static void strangers_that_call_over_and_over_do_not_keep_ranks_out(void **state)
{
    counts seen = {0};
    caller ranks[RANKS];
    sli_wire_address address;
    SCOPED(sli_wire_listener) *listener = NULL;
    const sli_wire_listener_options options = {.ranks = RANKS,
                                               .kinds = KINDS,
                                               .this_host = true,
                                               .owner = &seen,
                                               .called = on_call,
                                               .said = on_message,
                                               .ended = on_end};
    check_ok(sli_wire_listen(&options, &address, &listener));
    flood strangers = {.to = &address};
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&strangers.threads[i], NULL, call_over_and_over,
                                        &strangers),
                         0);
    while (atomic_load(&strangers.calls) < 1000)
        sli_wire_listener_turn(listener, -1, 1);
    double begun = sli_clock_seconds();
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = (caller){.to = &address, .rank = r};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, call_as_rank, &ranks[r]), 0);
    }
    while (seen.called < RANKS && sli_clock_seconds() - begun < patience_seconds)
        sli_wire_listener_turn(listener, -1, 1);
    double seconds = sli_clock_seconds() - begun;
    atomic_store(&strangers.stop, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(strangers.threads[i], NULL);
    for (int r = 0; r < RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
        check_ok(ranks[r].status);
    }
    print_message("%d ranks were in after %.2f s and %ld calls of strangers\n", RANKS, seconds,
                  atomic_load(&strangers.calls));
    assert_true(seconds < enough_seconds);
    assert_int_equal(seen.ended, 0);
    for (int r = 0; r < RANKS; r++)
        sli_wire_close(&ranks[r].connection);
}

int wire_flood_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_that_call_over_and_over_do_not_keep_ranks_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
