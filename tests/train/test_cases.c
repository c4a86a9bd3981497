/* Every case of where a run begins, and of which layout it has, against what is written here. */
#include "train/plan/cases.h"

#include "support/check.h"

static int matching_rows(const sli_case *rows, int count, const int facts[3])
{
    int matches = 0;
    for (int i = 0; i < count; i++) {
        sli_case row = rows[i];
        row.outcome = 1;
        matches += sli_case_find(&row, 1, facts) == 1;
    }
    return matches;
}

/* A job's own checkpoints come first; then what is named; then what auto finds. */
static sli_start expected_start(int resume, bool restarted, int saved)
{
    if (restarted && saved == SLI_SAVED_SOME)
        return SLI_START_OWN;
    if (resume == SLI_RESUME_NAMED)
        return SLI_START_NAMED;
    if (resume == SLI_RESUME_AUTO)
        return SLI_START_NEWEST;
    return restarted && saved == SLI_SAVED_NONE ? SLI_START_AGAIN : SLI_START_NEW;
}

static void every_start_has_one_row(void **state)
{
    int used = 0;
    for (int resume = 0; resume < SLI_RESUME_WISHES; resume++)
        for (int restarted = SLI_NO; restarted <= SLI_YES; restarted++)
            for (int saved = 0; saved < SLI_SAVED_KINDS; saved++, used++) {
                const int facts[] = {resume, restarted, saved};
                assert_int_equal(matching_rows(sli_start_cases, SLI_START_CASES, facts), 1);
                assert_int_equal(sli_case_find(sli_start_cases, SLI_START_CASES, facts),
                                 expected_start(resume, restarted, saved));
            }
    assert_int_equal(used, 18);
}

/* Where replicas are asked for, the number of processes says nothing but that a job has lost some;
 * else it says how many there are. */
static sli_layout_rule expected_layout(int processes, int replicas, bool fewer)
{
    bool has_ranks = processes == SLI_PROCESS_RANKS;
    if (processes == SLI_PROCESS_OWN)
        return SLI_LAYOUT_ASKED;
    if (replicas == SLI_REPLICAS_GIVEN)
        return fewer ? SLI_LAYOUT_SEARCHED : SLI_LAYOUT_ASKED;
    if (has_ranks)
        return SLI_LAYOUT_PROCESSES;
    return replicas == SLI_REPLICAS_OPEN ? SLI_LAYOUT_ONE : SLI_LAYOUT_ASKED;
}

static void every_layout_has_one_row(void **state)
{
    for (int processes = 0; processes < SLI_PROCESS_KINDS; processes++)
        for (int replicas = 0; replicas < SLI_REPLICAS_WISHES; replicas++)
            for (int fewer = SLI_NO; fewer <= SLI_YES; fewer++) {
                const int facts[] = {processes, replicas, fewer};
                assert_int_equal(matching_rows(sli_layout_cases, SLI_LAYOUT_CASES, facts), 1);
                assert_int_equal(sli_case_find(sli_layout_cases, SLI_LAYOUT_CASES, facts),
                                 expected_layout(processes, replicas, fewer));
            }
}

int cases_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_start_has_one_row),
        cmocka_unit_test(every_layout_has_one_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
