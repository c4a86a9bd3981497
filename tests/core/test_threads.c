#define _GNU_SOURCE /* usleep, sched_getaffinity */

#include "core/threads.h"
#include "support/check.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sli_pool *create(int threads, bool spin)
{
    sli_pool *pool;
    sli_pool_options options = {.threads = threads, .spin = spin};
    assert_int_equal(sli_pool_create(&options, &pool), SL_OK);
    assert_int_equal(sli_pool_threads(pool), threads);
    return pool;
}

/* Not atomic: each piece has its own element, and TSan sees whether the pool orders accesses. */
typedef struct tally {
    int counts[512];
    int threads;
    atomic_bool bad_thread;
} tally;

static void count_piece(void *argument, int64_t piece, int thread)
{
    tally *t = argument;
    t->counts[piece]++;
    if (thread < 0 || thread >= t->threads)
        atomic_store(&t->bad_thread, true);
}

static void run_and_check(sli_pool *pool, int pieces)
{
    tally t = {.threads = sli_pool_threads(pool)};
    sli_pool_run(pool, pieces, count_piece, &t);
    for (int i = 0; i < 512; i++)
        assert_int_equal(t.counts[i], i < pieces);
    assert_false(atomic_load(&t.bad_thread));
}

static void every_piece_runs_exactly_once(void **state)
{
    for (int spin = 0; spin < 2; spin++)
        for (int threads = 1; threads <= 5; threads++) {
            sli_pool *pool = create(threads, spin);
            for (int round = 0; round < 300; round++)
                run_and_check(pool, round % 19);
            run_and_check(pool, 512);
            sli_pool_destroy(&pool);
            assert_null(pool);
        }
}

static void a_pool_wakes_up_from_sleep(void **state)
{
    SCOPED(sli_pool) *pool = create(3, true);
    for (int round = 0; round < 5; round++) {
        usleep(2000); /* longer than idle threads look out */
        run_and_check(pool, 100);
    }
}

static void an_unused_pool_ends(void **state)
{
    for (int i = 0; i < 50; i++) {
        SCOPED(sli_pool) *pool = create(4, i % 2);
    }
    sli_pool *none = NULL;
    sli_pool_destroy(&none);
    sli_pool_destroy(NULL);
}

static void *run_many(void *argument)
{
    tally t = {.threads = 3};
    for (int round = 0; round < 500; round++)
        sli_pool_run(argument, 7, count_piece, &t);
    for (int i = 0; i < 7; i++)
        if (t.counts[i] != 500)
            return argument;
    return NULL;
}

static void several_callers_take_turns(void **state)
{
    SCOPED(sli_pool) *pool = create(3, false);
    pthread_t callers[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&callers[i], NULL, run_many, pool), 0);
    for (int i = 0; i < 3; i++) {
        void *failed;
        pthread_join(callers[i], &failed);
        assert_null(failed);
    }
}

/* Piece 0 waits until all the others are done: it can only end if another thread does them. */
typedef struct meeting {
    atomic_int arrived;
} meeting;

static void meet(void *argument, int64_t piece, int thread)
{
    meeting *m = argument;
    atomic_fetch_add(&m->arrived, 1);
    while (atomic_load(&m->arrived) < 3)
        usleep(10);
}

static void pieces_run_at_the_same_time(void **state)
{
    SCOPED(sli_pool) *pool = create(3, false);
    for (int round = 0; round < 20; round++) {
        meeting m = {0};
        sli_pool_run(pool, 3, meet, &m);
        assert_int_equal(atomic_load(&m.arrived), 3);
    }
}

/* Where each thread may run; all have arrived before any leaves, so each does one piece. */
typedef struct places {
    meeting all;
    cpu_set_t sets[3];
} places;

static void note_place(void *argument, int64_t piece, int thread)
{
    places *p = argument;
    sched_getaffinity(0, sizeof p->sets[thread], &p->sets[thread]);
    meet(&p->all, piece, thread);
}

static void workers_are_bound_to_their_cores(void **state)
{
    cpu_set_t mine;
    assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
    int first = 0, last = CPU_SETSIZE - 1;
    while (!CPU_ISSET((size_t)first, &mine))
        first++;
    while (!CPU_ISSET((size_t)last, &mine))
        last--;
    int cores[3] = {first, last, first};
    sli_pool_options options = {.threads = 3, .cores = cores};
    SCOPED(sli_pool) *pool = NULL;
    assert_int_equal(sli_pool_create(&options, &pool), SL_OK);
    places p = {.all = {0}};
    sli_pool_run(pool, 3, note_place, &p);
    assert_true(CPU_EQUAL(&p.sets[0], &mine)); /* the caller's own affair */
    for (int thread = 1; thread < 3; thread++) {
        assert_int_equal(CPU_COUNT(&p.sets[thread]), 1);
        assert_true(CPU_ISSET((size_t)cores[thread], &p.sets[thread]));
    }
}

static void impossible_options_are_refused(void **state)
{
    sli_pool *pool = (sli_pool *)&pool;
    sli_pool_options options = {.threads = 0};
    assert_int_equal(sli_pool_create(&options, &pool), SL_ERR_INVALID);
    assert_null(pool);
    assert_int_equal(sli_thread_bind(-1), SL_ERR_NOT_FOUND);
    assert_int_equal(sli_thread_bind(1000000), SL_ERR_NOT_FOUND);
    assert_int_equal(sli_thread_bind(1000), SL_ERR_NOT_FOUND);
}

int threads_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_piece_runs_exactly_once),
        cmocka_unit_test(a_pool_wakes_up_from_sleep),
        cmocka_unit_test(an_unused_pool_ends),
        cmocka_unit_test(several_callers_take_turns),
        cmocka_unit_test(pieces_run_at_the_same_time),
        cmocka_unit_test(workers_are_bound_to_their_cores),
        cmocka_unit_test(impossible_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
