/* Lists of devices of several kinds: the CPU's, and one made up here. */
#include "device/cpu/cpu_device.h"
#include "device/device_kind.h"
#include "device/device_list.h"
#include "device/host_cores.h"
#include "support/check.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* ---- A kind ----------------------------------------------------------------------------- */

enum { CARDS = 3 };

static bool parse_card(sli_device_name *name)
{
    const char *rest = name->text + strlen("card");
    return *rest++ == ':' && sli_device_number_parse(&rest, &name->first) && *rest == '\0';
}

static sl_status check_cards(const sli_device_name *names, int count)
{
    for (int i = 1; i < count; i++)
        if (names[i].first == names[i - 1].first)
            return sl_error(SL_ERR_INVALID, "card %d is named twice", names[i].first);
    return SL_OK;
}

static sl_status create_cards(const sli_device_request *request, sl_device **out, bool *shared)
{
    for (int i = request->first; i < request->end; i++) {
        sl_status status = SL_OK;
        sli_cpu_options options = {.name = request->names[i].text, .threads = 1};
        if (request->names[i].first >= CARDS)
            status = sl_error(SL_ERR_NOT_FOUND, "there is no card %d", request->names[i].first);
        if (status == SL_OK)
            status = sli_cpu_device_create(&options, &out[i - request->first]);
        for (int k = request->first; k < i && status != SL_OK; k++)
            sl_device_destroy(&out[k - request->first]);
        SL_TRY(status);
        *shared = true;
    }
    return SL_OK;
}

static sl_status count_cards(int *out)
{
    *out = CARDS;
    return SL_OK;
}

static const sli_device_kind card_kind = {.prefix = "card",
                                          .forms = "card:NUMBER",
                                          .parse = parse_card,
                                          .check = check_cards,
                                          .create = create_cards,
                                          .count = count_cards};

static const sli_device_kind *const kinds[] = {&sli_cpu_kind, &card_kind, NULL};

/* ---- Lists ------------------------------------------------------------------------------ */

static sl_status create(const char *names, int first, int most, bool bound, sl_device_list **out,
                        bool *shared)
{
    return sli_device_list_create_of(kinds, names, first, most, bound, out, shared);
}

static void mixed_list_keeps_its_order_in_every_part(void **state)
{
    (void)state;
    static const char *const names[] = {"card:2", "cpu:1", "cpu:0", "card:0"};
    sl_device_list *list;
    bool shared;
    for (int first = 0; first <= 4; first++)
        for (int most = 0; most <= 5; most++) {
            int expected = most < 4 - first ? most : 4 - first;
            check_ok(create("card:2, cpu:1 ,cpu:0,card:0", first, most, false, &list, &shared));
            assert_int_equal(sl_device_list_count(list), expected);
            for (int i = 0; i < expected; i++)
                assert_string_equal(sl_device_name(sl_device_list_get(list, i)), names[first + i]);
            sl_device_list_destroy(&list);
        }
}

/* cpu:0 is the only CPU device of the list, so it has all cores, whatever else is there. */
static void cores_are_divided_among_cpu_devices_alone(void **state)
{
    (void)state;
    int cores;
    check_ok(sli_device_count("cpu", &cores));
    sl_device_list *list;
    bool shared;
    for (int bound = 0; bound < 2; bound++) {
        check_ok(create("card:0,cpu:0,card:1", 1, 1, bound, &list, &shared));
        assert_int_equal(sl_device_thread_count(sl_device_list_get(list, 0)), cores);
        assert_false(shared);
        sl_device_list_destroy(&list);
    }
    check_ok(create("card:0,cpu:0", 0, INT_MAX, false, &list, &shared));
    assert_true(shared);
    sl_device_list_destroy(&list);
}

static void refuse(const char *names, sl_status status, const char *text)
{
    sl_device_list *list = (sl_device_list *)&list;
    bool shared = true;
    check_error(create(names, 0, INT_MAX, false, &list, &shared), status, text);
    assert_null(list);
    assert_false(shared);
}

static void errors_are_those_of_the_names_kind(void **state)
{
    (void)state;
    refuse("cpu:0,gpu:0", SL_ERR_INVALID,
           "a device is named cpu, cpu:NUMBER or cpu:FIRST-LAST; card:NUMBER, got \"gpu:0\"");
    refuse("cpu:0,card", SL_ERR_INVALID, "a device is named card:NUMBER, got \"card\"");
    refuse("cards:0", SL_ERR_INVALID, "got \"cards:0\"");
    refuse("cpu:x,card:0", SL_ERR_INVALID,
           "a device is named cpu, cpu:NUMBER or cpu:FIRST-LAST, got \"cpu:x\"");
    refuse("card:1,cpu:0,card:1", SL_ERR_INVALID, "card 1 is named twice");
    refuse("card:1,cpu:1", SL_ERR_INVALID, "of 1 in the list, the last is cpu:0");
    refuse("cpu:0,card:0,card:9", SL_ERR_NOT_FOUND, "there is no card 9");
    check_error(sli_device_count("card", &(int){0}), SL_ERR_INVALID, "no kind of devices \"card\"");
}

/* ---- Cores ------------------------------------------------------------------------------ */

static void process_knows_whether_its_cores_are_its_own(void **state)
{
    (void)state;
    int64_t all[3][SLI_CORE_WORDS] = {{0}};
    check_ok(sli_host_cores_read(all[0]));
    assert_false(sli_host_cores_are_own(all[0], 1, 0)); /* alone */
    all[1][0] = all[0][0];
    all[1][SLI_CORE_WORDS - 1] = INT64_MIN; /* the last core that has a bit */
    assert_true(sli_host_cores_are_own(all[0], 2, 0));
    memcpy(all[2], all[0], sizeof all[0]);
    assert_false(sli_host_cores_are_own(all[0], 3, 0)); /* 2 may use the same */
    assert_true(sli_host_cores_are_own(all[0], 3, 1));
    all[2][0]++; /* on another machine */
    assert_true(sli_host_cores_are_own(all[0], 3, 0));
    assert_false(sli_host_cores_are_own(all[0], 3, 2));
}

static void cores_suffice_for_few_threads_and_not_for_many(void **state)
{
    (void)state;
    enum { MANY = 5000 };
    static sl_device *devices[MANY];
    sl_device *device;
    check_ok(sl_device_create_cpu(1, &device));
    for (int i = 0; i < MANY; i++)
        devices[i] = device;
    assert_true(sli_host_cores_suffice(devices, 1));
    assert_false(sli_host_cores_suffice(devices, MANY));
    sl_device_destroy(&device);
}

int device_kinds_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixed_list_keeps_its_order_in_every_part),
        cmocka_unit_test(cores_are_divided_among_cpu_devices_alone),
        cmocka_unit_test(errors_are_those_of_the_names_kind),
        cmocka_unit_test(process_knows_whether_its_cores_are_its_own),
        cmocka_unit_test(cores_suffice_for_few_threads_and_not_for_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
