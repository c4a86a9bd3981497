/* Claims of files, between processes: a lock of the same process, through another descriptor, keeps
 * out as well. */
#include "core/claim.h"

#include "io/scratch.h"
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>

static void second_claim_is_refused_until_the_first_ends(void **state)
{
    scratch *dir = *state;
    sli_claim *first, *second;
    FREED char *path = strdup(scratch_path(dir, "file"));
    check_ok(sli_claim_create(path, &first));
    check_error(sli_claim_create(path, &second), SL_ERR_CONFLICT,
                "file: another run that has not ended writes it");
    assert_null(second);
    assert_int_equal(scratch_entries(dir, 0), 1); /* the first one's */
    sli_claim_destroy(&first);
    check_ok(sli_claim_create(path, &second));
    sli_claim_destroy(&second);
    assert_int_equal(scratch_entries(dir, 0), 0);
}

static void files_are_claimed_one_by_one_and_through_links(void **state)
{
    scratch *dir = *state;
    sli_claim *first, *second, *third;
    char *file = strdup(scratch_path(dir, "file")), *other = strdup(scratch_path(dir, "file2"));
    FREED char *link = strdup(scratch_path(dir, "link"));
    check_ok(sli_claim_create(file, &first));
    check_ok(sli_claim_create(other, &second));
    assert_int_equal(symlink("file", link), 0);
    check_error(sli_claim_create(link, &third), SL_ERR_CONFLICT, "link: another run");
    sli_claim_destroy(&first);
    check_ok(sli_claim_create(link, &third));
    sli_claim_destroy(&third);
    sli_claim_destroy(&second);
    free(file);
    free(other);
}

static void claim_of_the_dead_is_removed(void **state)
{
    scratch *dir = *state;
    sli_claim *claim;
    write_file(scratch_path(dir, ".run.file.0123456789abcdef.tmp"), "", 0);
    check_ok(sli_claim_create(scratch_path(dir, "file"), &claim));
    assert_int_equal(scratch_entries(dir, 0), 1);
    sli_claim_destroy(&claim);
    assert_int_equal(scratch_entries(dir, 0), 0);
}

int claim_tests(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        TEST(second_claim_is_refused_until_the_first_ends),
        TEST(files_are_claimed_one_by_one_and_through_links),
        TEST(claim_of_the_dead_is_removed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
