/* What each launcher's environment says, and what is refused of it. */
#include "sluice/app/launch.h"
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Replaces the whole environment with the "NAME=VALUE" words of `text`. */
static void set_environment(const char *text)
{
    char words[1024], *rest = words;
    assert_true(strlen(text) < sizeof words);
    strcpy(words, text);
    assert_int_equal(clearenv(), 0);
    for (char *word; (word = strtok_r(rest, " ", &rest));) {
        char *value = strchr(word, '=');
        assert_non_null(value);
        *value = '\0';
        assert_int_equal(setenv(word, value + 1, 1), 0);
    }
}

static void check_info(const char *environment, sl_launch_info expected)
{
    sl_launch_info info = {.rank = -1};
    set_environment(environment);
    check_ok(sl_launch_info_read(&info));
    assert_int_equal(info.launched, expected.launched);
    assert_int_equal(info.rank, expected.rank);
    assert_int_equal(info.local_rank, expected.local_rank);
    assert_int_equal(info.world_size, expected.world_size);
    assert_int_equal(info.local_world_size, expected.local_world_size);
    assert_int_equal(info.restarts, expected.restarts);
    assert_int_equal(info.first_world_size, expected.first_world_size);
    assert_string_equal(info.job, expected.job);
}

static void check_rank_refused(const char *environment, const char *sentence)
{
    sl_launch_info info = {.rank = -1};
    set_environment(environment);
    check_error(sl_launch_info_read(&info), SL_ERR_INVALID, sentence);
    assert_false(info.launched);
    assert_int_equal(info.rank, 0);
    assert_int_equal(info.world_size, 1);
    assert_int_equal(info.local_world_size, 1);
}

static const sl_launch_info alone = {.world_size = 1, .local_world_size = 1, .first_world_size = 1};

static sl_launch_info launched(int rank, int world_size, int local_rank, int local_world_size)
{
    return (sl_launch_info){true, rank,       local_rank, world_size, local_world_size,
                            0,    world_size, ""};
}

static void nothing_set_is_one_rank_not_launched(void **state)
{
    check_info("PATH=/bin", alone);
    check_info("RANK= WORLD_SIZE= OMPI_COMM_WORLD_RANK= PMI_RANK= SLURM_STEP_ID=", alone);
    check_info("LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", alone);
    check_info("TORCHELASTIC_RESTART_COUNT=3", alone); /* another job's */
}

static void restarts_are_counted_by_the_launcher(void **state)
{
    sl_launch_info expected = launched(1, 2, 1, 2);
    check_info("RANK=1 WORLD_SIZE=2 TORCHELASTIC_RESTART_COUNT=0", expected);
    check_info("RANK=1 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=none", expected); /* torchrun's default */
    snprintf(expected.job, sizeof expected.job, "night");
    check_info("RANK=1 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=night", expected);
    *expected.job = '\0';
    check_info("RANK=1 WORLD_SIZE=2 TORCHELASTIC_RESTART_COUNT=", expected);
    expected.restarts = 12;
    check_info("RANK=1 WORLD_SIZE=2 TORCHELASTIC_RESTART_COUNT=12", expected);
    expected.first_world_size = 5;
    check_info("RANK=1 WORLD_SIZE=2 TORCHELASTIC_RESTART_COUNT=12 SLUICE_FIRST_WORLD_SIZE=5",
               expected);
    expected.restarts = 0; /* the first attempt has lost hosts */
    check_info("RANK=1 WORLD_SIZE=2 TORCHELASTIC_RESTART_COUNT=0 SLUICE_FIRST_WORLD_SIZE=5",
               expected);
    check_rank_refused("RANK=1 WORLD_SIZE=2 TORCHELASTIC_RESTART_COUNT=1 SLUICE_FIRST_WORLD_SIZE=1",
                       "RANK must be below SLUICE_FIRST_WORLD_SIZE, got 1 and 1");
    check_rank_refused("RANK=1 WORLD_SIZE=2 TORCHELASTIC_RESTART_COUNT=once",
                       "TORCHELASTIC_RESTART_COUNT: expected a whole number from 0, got \"once\"");
}

static void torchrun_names_are_read(void **state)
{
    check_info("RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4", launched(5, 8, 1, 4));
    check_info("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1", launched(0, 1, 0, 1));
}

static void ranks_of_no_named_machine_are_on_this_one(void **state)
{
    check_info("RANK=2 WORLD_SIZE=3", launched(2, 3, 2, 3));
    check_info("PMI_RANK=1 PMI_SIZE=2", launched(1, 2, 1, 2));
}

static void open_mpi_names_are_read(void **state)
{
    check_info("OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 "
               "OMPI_COMM_WORLD_LOCAL_SIZE=2",
               launched(3, 4, 1, 2));
}

static void hydra_names_are_read(void **state)
{
    check_info("PMI_RANK=3 PMI_SIZE=6 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=3", launched(3, 6, 0, 3));
}

#define SLURM_STEP  "SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=9 SLURM_LOCALID=1 "
#define SLURM_NODES SLURM_STEP "SLURM_STEP_TASKS_PER_NODE=2(x3),3 "

static void slurm_step_counts_the_tasks_of_its_node(void **state)
{
    check_info(SLURM_NODES "SLURM_NODEID=0", launched(5, 9, 1, 2));
    check_info(SLURM_NODES "SLURM_NODEID=2", launched(5, 9, 1, 2));
    check_info(SLURM_NODES "SLURM_NODEID=3", launched(5, 9, 1, 3));
    check_info(SLURM_STEP "SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=9", launched(5, 9, 1, 9));
    check_info(SLURM_STEP "SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=5,4", launched(5, 9, 1, 4));
}

static void slurm_shells_are_no_ranks(void **state)
{
    check_info("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0", alone);
    check_info("SLURM_STEP_ID=4294967290 SLURM_PROCID=0 SLURM_NTASKS=4", alone);
    check_info("SLURM_STEP_ID=4294967291 SLURM_PROCID=0 SLURM_NTASKS=4", alone);
}

static void earlier_families_win(void **state)
{
    const char *all = "RANK=0 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3 "
                      "PMI_RANK=2 PMI_SIZE=4 SLURM_STEP_ID=0 SLURM_PROCID=3";
    check_info(all, launched(0, 2, 0, 2));
    check_info(strstr(all, "OMPI"), launched(1, 3, 1, 3));
    check_info(strstr(all, "PMI_RANK=2"), launched(2, 4, 2, 4));
}

static void missing_variables_are_named(void **state)
{
    check_rank_refused("RANK=1", "variable RANK is set without WORLD_SIZE");
    check_rank_refused("WORLD_SIZE=2", "variable WORLD_SIZE is set without RANK");
    check_rank_refused("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0",
                       "variable LOCAL_RANK is set without LOCAL_WORLD_SIZE");
    check_rank_refused("RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1",
                       "variable LOCAL_WORLD_SIZE is set without LOCAL_RANK");
    check_rank_refused("OMPI_COMM_WORLD_RANK=0",
                       "variable OMPI_COMM_WORLD_RANK is set without OMPI_COMM_WORLD_SIZE");
    check_rank_refused("PMI_SIZE=4", "variable PMI_SIZE is set without PMI_RANK");
    check_rank_refused("SLURM_STEP_ID=0 SLURM_PROCID=0",
                       "variable SLURM_PROCID is set without SLURM_STEP_NUM_TASKS");
    check_rank_refused(SLURM_STEP "SLURM_STEP_TASKS_PER_NODE=9",
                       "variable SLURM_PROCID is set without SLURM_NODEID");
}

static void words_that_are_no_number_are_shown(void **state)
{
    check_rank_refused("RANK=one WORLD_SIZE=2",
                       "variable RANK: expected a whole number from 0, got \"one\"");
    static const char *const words[] = {
        "-1", "+1", "1x", "0x1", "1.5", "2147483648", "99999999999999999999"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char environment[64];
        snprintf(environment, sizeof environment, "RANK=0 WORLD_SIZE=%s", words[i]);
        check_rank_refused(environment, "variable WORLD_SIZE: expected a whole number from 0");
    }
}

static void contradictions_are_refused(void **state)
{
    check_rank_refused("RANK=2 WORLD_SIZE=2",
                       "variable RANK must be below WORLD_SIZE, got 2 and 2");
    check_rank_refused("RANK=0 WORLD_SIZE=0",
                       "variable RANK must be below WORLD_SIZE, got 0 and 0");
    check_rank_refused("RANK=0 WORLD_SIZE=4 LOCAL_RANK=3 LOCAL_WORLD_SIZE=2",
                       "variable LOCAL_RANK must be below LOCAL_WORLD_SIZE, got 3 and 2");
    check_rank_refused("RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=5",
                       "variable LOCAL_WORLD_SIZE must be at most WORLD_SIZE, got 5 and 4");
    check_rank_refused("PMI_RANK=3 PMI_SIZE=2",
                       "variable PMI_RANK must be below PMI_SIZE, got 3 and 2");
}

static void slurm_lists_that_miss_the_node_are_refused(void **state)
{
    static const char *const lists[] = {"2(x3)", "2,2,2", "2,,2,2", "2(x2",   "2(x),2",
                                        "2x4",   "",      "(x4)",   "2;2;2;2"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        char environment[256];
        snprintf(environment, sizeof environment,
                 SLURM_STEP "SLURM_NODEID=3 SLURM_STEP_TASKS_PER_NODE=%s", lists[i]);
        check_rank_refused(environment, "SLURM_STEP_TASKS_PER_NODE: expected the tasks of each "
                                        "node up to SLURM_NODEID 3");
    }
    check_rank_refused(SLURM_STEP "SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=1,8",
                       "SLURM_LOCALID must be below SLURM_STEP_TASKS_PER_NODE, got 1 and 1");
}

int launch_info_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_set_is_one_rank_not_launched),
        cmocka_unit_test(restarts_are_counted_by_the_launcher),
        cmocka_unit_test(torchrun_names_are_read),
        cmocka_unit_test(ranks_of_no_named_machine_are_on_this_one),
        cmocka_unit_test(open_mpi_names_are_read),
        cmocka_unit_test(hydra_names_are_read),
        cmocka_unit_test(slurm_step_counts_the_tasks_of_its_node),
        cmocka_unit_test(slurm_shells_are_no_ranks),
        cmocka_unit_test(earlier_families_win),
        cmocka_unit_test(missing_variables_are_named),
        cmocka_unit_test(words_that_are_no_number_are_shown),
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(slurm_lists_that_miss_the_node_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
